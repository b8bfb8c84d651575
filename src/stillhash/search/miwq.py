"""MIWQ: the exact top k without reading every code (Weng & Zhu, AAAI 2020)."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import kernels
from stillhash.numeric.exact_scores import Grid
from stillhash.numeric.kernels import Block
from stillhash.search.blocks import Bitmap, Ids, rest
from stillhash.search.merge import merge_top
from stillhash.search.scan import Scan, searched
from stillhash.search.substring_tables import Tables, build, how_many

TAIL_SHARE = 0.05  # rows outside the tables, as a share of those inside, that start a merge
TAIL_LEAST = 4096  # and the fewest that do

Found = tuple[NDArray[np.float32], Ids]


class View(NamedTuple):
    """What a search sees: all blocks, tables over some of their rows, and blocks of the rows outside the tables."""

    blocks: tuple[Block, ...]
    tables: Tables | None
    covered: tuple[int, ...]  # rows of each block that the tables hold, or did before they were removed
    tail: tuple[Block, ...]


class MIWQ(Scan):
    """An exact index that probes substring tables in order of loss; new rows are scanned until they are merged.

    `tables` fixes the number of tables; by default it follows the number of rows at each merge. Merging happens in a
    background thread once the tail has grown; answers are exact at every moment. Removed rows are masked, and
    leave the tables at the next merge.
    """

    def __init__(self, bits: int, *, tables: int | None = None, threads: int | None = None) -> None:
        super().__init__(bits, threads=threads)
        if tables is not None:
            how_many(self.bits, 0, tables)
        self.tables = tables
        self._view = View((), None, (), ())
        self._merging = threading.Lock()
        self._gone: list[Ids] = []  # removed while a merge is under way

    def __repr__(self) -> str:
        held = self._view.tables
        return f"{type(self).__name__}(bits={self.bits}, rows={len(self)}, in_tables={held.rows if held else 0})"

    @property
    def nbytes(self) -> int:
        tables = self._view.tables
        return super().nbytes + (tables.nbytes if tables else 0)

    def add(self, codes: Any, ids: Any = None) -> None:
        super().add(codes, ids)
        self._merge_if_due()

    def add_tiles(self, tiles: Any, rows: int, ids: Any = None) -> None:
        super().add_tiles(tiles, rows, ids)
        self._merge_if_due()

    def merge(self) -> None:
        """Brings all rows into the tables now, and waits for it."""
        with self._merging:
            self._merge()

    # ---- inside ----

    def _publish(self, blocks: list[Block], removed: Ids | None = None) -> None:
        super()._publish(blocks, removed)
        tables = self._view.tables
        if removed is not None:
            self._gone.append(removed)
            tables = tables.without(removed) if tables else None
        self._show(tables, self._view.covered)

    def _show(self, tables: Tables | None, covered: tuple[int, ...]) -> None:
        done = covered + (0,) * (len(self._blocks) - len(covered))
        tail = (rest(block, n) for block, n in zip(self._blocks, done, strict=True) if block.rows > n)
        self._view = View(self._blocks, tables, covered, tuple(tail))

    def _tables_wanted(self, rows: int) -> bool:
        """Whether tables pay for so many rows."""
        return True

    def _merge_if_due(self) -> None:
        view = self._view
        covered = sum(view.covered)
        tail = sum(block.rows for block in view.blocks) - covered
        if tail < max(TAIL_LEAST, TAIL_SHARE * covered) or not self._tables_wanted(covered + tail):
            return
        if self._merging.acquire(blocking=False):  # released by the thread
            # Not a daemon: one that comes back from a kernel while Python shuts down would end the process badly.
            threading.Thread(target=self._merge_and_release, name="stillhash-merge").start()

    def _merge_and_release(self) -> None:
        try:
            self._merge()
        finally:
            self._merging.release()

    def _merge(self) -> None:
        with self._writing:
            blocks = self._blocks
            self._gone = []
        tables = self._built(blocks)
        with self._writing:
            for ids in self._gone:
                tables = tables.without(ids)
            self._show(tables, tuple(block.rows for block in blocks))

    def _built(self, blocks: tuple[Block, ...]) -> Tables:
        return build(blocks, self.bits, self.tables)

    def _best(self, grid: Grid, k: int, allowed: Bitmap | None) -> Found:
        view = self._view
        floors = np.full(len(grid), -np.inf, np.float32)
        if view.tables is None or not k:
            return kernels.scan_top(searched(view.blocks, allowed), grid, k, floors, self.threads)
        budgets = np.full(len(grid), np.inf)
        scores, ids, effort = view.tables.allowing(allowed).top(grid, k, floors, PRICE, budgets, self.threads)
        return self._finished(view, grid, (scores, ids), effort[:, 2] == 1, allowed)

    def _finished(
        self, view: View, grid: Grid, found: Found, complete: NDArray[np.bool_], allowed: Bitmap | None
    ) -> Found:
        """The best of all rows, given what the tables found: the tail, or everything, is scanned from their floor.

        Where the tables gave up, what they found are good hits but not the best, so the scan finds all anew.
        """
        scores, ids = found
        k = scores.shape[1]
        for queries, blocks in ((complete, view.tail), (~complete, view.blocks)):
            if blocks and queries.any():
                part = scores[queries], ids[queries]
                floors = np.ascontiguousarray(part[0][:, -1])  # -inf while the last place is free
                more = kernels.scan_top(searched(blocks, allowed), grid[queries], k, floors, self.threads)
                scores[queries], ids[queries] = merge_top((part, more), k) if blocks is view.tail else more
        return scores, ids


PRICE = (10.0, 2.0)  # nanoseconds of a probe and of a row read, until an index has measured its machine
