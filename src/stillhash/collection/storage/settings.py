"""Read the settings of a collection, in the table `meta`. They are validated, since a store may come from anyone."""

from typing import Any

from stillhash.collection.learning.settings import check_codes_see_labels, check_params, check_rescore_bits
from stillhash.collection.storage.lexical import check_lexical_field
from stillhash.collection.storage.schema import LEXICAL_KEY, parse_json
from stillhash.collection.validation import check_filter_fields
from stillhash.errors import BadState, InvalidInput
from stillhash.hashers import METHODS, check_fixed_codes
from stillhash.numeric.validation import check_bits, check_choice, check_integer, check_number

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
