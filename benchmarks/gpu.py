"""Time exact search on a GPU: against a bare read of the same codes on the card, the CPU's scan, and FAISS on the GPU.

Random codes, from host weights to host hits, by the wall clock. First the hits are compared with those of the CPU's
scan. FAISS's binary index ranks by plain Hamming distance, an easier job, and only where its GPU version is installed.

`run_orders` takes codes in the orders that data arrive in: sorted by code beside random, and sorted by label beside the
same labels mixed. The random ones come from a mapped file, as the segments of a collection do, and are compared with a
product of matrices on the card: the definition of a score, in double precision, which shares nothing with the search
but the weights.

`run_served` searches a server by many clients, with its index on the GPU, beside the CPU's scan and tables. A store of
10^8 items would take hours to write, so the collection is small, and its index holds as many random codes besides,
which no query is near enough to: each search has the work of a large collection, and answers with items.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stillhash
from benchmarks.fixtures import random_features
from benchmarks.scan import count_different, installed_faiss
from benchmarks.serve import CLIENT_THREADS, LoadOutcome, search_all
from benchmarks.timing import (
    CODE_BITS,
    TOP_K,
    Bench,
    Contenders,
    Figures,
    Goal,
    Sections,
    interleaved,
    quantiles_ms,
    ratio,
    temporary_folder,
)
from stillhash.errors import StillhashError
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric import kernels
from stillhash.numeric.codes import TILE, Tiles, empty_tiles, from_tiles, pack, signs, width
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search import GpuScan, Hits, Index, Scan
from stillhash.search.gpu.card import Card
from stillhash.server import Settings, serve

GPU_CODES = (16_777_216, 134_217_728)
GPU_BITS = (32, 64, 128, 256)
GPU_BATCHES = (64, 128)
MANY_CODES = 1 << 29  # from so many on there are goals on time
MORE_HITS = 100
ALLOWED_SHARE = 0.01
COMPARED_QUERIES = 8
CPU_ROUNDS = 3  # a scan by the CPU takes long
MOST_FAISS_ROWS = 1 << 28  # FAISS copies the codes once more
RANDOM_TILES = 1 << 12  # that one generator makes


def run(
    quick: bool,
    progress: ReportProgress,
    repeats: int = 31,
    codes: Sequence[int] = GPU_CODES,
    bits: Sequence[int] = GPU_BITS,
) -> Figures:
    """Check and time searches of so many random codes, at each code length."""
    sizes = [check_integer(count, "codes", 1 << 12) for count in codes]
    if quick:
        sizes, bits = [1 << 16], (64,)
    rows = [measure(count, length, repeats, progress) for count in sizes for length in bits]
    return {"rows": rows, "goals": [goal for row in rows for goal in goals_of(row)]}


def measure(count: int, bits: int, repeats: int, progress: ReportProgress, device: int | Card = 0) -> Figures:
    """Measure everything at one size."""
    name = f"{count:,} codes of {bits} bits"
    progress(f"{name}: random codes")
    rng = np.random.default_rng(bits)
    index, plain = GpuScan(bits, device=device), Scan(bits)
    tiles, rows = random_tiles(count, bits), count // TILE * TILE
    began = time.perf_counter()
    index.add_tiles(tiles, rows)
    load = time.perf_counter() - began
    plain.add_tiles(tiles, rows)
    progress(f"{name}: comparing with the scan of the CPU")
    queries = rng.standard_normal((repeats + max(GPU_BATCHES), bits), dtype=np.float32)
    allowed = np.packbits(rng.random(rows, dtype=np.float32) < ALLOWED_SHARE, bitorder="little")
    row: Figures = {"codes": rows, "bits": bits, "load_s": load, "load_gb_per_second": tiles.nbytes / load / 1e9}
    row |= {"memory": index.card_bytes / tiles.nbytes, "wrong_hits": compare(index, plain, queries, allowed)}
    filtered = index.prepare_filter(allowed)
    mirror = index.mirror
    contenders: Contenders = {
        "read": lambda _: index.card.read(mirror),
        "one": lambda turn: index.search(queries[turn], TOP_K),
        "more": lambda turn: index.search(queries[turn], MORE_HITS),
        "filtered": lambda turn: index.search(queries[turn], TOP_K, allowed=filtered),
        **{f"batch {size}": batch_contender(index, queries, size) for size in GPU_BATCHES},
    }
    faiss = installed_faiss()
    if hasattr(faiss, "GpuIndexBinaryFlat") and rows <= MOST_FAISS_ROWS:
        hamming = faiss.GpuIndexBinaryFlat(faiss.StandardGpuResources(), bits)
        hamming.add(from_tiles(tiles, rows))
        contenders["faiss"] = lambda turn: hamming.search(pack(queries[turn : turn + 1]), TOP_K)
    progress(f"{name}: timing")
    times = interleaved(contenders, repeats, wall=True)
    times["cpu"] = interleaved({"cpu": lambda turn: plain.search(queries[turn], TOP_K)}, CPU_ROUNDS, wall=True)["cpu"]
    row["ms"] = {name: 1e3 * float(np.median(seconds)) for name, seconds in times.items()}
    row["one/read"], row["more/one"] = ratio(times, "one/read"), ratio(times, "more/one")
    row["filtered/one"] = ratio(times, "filtered/one")
    row["queries_per_second"] = {size: 1e3 * size / row["ms"][f"batch {size}"] for size in GPU_BATCHES}
    return row


def batch_contender(index: GpuScan, queries: Any, size: int) -> Any:
    return lambda turn: index.search(queries[turn : turn + size], TOP_K)


def random_tiles(count: int, bits: int) -> Tiles:
    """Return tiles of random codes, a multiple of 256 of them."""

    def fill(rng: np.random.Generator, part: Tiles, start: int) -> None:
        words = rng.integers(0, 2**64 - 1, part.size // 8, np.uint64, endpoint=True)
        part[...] = words.view(np.uint8).reshape(part.shape)

    return filled_tiles(count, bits, fill)


def filled_tiles(count: int, bits: int, fill: Callable[[np.random.Generator, Tiles, int], None]) -> Tiles:
    """Return tiles that several threads fill, since there may be a billion codes: each part given its first tile."""
    tiles = empty_tiles(count // TILE * TILE, bits)

    def fill_part(start: int) -> None:
        rng = np.random.Generator(np.random.SFC64([bits, start]))
        fill(rng, tiles[start : start + RANDOM_TILES], start)

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(fill_part, range(0, len(tiles), RANDOM_TILES)))
    return tiles


def compare(index: GpuScan, plain: Scan, queries: Any, allowed: Any) -> int:
    """Count hits unlike those of the CPU's scan: in a batch, alone, filtered; two queries are full of ties."""
    some = queries[:COMPARED_QUERIES].copy()
    some[0], some[1] = np.sign(some[0]), np.rint(some[1])
    expected = plain.search(some, TOP_K)
    wrong = count_different(index.search(some, TOP_K), expected)
    wrong += sum(count_different(index.search(some[q], TOP_K), plain.search(some[q], TOP_K)) for q in range(2))
    best = plain.search(some[:3], TOP_K, allowed=allowed)
    return wrong + count_different(index.search(some[:3], TOP_K, allowed=allowed), best)


