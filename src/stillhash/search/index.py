"""The index that chooses by itself: a scan, or tables where they pay, with the same answers."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import kernels
from stillhash.numeric.exact_scores import Grid, snap
from stillhash.numeric.kernels import Block
from stillhash.numeric.validation import check_integer, check_weights
from stillhash.search.blocks import Bitmap
from stillhash.search.miwq import MIWQ, PRICE, Found, View
from stillhash.search.scan import searched
from stillhash.search.substring_tables import Tables

PAYS = ((32, 1_000_000), (96, 10_000_000))  # codes of at most so many bits, from so many rows: measured, docs/search.md
FEW = 0.1  # of the rows allowed or live: below, the tables' floor rises too late
LARGE_K = 0.001  # of the rows: beyond, the tables must look at too much
BATCH = 32  # queries of the calibration's batch


@dataclass(frozen=True)
class Costs:
    """What work costs on this machine, in nanoseconds; measured when tables are built."""

    scan_pass: float  # a row, once for a whole batch of queries: reading it
    scan_query: float  # a row, for each query: comparing it
    start: float  # a search of the tables, before its first probe
    probe: float  # a bucket looked up
    row: float  # a row of a bucket read

    def scan(self, rows: int, queries: int) -> float:
        """A scan, for each query of a batch."""
        return rows * (self.scan_pass / max(1, min(queries, BATCH)) + self.scan_query)

    def probing(self, probes: int, rows: int) -> float:
        """A search of the tables that looked up so many buckets and read so many rows."""
        return self.start + probes * self.probe + rows * self.row


class Index(MIWQ):
    """An exact index for any size: it scans, and builds tables where they are worth their memory.

    With tables, a query starts on them. After a few percent of what a scan would cost, the rest of the work is
    computed from the floor reached so far; if a scan is cheaper, the query goes there, starting at that floor.
    """

    def __init__(self, bits: int, *, threads: int | None = None) -> None:
        super().__init__(bits, threads=threads)
        self.costs: Costs | None = None  # measured with the first tables

    @property
    def plan(self) -> str:
        """How queries begin: on "tables", or as a "scan" of all codes."""
        return "scan" if self._view.tables is None else "tables"

    def explain_plan(self, weights: Any, k: int) -> list[dict[str, Any]]:
        """How each query would be answered, and why: the path, what either path costs, the effort on the tables.

        The tables are really probed, up to where the query would leave them; nothing is scanned.
        """
        grid = snap(check_weights(weights, self.bits))
        k = min(check_integer(k, "k", 1), max(1, len(self)))
        view = self._view
        rows = sum(block.rows for block in view.blocks)
        about = {"rows": rows, "in_tables": view.tables.rows if view.tables else 0}
        why = self._why_scan(view, k, None)
        if why or view.tables is None or self.costs is None:
            return [{"path": "scan", "why": why, **about} for _ in grid]
        *_, effort = self._probe(view.tables, self.costs, rows, grid, k)
        scan = self.costs.scan(rows, len(grid))
        plans = []
        for probes, read, complete in effort.tolist():
            spent = self.costs.probing(probes, read)
            plans.append(
                {
                    "path": "tables" if complete else "scan",
                    "why": "the tables answer it" if complete else "the tables would cost more than a scan",
                    **about,
                    "probes": probes,
                    "rows_read": read,
                    "tables_ms": spent / 1e6,
                    "scan_ms": scan / 1e6,
                    "costs": asdict(self.costs),
                }
            )
        return plans

    # ---- inside ----

    def _tables_wanted(self, rows: int) -> bool:
        return kernels.lanes() != "numpy" and any(self.bits <= bits and rows >= least for bits, least in PAYS)

    def _built(self, blocks: tuple[Block, ...]) -> Tables:
        tables = super()._built(blocks)
        if kernels.lanes() != "numpy":
            self.costs = measure(blocks, tables, self.bits)
        return tables

    def _why_scan(self, view: View, k: int, allowed: Bitmap | None) -> str:
        """Why tables are not even tried, or nothing."""
        if view.tables is None or self.costs is None:
            return "there are no tables: they do not pay for so few rows or so many bits"
        if k > LARGE_K * view.tables.rows:
            return "k is too large a share of the rows for tables to pay"
        if allowed is not None and view.tables.allowing(allowed).live_share() < FEW:
            return "so few rows are allowed that a scan skips most"
        return ""

    def _best(self, grid: Grid, k: int, allowed: Bitmap | None) -> Found:
        view, costs = self._view, self.costs
        if view.tables is None or costs is None or not k or self._why_scan(view, k, allowed):
            floors = np.full(len(grid), -np.inf, np.float32)
            return kernels.scan_top(searched(view.blocks, allowed), grid, k, floors, self.threads)
        rows = sum(block.rows for block in view.blocks)
        scores, ids, effort = self._probe(view.tables.allowing(allowed), costs, rows, grid, k)
        return self._finished(view, grid, (scores, ids), effort[:, 2] == 1, allowed)

    def _probe(
        self, tables: Tables, costs: Costs, rows: int, grid: Grid, k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        """The tables' answer to each query, within the price of a scan."""
        floors = np.full(len(grid), -np.inf, np.float32)
        budgets = np.full(len(grid), max(0.0, costs.scan(rows, len(grid)) - costs.start))
        return tables.top(grid, k, floors, (costs.probe, costs.row), budgets, self.threads)


