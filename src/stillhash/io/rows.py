"""A row, the values it may hold, and JSON lines.

JSON lines, numbers of arrays and Parquet keep the types they have. Where all is text, an id or a label that is a whole
number is an integer, and a field of metadata that is a number as JSON writes it is a number.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stillhash.errors import InvalidInput

NUMBER = re.compile(r"-?(0|[1-9]\d{0,99})(\.\d{1,99})?([eE][+-]?\d{1,3})?", re.ASCII)


class Row(NamedTuple):
    """What a file says of a row; None where it says nothing."""

    place: str
    done: float  # the share of the file that is read
    ids: Any  # one id; named for the file's array and the option
    features: Any
    labels: Any
    metadata: Any


def word(text: str) -> str | int:
    """An id or a label: a whole number of 64 bits is an integer, all else is text, also '"7"' in double quotes."""
    if len(text) > 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    if len(text) <= 20 and NUMBER.fullmatch(text) and text.lstrip("-").isdigit():
        number = int(text)
        return number if str(number) == text and -(2**63) <= number < 2**63 else text
    return text


def number_or_text(text: str) -> int | float | str:
    if not NUMBER.fullmatch(text):
        return text
    number: int | float = json.loads(text)
    return number if math.isfinite(number) else text


def labels_of(value: Any, where: str) -> list[Any]:
    """The labels of a row: 'cat|dog', a row of an indicator matrix, a list, or one label."""
    if isinstance(value, str):
        return [word(part.strip()) for part in value.split("|") if part.strip()]
    if isinstance(value, np.ndarray):
        if not np.isin(value, (0, 1)).all():
            raise InvalidInput(f"{where}: labels holds other than 0 and 1; an indicator matrix is wanted")
        return list(map(int, np.flatnonzero(value)))
    return value if isinstance(value, list) else [] if value is None else [value]


def metadata_of(value: Any, where: str) -> dict[str, Any] | None:
    """Metadata as an object or as the JSON text of one; empty text is none."""
    if isinstance(value, str):
        value = parsed(value, f"{where}: metadata") if value.strip() else None
    if value is not None and not isinstance(value, dict):
        raise InvalidInput(f"{where}: metadata is {value!r}; a JSON object is wanted")
    return value


def parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: it is not JSON: {error}") from None


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """A file that cannot be opened or read is the caller's error."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"{path}: it cannot be read: {error.strerror or error}") from None


def lines_of(path: Path) -> Iterator[tuple[int, str, float]]:
    """The lines of a file, or of stdin for '-', with their numbers and the share of the file that is read."""
    handle = sys.stdin.buffer if str(path) == "-" else path.open("rb")
    size = 0 if str(path) == "-" else max(1, path.stat().st_size)
    try:
        for number, line in enumerate(handle, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise InvalidInput(f"{path.name}, line {number}: it is not UTF-8 text") from None
            yield number, text, handle.tell() / size if size else 0.0
    finally:
        if handle is not sys.stdin.buffer:
            handle.close()


def json_lines(path: Path) -> Iterator[Row]:
    """Objects with id, features, labels and metadata."""
    for number, line, done in lines_of(path):
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        told = parsed(line, where)
        if not isinstance(told, dict) or "features" not in told:
            raise InvalidInput(f"{where}: an object with id, features, and perhaps labels and metadata is wanted")
        for key in told:
            if key not in ("id", "features", "labels", "metadata"):
                raise InvalidInput(f"{where}: {key!r} is not known; id, features, labels, metadata are")
        labels = told.get("labels")
        if labels is not None and not isinstance(labels, list):
            labels = [labels]
        metadata = metadata_of(told.get("metadata"), where)
        yield Row(f"line {number}", done, told.get("id"), told["features"], labels, metadata)
