"""Check the settings that choose the method of a new collection, and those of a collection of ready codes."""

import json
from typing import Any

import numpy as np

from stillhash.collection.storage.schema import ADDITIVE_METHOD
from stillhash.errors import InvalidInput, WrongType
from stillhash.hashers import DEFAULT_HASHER, METHODS, Hasher
from stillhash.numeric.rescoring import RESCORE_BITS
from stillhash.numeric.validation import check_bits, check_choice, check_integer

MANY_FEATURES = 512  # above them 2 bits a feature order the first page as the cosine does, up to here it takes 4
OWN_ARGUMENTS = ("bits", "codes_see_labels", "rescore_bits")  # parameters of methods that are settings of their own


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
