"""The settings of a collection: those that choose the method of a new one, and those that a store holds, validated."""

import json
from typing import Any

import numpy as np

from stillhash.collection.storage.lexical import check_lexical_field
from stillhash.collection.storage.schema import ADDITIVE_METHOD, LEXICAL_KEY, parse_json
from stillhash.collection.validation import check_filter_fields
from stillhash.errors import BadState, InvalidInput, WrongType
from stillhash.hashers import DEFAULT_HASHER, METHODS, Hasher, check_fixed_codes
from stillhash.numeric.rescoring import RESCORE_BITS
from stillhash.numeric.validation import check_bits, check_choice, check_integer, check_number

MANY_FEATURES = 512  # above them 2 bits a feature order the first page as the cosine does; up to here it takes 4
OWN_ARGUMENTS = ("bits", "codes_see_labels", "rescore_bits")  # are parameters of methods that are settings of their own


def check_params(params: Any, method: str) -> dict[str, Any]:
    """Return the parameters of a method as the store holds them."""
    known = METHODS[method].parameters()
    if not isinstance(params, dict):
        raise InvalidInput(f"params: expected a dictionary, got {params!r}")
    for name in params:
        if name in OWN_ARGUMENTS:
            raise InvalidInput(f"params: expected {name} as an argument of its own, got it in params")
        if name not in known:
            raise InvalidInput(f"params: expected parameters of {method} ({', '.join(known)}), got {name!r}")
    hasher = METHODS[method](**params)
    hasher.check_parameters()
    try:
        stored = json.loads(json.dumps(hasher.params_to_json()))
    except TypeError as error:
        raise InvalidInput(f"params: expected what JSON can hold: {error}") from None
    return {name: stored[name] for name in params}


def check_codes_see_labels(value: Any, method: str) -> bool:
    """Return whether codes hold labels: False for a method without that parameter."""
    if not isinstance(value, (bool, np.bool_)):
        raise WrongType(f"codes_see_labels: expected true or false, got {value!r}")
    return bool(value) and _can_see_labels(METHODS[method])


def check_rescore_bits(value: Any, settings: dict[str, Any]) -> int:
    """Return the bits a dimension of rescoring codes; of None 2, or 4 of few features, or 0 where there can be none.

    settings: the others of the collection. Ready codes have no features, and a rescoring code is of unit norm.
    """
    possible = not settings.get("codes_only", False) and new_hasher(settings).unit_norm
    if value is None:
        return (2 if settings["dim"] > MANY_FEATURES else 4) if possible else 0
    bits = check_integer(value, "rescore_bits", 0, max(RESCORE_BITS))
    if bits and not possible:
        raise InvalidInput(f"rescore_bits: expected 0, since codes_only is true or unit_norm is off, got {bits}")
    check_choice(bits, "rescore_bits", (0, *RESCORE_BITS))
    return bits


def new_hasher(settings: dict[str, Any]) -> Hasher:
    """Return a hasher by the settings of a collection, before it is fitted."""
    method = METHODS[settings["method"]]
    params = method.params_from_json(settings["params"])
    if _can_see_labels(method):
        params = {**params, "codes_see_labels": settings["codes_see_labels"]}
    if settings["method"] == ADDITIVE_METHOD:
        params = {**params, "rescore_bits": settings.get("rescore_bits", 0)}
    return method(bits=settings["bits"], **params)


def _can_see_labels(method: type[Hasher]) -> bool:
    return "codes_see_labels" in method.parameters()


IDENTITY_PARAMS = {"init": "identity", "center": False}  # bit i of a code is the sign of feature i


def check_codes_only(settings: dict[str, Any], dim: int | None, bits: int | None, init: Any) -> dict[str, Any]:
    """Return the settings of a new collection with what `codes_only` fixes of them; `settings` has the others."""
    if bits is None:
        raise InvalidInput("bits: expected the length of the codes, since the collection has codes only, got None")
    if dim is not None and dim != bits:
        raise InvalidInput(f"dim: expected None, since the collection has codes only, got {dim}")
    if init is not None or settings["encoder"] is not None:
        name = "encoder" if init is None else "init"
        raise InvalidInput(f"{name}: expected None, since the collection has codes only and no features")
    if settings["keep_features"]:
        raise InvalidInput("keep_features: expected False, since the collection has codes only and no features")
    if settings["method"] != DEFAULT_HASHER.name:
        raise InvalidInput(f"method: expected {DEFAULT_HASHER.name} for codes_only, got {settings['method']!r}")
    for name in IDENTITY_PARAMS:
        if name in settings["params"]:
            raise InvalidInput(f"params: expected no {name}, since the collection has codes only")
    own = {"dim": check_bits(bits), "codes_only": True, "codes_see_labels": False}
    return {**settings, **own, "params": {"double_sums": True, **settings["params"], **IDENTITY_PARAMS}}


def check_flag(value: Any) -> bool:
    """Return whether a collection has codes only."""
    if not isinstance(value, (bool, np.bool_)):
        raise WrongType(f"codes_only: expected true or false, got {value!r}")
    return bool(value)


MAX_DIM = 1 << 24
MAX_SETTING = 1 << 40
ENCODER_FIELDS = {"name": str, "fingerprint": str, "dim": int}


def parse_settings(text: Any) -> dict[str, Any]:
    """Return the settings in this JSON text; BadState if one is missing or cannot be true."""
    settings: dict[str, Any] = parse_json(text, dict, "settings")
    try:
        check_integer(settings["dim"], "dim", 1, MAX_DIM)
        check_bits(settings["bits"])
        method = check_fixed_codes(settings["method"])
        check_params(METHODS[method].params_from_json(settings["params"]), method)
        check_codes_see_labels(settings["codes_see_labels"], method)
        for name in ("init_rows", "learn_rows", "keep_versions"):
            check_integer(settings[name], name, 1, MAX_SETTING)
        check_number(settings["source_cap"], "source_cap", above=0)
        check_filter_fields(settings["filter_fields"])
        check_lexical_field(settings.get(LEXICAL_KEY))
        _check_encoder(settings.get("encoder"))
        check_choice(settings.get("keep_features", False), "keep_features", choices=(True, False))
        check_rescore_bits(settings.setdefault("rescore_bits", 0), settings)
        _check_codes_only(settings.setdefault("codes_only", False), settings)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)[:200]
        raise BadState(f"settings: expected those of a collection, got {problem}") from error
    return settings


def _check_encoder(encoder: Any) -> None:
    if encoder is None:
        return
    fields = {name: type(value) for name, value in encoder.items()}
    if fields != ENCODER_FIELDS:
        raise InvalidInput(f"encoder: expected {', '.join(ENCODER_FIELDS)}, got others")


def _check_codes_only(codes_only: Any, settings: dict[str, Any]) -> None:
    if not isinstance(codes_only, bool):
        raise InvalidInput("codes_only: expected true or false, got another value")
    if codes_only and (settings["dim"] != settings["bits"] or settings["params"].get("init") != "identity"):
        raise InvalidInput("codes_only: expected signs of the codes as features, got others")


def check_id(collection: Any) -> bytes:
    """Return the id of a collection; BadState if it is none."""
    if not isinstance(collection, bytes) or len(collection) != 16:
        raise BadState(f"collection: expected an id of 16 bytes, got {collection!r:.100}")
    return collection
