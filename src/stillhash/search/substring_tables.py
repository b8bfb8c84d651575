"""Substring tables: the multi-index that MIWQ probes, over a fixed set of rows.

The bits of a code are cut into a few substrings of at most 24 bits. Each has a table from its value to the rows that
hold it, with their codes beside them. Tables cost (4 + bits / 8) bytes a row each, and 4 * 2^width bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.numeric import kernels
from stillhash.numeric.codes import width
from stillhash.numeric.exact_scores import Grid
from stillhash.numeric.kernels import Block, Slots, Table
from stillhash.numeric.validation import check_integer
from stillhash.search.blocks import Bitmap, IdArray, allowed_rows, clear, ids_of, is_set, live_rows

SUBSTRING_BITS = 24  # of a substring: a table has one bucket for each value
MAX_ID_SPAN = 4  # ids that span up to so many times their number are stored as offsets


@dataclass(frozen=True)
class SubstringTables:
    """Slot s is the row with the id first + s, or ids[s]; a removed slot's bit in `live` is zero."""

    parts: list[Table]
    rows: int
    first: int
    ids: IdArray | None
    live: Bitmap | None
    slots: int  # one more than the largest

    def top(
        self, grid: Grid, k: int, price: tuple[float, float], budget: float, threads: int = 1
    ) -> tuple[NDArray[np.float32], IdArray, NDArray[np.int64]]:
        """Return scores and ids of the k best rows of each query, and its effort: probes, rows read, complete or not.

        price: of a probe and of a row read. budget: the most to spend on a query.
        """
        floors, budgets = np.full(len(grid), -np.inf, np.float32), np.full(len(grid), budget)
        slots = Slots(self.first, self.ids, self.live)
        return kernels.table_top(self.parts, slots, grid, k, floors, price, budgets, threads)

    @property
    def nbytes(self) -> int:
        arrays = [array for part in self.parts for array in (part.starts, part.slots, part.codes)]
        return sum(array.nbytes for array in (*arrays, self.ids, self.live) if array is not None)

    def without(self, ids: IdArray) -> SubstringTables:
        """Return the tables with these ids masked; the old ones stay as they are."""
        if self.ids is None:
            slots = ids - self.first
            slots = slots[(slots >= 0) & (slots < self.slots)]
        else:
            slots = np.searchsorted(self.ids, ids)
            slots = slots[self.ids[np.minimum(slots, self.slots - 1)] == ids] if self.slots else slots[:0]
        if not len(slots):
            return self
        live = np.full(-(-self.slots // 8), 255, np.uint8) if self.live is None else self.live.copy()
        clear(live, slots)
        return replace(self, live=live)

    def restricted(self, allowed: Bitmap | None) -> SubstringTables:
        """Return the tables with only the allowed ids live."""
        if allowed is None:
            return self
        return replace(self, live=allowed_rows(self.first, self.ids, self.live, -(-self.slots // 8), allowed))

    def live_share(self) -> float:
        """Return the share of rows that can be hits, from a sample."""
        if self.live is None or not self.rows:
            return 1.0
        slots = self.parts[0].slots
        sample = slots[:: max(1, len(slots) // 4096)].astype(np.int64)
        return float(is_set(self.live, sample).mean())


def count_tables(bits: int, rows: int, tables: int | None = None) -> int:
    """Return how many tables: substrings of at most log2(rows) bits, so that a bucket holds about one row, or a few."""
    least = -(-bits // SUBSTRING_BITS)
    if tables is not None:
        if check_integer(tables, "tables", 1, bits) < least:
            raise InvalidInput(f"tables: expected at least {least} for {bits} bits, got {tables}")
        return tables
    return max(least, math.ceil(bits / math.log2(max(rows, 4))))


def build_tables(blocks: Sequence[Block], bits: int, tables: int | None = None) -> SubstringTables:
    """Build tables over the live rows of all blocks."""
    gathered = [(block, live_rows(block)) for block in blocks]
    codes = np.concatenate(
        [np.empty((0, width(bits)), np.uint8), *(kernels.read_tiles(block.tiles, rows) for block, rows in gathered)]
    )
    ids = np.concatenate([np.empty(0, np.int64), *(ids_of(block, rows) for block, rows in gathered)])
    first = int(ids.min(initial=np.iinfo(np.int64).max)) if len(ids) else 0
    span = int(ids.max(initial=-1)) - first + 1 if len(ids) else 0
    names: IdArray | None = None
    if span > min(MAX_ID_SPAN * len(ids) + 1024, 2**32):
        order = np.argsort(ids)
        names, codes, first, span = ids[order], codes[order], 0, len(ids)
        slots = np.arange(span, dtype=np.uint32)
    else:
        slots = (ids - first).astype(np.uint32)
    parts, at, count = [], 0, count_tables(bits, len(ids), tables)
    for t in range(count):
        part = -(-(bits - at) // (count - t))  # the first substrings are the longer ones
        parts.append(kernels.fill_table(codes, slots, at, part))
        at += part
    return SubstringTables(parts, len(ids), first, names, None, span)
