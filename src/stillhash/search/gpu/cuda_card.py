"""A GPU: its memory, its kernels, and the buffers that all indexes on it share. One search runs at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from stillhash.errors import InvalidInput, Unsupported
from stillhash.numeric.codes import TILE, Tiles
from stillhash.numeric.exact_scores import Grid
from stillhash.numeric.validation import MAX_BITS, Floats
from stillhash.search.blocks import Bitmap, allowed_rows
from stillhash.search.gpu.card import SCORE_BINS, Candidates, Card, CardLimits, Mirror, full_card
from stillhash.search.gpu.compiler import (
    BATCH_THREADS,
    REGISTERS,
    TENSOR_CAPABILITY,
    batch_blocks,
    compile_batch,
    compile_scan,
    load_cupy,
)
from stillhash.search.gpu.mirror import LIVE_WORDS, WORD_BYTES
from stillhash.search.gpu.pinned import PinnedParts

THREADS = 256
PLAN_BYTES, TAU_AT = 368, 32  # of a plan, and where it has its threshold
ENTRY = np.dtype([("key", np.uint64), ("score", np.float32), ("unused", np.uint32)])
HEADER_BYTES = 32
TILE_PART_BYTES, BITMAP_PART_BYTES = 1 << 25, 1 << 22  # copied to the card at a time
BATCHES = (16, 32, 64, 128)  # queries that a compiled scan takes
FEW_PLANES_FROM = 1 << 22  # from so many rows per hit on, 3 bits a weight prune enough
NUM_REGISTERS, SHARED_SIZE = 4, 8  # attributes of a function


class CudaCard(Card):
    """The GPU with this number, by CuPy."""

    def __init__(self, device: int = 0, limits: CardLimits | None = None) -> None:
        self.limits, self.device = limits or CardLimits(), device
        self.arrays = cp = load_cupy()
        try:
            count = cp.cuda.runtime.getDeviceCount()
        except cp.cuda.runtime.CUDARuntimeError as error:
            raise Unsupported(f"device: expected a GPU with CUDA, got {error}") from None
        if not 0 <= device < count:
            raise InvalidInput(f"device: expected 0 to {count - 1}, got {device}")
        self._device = cp.cuda.Device(device)
        self.capability = int(self._device.compute_capability)
        self.batches = self.capability >= TENSOR_CAPABILITY
        self._searching, self._uploading = threading.RLock(), threading.RLock()
        self._modules: dict[tuple[int, int], Any] = {}
        self.planes = 0  # bits a weight of the bound of one query; 0 chooses
        with self._device:
            self._units = self._device.attributes["MultiProcessorCount"]
            self._stream, self._upload_stream = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
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
            "unused": 8,
        }
        self._buffers = {name: cp.zeros(size, np.uint8) for name, size in sizes.items()}
        self._at = {name: np.uint64(array.data.ptr) for name, array in self._buffers.items()}
        self._query_memory = cp.cuda.alloc_pinned_memory(queries * (MAX_BITS * 8 + 4))
        self._query = np.frombuffer(self._query_memory, np.uint8)
        self._result_memory = cp.cuda.alloc_pinned_memory(1 << 20)
        self._result = np.frombuffer(self._result_memory, np.uint8)
        self._tile_parts, self._bitmap_parts = PinnedParts(cp, TILE_PART_BYTES), PinnedParts(cp, BITMAP_PART_BYTES)

    def _module(self, words: int, queries: int = 0) -> Any:
        """Return the functions for a code length: of one query, or of a batch of at least so many."""
        key = words, queries
        if key not in self._modules:
            if queries:
                module = compile_batch(self.arrays, words, queries, self.capability)
                names = ["scan_batch"]
            else:
                module = compile_scan(self.arrays, words, self.capability)
                names = ["prepare", "sample", "tighten", "scan_one", "scan_few", "rescore", "keep"]
                names += ["write_tiles", "restrict_rows", "read_codes"]
            functions = {name: module.get_function(name) for name in names}
            if queries:
                self.arrays.cuda.driver.funcSetAttribute(functions["scan_batch"].ptr, SHARED_SIZE, words * 32 * queries)
            grids = {name: self._units * self._blocks(function) for name, function in functions.items()}
            self._modules[key] = module, functions, grids
        return self._modules[key]

    def _blocks(self, function: Any) -> int:
        registers = int(self.arrays.cuda.driver.funcGetAttribute(NUM_REGISTERS, function.ptr))
        return max(1, min(8, REGISTERS // (THREADS * max(8, -(-registers // 8) * 8))))

    @contextmanager
    def holding(self) -> Iterator[None]:
        with self._searching, self._device, self._stream:
            yield

    @contextmanager
    def searching(self, mirror: Mirror, grid: Grid, floors: Floats, live: Any) -> Iterator[None]:
        with self.holding():
            queries, bits = grid.shape
            padded = mirror.words * 32
            self._mirror, self._live, self._queries = mirror, live, queries
            self._padded = queries if queries == 1 else next(size for size in BATCHES if size >= queries)
            size = queries * padded * 8
            weights = self._query[:size].view(np.float64).reshape(queries, padded)
            weights[:, :bits] = grid
            weights[:, bits:] = 0
            self._query[size : size + 4 * queries].view(np.float32)[:] = floors
            self._copy(self._at["weights"], self._query.ctypes.data, size + 4 * queries, to_card=True)
            self._floors = np.uint64(int(self._at["weights"]) + size)
            _, self._functions, self._grids = self._module(mirror.words)
            self._codes = (
                mirror.addresses,
                live,
                np.int64(mirror.end),
                np.int32(mirror.tiles),
                np.int32(mirror.shift),
            )
            at = self._at
            self._launch(
                "prepare",
                (self._padded,),
                *(at["weights"], self._floors, np.int32(queries), np.int32(self._padded), at["plans"], at["tables"]),
                *(at["quantised"], at["histograms"], at["results"]),
                threads=128,
            )
            yield

    def sample(self, samples: int) -> None:
        at, rows = self._at, self._mirror.rows
        blocks = min(-(-samples // THREADS), self._units * 8 if self._queries == 1 else self._units)
        sizes = np.int64(rows), np.int64(samples), np.int64(rows // samples)
        self._launch(
            "sample", (blocks, self._queries), *self._codes, at["plans"], at["tables"], at["histograms"], *sizes
        )

    def tighten(self, k: int, *, clear: bool = False) -> None:
        at = self._at
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
        most = min(capacity, (len(self._result) - HEADER_BYTES) // ENTRY.itemsize, 512 + 2 * k * self._queries)
        self._copy(self._result.ctypes.data, at["results"], HEADER_BYTES + most * ENTRY.itemsize, to_card=False)
        self._stream.synchronize()
        candidates, count, _, _ = self._result[:HEADER_BYTES].view(np.uint64).tolist()
        if count > most:
            size = HEADER_BYTES + count * ENTRY.itemsize
            entries = self._buffers["results"][HEADER_BYTES:size].get(stream=self._stream).view(ENTRY)
        else:
            entries = self._result[HEADER_BYTES : HEADER_BYTES + count * ENTRY.itemsize].view(ENTRY).copy()
        keys = entries["key"].view(np.int64) if entries.flags.c_contiguous else entries["key"].astype(np.int64)
        return Candidates(keys >> 48, keys & ((1 << 48) - 1), entries["score"], candidates <= capacity)

    def thresholds(self, queries: int) -> Floats:
        plans = self._buffers["plans"].get(stream=self._stream).reshape(-1, PLAN_BYTES)[:queries]
        return np.ascontiguousarray(plans[:, TAU_AT : TAU_AT + 4]).view(np.float32)[:, 0]

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._uploading, self._device, self._upload_stream:
            try:
                yield
            finally:
                self._upload_stream.synchronize()

    def allocate(self, tiles: int, words: int) -> Any:
        cp, size = self.arrays, tiles * words * WORD_BYTES
        try:
            return cp.empty((tiles, words, TILE), np.uint32)
        except cp.cuda.memory.OutOfMemoryError:
            cp.get_default_memory_pool().free_all_blocks()
        try:
            return cp.empty((tiles, words, TILE), np.uint32)
        except cp.cuda.memory.OutOfMemoryError:
            free, total = cp.cuda.runtime.memGetInfo()
            raise full_card(size, free, total, words) from None

    def address_all(self, chunks: tuple[Any, ...]) -> Any:
        return self.arrays.asarray(np.array([chunk.data.ptr for chunk in chunks] or [0], np.uint64))

    def write_tiles(self, chunk: Any, at: int, tiles: Tiles) -> None:
        _, planes, _ = tiles.shape
        _, functions, _ = self._module(chunk.shape[1])
        step, stream = self._tile_parts.size // (planes * TILE), self._upload_stream
        for start in range(0, len(tiles), step):
            some = tiles[start : start + step]
            part = self._tile_parts.fill(some)
            self._copy(part.card.data.ptr, part.host.ctypes.data, some.nbytes, to_card=True, stream=stream)
            target = np.uint64(chunk.data.ptr + (at + start) * chunk.shape[1] * WORD_BYTES)
            arguments = np.uint64(part.card.data.ptr), np.int32(planes), np.int32(len(some)), target
            functions["write_tiles"]((self._units * 8,), (THREADS,), arguments, 0, stream)
            part.done.record(stream)

    def restrict(self, mirror: Mirror, allowed: Bitmap) -> tuple[Any, int]:
        cp = self.arrays
        with self.holding():
            _, functions, _ = self._module(mirror.words)
            ids = self._upload(allowed)
            live = cp.empty_like(mirror.live)
            count = cp.zeros(1, np.uint64)
            for block, start in zip(mirror.blocks, mirror.starts.tolist(), strict=True):
                words = -(-block.rows // TILE) * LIVE_WORDS
                bitmap, first, size = ids, block.first, len(ids) * 32
                if block.ids is not None:  # in any order: the host looks them up
                    rows = allowed_rows(block.first, block.ids, None, words * 4, allowed)
                    bitmap, first, size = cp.asarray(rows.view(np.uint32)), 0, len(rows) * 8
                blocks = min(-(-words // THREADS), self._units * 8)
                sizes = np.int64(size), np.int64(first), np.int64(start), np.int64(words)
                arguments = mirror.live, bitmap, *sizes, live, count
                functions["restrict_rows"]((blocks,), (THREADS,), arguments, 0, self._stream)
            return live, int(count.get(stream=self._stream)[0])

    def _upload(self, bitmap: Bitmap) -> Any:
        """Return a bitmap as words on the card."""
        words = self.arrays.zeros(len(bitmap) // 4 + 1, np.uint32)
        for start in range(0, len(bitmap), self._bitmap_parts.size):
            some = bitmap[start : start + self._bitmap_parts.size]
            part = self._bitmap_parts.fill(some)
            self._copy(words.data.ptr + start, part.host.ctypes.data, len(some), to_card=True)
            part.done.record(self._stream)
        return words

    def read(self, mirror: Mirror) -> None:
        with self.holding():
            _, self._functions, self._grids = self._module(mirror.words)
            sizes = np.int64(mirror.end), np.int32(mirror.tiles), np.int32(mirror.shift)
            self._launch("read_codes", None, mirror.addresses, mirror.live, *sizes, self._at["unused"])
            self._stream.synchronize()

    def _launch(self, name: str, grid: tuple[int, ...] | None, *arguments: Any, threads: int = THREADS) -> None:
        grid = (self._grids[name],) if grid is None else grid
        self._functions[name](grid, (threads,), arguments, 0, self._stream)

    def _copy(self, target: Any, source: Any, size: int, *, to_card: bool, stream: Any = None) -> None:
        kind = 1 if to_card else 2  # cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost
        self.arrays.cuda.runtime.memcpyAsync(int(target), int(source), size, kind, (stream or self._stream).ptr)


_cards: dict[int, CudaCard] = {}
_opening = threading.Lock()


def open_card(device: int = 0) -> CudaCard:
    """Return the GPU with this number: one object for all indexes of the process."""
    with _opening:
        if device not in _cards:
            _cards[device] = CudaCard(device)
        return _cards[device]