def goals_of(row: Figures) -> list[Goal]:
    name = f"{row['codes']:,} x {row['bits']}"
    goals: list[Goal] = [
        (f"hits unlike the CPU's, {name}", "<= 0", row["wrong_hits"]),
        (f"card / bytes of codes, {name}", "<= 1.05", row["memory"]),
    ]
    if row["codes"] < MANY_CODES:  # a search takes less time than its start
        return goals
    return [
        *goals,
        (f"one query / read, {name}", "<= 1.4", row["one/read"]["median"]),
        (f"k = {MORE_HITS} / k = {TOP_K}, {name}", "<= 1.3", row["more/one"]["median"]),
        (f"1 % allowed / all, {name}", "<= 1", row["filtered/one"]["median"]),
    ]


def tables(result: Figures) -> Sections:
    columns = """codes: {codes:,} | b: {bits} | read: {ms[read]:.2f} | 1 query: {ms[one]:.2f} |
        k = 100: {ms[more]:.2f} | 1 %: {ms[filtered]:.2f} |
        64: {ms[batch 64]:.1f} | 128: {ms[batch 128]:.1f} | CPU: {ms[cpu]:.0f} |
        load s: {load_s:.2f}"""
    return [format_table(f"GPU, k = {TOP_K}: milliseconds of one search", columns, result["rows"])]


