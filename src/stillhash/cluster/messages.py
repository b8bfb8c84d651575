"""Messages between fronts, aggregators and shards: a JSON header and raw arrays, each in a frame of ZeroMQ.

Nothing is unpickled. What does not fit its description is refused, so a message of a stranger cannot do harm.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import stillhash.errors
from stillhash.errors import InvalidInput, StillhashError, Unreachable

MAX_MESSAGE_HEADER_BYTES = 1 << 26
MAX_ARRAYS = 1 << 16
ARRAY_TYPES = frozenset({"<f4", "<f8", "<i8", "|u1"})


class Message(NamedTuple):
    """What a message says: a header of plain values, and arrays."""

    header: dict[str, Any]
    arrays: list[NDArray[Any]]


def pack(header: dict[str, Any], arrays: Sequence[NDArray[Any]] = ()) -> list[Any]:
    """Return the frames of a message."""
    contiguous = [np.ascontiguousarray(array) for array in arrays]
    described = {**header, "arrays": [[array.dtype.str, *array.shape] for array in contiguous]}
    return [json.dumps(described, separators=(",", ":")).encode(), *(array.reshape(-1).data for array in contiguous)]


def unpack(frames: Sequence[Any]) -> Message:
    """Return the message of these frames; InvalidInput if they are none. Arrays share the memory of their frames."""
    try:
        if not frames or len(frames[0]) > MAX_MESSAGE_HEADER_BYTES or len(frames) > MAX_ARRAYS:
            raise ValueError(f"{len(frames)} frames")
        header = json.loads(bytes(frames[0]))
        shapes = header.pop("arrays")
        arrays = [_read_array(data, *shape) for data, shape in zip(frames[1:], shapes, strict=True)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"message: expected a header and its arrays, got {error}") from None
    return Message(header, arrays)


def _read_array(data: Any, kind: str, *shape: int) -> NDArray[Any]:
    if kind not in ARRAY_TYPES or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"an array of {kind} {shape}")
    if len(data) != math.prod(shape) * np.dtype(kind).itemsize:
        raise ValueError(f"{len(data)} bytes for an array of {kind} {shape}")
    return np.frombuffer(data, kind).reshape(shape)


def error_to_json(error: BaseException) -> dict[str, str]:
    """Return an error as it travels: the name of its class, and its message."""
    name = type(error).__name__ if isinstance(error, StillhashError) else "Unreachable"
    return {"class": name, "message": str(error) or repr(error)}


def error_from_json(error: dict[str, str]) -> StillhashError:
    """Return the error that travelled."""
    kind = getattr(stillhash.errors, str(error.get("class")), Unreachable)
    known = isinstance(kind, type) and issubclass(kind, StillhashError)
    return (kind if known else Unreachable)(str(error.get("message")))
