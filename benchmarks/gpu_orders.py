"""Search codes on a GPU in the orders that data arrive in, and compare with a product of matrices on the same card.

Codes sorted by code are compared with random ones, and codes sorted by label with the same labels mixed. The random
ones come from a mapped file, as the segments of a collection do. The product is the definition of a score, in double
precision over all codes, and shares nothing with the search but the weights.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import timing
from benchmarks.exactness import count_different
from benchmarks.gpu import filled_tiles
from benchmarks.timing import TOP_K, Contenders, Figures, Goal, Sections, interleaved
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric import kernels
from stillhash.numeric.codes import TILE, Tiles, signs, width
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search import GpuScan, Hits, Scan
from stillhash.search.gpu.card import Card

ORDER_TILES = 1 << 12  # that one product takes
PRODUCT_QUERIES = 100
SCANNED_QUERIES = 4  # compared with the CPU's scan, in orders that have no product
ORDER_LABELS = 1000
CALLERS = 4  # threads that search batches of 64 at the same time
ORDERS = {"random": None, "sorted by code": "random", "labels mixed": None, "sorted by label": "labels mixed"}


def run(
    repeats: int,
    quick: bool,
    progress: ReportProgress,
    codes: Sequence[int],
    bits: Sequence[int],
    folder: Path | None = None,
) -> Figures:
    """Check and time searches of so many codes in each order."""
    sizes = [(check_integer(count, "codes", 1 << 12), length) for count in codes for length in bits]
    rows = []
    for count, length in [(1 << 16, 64)] if quick else sizes:
        rows += measure(count, length, repeats, progress, folder)
    return {"rows": rows, "goals": [goal for row in rows for goal in goals_of(row)]}


def measure(
    count: int, bits: int, repeats: int, progress: ReportProgress, folder: Path | None = None, device: int | Card = 0
) -> list[Figures]:
    """Measure every order of so many codes."""
    measured: dict[str, Figures] = {}
    for order, other in ORDERS.items():
        progress(f"{count:,} codes of {bits} bits, {order}: making them")
        tiles, weights = ordered_tiles(order, count, bits), ordered_weights(order, max(repeats, 256), bits)
        index = GpuScan(bits, device=device)
        row: Figures = {"codes": len(tiles) * TILE, "bits": bits, "order": order}
        row |= load_mapped(index, tiles, folder) if order == "random" else load(index, tiles)
        progress(f"{count:,} codes of {bits} bits, {order}: comparing")
        row |= compare(index, tiles, weights, order == "random")
        progress(f"{count:,} codes of {bits} bits, {order}: timing")
        row["ms"] = times_ms(index, weights, repeats)
        row["ratio"] = 1.0 if other is None else row["ms"]["one"] / measured[other]["ms"]["one"]
        measured[order] = row
        del index
    return list(measured.values())


def load(index: GpuScan, tiles: Tiles) -> Figures:
    began = time.perf_counter()
    index.add_tiles(tiles, len(tiles) * TILE)
    seconds = time.perf_counter() - began
    speed, memory = tiles.nbytes / seconds / 1e9, index.card_bytes / tiles.nbytes
    return {"load_s": seconds, "load_gb_per_second": speed, "memory": memory}


def load_mapped(index: GpuScan, tiles: Tiles, folder: Path | None) -> Figures:
    """Load the codes from a file that was just written, and is in the page cache if that is large enough."""
    with timing.temporary_folder(folder) as temporary:
        path = temporary / "codes.tiles"
        tiles.tofile(path)
        return load(index, np.memmap(path, np.uint8, "r", shape=tiles.shape))


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


def compare(index: GpuScan, tiles: Tiles, weights: Floats, by_product: bool) -> Figures:
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


def goals_of(row: Figures) -> list[Goal]:
    name = f"{row['codes']:,} x {row['bits']}, {row['order']}"
    goals: list[Goal] = [
        (f"wrong hits of {row['queries']} queries, {name}", "<= 0", row["wrong_hits"]),
        (f"card / bytes of codes, {name}", "<= 1.05", row["memory"]),
    ]
    other = ORDERS[row["order"]]
    return goals if other is None else [*goals, (f"one query / {other}, {name}", "<= 1.5", row["ratio"])]


def tables(result: Figures) -> Sections:
    columns = """codes: {codes:,} | b: {bits} | order: {order} | 1 query: {ms[one]:.2f} | p99: {ms[one p99]:.2f} |
        64: {ms[batch 64]:.1f} | 128: {ms[batch 128]:.1f} | 256: {ms[batch 256]:.1f} |
        4 x 64: {ms[64 of several]:.1f} | load s: {load_s:.2f}"""
    title = f"GPU, k = {TOP_K}, by the order of codes: ms of a search; 4 x 64: ms of 64 queries, {CALLERS} threads"
    return [format_table(title, columns, result["rows"])]
