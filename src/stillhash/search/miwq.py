"""MIWQ: the exact top k without reading every code (Weng & Zhu, AAAI 2020).

The bits of a code are cut into a few substrings of at most 24 bits. Each has a table from its value to the rows that
hold it, with their codes beside them. Tables cost (4 + bits / 8) bytes a row each, and 4 * 2^width bytes.
"""

import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState, InvalidInput, report_shortages, shortage
from stillhash.numeric import kernels
from stillhash.numeric.codes import width
from stillhash.numeric.exact_scores import Grid
from stillhash.numeric.kernels import Slots, Table
from stillhash.numeric.validation import ScoredIds, TableHits, check_integer
from stillhash.search.blocks import Bitmap, Block, IdArray, allowed_rows, clear, is_set, restrict_all
from stillhash.search.code_index import CodeIndex
from stillhash.search.index_files import SavedIndex
from stillhash.search.merge import Floors, drop_below, merge_top

SUBSTRING_BITS = 24  # bits are a substring: a table has one bucket for each value
MAX_ID_SPAN = 4  # ids that span up to so many times their number are stored as offsets
MERGE_SHARE = 0.05  # rows outside the tables, as a share of those inside, that start a merge
MERGE_ROWS = 4096  # at least so many rows outside the tables start one
Budget = tuple[tuple[float, float], float]  # the price of a probe and of a row read; the most to spend on a query
PRICE = (10.0, 2.0)  # nanoseconds of a probe and of a row read, until an index has measured its machine


@dataclass(frozen=True)
class SubstringTables:
    """Slot s is the row with the id first + s, or ids[s]; a removed slot's bit in `live` is zero."""

    parts: list[Table]
    rows: int
    first: int
    ids: IdArray | None
    live: Bitmap | None
    slots: int  # one more than the largest

    def top(self, grid: Grid, k: int, price: tuple[float, float], budget: float, threads: int = 1) -> TableHits:
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

    def without(self, ids: IdArray) -> "SubstringTables":
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

    def restricted(self, allowed: Bitmap | None) -> "SubstringTables":
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


class TableState(NamedTuple):
    """What one search sees: all blocks, tables over some of their rows, and blocks of the rows outside the tables."""

    blocks: tuple[Block, ...]
    tables: SubstringTables | None
    merged: tuple[int, ...]  # rows of each block that the tables hold, or did before they were removed
    unmerged: tuple[Block, ...]

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)


def state_of(blocks: tuple[Block, ...], tables: SubstringTables | None, merged: tuple[int, ...]) -> TableState:
    """Return what a search sees of these blocks, with tables over so many rows of the first ones."""
    counts = merged + (0,) * (len(blocks) - len(merged))
    unmerged = [block.skip_rows(n) for block, n in zip(blocks, counts, strict=True) if block.rows > n]
    return TableState(blocks, tables, merged, tuple(unmerged))


class TablePlanner:
    """When tables are built and how far they are probed; this one always builds and never gives up."""

    def builds(self, bits: int, rows: int) -> bool:
        """Return whether tables are worth their memory for so many rows."""
        return True

    def calibrate(self, blocks: tuple[Block, ...], tables: SubstringTables, bits: int) -> None:
        """Measure what the new tables cost to search."""

    def budget(self, state: TableState, queries: int, k: int, allowed: Bitmap | None) -> Budget | None:
        """Return what a search of the tables may spend on a query; None for a scan."""
        return PRICE, np.inf


