"""Which columns hold ids, vectors, labels and metadata: those that the caller names, or those with a usual name."""

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from stillhash.errors import InvalidInput
from stillhash.io.rows import parse_labels, parse_metadata

ID_NAMES = ("id", "ids", "image_id", "item_id", "document_id", "doc_id", "_id", "uuid")
VECTOR_NAMES = ("features", "vector", "vectors", "embedding", "embeddings")
LABELS_NAMES = ("labels", "label")
CODE_NAME = "stillhash_code"  # of what `export` writes; read only where it is named


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
