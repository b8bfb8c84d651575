"""The settings of a collection that choose its method and the method's parameters."""

import json
from typing import Any

import numpy as np

from stillhash.errors import InvalidInput, WrongType
from stillhash.hashers import METHODS, Hasher

OWN_ARGUMENTS = ("bits", "codes_see_labels")  # parameters of methods that are settings of their own


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


def new_hasher(settings: dict[str, Any]) -> Hasher:
    """Return a hasher by the settings of a collection, before it is fitted."""
    method = METHODS[settings["method"]]
    params = method.params_from_json(settings["params"])
    if _can_see_labels(method):
        params = {**params, "codes_see_labels": settings["codes_see_labels"]}
    return method(bits=settings["bits"], **params)


def _can_see_labels(method: type[Hasher]) -> bool:
    return "codes_see_labels" in method.parameters()
