"""Convert everyday values to what a collection stores, the same for ids, metadata, labels and filters.

NumPy scalars            the number, boolean or text
datetime, date           text in ISO 8601; with a zone in UTC, so that the order of texts is that of times
UUID, Path               text
Enum                     its value, converted again
Decimal                  an integer, or the nearest double
NA and NaT of pandas     null
arrays, in metadata      lists

Everything else is refused by the name of its type: bytes, sets, complex numbers, durations, objects.
"""

import json
import math
import re
import reprlib
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from types import NoneType
from typing import Any, TypeGuard
from uuid import UUID

import numpy as np

from stillhash.collection.types import IdLike
from stillhash.errors import InvalidInput, WrongType
from stillhash.numeric.labels import canonical, is_missing_marker, python_scalar

SCALAR_TYPES = frozenset((str, int, float, bool, NoneType))
LABEL_TYPES = frozenset((str, int, float))
SINGLE_ID_TYPES = (str, int, np.generic, UUID, PurePath, Enum, date)
MAX_ARRAY = 1 << 19  # entries are the most of an array: more would not fit into the metadata of an item
MAX_INTEGER_BITS = 1000  # a message shows integers of so many bits at most
MAX_NAMED_DEPTH = 100  # a message shows values nested so deep at most
MAX_METADATA_DEPTH = 500  # SQLite reads 1,000; how deep Python writes depends on its version
JSON_VALUES = "text, a number, a boolean, null, a date, a UUID, or lists and objects of these"


class BriefRepr(reprlib.Repr):
    """Describe values of any depth and length in a few words."""

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < MAX_INTEGER_BITS else "a large integer"


brief = BriefRepr().repr


def plain_value(value: Any) -> Any:
    """Return the text, number, boolean or null that is stored for a value; if there is none, the value itself."""
    if type(value) in SCALAR_TYPES:
        return value
    if is_missing_marker(value):
        return None
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return plain_value(value[()])
    if isinstance(value, np.generic):
        plain = python_scalar(value)
        if isinstance(value, np.datetime64):
            return np.datetime_as_string(value).item() if plain is value else plain.isoformat()
        return plain if type(plain) in SCALAR_TYPES else value
    for base in (str, int, float):
        if isinstance(value, base):
            return base.__str__(value) if base is str else base(value)
    return _convert(value)


def _convert(value: Any) -> Any:
    match value:
        case Enum():
            return plain_value(value.value)
        case datetime():
            return _datetime_text(value)
        case date():
            return value.isoformat()
        case UUID() | PurePath():
            return str(value)
        case Decimal() if value.is_finite():
            whole = abs(value) < 2**63 and value == value.to_integral_value()
            return int(value) if whole else float(value)
        case Decimal() if not value.is_snan():
            return float(value)  # refused, as all that is not finite
    return value


def _datetime_text(value: datetime) -> Any:
    if value.utcoffset() is None:
        return value.isoformat()
    try:
        return value.astimezone(UTC).isoformat()
    except (OverflowError, ValueError):  # beyond the first or the last year in UTC
        return value


def plain_label(label: Any, name: str = "labels") -> Any:
    """Return the text or number that is stored for a label."""
    plain = plain_value(label)
    if type(plain) is not str and type(plain) in SCALAR_TYPES:
        plain = canonical(plain, name)
    if type(plain) not in LABEL_TYPES:
        raise WrongType(f"{name}: expected strings and numbers, got {brief(label)}")
    return plain


def plain_id(value: Any, name: str) -> Any:
    """Return the text or integer that is stored for an id."""
    plain = plain_value(value)
    if type(plain) not in (str, int) or isinstance(value, Decimal):
        raise WrongType(f"{name}: expected strings and integers, got {brief(value)}")
    return plain


def is_single_id(value: Any) -> TypeGuard[IdLike]:
    """Return whether this is one id, and no list of ids."""
    return isinstance(value, SINGLE_ID_TYPES) or (isinstance(value, np.ndarray) and value.ndim == 0)


def json_default(value: Any) -> Any:
    """Return what the JSON encoder writes for a value that it does not know; TypeError if it cannot be stored."""
    plain = plain_value(value)
    if plain is not value:
        return plain
    if isinstance(value, np.ndarray) and value.size <= MAX_ARRAY:
        return value.tolist() if value.dtype.kind in "biufU" else list(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def check_json_values(data: dict[str, Any], name: str) -> None:
    """Raise an error that names the first value that cannot be stored, and where it is."""
    for place, value in _places(data, name, 0):
        plain = plain_value(value)
        if isinstance(plain, float) and not math.isfinite(plain):
            raise InvalidInput(f"{place}: expected a finite number, got {plain}")
        if isinstance(plain, str) and "\0" in plain:
            raise InvalidInput(f"{place}: expected text without the character 0, got some")
        if type(plain) not in SCALAR_TYPES:
            raise WrongType(f"{place}: expected {JSON_VALUES}, got {type(value).__name__}")


def _places(value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield each value within lists and objects, and where it is, as Python would write it."""
    value = plain_value(value)
    if depth > MAX_NAMED_DEPTH:
        return
    if isinstance(value, dict):
        for key, entry in value.items():
            yield f"{place}: a key", key
            yield from _places(entry, f"{place}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and 0 < value.ndim <= value.size):
        for number, entry in enumerate(value):
            yield from _places(entry, f"{place}[{number}]", depth + 1)
    else:
        yield place, value


JSON_ENCODER = json.JSONEncoder(allow_nan=False, default=json_default)


def json_depth(text: str) -> int:
    """Return how many objects and lists of this JSON are in one another; where there are few, how many there are."""
    if (brackets := text.count("{") + text.count("[")) <= MAX_METADATA_DEPTH:
        return brackets
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", re.sub(r'"(?:[^"\\]|\\.)*"', "", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def json_text(data: Any) -> str:
    """Return JSON as every version of SQLite reads it: \\u0022 for a quote, which would end a path, and no \\u0000."""
    text = JSON_ENCODER.encode(data)
    return re.sub(r"\\(u0000|.)", _escape, text) if "\\" in text else text


def _escape(match: re.Match[str]) -> str:
    if match[1] == "u0000":
        raise ValueError("the character 0 ends a string")
    return r"\u0022" if match[1] == '"' else match[0]
