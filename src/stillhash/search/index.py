"""The index that chooses for each query: a scan, or tables where they pay, with the same answers."""

import time
import timeit
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillhash.errors import report_shortages
from stillhash.numeric import kernels
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.validation import check_integer, check_weights
from stillhash.search.blocks import Bitmap, Block
from stillhash.search.miwq import MIWQ, PRICE, Budget, SubstringTables, TablePlanner, TableState

TABLES_PAY = ((32, 1_000_000), (64, 10_000_000), (96, 30_000_000))  # up to so many bits, from so many rows
FEW_ALLOWED = 0.1  # of the rows allowed or live: below, the tables prune too late
LARGE_K = 0.00005  # of the rows: beyond, the tables must look at too much
CALIBRATION_QUERIES = 32  # queries of the calibration's batch
CALIBRATION_K = (1, 10, 100)


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of work on this machine; measured when tables are built."""

    scan_pass: float  # a row, once for a whole batch of queries: reading it
    scan_query: float  # a row, for each query: comparing it
    start: float  # a search of the tables, before its first probe
    probe: float  # a bucket looked up
    row: float  # a row of a bucket read

    def scan(self, rows: int, queries: int) -> float:
        """Return the cost of a scan, for each query of a batch."""
        return rows * (self.scan_pass / max(1, min(queries, CALIBRATION_QUERIES)) + self.scan_query)

    def probing(self, probes: int, rows: int) -> float:
        """Return the cost of a search of the tables that looked up so many buckets and read so many rows."""
        return self.start + probes * self.probe + rows * self.row


class CostPlanner(TablePlanner):
    """Builds tables where they pay, and probes them for no more than a scan would cost."""

    def __init__(self) -> None:
        self.costs: Costs | None = None  # measured with the first tables

    def builds(self, bits: int, rows: int) -> bool:
        return kernels.lanes() != "numpy" and any(bits <= most and rows >= least for most, least in TABLES_PAY)

    def calibrate(self, blocks: tuple[Block, ...], tables: SubstringTables, bits: int) -> None:
        if kernels.lanes() != "numpy":
            self.costs = measure_costs(blocks, tables, bits)

    def why_scan(self, state: TableState, k: int, allowed: Bitmap | None) -> str:
        """Return why tables are not even tried; empty if they are."""
        if state.tables is None or self.costs is None:
            return "there are no tables: they do not pay for so few rows or so many bits"
        if k > LARGE_K * state.tables.rows:
            return "k is too large a share of the rows for tables to pay"
        if allowed is not None and state.tables.restricted(allowed).live_share() < FEW_ALLOWED:
            return "so few rows are allowed that a scan skips most"
        return ""

    def budget(self, state: TableState, queries: int, k: int, allowed: Bitmap | None) -> Budget | None:
        if self.costs is None or self.why_scan(state, k, allowed):
            return None
        most = max(0.0, self.costs.scan(state.rows, queries) - self.costs.start)
        return (self.costs.probe, self.costs.row), most


@report_shortages
class Index(MIWQ):
    """An exact index for any size: it scans, and builds tables where they are worth their memory.

    With tables, a query starts on them. After a few percent of what a scan would cost, the rest of the work is
    computed from the lowest score reached so far; if a scan is cheaper, the query goes there, starting at that score.
    """

    planner: CostPlanner

    def __init__(self, bits: int, *, threads: int | None = None) -> None:
        super().__init__(bits, threads=threads)
        self.planner = CostPlanner()

    @property
    def plan(self) -> str:
        """Return how queries begin: on "tables", or as a "scan" of all codes."""
        return "scan" if self.state.tables is None else "tables"

    def explain_plan(self, weights: ArrayLike, k: int) -> list[dict[str, Any]]:
        """Return how each query would be answered, and why: the path, the cost of both paths, the effort on the tables.

        The tables are really probed, up to where the query would leave them; nothing is scanned.
        """
        grid = snap(check_weights(weights, self.bits))
        k = min(check_integer(k, "k", 1), max(1, len(self)))
        state, costs = self.state, self.planner.costs
        sizes = {"rows": state.rows, "in_tables": state.tables.rows if state.tables else 0}
        why = self.planner.why_scan(state, k, None)
        budget = self.planner.budget(state, len(grid), k, None)
        if state.tables is None or costs is None or budget is None:
            return [{"path": "scan", "why": why, **sizes} for _ in grid]
        *_, effort = state.tables.top(grid, k, *budget, self.threads)
        return [
            {
                "path": "tables" if complete else "scan",
                "why": "the tables answer it" if complete else "the tables would cost more than a scan",
                **sizes,
                "probes": probes,
                "rows_read": read,
                "tables_ms": costs.probing(probes, read) / 1e6,
                "scan_ms": costs.scan(state.rows, len(grid)) / 1e6,
                "costs": asdict(costs),
            }
            for probes, read, complete in effort.tolist()
        ]


def measure_costs(blocks: tuple[Block, ...], tables: SubstringTables, bits: int, seed: int = 0) -> Costs:
    """Time both paths on the rows themselves, with random queries: a fraction of a second."""
    rng = np.random.default_rng(seed)
    grid = snap(rng.standard_normal((CALIBRATION_QUERIES, bits)).astype(np.float32))
    sample, rows = _sample(blocks)
    free = np.full(CALIBRATION_QUERIES, -np.inf, np.float32)
    k = max(1, min(10, rows))
    one = min(_seconds(kernels.scan_top, sample, grid[q : q + 1], k, free[:1]) for q in range(5))
    batch = min(_seconds(kernels.scan_top, sample, grid, k, free) for _ in range(2))
    query = max(0.0, batch - one) / (CALIBRATION_QUERIES - 1)
    scanned = 1e9 / max(1, rows)

    # k varies, so that small and large efforts separate the start-up from the work. Each search is timed after another
    # one, as in use: right after itself, it would find all it reads in the cache.
    searches = [
        (grid[q : q + 1], max(1, min(CALIBRATION_K[q % len(CALIBRATION_K)], tables.rows)), PRICE, 1e9 * one)
        for q in range(6 * len(CALIBRATION_K))
    ]  # probing dearer than a scan is of no interest
    efforts = np.concatenate([tables.top(*search)[2][:, :2] for search in searches])
    seconds = np.min([[_seconds(tables.top, *search) for search in searches] for _ in range(2)], axis=0)
    start, scale = _line(efforts @ np.array(PRICE), seconds * 1e9)
    return Costs(max(one - query, 0.0) * scanned, query * scanned, start, PRICE[0] * scale, PRICE[1] * scale)


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Return intercept and slope of y over x, not below zero: the median slope of all pairs, robust to outliers."""
    i, j = np.triu_indices(len(x), 1)
    apart = x[i] != x[j]
    slope = float(np.median((y[i] - y[j])[apart] / (x[i] - x[j])[apart])) if apart.any() else 0.0
    slope = slope if slope > 0 else float(np.median(y / np.maximum(x, 1.0)))
    return max(0.0, float(np.median(y - slope * x))), slope


def _sample(blocks: tuple[Block, ...], most: int = 10_000_000) -> tuple[list[Block], int]:
    """Return the first blocks, up to about so many rows, and how many rows these are."""
    taken, rows = [], 0
    for block in blocks:
        taken.append(block._replace(rows=min(block.rows, most - rows)))
        rows += taken[-1].rows
        if rows >= most:
            break
    return taken, rows


def _seconds(work: Callable[..., object], *args: Any) -> float:
    """Return the processor time of this thread: on a busy machine the clock would measure what others do."""
    return timeit.timeit(lambda: work(*args), timer=time.thread_time, number=1)
