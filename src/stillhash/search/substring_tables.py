"""Substring tables: the multi-index under MIWQ, over a fixed set of rows.

The bits of a code are cut into a few substrings of at most 24 bits. Each has a table from its value to the rows that
hold it, with their codes beside them. Tables cost (4 + bits / 8) bytes a row each, and 4 * 2^width bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.numeric import kernels
from stillhash.numeric.codes import width
from stillhash.numeric.kernels import Block, Slots, Table
from stillhash.numeric.validation import check_integer
from stillhash.search.blocks import Bitmap, Ids, clear, ids_of, is_set, live_rows, masked

MOST_BITS = 24  # of a substring: a table has one bucket for each value
SPREAD = 4  # ids that span up to so many times their number are kept as offsets


@dataclass(frozen=True)
class Tables:
    """Slot s stands for the id first + s, or ids[s]; a removed slot's bit in `live` is zero."""

    parts: list[Table]
    rows: int
    first: int
    ids: Ids | None
    live: Bitmap | None
    slots: int  # one more than the largest

    def top(self, *args: Any) -> tuple[NDArray[np.float32], Ids, NDArray[np.int64]]:
        """As `kernels.table_top`."""
        return kernels.table_top(self.parts, Slots(self.first, self.ids, self.live), *args)

    @property
    def nbytes(self) -> int:
        arrays = [array for part in self.parts for array in (part.starts, part.slots, part.codes)]
        return sum(array.nbytes for array in (*arrays, self.ids, self.live) if array is not None)

    def without(self, ids: Ids) -> Tables:
        """The tables with these ids masked; the old ones are left as they are."""
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

    def allowing(self, allowed: Bitmap | None) -> Tables:
        """The tables with only the allowed ids live."""
        if allowed is None:
            return self
        return replace(self, live=masked(self.first, self.ids, self.live, -(-self.slots // 8), allowed))

    def live_share(self) -> float:
        """The share of rows that a search may answer with."""
        if self.live is None or not self.rows:
            return 1.0
        slots = self.parts[0].slots
        sample = slots[:: max(1, len(slots) // 4096)].astype(np.int64)
        return float(is_set(self.live, sample).mean())


def how_many(bits: int, rows: int, wanted: int | None = None) -> int:
    """How many tables: substrings of at most log2(rows) bits, so that a bucket holds about one row, or a few."""
    least = -(-bits // MOST_BITS)
    if wanted is not None:
        if check_integer(wanted, "tables", 1, bits) < least:
            raise InvalidInput(
                f"tables is {wanted}; {bits} bits want at least {least}, of at most {MOST_BITS} bits each"
            )
        return wanted
    return max(least, math.ceil(bits / math.log2(max(rows, 4))))


def build(blocks: Sequence[Block], bits: int, wanted: int | None = None) -> Tables:
    """Tables over the live rows of all blocks."""
    gathered = [(block, live_rows(block)) for block in blocks]
    codes = np.concatenate(
        [np.empty((0, width(bits)), np.uint8), *(kernels.read_tiles(block.tiles, rows) for block, rows in gathered)]
    )
    ids = np.concatenate([np.empty(0, np.int64), *(ids_of(block, rows) for block, rows in gathered)])
    first = int(ids.min(initial=np.iinfo(np.int64).max)) if len(ids) else 0
    span = int(ids.max(initial=-1)) - first + 1 if len(ids) else 0
    names: Ids | None = None
    if span > min(SPREAD * len(ids) + 1024, 2**32):
        order = np.argsort(ids)
        names, codes, first, span = ids[order], codes[order], 0, len(ids)
        slots = np.arange(span, dtype=np.uint32)
    else:
        slots = (ids - first).astype(np.uint32)
    parts, at, count = [], 0, how_many(bits, len(ids), wanted)
    for t in range(count):
        part = -(-(bits - at) // (count - t))  # the first substrings are the longer ones
        parts.append(kernels.fill_table(codes, slots, at, part))
        at += part
    return Tables(parts, len(ids), first, names, None, span)
