"""Saved state of hashers in the safetensors format: arrays, and a description as JSON. Nothing in it is executed."""

import json
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from stillhash.errors import BadState, InvalidInput

STATE_FORMAT = 1


def write_state(description: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return the bytes of a description (method, params, extra) and arrays."""
    try:
        text = json.dumps({"format": STATE_FORMAT, **description}, sort_keys=True)
    except TypeError as error:
        raise InvalidInput(f"state: expected parameters and labels that JSON can represent, got {error}") from None
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return safetensors.numpy.save(contiguous, {"stillhash": text})


def read_state(state: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the description and the arrays in the bytes of `Hasher.state`."""
    try:
        arrays = safetensors.numpy.load(bytes(state))
        size = int.from_bytes(state[:8], "little")
        description = json.loads(json.loads(state[8 : 8 + size])["__metadata__"]["stillhash"])
        version = description["format"]
        description["method"], description["params"], description["extra"]
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadState(f"state: cannot be read: {error}") from error
    if version != STATE_FORMAT:
        raise BadState(f"state: expected format version {STATE_FORMAT}, got {version}")
    return description, arrays