# ---- orders of codes ----


ORDER_TILES = 1 << 12  # that one product takes
PRODUCT_QUERIES = 100
SCANNED_QUERIES = 4  # compared with the CPU's scan, in orders that have no product
ORDER_LABELS = 1000
CALLERS = 4  # threads that search batches of 64 at the same time
ORDERS = {"random": None, "sorted by code": "random", "labels mixed": None, "sorted by label": "labels mixed"}


def run_orders(
    quick: bool,
    progress: ReportProgress,
    repeats: int = 31,
    codes: Sequence[int] = GPU_CODES,
    bits: Sequence[int] = GPU_BITS,
    folder: Path | None = None,
) -> Figures:
    """Check and time searches of so many codes in each order."""
    sizes = [(check_integer(count, "codes", 1 << 12), length) for count in codes for length in bits]
    rows = []
    for count, length in [(1 << 16, 64)] if quick else sizes:
        rows += measure_orders(count, length, repeats, progress, folder)
    return {"rows": rows, "goals": [goal for row in rows for goal in order_goals(row)]}


def measure_orders(
    count: int, bits: int, repeats: int, progress: ReportProgress, folder: Path | None = None, device: int | Card = 0
) -> list[Figures]:
    """Measure every order of so many codes."""
    measured: dict[str, Figures] = {}
    for order, other in ORDERS.items():
        progress(f"{count:,} codes of {bits} bits, {order}: making them")
        tiles, weights = ordered_tiles(order, count, bits), ordered_weights(order, max(repeats, 256), bits)
        index = GpuScan(bits, device=device)
        row: Figures = {"codes": len(tiles) * TILE, "bits": bits, "order": order}
        row |= load_mapped(index, tiles, folder) if order == "random" else load_codes(index, tiles)
        progress(f"{count:,} codes of {bits} bits, {order}: comparing")
        row |= compare_orders(index, tiles, weights, order == "random")
        progress(f"{count:,} codes of {bits} bits, {order}: timing")
        row["ms"] = times_ms(index, weights, repeats)
        row["ratio"] = 1.0 if other is None else row["ms"]["one"] / measured[other]["ms"]["one"]
        measured[order] = row
        del index
    return list(measured.values())


def load_codes(index: GpuScan, tiles: Tiles) -> Figures:
    began = time.perf_counter()
    index.add_tiles(tiles, len(tiles) * TILE)
    seconds = time.perf_counter() - began
    speed, memory = tiles.nbytes / seconds / 1e9, index.card_bytes / tiles.nbytes
    return {"load_s": seconds, "load_gb_per_second": speed, "memory": memory}


def load_mapped(index: GpuScan, tiles: Tiles, folder: Path | None) -> Figures:
    """Load the codes from a file that was just written, and is in the page cache if that is large enough."""
    with temporary_folder(folder) as temporary:
        path = temporary / "codes.tiles"
        tiles.tofile(path)
        return load_codes(index, np.memmap(path, np.uint8, "r", shape=tiles.shape))


def times_ms(index: GpuScan, weights: Floats, repeats: int) -> dict[str, float]:
    """Return medians of one query and of batches, and of 64 queries when several threads search so many each."""
    contenders: Contenders = {
        "one": lambda turn: index.search(weights[turn], TOP_K),
        "batch 64": lambda _: index.search(weights[:64], TOP_K),
        "batch 128": lambda _: index.search(weights[:128], TOP_K),
        "batch 256": lambda _: index.search(weights[:256], TOP_K),
    }
    times = interleaved(contenders, repeats, wall=True)
    ms = {name: 1e3 * float(np.median(seconds)) for name, seconds in times.items()}

    def search_often(_: int) -> None:
        for _ in range(repeats):
            index.search(weights[:64], TOP_K)

    with ThreadPoolExecutor(CALLERS) as pool:
        began = time.perf_counter()
        list(pool.map(search_often, range(CALLERS)))
        ms["64 of several"] = 1e3 * (time.perf_counter() - began) / repeats / CALLERS
    return {**ms, "one p99": 1e3 * float(np.quantile(times["one"], 0.99))}