@report_shortages
class MIWQ(CodeIndex):
    """An exact index that probes substring tables in order of loss; new rows are scanned until they are merged.

    `tables` fixes the number of tables; by default it follows the number of rows at each merge. Merging happens in a
    background thread once enough rows are outside the tables; answers are exact at every moment. Removed rows are
    masked, and leave the tables at the next merge.
    """

    def __init__(self, bits: int, *, tables: int | None = None, threads: int | None = None) -> None:
        super().__init__(bits, threads=threads)
        if tables is not None:
            count_tables(self.bits, 0, tables)
        self.tables = tables
        self.state = TableState((), None, (), ())
        self.planner = TablePlanner()
        self._merging = threading.Lock()
        self._removed_meanwhile: list[IdArray] = []  # while a merge is under way

    def __repr__(self) -> str:
        in_tables = self.state.tables.rows if self.state.tables else 0
        return f"{type(self).__name__}(bits={self.bits}, rows={len(self)}, in_tables={in_tables})"

    @property
    def nbytes(self) -> int:
        return super().nbytes + (self.state.tables.nbytes if self.state.tables else 0)

    @property
    def merging(self) -> bool:
        """Return whether rows are on their way into the tables."""
        return self._merging.locked()

    def merge(self) -> None:
        """Bring all rows into the tables now, and wait for it."""
        with self._merging:
            self._merge()

    def merge_if_due(self) -> None:
        """Start a merge in the background if enough rows are outside the tables and none is under way."""
        state = self.state
        merged = sum(state.merged)
        unmerged = state.rows - merged
        if unmerged < max(MERGE_ROWS, MERGE_SHARE * merged) or not self.planner.builds(self.bits, state.rows):
            return
        if self._merging.acquire(blocking=False):  # released by the thread
            # Not a daemon: one that comes back from a kernel while Python shuts down would end the process badly.
            try:
                threading.Thread(target=self._merge_and_release, name="stillhash-merge").start()
            except (RuntimeError, MemoryError) as error:  # the next `add` tries again; until then rows are scanned
                self._merging.release()
                if shortage(error) is None:
                    raise

    def wait_for_merge(self) -> None:
        """Return once no merge is under way."""
        with self._merging:
            pass

    def _publish(self, blocks: tuple[Block, ...], removed: IdArray | None = None) -> None:
        tables = self.state.tables
        if removed is not None and tables is not None:
            tables = tables.without(removed)
        state = state_of(blocks, tables, self.state.merged)
        if removed is not None:
            self._removed_meanwhile.append(removed)
        super()._publish(blocks, removed)
        self.state = state
        if removed is None:
            self.merge_if_due()  # its thread waits until this write is over

    def _restore(self, saved: SavedIndex) -> None:
        if saved.tables is not None:
            try:
                self.tables = count_tables(self.bits, 0, saved.tables)
            except InvalidInput as error:
                raise BadState(f"path: expected tables of an index, got {saved.tables}") from error
        super()._restore(saved)
        self.state = state_of(self._blocks, None, ())

    def _merge_and_release(self) -> None:
        try:
            with suppress(MemoryError):  # the next `add` tries again
                self._merge()
        finally:
            self._merging.release()

    def _merge(self) -> None:
        with self._writing:
            blocks = self._blocks
            self._removed_meanwhile = []
        tables = build_tables(blocks, self.bits, self.tables)
        self.planner.calibrate(blocks, tables, self.bits)
        with self._writing:
            for ids in self._removed_meanwhile:
                tables = tables.without(ids)
            self.state = state_of(self._blocks, tables, tuple(block.rows for block in blocks))

    def _top(self, grid: Grid, k: int, allowed: Bitmap | None, floors: Floors) -> ScoredIds:
        state = self.state
        budget = self.planner.budget(state, len(grid), k, allowed) if state.tables is not None and k else None
        if state.tables is None or budget is None:
            blocks = restrict_all(state.blocks, allowed)
            return kernels.scan_top(blocks, grid, k, floors.least, self.threads, floors.most)
        scores, ids, effort = state.tables.restricted(allowed).top(grid, k, *budget, self.threads)
        hits = self._complete(state, grid, (scores, ids), effort[:, 2] == 1, allowed)
        return drop_below(hits, floors)

    def _complete(
        self, state: TableState, grid: Grid, hits: ScoredIds, complete: NDArray[np.bool_], allowed: Bitmap | None
    ) -> ScoredIds:
        """Return the best of all rows, given the hits of the tables, by scanning the rest from their lowest score.

        The rest are the unmerged rows; or all rows, where the tables gave up and their hits may not be the best.
        """
        scores, ids = hits
        k = scores.shape[1]
        for queries, blocks in ((complete, state.unmerged), (~complete, state.blocks)):
            if blocks and queries.any():
                part = scores[queries], ids[queries]
                floors = np.ascontiguousarray(part[0][:, -1])  # -inf while the last place is free
                more = kernels.scan_top(restrict_all(blocks, allowed), grid[queries], k, floors, self.threads)
                scores[queries], ids[queries] = merge_top((part, more), k) if blocks is state.unmerged else more
        return scores, ids


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
    gathered = [(block, block.live_rows()) for block in blocks]
    parts_of_codes = (kernels.read_tiles(block.tiles, rows) for block, rows in gathered)
    codes = np.concatenate([np.empty((0, width(bits)), np.uint8), *parts_of_codes])
    ids = np.concatenate([np.empty(0, np.int64), *(block.ids_of(rows) for block, rows in gathered)])
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
