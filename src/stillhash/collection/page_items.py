"""What the first page reads of its candidates: rescoring codes, mapped where they are sealed, and the labels of now."""

import copy
import json
from collections.abc import Iterable
from sqlite3 import Connection
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.columns import FilterColumns, MovedOn
from stillhash.collection.filters.matching import NotInColumns
from stillhash.collection.storage.schema import batches, parsing
from stillhash.errors import BadState
from stillhash.numeric import kernels
from stillhash.numeric.labels import Labels, from_json
from stillhash.numeric.validation import Codes
from stillhash.search.blocks import IdArray

MAX_UNSEALED_BYTES = 1 << 26  # of codes in memory, before those that are sealed by now are mapped instead


class SealedRows(NamedTuple):
    """The rescoring codes of a segment, mapped; None if they are lost."""

    first: int
    last: int
    numbers: NDArray[np.int64] | None  # None: all rows from the first to the last
    codes: Codes | None

    def readable(self) -> Codes | None:
        """Return the codes, None if they are not those of so many rows."""
        rows = self.last - self.first + 1 if self.numbers is None else len(self.numbers)
        return self.codes if self.codes is not None and len(self.codes) == rows else None


class RescoringCodes:
    """The rescoring codes of all rows: of sealed rows in files, of later ones in memory."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.use([])

    def use(self, sealed: Iterable[SealedRows]) -> None:
        """Start again with these segments, in order of their rows, and no other rows."""
        self._sealed: list[tuple[Any, ...]] = [(*segment[:3], None, segment.readable()) for segment in sealed]
        self._parts = self._sealed
        self._count = 0
        self._numbers, self._codes = np.empty(0, np.int64), np.empty((0, self.width), np.uint8)

    def add(self, numbers: NDArray[np.int64], codes: Codes) -> None:
        """Add rows that came later, ascending."""
        count = self._count + len(numbers)
        if count > len(self._numbers):  # a new array: snapshots keep the one before
            spare = max(count, 2 * len(self._numbers)) - self._count
            self._numbers = np.concatenate([self._numbers[: self._count], np.zeros(spare, np.int64)])
            self._codes = np.concatenate([self._codes[: self._count], np.zeros((spare, self.width), np.uint8)])
        self._numbers[self._count : count], self._codes[self._count : count] = numbers, codes
        self._count = count
        if count:
            later = self._numbers[:count]
            self._parts = [*self._sealed, (int(later[0]), int(later[-1]), later, None, self._codes[:count])]

    @property
    def outgrown(self) -> bool:
        """Return whether so many codes are in memory that those which are sealed by now should be mapped."""
        return self._count * self.width > MAX_UNSEALED_BYTES

    def frozen(self) -> Self:
        """Return what is known at this moment: later rows do not reach it."""
        return copy.copy(self)

    def of_rows(self, rows: IdArray) -> Codes:
        """Return the codes (n, width) of these rows; all bytes 0xFF where they are lost."""
        return kernels.read_arrays(self._parts, rows, self.width)


class PageItems:
    """The candidates of one commit (numeric/rescored_page.py, StoredItems)."""

    def __init__(self, connection: Connection, codes: RescoringCodes, columns: FilterColumns) -> None:
        self._connection, self._codes, self._columns = connection, codes, columns

    def rescoring_codes(self, ids: IdArray) -> Codes:
        return self._codes.of_rows(ids)

    def labels(self, ids: IdArray) -> Labels:
        try:
            return self._columns.labels_of(self._connection, ids)
        except (MovedOn, NotInColumns, BadState, OSError):  # SQLite has it all
            return read_labels(self._connection, ids)


@parsing("labels")
def read_labels(connection: Connection, rows: IdArray) -> Labels:
    """Return the labels of these rows from SQLite."""
    texts: dict[int, str] = {}
    for marks, batch in batches(rows.tolist()):
        texts.update(connection.execute(f"SELECT row, labels FROM items WHERE row IN ({marks})", batch).fetchall())
    names: dict[Any, int] = {}
    lists = [
        [names.setdefault(from_json(label), len(names)) for label in json.loads(texts[row])] for row in rows.tolist()
    ]
    indptr = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return Labels(indptr, np.array([place for some in lists for place in some], np.int64), list(names))