def compare_orders(index: GpuScan, tiles: Tiles, weights: Floats, by_product: bool) -> Figures:
    """Count hits unlike the definition's, in a batch and one by one; or unlike those of the CPU's scan."""
    rows = len(tiles) * TILE
    some = weights[: PRODUCT_QUERIES if by_product else SCANNED_QUERIES].copy()
    some[0], some[1] = np.sign(some[0]), np.rint(some[1])  # full of ties
    if by_product:
        expected = product_hits(index.card.arrays, tiles, some, TOP_K)
    else:
        plain = Scan(index.bits)
        plain.add_tiles(tiles, rows)
        expected = plain.search(some, TOP_K)
    wrong = count_different(index.search(some, TOP_K), expected)
    alone = [index.search(query, TOP_K) for query in some]
    wrong += count_different(Hits(*map(np.concatenate, zip(*alone, strict=True))), expected)
    return {"queries": len(some), "wrong_hits": wrong}


def product_hits(arrays: Any, tiles: Tiles, weights: Floats, k: int) -> Hits:
    """Return the k best rows of each query by a product of matrices, of CuPy's or NumPy's arrays."""
    grid = arrays.asarray(snap(weights))
    scores, ids = np.full((len(weights), k), -np.inf, np.float32), np.full((len(weights), k), -1, np.int64)
    for start in range(0, len(tiles), ORDER_TILES):
        piece = arrays.asarray(tiles[start : start + ORDER_TILES])
        codes = piece.transpose(0, 2, 1).reshape(-1, piece.shape[1])
        ones = (codes[:, :, None] >> arrays.arange(8, dtype=np.uint8)) & 1
        values = ones.reshape(len(codes), -1)[:, : grid.shape[1]].astype(np.float64) * 2 - 1
        products = (grid @ values.T).astype(np.float32)
        floors = scores[:, -1:].copy()
        if start == 0:  # there is no floor yet
            best = arrays.sort(products, axis=1)[:, -min(k, len(codes))]
            floors = (best if arrays is np else best.get())[:, None]
        which = arrays.argwhere(products >= arrays.asarray(floors))
        reached = products[which[:, 0], which[:, 1]]
        if arrays is not np:
            which, reached = which.get(), reached.get()
        for q in np.unique(which[:, 0]):
            mine = which[:, 0] == q
            all_scores = np.concatenate([scores[q], reached[mine]])
            all_ids = np.concatenate([ids[q], start * TILE + which[mine, 1]])
            first = np.lexsort((all_ids, -all_scores))[:k]
            scores[q], ids[q] = all_scores[first], all_ids[first]
    return Hits(scores, ids)


def ordered_tiles(order: str, count: int, bits: int) -> Tiles:
    """Return tiles of codes in this order, a multiple of 256 of them."""
    tiles, make = count // TILE, MAKERS[order]

    def fill(rng: np.random.Generator, part: Tiles, start: int) -> None:
        kernels.write_tiles(part, 0, make(rng, start / tiles, len(part) / tiles, len(part) * TILE, bits))

    return filled_tiles(count, bits, fill)


