"""Find items that were stored with exactly the features of a query.

A code may hold labels in place of features, and many items may have the same code. So a digest of its features is kept
of each item, and finds exact repeats.
"""

import copy
from collections.abc import Iterable
from sqlite3 import Connection
from typing import Self

import numpy as np

from stillhash.collection.storage.codes import CodeTable
from stillhash.collection.storage.segments import CodedRows, Segment
from stillhash.numeric.feature_digests import NO_DIGEST

NO_ROW_LIMIT = 2**63 - 1
MAX_UNSEALED_DIGESTS = 1 << 18  # in memory, before those that are sealed by now are dropped


class StoredFeatures:
    """Rows by the digest of their features: mapped, where they are sealed, and in memory, where they are not."""

    def __init__(self, codes: CodeTable) -> None:
        self._codes = codes
        self._last_row = NO_ROW_LIMIT
        self.use([])

    def use(self, segments: Iterable[Segment]) -> None:
        """Start again with these segments and no other rows."""
        self._segments = [segment for segment in segments if len(segment.digests)]
        self._unsealed: dict[int, list[int]] = {}
        self._most = MAX_UNSEALED_DIGESTS

    def add(self, connection: Connection, rows: CodedRows) -> None:
        """Add rows that came later; if they are many, map the segments that hold them by now."""
        if len(self._unsealed) + np.count_nonzero(rows.digests != NO_DIGEST) > self._most:
            records = self._codes.segment_records(connection)
            self.use(self._codes.read_segment(record, check=False) for record in records)
            rows = self._codes.unsealed(connection)
            self._most += len(rows.numbers)
        known = rows.digests != NO_DIGEST
        for digest, row in zip(rows.digests[known].tolist(), rows.numbers[known].tolist(), strict=True):
            self._unsealed.setdefault(digest, []).append(row)

    def __bool__(self) -> bool:
        return bool(self._segments or self._unsealed)

    def rows(self, digest: int) -> list[int]:
        """Return the rows with this digest, deleted ones perhaps among them, ascending."""
        sealed = [row for segment in self._segments for row in segment.rows_with(digest)]
        return [row for row in sealed + self._unsealed.get(digest, []) if row <= self._last_row]

    def frozen(self, last_row: int) -> Self:
        """Return what is known at this moment, of the rows up to this one: later rows do not reach it."""
        frozen = copy.copy(self)
        frozen._last_row = last_row
        return frozen