def measure(blocks: tuple[Block, ...], tables: Tables, bits: int, seed: int = 0) -> Costs:
    """Times both paths on the rows themselves, with made-up queries: a fraction of a second."""
    rng = np.random.default_rng(seed)
    grid = snap(rng.standard_normal((BATCH, bits)).astype(np.float32))
    sample, rows = _sample(blocks)
    free = np.full(BATCH, -np.inf, np.float32)
    k = max(1, min(10, rows))
    one = min(_seconds(lambda q=q: kernels.scan_top(sample, grid[q : q + 1], k, free[:1])) for q in range(5))
    batch = min(_seconds(lambda: kernels.scan_top(sample, grid, k, free)) for _ in range(2))
    query = max(0.0, batch - one) / (BATCH - 1)
    scanned = 1e9 / max(1, rows)

    # Every third query wants more hits, so that small and large efforts tell the start-up from the work.
    efforts, seconds = [], []
    limit = np.full(1, 1e9 * one)  # probing dearer than a scan is of no interest
    for q in range(18):
        args = grid[q : q + 1], max(1, min((1, 10, 100)[q % 3], tables.rows)), free[:1], PRICE, limit
        efforts.append(tables.top(*args)[2][0, :2])
        seconds.append(min(_seconds(lambda args=args: tables.top(*args)) for _ in range(2)))
    start, scale = _line(np.array(efforts) @ np.array(PRICE), np.array(seconds) * 1e9)
    return Costs(max(one - query, 0.0) * scanned, query * scanned, start, PRICE[0] * scale, PRICE[1] * scale)


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Intercept and slope of y over x, not below zero: the median slope of all pairs, which outliers do not move."""
    i, j = np.triu_indices(len(x), 1)
    apart = x[i] != x[j]
    slope = float(np.median((y[i] - y[j])[apart] / (x[i] - x[j])[apart])) if apart.any() else 0.0
    slope = slope if slope > 0 else float(np.median(y / np.maximum(x, 1.0)))
    return max(0.0, float(np.median(y - slope * x))), slope


def _sample(blocks: tuple[Block, ...], most: int = 10_000_000) -> tuple[list[Block], int]:
    """The first blocks, up to about so many rows."""
    taken, rows = [], 0
    for block in blocks:
        taken.append(block._replace(rows=min(block.rows, most - rows)))
        rows += taken[-1].rows
        if rows >= most:
            break
    return taken, rows


def _seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