def random_codes(rng: np.random.Generator, rows: int, bits: int) -> Codes:
    codes = rng.integers(0, 2**64 - 1, -(-rows * width(bits) // 8), np.uint64, endpoint=True).view(np.uint8)
    codes = codes[: rows * width(bits)].reshape(rows, -1)
    if bits % 8:
        codes[:, -1] &= (1 << bits % 8) - 1
    return codes


def unordered(rng: np.random.Generator, at: float, share: float, rows: int, bits: int) -> Codes:
    return random_codes(rng, rows, bits)


def sorted_by_code(rng: np.random.Generator, at: float, share: float, rows: int, bits: int) -> Codes:
    """Return the codes of this share of the rows, were all sorted: their first bytes are in its range, in order."""
    first = min(4, width(bits) - 1)
    numbers = np.sort(((at + share * rng.random(rows)) * 256**first).astype(np.uint64))
    codes = random_codes(rng, rows, bits)
    codes[:, :first] = numbers.astype(">u8").view(np.uint8).reshape(rows, 8)[:, 8 - first :]
    return codes


def sorted_by_label(rng: np.random.Generator, at: float, share: float, rows: int, bits: int) -> Codes:
    return near_labels(rng, ((at + share * np.arange(rows) / rows) * ORDER_LABELS).astype(np.int64), bits)


def labels_mixed(rng: np.random.Generator, at: float, share: float, rows: int, bits: int) -> Codes:
    return near_labels(rng, np.arange(rows) % ORDER_LABELS, bits)


def near_labels(rng: np.random.Generator, labels: NDArray[np.int64], bits: int) -> Codes:
    """Return a code for each label, with one bit in eight flipped."""
    flipped = random_codes(rng, len(labels), bits)
    for _ in range(2):
        flipped &= random_codes(rng, len(labels), bits)
    return label_codes(bits)[labels] ^ flipped


def label_codes(bits: int) -> Codes:
    return random_codes(np.random.default_rng(bits), ORDER_LABELS, bits)


MAKERS: dict[str, Callable[[np.random.Generator, float, float, int, int], Codes]] = {
    "random": unordered,
    "sorted by code": sorted_by_code,
    "labels mixed": labels_mixed,
    "sorted by label": sorted_by_label,
}


def ordered_weights(order: str, queries: int, bits: int) -> Floats:
    """Return weights of random queries, or of queries each of which means one label."""
    rng = np.random.default_rng(bits + 1)
    weights = rng.standard_normal((queries, bits), dtype=np.float32)
    if "label" in order:
        return np.abs(weights) * signs(label_codes(bits)[rng.integers(0, ORDER_LABELS, queries)], bits)
    return weights


def order_goals(row: Figures) -> list[Goal]:
    name = f"{row['codes']:,} x {row['bits']}, {row['order']}"
    goals: list[Goal] = [
        (f"wrong hits of {row['queries']} queries, {name}", "<= 0", row["wrong_hits"]),
        (f"card / bytes of codes, {name}", "<= 1.05", row["memory"]),
    ]
    other = ORDERS[row["order"]]
    return goals if other is None else [*goals, (f"one query / {other}, {name}", "<= 1.5", row["ratio"])]


def order_tables(result: Figures) -> Sections:
    columns = """codes: {codes:,} | b: {bits} | order: {order} | 1 query: {ms[one]:.2f} | p99: {ms[one p99]:.2f} |
        64: {ms[batch 64]:.1f} | 128: {ms[batch 128]:.1f} | 256: {ms[batch 256]:.1f} |
        4 x 64: {ms[64 of several]:.1f} | load s: {load_s:.2f}"""
    title = f"GPU, k = {TOP_K}, by the order of codes: ms of a search; 4 x 64: ms of 64 queries, {CALLERS} threads"
    return [format_table(title, columns, result["rows"])]


# ---- a server ----


GPU_SERVED_DIM = 128
GPU_QUERIES = 256
NEAR_ROWS, NEAR_NOISE = 32, 0.02  # items around each query, and how far from it
FIRST_RANDOM_ID = 1 << 40
LOAD_PROCESSES = 4  # of sixteen clients each
START_SECONDS = 300.0  # for an index to be built


class PlainScan(Scan):
    """The CPU's scan, as an index that a collection accepts."""

    plan = "scan"


INDEXES: dict[str, Callable[[int], Any]] = {"GPU": GpuScan, "CPU scan": PlainScan, "CPU tables": Index}


def run_served(
    quick: bool, progress: ReportProgress, seconds: float = 10, codes: int = 100_000_000, folder: Path | None = None
) -> Figures:
    """Load a server for so many seconds with each index, by 16 clients and by 64."""
    count = 1 << 16 if quick else check_integer(codes, "codes", 1 << 12)
    rows = []
    with temporary_folder(folder) as temporary:
        fill_served(temporary / "served")
        for name in INDEXES:
            rows += measure_served(temporary / "served", name, count, 1 if quick else seconds, progress)
    return {"rows": rows, "goals": [goal for row in rows for goal in served_goals(row)]}


def measure_served(path: Path, name: str, count: int, seconds: float, progress: ReportProgress) -> list[Figures]:
    """Measure one index, by one process of clients and by several."""
    rows = []
    progress(f"{name}: building an index of {count:,} codes")
    with serving(path, name, count) as url:
        for processes in (1, LOAD_PROCESSES):
            progress(f"{name}: {processes * CLIENT_THREADS} clients for {seconds:g} seconds")
            times, errors = load_server(url, processes, seconds)
            row: Figures = {"index": name, "codes": count, "clients": processes * CLIENT_THREADS}
            row |= {"per_second": len(times) / seconds, **quantiles_ms(times or [0.0])}
            rows.append(row | {"errors": len(errors), "first_error": next(iter(errors), None)})
    return rows


def served_queries() -> Floats:
    return random_features(GPU_QUERIES, GPU_SERVED_DIM, seed=7)


def fill_served(path: Path) -> None:
    """Make a small collection with some items around each query."""
    rng = np.random.default_rng(0)
    near = np.repeat(served_queries(), NEAR_ROWS, axis=0)
    near += NEAR_NOISE * rng.standard_normal(near.shape, dtype=np.float32)
    sample = random_features(2000, GPU_SERVED_DIM, seed=8)
    with stillhash.open(path, GPU_SERVED_DIM, CODE_BITS, init=sample) as collection:
        collection.add(range(len(near)), near)


@contextmanager
def serving(path: Path, name: str, count: int) -> Any:
    """Run a server whose index has so many more codes, in a process of its own; yield its address."""
    spawn = get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve_with_codes, args=(path, name, count, there), daemon=True)
    process.start()
    try:
        if not here.poll(START_SECONDS):
            raise StillhashError(f"the server did not start within {START_SECONDS:g} seconds")
        yield here.recv()
    finally:
        process.terminate()
        process.join()


def serve_with_codes(path: Path, name: str, count: int, started: Connection) -> None:
    tiles = random_tiles(count, CODE_BITS)
    rows = len(tiles) * TILE

    def make(bits: int) -> Any:
        index = INDEXES[name](bits)
        index.add_tiles(tiles, rows, np.arange(FIRST_RANDOM_ID, FIRST_RANDOM_ID + rows))
        if isinstance(index, Index):
            index.merge()
        return index

    collection = stillhash.open(path, searcher=make)
    collection.search(served_queries()[0], TOP_K)  # waits for the index
    serve({"served": collection}, Settings(port=0), started.send)
    os._exit(0)


def load_server(url: str, processes: int, seconds: float) -> LoadOutcome:
    """Search with sixteen clients in each process."""
    times, errors = list[float](), list[str]()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        runs = [pool.submit(search_all, url, seconds, None, served_queries()) for _ in range(processes)]
        for each in runs:
            more_times, more_errors = each.result()
            times, errors = times + more_times, errors + more_errors
    return times, errors


def served_goals(row: Figures) -> list[Goal]:
    return [(f"errors, {row['index']}, {row['clients']} clients", "<= 0", row["errors"])]


def served_tables(result: Figures) -> Sections:
    columns = """index: {index} | codes: {codes:,} | clients: {clients} | searches/s: {per_second:,.0f} |
        p50 ms: {p50_ms:.1f} | p99 ms: {p99_ms:.1f} | errors: {errors}"""
    return [format_table(f"Searches over HTTP, b = {CODE_BITS}, k = {TOP_K}", columns, result["rows"])]


ORDERS_BENCH, SERVED_BENCH = Bench(run_orders, order_tables), Bench(run_served, served_tables)
