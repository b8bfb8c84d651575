"""Search on a GPU: the buffers that all indexes on it share, and the launches of kernels. One search runs at a time."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from stillhash.numeric.exact_scores import Grid
from stillhash.numeric.validation import MAX_BITS, Floats
from stillhash.search.gpu.card import SCORE_BINS, Candidates, CardLimits, Mirror
from stillhash.search.gpu.compiler import BATCH_THREADS, TENSOR_CAPABILITY, batch_blocks
from stillhash.search.gpu.cuda_memory import THREADS, CudaMemory

MOST_GRAPHS = 16  # of one state of an index
NOT_RECORDED = "not recorded"  # a kind of search that came before, and has no graph yet

SearchKind = tuple[int, int, int]  # queries, k, planes


class RecordedSearches:
    """CUDA graphs of the latest kinds of searches, as long as the codes are there whose addresses they hold.

    With a graph a search is one launch in place of ten, with any weights. A kind that comes for the second time is
    worth recording.
    """

    def __init__(self) -> None:
        self._graphs: WeakKeyDictionary[Mirror, OrderedDict[SearchKind, Any]] = WeakKeyDictionary()

    def find(self, mirror: Mirror, kind: SearchKind) -> Any:
        """Return the graph of this kind, NOT_RECORDED if it has come before, or None if it is new."""
        graphs = self._graphs.setdefault(mirror, OrderedDict())
        if kind in graphs:
            graphs.move_to_end(kind)
            return graphs[kind]
        graphs[kind] = NOT_RECORDED
        if len(graphs) > MOST_GRAPHS:
            graphs.popitem(last=False)
        return None

    def keep(self, mirror: Mirror, kind: SearchKind, graph: Any) -> None:
        """Store the graph of a kind."""
        self._graphs.setdefault(mirror, OrderedDict())[kind] = graph


PLAN_BYTES, TAU_AT = 496, 32  # of a plan, and where it has its threshold
ENTRY = np.dtype([("key", np.uint64), ("score", np.float32), ("unused", np.uint32)])
HEADER_BYTES = 32
BATCHES = (16, 32, 64, 128)  # queries that a compiled scan takes
SHORT_CODE_WORDS, LONG_CODE_PLANES = 4, 6  # as in scan.cu: bits a weight of the bound of one query, for long codes
FEW_PLANES_FROM = 1 << 22  # from so many rows per hit on, 3 bits a weight prune enough


NO_CANDIDATES = Candidates(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32), True)


class CudaCard(CudaMemory):
    """The GPU with this number, by CuPy."""

    def __init__(self, device: int = 0, limits: CardLimits | None = None) -> None:
        super().__init__(device, limits or CardLimits())
        self.batches = self.capability >= TENSOR_CAPABILITY
        self._graphs, self._recording = RecordedSearches(), False
        self.planes = 0  # bits a weight of the bound of one query, for short codes; 0 chooses
        with self.holding():
            self._allocate_buffers()
            self._stream.synchronize()

    def _allocate_buffers(self) -> None:
        cp, queries, most = self.arrays, self.limits.batch, self.limits.candidates
        sizes = {
            "weights": queries * (MAX_BITS * 8 + 4),  # and the floors after them
            "plans": queries * PLAN_BYTES,
            "tables": queries * MAX_BITS // 4 * 16 * 8,
            "quantised": queries * MAX_BITS,
            "histograms": queries * SCORE_BINS * 4,
            "found": most * ENTRY.itemsize,
            "results": HEADER_BYTES + most * ENTRY.itemsize,
        }
        self._buffers = {name: cp.zeros(size, np.uint8) for name, size in sizes.items()}
        self._at = {name: np.uint64(array.data.ptr) for name, array in self._buffers.items()}
        self._query_memory = cp.cuda.alloc_pinned_memory(queries * (MAX_BITS * 8 + 4))
        self._query = np.frombuffer(self._query_memory, np.uint8)
        self._result_memory = cp.cuda.alloc_pinned_memory(1 << 20)
        self._result = np.frombuffer(self._result_memory, np.uint8)

    def best(
        self, mirror: Mirror, grid: Grid, k: int, floors: Floats, live: Any = None, allowed: int | None = None
    ) -> Candidates:
        """Return all rows that may be among the k best, as `Card.best`; one like an earlier search by its graph."""
        with self.holding():
            kind = len(grid), k, self.planes
            graph = self._graphs.find(mirror, kind) if live is None else None
            if graph is None:
                return super().best(mirror, grid, k, floors, live, allowed)
            if graph is NOT_RECORDED:
                self._recording = True
                self._stream.begin_capture()
                try:
                    super().best(mirror, grid, k, floors)
                finally:
                    self._recording = False
                    graph = self._stream.end_capture()
                self._graphs.keep(mirror, kind, graph)
            self._fill_query(mirror, grid, floors)
            graph.launch(self._stream)
            return self._read_results(k)

    @contextmanager
    def searching(self, mirror: Mirror, grid: Grid, floors: Floats, live: Any) -> Iterator[None]:
        with self.holding():
            self._mirror, self._queries = mirror, len(grid)
            self._padded = 1 if len(grid) == 1 else next(size for size in BATCHES if size >= len(grid))
            size = len(grid) * mirror.words * 32 * 8
            if not self._recording:
                self._fill_query(mirror, grid, floors)
            self._copy(self._at["weights"], self._query.ctypes.data, size + 4 * len(grid), to_card=True)
            _, self._functions, self._grids = self._module(mirror.words)
            sizes = np.int64(mirror.end), np.int32(mirror.tiles), np.int32(mirror.shift)
            self._codes = (mirror.addresses, live, *sizes)
            at, after_weights = self._at, np.uint64(int(self._at["weights"]) + size)
            counts = np.int32(len(grid)), np.int32(self._padded)
            self._launch(
                "prepare",
                (self._padded,),
                *(at["weights"], after_weights, *counts, at["plans"], at["tables"], at["quantised"]),
                *(at["histograms"], at["results"]),
                threads=128,
            )
            yield

    def _fill_query(self, mirror: Mirror, grid: Grid, floors: Floats) -> None:
        """Write weights and floors to pinned memory, one after the other."""
        (queries, bits), padded = grid.shape, mirror.words * 32
        self._queries = queries
        size = queries * padded * 8
        weights = self._query[:size].view(np.float64).reshape(queries, padded)
        weights[:, :bits] = grid
        weights[:, bits:] = 0
        self._query[size : size + 4 * queries].view(np.float32)[:] = floors

    def sample(self, samples: int) -> None:
        at, rows = self._at, self._mirror.rows
        blocks = min(-(-samples // THREADS), self._units * 8 if self._queries == 1 else self._units)
        sizes = np.int64(rows), np.int64(samples), np.int64(rows // samples)
        self._launch(
            "sample", (blocks, self._queries), *self._codes, at["plans"], at["tables"], at["histograms"], *sizes
        )

    def tighten(self, k: int, *, clear: bool = False) -> None:
        at = self._at
        planes = LONG_CODE_PLANES
        if self._mirror.words <= SHORT_CODE_WORDS:
            planes = self.planes or (3 if self._mirror.rows >= FEW_PLANES_FROM * k else 4)
        sizes = np.int32(self._queries), np.uint64(k), np.uint64(self.limits.candidates), np.int32(planes)
        self._launch(
            "tighten",
            (self._padded,),
            *(at["plans"], at["weights"], at["histograms"], at["results"], *sizes, np.int32(clear)),
        )

    def scan(self, phase: int, few: bool) -> None:
        at, capacity = self._at, np.uint64(self.limits.candidates)
        stored = at["results"], at["found"], capacity
        if self._queries == 1:
            name = "scan_few" if few else "scan_one"
            tables = at["tables"], at["histograms"]
            self._launch(name, None, *self._codes, np.int32(phase), at["plans"], *tables, *stored)
            return
        _, functions, _ = self._module(self._mirror.words, self._padded)
        shared = self._mirror.words * 32 * self._padded
        arguments = *self._codes, np.int32(phase), at["plans"], at["quantised"], *stored
        blocks = self._units * batch_blocks(self._mirror.words, self._padded)
        functions["scan_batch"]((blocks,), (BATCH_THREADS,), arguments, shared, self._stream)
        self._launch(
            "rescore",
            (self._units * 4,),
            *self._codes,
            *(at["plans"], at["tables"], at["histograms"], at["results"], at["found"], capacity),
        )

    def collect(self, k: int) -> Candidates:
        at, capacity = self._at, self.limits.candidates
        entries_at = np.uint64(int(at["results"]) + HEADER_BYTES)
        self._launch(
            "keep", (self._units * 2,), at["plans"], at["results"], at["found"], entries_at, np.uint64(capacity)
        )
        size = HEADER_BYTES + self._first_results(k) * ENTRY.itemsize
        self._copy(self._result.ctypes.data, at["results"], size, to_card=False)
        return NO_CANDIDATES if self._recording else self._read_results(k)

    def _first_results(self, k: int) -> int:
        """Return how many results are copied at once; more than these are rare."""
        space = (len(self._result) - HEADER_BYTES) // ENTRY.itemsize
        return min(self.limits.candidates, space, 512 + 2 * k * self._queries)

    def _read_results(self, k: int) -> Candidates:
        self._stream.synchronize()
        candidates, count, _, _ = self._result[:HEADER_BYTES].view(np.uint64).tolist()
        if count > self._first_results(k):
            size = HEADER_BYTES + count * ENTRY.itemsize
            entries = self._buffers["results"][HEADER_BYTES:size].get(stream=self._stream).view(ENTRY)
        else:
            entries = self._result[HEADER_BYTES : HEADER_BYTES + count * ENTRY.itemsize].view(ENTRY).copy()
        keys = entries["key"].astype(np.int64)
        complete = candidates <= self.limits.candidates
        return Candidates(keys >> 48, keys & ((1 << 48) - 1), np.ascontiguousarray(entries["score"]), complete)

    def thresholds(self, queries: int) -> Floats:
        plans = self._buffers["plans"].get(stream=self._stream).reshape(-1, PLAN_BYTES)[:queries]
        return np.ascontiguousarray(plans[:, TAU_AT : TAU_AT + 4]).view(np.float32)[:, 0]


_cards: dict[int, CudaCard] = {}
_opening = threading.Lock()


def open_card(device: int = 0) -> CudaCard:
    """Return the GPU with this number: one object for all indexes of the process."""
    with _opening:
        if device not in _cards:
            _cards[device] = CudaCard(device)
        return _cards[device]
