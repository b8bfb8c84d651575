"""Time exact search on a GPU: against a bare read of the same codes on the card, the CPU's scan, and FAISS on the GPU.

Random codes, from host weights to host hits, by the wall clock. First the hits are compared with those of the CPU's
scan. FAISS's binary index ranks by plain Hamming distance, an easier job, and only where its GPU version is installed.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.exactness import count_different
from benchmarks.scan import installed_faiss
from benchmarks.timing import TOP_K, Contenders, Figures, Goal, Sections, interleaved, ratio
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.codes import TILE, Tiles, empty_tiles, from_tiles, pack
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import check_integer
from stillhash.search import GpuScan, Scan
from stillhash.search.gpu.card import Card

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
    repeats: int, quick: bool, progress: ReportProgress, codes: Sequence[int], bits: Sequence[int] = GPU_BITS
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
