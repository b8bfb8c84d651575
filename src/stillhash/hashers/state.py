"""Saved state of hashers in the safetensors format: arrays, and a description as JSON. Nothing in it is executed.

A file of `Hasher.save` is such a state with a digest of all the rest in its metadata, so that damage is noticed.
"""

import hashlib
import json
import os
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from stillhash.errors import BadState, InvalidInput, WrongType
from stillhash.files import read_regular, saved_path, translate_read_errors

STATE_FORMAT = 1
MAX_STATE_BYTES = 1 << 36
State = bytes | bytearray | memoryview | str | os.PathLike[str]  # the bytes of a state, or the path of a file of them


def write_state(description: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return the bytes of a description (method, params, extra) and arrays."""
    try:
        text = json.dumps({"format": STATE_FORMAT, **description}, sort_keys=True)
    except TypeError as error:
        raise InvalidInput(f"state: expected parameters and labels that JSON can represent, got {error}") from None
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return safetensors.numpy.save(contiguous, {"stillhash": text})


def read_state(state: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the description and the arrays in the bytes of `Hasher.state`, or of a file."""
    try:
        arrays = safetensors.numpy.load(state)
        header, data = _split(state)
        digest = header["__metadata__"].pop("blake2b", None)
        if digest is not None and digest != _digest(header, data):
            raise BadState("state: damaged; it does not match its digest")
        description = json.loads(header["__metadata__"]["stillhash"])
        version = description["format"]
        description["method"], description["params"], description["extra"]
    except BadState:
        raise
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadState(f"state: cannot be read: {error}") from error
    if version != STATE_FORMAT:
        raise BadState(f"state: expected format version {STATE_FORMAT}, got {version}")
    return description, arrays


def state_bytes(state: State) -> bytes:
    """Return the bytes of a state, read from its file if it is a path."""
    if isinstance(state, bytes | bytearray | memoryview):
        return bytes(state)
    if not isinstance(state, str | os.PathLike):
        raise WrongType(f"state: expected bytes or a path, got {state!r:.100}")
    path = saved_path(state)
    with translate_read_errors(path):
        return read_regular(path, MAX_STATE_BYTES)


def add_digest(state: bytes) -> bytes:
    """Return the state with a digest of it in its metadata."""
    header, data = _split(state)
    header["__metadata__"]["blake2b"] = _digest(header, data)
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # arrays begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + data


def _split(state: bytes) -> tuple[dict[str, Any], memoryview]:
    """Return the header and the data of a safetensors file."""
    size = int.from_bytes(state[:8], "little")
    return json.loads(state[8 : 8 + size]), memoryview(state)[8 + size :]


def _digest(header: dict[str, Any], data: memoryview) -> str:
    text = json.dumps(header, sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=16, key=hashlib.blake2b(text).digest()).hexdigest()
