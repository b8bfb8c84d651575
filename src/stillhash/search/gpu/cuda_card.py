"""Search on a GPU by CuPy: kernels compiled for one card and one code length, memory, buffers, launches.

Compiled kernels are kept on disk. All indexes on a card share its buffers, and one search runs at a time.
"""

import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, MissingExtra, Unsupported
from stillhash.numeric.codes import TILE, Tiles
from stillhash.numeric.exact_scores import Grid
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import MAX_BITS, Floats
from stillhash.search.blocks import Bitmap, allowed_rows
from stillhash.search.gpu.card import SCORE_BINS, Candidates, Card, CardLimits, Mirror, full_card
from stillhash.search.gpu.mirror import LIVE_WORDS, WORD_BYTES

TENSOR_CAPABILITY = 80  # cards from here on multiply int8 by mma.sync
WARPGROUP_CAPABILITY = 90  # only cards of this generation have wgmma
REGISTERS = 65_536  # that a multiprocessor has
SHARED_BYTES = 160 << 10  # that the blocks of a multiprocessor share, on the smallest card with int8 tensor cores
BATCH_THREADS = 128
PARTS = 2
COPY_THREADS = min(8, usable_cores())
PARALLEL_BYTES = 1 << 20  # from this size on, several threads fill a part
MOST_GRAPHS = 16  # kept for one state of an index
NOT_RECORDED = "not recorded"  # a kind of search that came before, and has no graph yet
THREADS = 256
TILE_PART_BYTES, BITMAP_PART_BYTES = 1 << 25, 1 << 22  # copied to the card at a time
NUM_REGISTERS, SHARED_SIZE = 4, 8  # numbers that CUDA gives to attributes of a function
PLAN_BYTES, TAU_AT = 496, 32  # size of the plan of a query, and where its threshold is
ENTRY = np.dtype([("key", np.uint64), ("score", np.float32), ("unused", np.uint32)])
HEADER_BYTES = 32
BATCHES = (16, 32, 64, 128)  # queries that a compiled scan takes
SHORT_CODE_WORDS, LONG_CODE_PLANES = 4, 6  # as in scan.cu: bits a weight of the bound of one query, for long codes
FEW_PLANES_FROM = 1 << 22  # from so many rows per hit on, 3 bits a weight prune enough
NO_CANDIDATES = Candidates(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32), True)


def load_cupy() -> Any:
    """Return CuPy, or raise MissingExtra."""
    try:
        return import_module("cupy")
    except ImportError:
        message = "device: expected CuPy to be installed, got none. Run: pip install 'stillhash[gpu]'"
        raise MissingExtra(message) from None


def compile_scan(cupy: Any, words: int, capability: int) -> Any:
    """Return the module of the kernels that every search uses."""
    return _load(cupy, _source("layout.cu") + _source("scan.cu"), [f"-DWORDS={words}"], capability)


def compile_batch(cupy: Any, words: int, queries: int, capability: int) -> Any:
    """Return the module of the scan for so many queries at a time."""
    source, blocks = _source("layout.cu"), batch_blocks(words, queries)
    options = [f"-DWORDS={words}", f"-DQUERIES={queries}", f"-DBLOCKS={blocks}"]
    if capability == WARPGROUP_CAPABILITY:
        source, options = source + multiply_source(queries), [*options, "-DWARPGROUPS"]
    return _load(cupy, source + _source("batch.cu"), options, capability)


def batch_blocks(words: int, queries: int) -> int:
    """Return how many blocks fit a multiprocessor, by registers for codes and sums, and by shared memory."""
    registers = -(-(26 + 9 * words + 16 * queries // 25) // 8) * 8  # as the compiler needs
    return max(1, min(8, REGISTERS // (BATCH_THREADS * registers), SHARED_BYTES // (words * 32 * queries + 2048)))


def multiply_source(queries: int) -> str:
    """Return the functions that set or add the products of 64 codes and all queries, 32 bits of each: one wgmma."""
    sums = queries // 2
    registers = ", ".join(f"%{i}" for i in range(sums))
    a, b, c, d, weights = (f"%{sums + i}" for i in range(5))
    source = ""
    for name, access, adding in (("set_products", "=", 0), ("add_products", "+", 1)):
        outputs = ", ".join(f'"{access}r"(sums[{i}])' for i in range(sums))
        source += f"""
__device__ __forceinline__ void {name}(int (&sums)[{sums}], const u32 (&bits)[4], u64 weights) {{
  asm volatile("{{ .reg .pred adding; setp.ne.b32 adding, {adding}, 0; "
               "wgmma.mma_async.sync.aligned.m64n{queries}k32.s32.u8.s8 {{{registers}}}, "
               "{{{a}, {b}, {c}, {d}}}, {weights}, adding; }}"
               : {outputs}
               : "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3]), "l"(weights));
}}
"""
    return source


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _load(cupy: Any, source: str, options: list[str], capability: int) -> Any:
    architecture = f"sm_{capability}a" if capability == WARPGROUP_CAPABILITY else f"sm_{capability}"
    options = [*options, "-std=c++17", "-fmad=false", f"--gpu-architecture={architecture}"]
    module = cupy.cuda.function.Module()
    module.load(_cubin(cupy.cuda.nvrtc, source, options))
    return module


def _cubin(nvrtc: Any, source: str, options: list[str]) -> bytes:
    key = hashlib.sha256(repr((source, options, nvrtc.getVersion())).encode()).hexdigest()
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    place = folder / f"stillhash-{key}.cubin"
    try:
        return place.read_bytes()
    except OSError:
        pass
    program = nvrtc.createProgram(source, "stillhash.cu", [], [])
    try:
        nvrtc.compileProgram(program, options)
        compiled = bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise Unsupported(f"device: expected kernels to compile, got {error}: {log[:2000]}") from error
    finally:
        nvrtc.destroyProgram(program)
    _store(place, compiled)
    return compiled


def _store(place: Path, compiled: bytes) -> None:
    """Write the file whole or not at all; without a folder to write to, compile again the next time."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
            file.write(compiled)
        os.replace(file.name, place)  # noqa: PTH105
    except OSError:
        return


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


class CudaCard(Card):
    """The GPU with this number, by CuPy: searches and writes have a stream and a lock each."""

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
        self._searching, self._uploading = threading.RLock(), threading.RLock()
        self._compiling = threading.Lock()
        self._modules: dict[tuple[int, int], Any] = {}
        with self._device:
            self._units = self._device.attributes["MultiProcessorCount"]
            self._stream, self._upload_stream = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
            self._tile_parts, self._bitmap_parts = PinnedParts(cp, TILE_PART_BYTES), PinnedParts(cp, BITMAP_PART_BYTES)
            self._unused = cp.zeros(1, np.uint32)  # where a kernel would write that only reads
        self.batches = self.capability >= TENSOR_CAPABILITY
        self._graphs, self._recording = RecordedSearches(), False
        self.planes = 0  # bits a weight of the bound of one query, for short codes; 0 chooses
        with self.holding():
            self._allocate_buffers()
            self._stream.synchronize()

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
