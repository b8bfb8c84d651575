"""The memory of a GPU and its compiled kernels: codes, bitmaps, and copies from the host."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, Unsupported
from stillhash.numeric.codes import TILE, Tiles
from stillhash.numeric.threads import usable_cores
from stillhash.search.blocks import Bitmap, allowed_rows
from stillhash.search.gpu.card import Card, CardLimits, Mirror, full_card
from stillhash.search.gpu.compiler import REGISTERS, compile_batch, compile_scan, load_cupy
from stillhash.search.gpu.mirror import LIVE_WORDS, WORD_BYTES

PARTS = 2
COPY_THREADS = min(8, usable_cores())
PARALLEL_BYTES = 1 << 20  # from this size on, several threads fill a part


class PinnedPart(NamedTuple):
    """Memory of the host, memory of the card, and the event after which both are free again."""

    host: NDArray[np.uint8]
    card: Any
    done: Any


class PinnedParts:
    """Parts of `size` bytes of pinned memory that take turns: one is filled while another is copied to the card."""

    def __init__(self, cupy: Any, size: int) -> None:
        self._cupy, self.size = cupy, size
        self._parts: list[PinnedPart] = []
        self._turn = 0
        self._threads = ThreadPoolExecutor(COPY_THREADS, "copy to GPU") if COPY_THREADS > 1 else None

    def fill(self, content: NDArray[np.uint8]) -> PinnedPart:
        """Wait for the part whose turn it is, and fill it: the caller copies it, and records its event."""
        part = self._next()
        part.done.synchronize()
        target = part.host[: content.nbytes].reshape(content.shape)
        if self._threads is None or content.nbytes < PARALLEL_BYTES:
            target[...] = content
            return part
        step = -(-len(content) // COPY_THREADS)  # one thread alone is slower than the bus
        starts = range(0, len(content), step)
        list(self._threads.map(lambda s: np.copyto(target[s : s + step], content[s : s + step]), starts))
        return part

    def _next(self) -> PinnedPart:
        cuda = self._cupy.cuda
        if len(self._parts) < PARTS:
            host = np.frombuffer(cuda.alloc_pinned_memory(self.size), np.uint8)[: self.size]
            card = self._cupy.empty(self.size, np.uint8)
            self._parts.append(PinnedPart(host, card, cuda.Event(disable_timing=True)))
            return self._parts[-1]
        self._turn = (self._turn + 1) % PARTS
        return self._parts[self._turn]


THREADS = 256
TILE_PART_BYTES, BITMAP_PART_BYTES = 1 << 25, 1 << 22  # copied to the card at a time
NUM_REGISTERS, SHARED_SIZE = 4, 8  # attributes of a function


class CudaMemory(Card):
    """A GPU without its searches: searches and writes have a stream and a lock each."""

    def __init__(self, device: int, limits: CardLimits) -> None:
        self.limits, self.device = limits, device
        self.arrays = cp = load_cupy()
        try:
            count = cp.cuda.runtime.getDeviceCount()
        except cp.cuda.runtime.CUDARuntimeError as error:
            raise Unsupported(f"device: expected a GPU with CUDA, got {error}") from None
        if not 0 <= device < count:
            raise InvalidInput(f"device: expected 0 to {count - 1}, got {device}")
        self._device = cp.cuda.Device(device)
        self.capability = int(self._device.compute_capability)
        self._searching, self._uploading = threading.RLock(), threading.RLock()
        self._compiling = threading.Lock()
        self._modules: dict[tuple[int, int], Any] = {}
        with self._device:
            self._units = self._device.attributes["MultiProcessorCount"]
            self._stream, self._upload_stream = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
            self._tile_parts, self._bitmap_parts = PinnedParts(cp, TILE_PART_BYTES), PinnedParts(cp, BITMAP_PART_BYTES)
            self._unused = cp.zeros(1, np.uint32)  # where a kernel would write that only reads

    def _module(self, words: int, queries: int = 0) -> Any:
        """Return the functions for a code length: of one query, or of a batch of at least so many."""
        key = words, queries
        with self._compiling:
            if key not in self._modules:
                self._modules[key] = self._compile(words, queries)
            return self._modules[key]

    def _compile(self, words: int, queries: int) -> Any:
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
        return module, functions, grids

    def _blocks(self, function: Any) -> int:
        registers = int(self.arrays.cuda.driver.funcGetAttribute(NUM_REGISTERS, function.ptr))
        return max(1, min(8, REGISTERS // (THREADS * max(8, -(-registers // 8) * 8))))

    @contextmanager
    def holding(self) -> Iterator[None]:
        with self._searching, self._device, self._stream:
            yield

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
            self._launch("read_codes", None, mirror.addresses, mirror.live, *sizes, self._unused)
            self._stream.synchronize()

    def _launch(self, name: str, grid: tuple[int, ...] | None, *arguments: Any, threads: int = THREADS) -> None:
        grid = (self._grids[name],) if grid is None else grid
        self._functions[name](grid, (threads,), arguments, 0, self._stream)

    def _copy(self, target: Any, source: Any, size: int, *, to_card: bool, stream: Any = None) -> None:
        kind = 1 if to_card else 2  # cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost
        self.arrays.cuda.runtime.memcpyAsync(int(target), int(source), size, kind, (stream or self._stream).ptr)
