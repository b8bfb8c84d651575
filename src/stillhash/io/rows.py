"""A row of a file, and how its values are parsed.

JSON lines, numeric arrays and Parquet keep the types they have. Where all is text, an id or a label that is a whole
number becomes an integer, and a metadata field that is a JSON number becomes a number.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stillhash.errors import InvalidInput, shortage

JSON_NUMBER = re.compile(r"-?(0|[1-9]\d{0,99})(\.\d{1,99})?([eE][+-]?\d{1,3})?", re.ASCII)


class Row(NamedTuple):
    """One row of a file; a field that the file lacks is None."""

    place: str
    progress: float  # share of the file read so far
    ids: Any  # one id; named as the array and the option are
    features: Any
    labels: Any
    metadata: Any


def integer_or_text(text: str) -> str | int:
    """Parse an id or a label: a 64-bit whole number is an integer, all else is text, as is '"7"' in double quotes."""
    if len(text) > 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    if len(text) <= 20 and JSON_NUMBER.fullmatch(text) and text.lstrip("-").isdigit():
        number = int(text)
        return number if str(number) == text and -(2**63) <= number < 2**63 else text
    return text


def number_or_text(text: str) -> int | float | str:
    """Parse a metadata field: a finite JSON number is a number, all else is text."""
    if not JSON_NUMBER.fullmatch(text):
        return text
    number: int | float = json.loads(text)
    return number if math.isfinite(number) else text


def parse_ids(lines: Iterable[str]) -> list[str | int]:
    """Parse one id per line; empty lines are skipped."""
    return [integer_or_text(line.strip()) for line in lines if line.strip()]


def format_id(name: str | int) -> str:
    """Return an id as a line that `parse_ids` reads."""
    text = str(name)
    return text if parse_ids([text]) == [name] else f'"{text}"'


def parse_labels(value: Any, where: str, separator: str | None = "|", column: str | None = None) -> list[Any]:
    """Parse the labels of a row: 'cat|dog', a row of an indicator matrix, a list, or one label.

    separator: splits a text, whose parts are stripped, and whole numbers if they look so; None keeps it whole.
    column: where a boolean comes from; if it is true, this name is the label.

    A null and NaN are no label.
    """
    if isinstance(value, str):
        if separator is None:
            return [value] if value else []
        return [integer_or_text(part.strip()) for part in value.split(separator) if part.strip()]
    if isinstance(value, np.ndarray):
        if not np.isin(value, (0, 1)).all():
            raise InvalidInput(f"{where}: labels: expected an indicator matrix of 0 and 1, got other values")
        return list(map(int, np.flatnonzero(value)))
    if isinstance(value, bool) and column is not None:
        return [column] if value else []
    return [label for label in (value if isinstance(value, list) else [value]) if not is_missing(label)]


def is_missing(value: Any) -> bool:
    """Return whether this is a null or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def parse_metadata(value: Any, where: str) -> dict[str, Any] | None:
    """Parse metadata given as an object or as JSON text; empty text is None."""
    if isinstance(value, str):
        value = parse_json(value, f"{where}: metadata") if value.strip() else None
    if value is not None and not isinstance(value, dict):
        raise InvalidInput(f"{where}: metadata: expected a JSON object, got {value!r}")
    return value


def parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: expected JSON: {error}") from None


def parse_json_object(text: str | None, name: str) -> dict[str, Any] | None:
    """Parse an option that holds a JSON object; None stays None."""
    if text is None:
        return None
    value = parse_json(text, name)
    if not isinstance(value, dict):
        raise InvalidInput(f"{name}: expected a JSON object, got {text!r}")
    return value


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise InvalidInput for a file that cannot be opened or read, unless the system lacks something for it."""
    try:
        yield
    except OSError as error:
        if (lack := shortage(error)) is not None:
            raise lack from None
        raise InvalidInput(f"{path}: cannot be read: {error.strerror or error}") from None


def read_json_lines(path: Path) -> list[Any]:
    """Return the values of a file with JSON on each line, or of stdin for '-'; empty lines are skipped."""
    with reading(path):
        lines = ((number, line) for number, line, _ in read_lines(path) if line.strip())
        return [parse_json(line, f"{path.name}, line {number}") for number, line in lines]


def read_lines(path: Path) -> Iterator[tuple[int, str, float]]:
    """Yield number, text and share read so far of each line of a file, or of stdin for '-'."""
    stdin = str(path) == "-"
    with nullcontext(sys.stdin.buffer) if stdin else path.open("rb") as handle:
        size = 0 if stdin else max(1, path.stat().st_size)
        for number, line in enumerate(handle, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise InvalidInput(f"{path.name}, line {number}: expected UTF-8 text") from None
            yield number, text, handle.tell() / size if size else 0.0
