"""Rows, chunks of rows, their columns, and how values are parsed and checked.

JSON lines, numeric arrays and Parquet keep the types they have. Where all is text, an id or a label that is a whole
number becomes an integer, and a metadata field that is a JSON number becomes a number.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, shortage

ID_NAMES = ("id", "ids", "image_id", "item_id", "document_id", "doc_id", "_id", "uuid")
VECTOR_NAMES = ("features", "vector", "vectors", "embedding", "embeddings")
LABELS_NAMES = ("labels", "label")
CODE_NAME = "stillhash_code"  # is what `export` calls codes; they are read only where it is named
BLOCK_ROWS = 2048  # rows that are read at a time by range
JSON_NUMBER = re.compile(r"-?(0|[1-9]\d{0,99})(\.\d{1,99})?([eE][+-]?\d{1,3})?", re.ASCII)


class Row(NamedTuple):
    """One row of a file; a field that the file lacks is None."""

    place: str
    progress: float  # share of the file read so far
    ids: Any  # one id; named as the array and the option are
    features: Any
    labels: Any
    metadata: Any


class BatchContent(NamedTuple):
    """Features, labels and metadata of the rows of a batch, with one entry for each."""

    features: NDArray[Any]  # (n, D)
    labels: Any
    metadata: Any


class Chunk(NamedTuple):
    """Consecutive rows of a file or a table."""

    place: str  # of its first and last row
    progress: float  # share read so far; 0 if the number of rows is not known
    ids: list[Any] | None
    features: NDArray[Any]  # (n, D) finite numbers
    labels: Any  # one entry for each row
    metadata: Any


class LazyChunk(NamedTuple):
    """A chunk of which only the ids are read; `load` reads the rest, before the next chunk is taken."""

    place: str
    progress: float
    rows: int
    ids: list[Any] | None  # None if the rows have none
    read: Callable[[], BatchContent]

    def load(self) -> Chunk:
        """Read the rest."""
        return Chunk(self.place, self.progress, self.ids, *self.read())


class RowBlock(NamedTuple):
    """Consecutive rows of a file, as stored: not validated yet."""

    features: NDArray[Any]  # (n, D)
    ids: list[Any] | None
    labels: NDArray[Any] | list[Any] | None
    metadata: list[dict[str, Any] | None] | None


class ColumnNames(NamedTuple):
    """The columns that the caller names; None for those that are recognised by their names."""

    id: str | None = None
    vector: str | None = None
    labels: tuple[str, ...] | None = None
    metadata: tuple[str, ...] | Literal["all"] | None = None
    separator: str | None = None  # splits texts of labels; None: as the format does


USUAL_NAMES = ColumnNames()


class Columns:
    """The columns of one table that are read, and how a row of them is parsed.

    strict: whether a column that is none of the usual ones is an error, unless `names.metadata` says what to do.
    """

    def __init__(
        self, header: Sequence[str], source: str, names: ColumnNames = USUAL_NAMES, *, strict: bool = False
    ) -> None:
        self.header, self.source, self.separator = list(header), source, names.separator
        if other := [name for name in header if not isinstance(name, str)]:
            raise InvalidInput(f"{source}: columns: expected strings as names, got {other[0]!r}")
        if len(set(header)) != len(header):
            twice = next(name for name in header if self.header.count(name) > 1)
            raise InvalidInput(f"{source}: columns: expected different names, got {twice!r} twice")
        self.id = self._existing(names.id, "id column") or self._usual(ID_NAMES)
        self.vector = self._existing(names.vector, "vector column")
        self.numbered = self._numbered() if self.vector is None else []
        if self.vector is None and not self.numbered:
            self.vector = self._usual(VECTOR_NAMES)
        if names.labels is None:
            usual = self._usual(LABELS_NAMES)
            self.labels = [] if usual is None else [usual]
        else:
            self.labels = [name for each in names.labels if (name := self._existing(each, "label column"))]
        self.others = self._metadata_columns(names.metadata, strict)

    @property
    def needed(self) -> list[str]:
        """Return the columns to read, in their order."""
        used = {self.id, self.vector, *self.numbered, *self.labels, *self.others}
        return [name for name in self.header if name in used]

    def row_labels(self, record: dict[str, Any], where: str, separator: str | None) -> list[Any] | None:
        """Return the labels of a row, of all label columns; None if there is no such column."""
        columns = [name for name in self.labels if name in record]
        if not columns:
            return None
        return [label for name in columns for label in parse_labels(record[name], where, separator, name)]

    def row_metadata(self, record: dict[str, Any], where: str) -> dict[str, Any] | None:
        """Return the metadata of a row; None if it has none."""
        return merge_metadata(record, self.others, where) or None

    def _metadata_columns(self, names: tuple[str, ...] | Literal["all"] | None, strict: bool) -> list[str]:
        if names is not None and names != "all":
            return [name for each in names if (name := self._existing(each, "metadata column"))]
        used = {self.id, self.vector, *self.numbered, *self.labels, CODE_NAME}
        others = [name for name in self.header if name not in used]
        if strict and names is None and (unknown := [name for name in others if name != "metadata"]):
            usual = ", ".join([*(name for name in self.header if name in used), "metadata"])
            hint = "Name it as a metadata column, or name those to store."
            raise InvalidInput(f"{self.source}: columns: expected {usual}, got {unknown[0]!r} besides. {hint}")
        return others

    def _numbered(self) -> list[str]:
        """Return f0, f1, ... if the table has them; raise InvalidInput unless it has either these or one of vectors."""
        numbered = [name for name in self.header if re.fullmatch(r"f\d+", name, re.ASCII)]
        ordered = [f"f{number}" for number in range(len(numbered))]
        if set(numbered) != set(ordered):
            missing = next(name for name in ordered if name not in numbered)
            raise InvalidInput(f"{self.source}: columns: expected f0, f1, ... without a gap; {missing} is missing")
        if not numbered and not self._usual(VECTOR_NAMES) and CODE_NAME in self.header:
            hint = "Features cannot be computed from codes. A snapshot is a whole copy."
            raise InvalidInput(f"{self.source}: columns: expected features, got {CODE_NAME} without them. {hint}")
        if bool(numbered) == bool(self._usual(VECTOR_NAMES)):
            usual = f"either f0, f1, ... or one of {', '.join(VECTOR_NAMES)}"
            hint = "Name the vector column."
            raise InvalidInput(f"{self.source}: columns: expected {usual}, got {self._listed()}. {hint}")
        return ordered

    def _existing(self, name: str | None, what: str) -> str | None:
        if name is not None and name not in self.header:
            raise InvalidInput(f"{self.source}: {what}: expected one of {self._listed()}, got {name!r}")
        return name

    def _usual(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in self.header), None)

    def _listed(self) -> str:
        return ", ".join(self.header) or "none"


def merge_metadata(record: dict[str, Any], names: Sequence[str], where: str) -> dict[str, Any] | None:
    """Merge the column metadata, an object or its JSON, with the other columns of these names that a row has."""
    whole = parse_metadata(record.get("metadata"), where) if "metadata" in names else None
    fields = {name: record[name] for name in names if name in record and name != "metadata"}
    return (whole or {}) | fields if fields else whole


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


def is_valid(features: NDArray[Any], dim: int | None) -> bool:
    """Return whether these are rows of `dim` finite numbers."""
    shape_fits = features.ndim == 2 and (dim is None or features.shape[1] == dim)
    return shape_fits and features.dtype.kind in "fiub" and bool(np.isfinite(features).all())


def vector_length(value: Any) -> int:
    """Return how many numbers a vector has, 1 if it is none."""
    return len(value) if isinstance(value, (list, np.ndarray)) else 1


def check_vector(value: Any, dim: int, where: str) -> NDArray[Any]:
    """Return features as a vector of `dim` finite numbers."""
    try:
        vector = np.asarray(value)
    except ValueError:
        vector = np.empty((0, 0))  # nested lists of several lengths
    if vector.ndim != 1 or (vector.size and vector.dtype.kind not in "fiub"):
        raise InvalidInput(f"{where}: features: expected {dim} numbers, got other values")
    if len(vector) != dim:
        raise InvalidInput(f"{where}: features: expected {dim} numbers, got {len(vector)}")
    if not np.isfinite(vector).all():
        at = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise InvalidInput(f"{where}: features[{at}]: expected a finite number, got {vector[at]}")
    return vector


def check_matrix(features: NDArray[Any], dim: int | None, where: Callable[[int], str]) -> NDArray[Any]:
    """Return rows of `dim` finite numbers, or raise InvalidInput for the first row that is none."""
    if not is_valid(features, dim):
        if features.ndim != 2:
            raise InvalidInput(f"{where(0)}: features: expected rows of numbers, got shape {features.shape}")
        for number, vector in enumerate(features):
            check_vector(vector, features.shape[1] if dim is None else dim, where(number))
    return features


def join_lists(lists: list[list[list[Any]]], rows: int) -> list[list[Any]]:
    """Join the labels of several columns row by row. Rows may share a list."""
    if len(lists) <= 1:
        return lists[0] if lists else [[]] * rows
    return [[label for some in row for label in some] for row in zip(*lists, strict=True)]


def span(source: str, rows: range) -> str:
    """Return where rows are: 'file.npy, row 0 to row 9'."""
    return f"{source}, row {rows.start}" + (f" to row {rows.stop - 1}" if len(rows) > 1 else "")
