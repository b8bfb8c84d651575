"""Time the exact scan: ours against a bare read of the same bytes, and against FAISS where it is installed.

Random codes, the ten best hits, one thread. First the hits are compared with brute force, ties included. FAISS's
FastScan can rank by any weights too, once its codebook is the corners of a cube; its sums are of 8 bits, so it is
not exact, and its recall is reported. FAISS's binary index ranks by plain Hamming distance, an easier job.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.bench.timing import TOP_K, Contender, goal, interleaved, median_ms, ratio
from stillhash.experiments.tables import ReportProgress, TableData, format_table, silent
from stillhash.numeric import kernels
from stillhash.numeric.codes import Tiles, pack, signs, to_tiles
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search import Hits, Scan

SCAN_BITS = (32, 64, 96, 128)
FAISS_BITS = 64
BATCH_QUERIES = 32
CODES_PER_STEP = 100_000  # codes that are added, or unpacked, at a time
READ_GOALS = {32: "<= 1.35", 64: "<= 1.35", 96: "<= 1.35", 128: "<= 1.7"}


def run(
    repeats: int = 15, quick: bool = False, progress: ReportProgress = silent, *, codes: int = 10_000_000
) -> dict[str, Any]:
    """Check and time the scan of `codes` random codes at each code length."""
    count = check_integer(codes, "codes", 1000)
    if quick:
        count, repeats = min(count, 20_000), min(repeats, 3)
    faiss = installed_faiss()
    rows = [measure(count, bits, repeats, faiss if bits == FAISS_BITS else None, progress) for bits in SCAN_BITS]
    return {
        "codes": count,
        "faiss": None if faiss is None else faiss.__version__,
        "rows": rows,
        "goals": [one for row in rows for one in goals_of(row)],
    }


def measure(count: int, bits: int, repeats: int, faiss: Any, progress: ReportProgress) -> dict[str, Any]:
    """Measure everything at one code length."""
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 256, (count, bits // 8), dtype=np.uint8)
    queries = rng.standard_normal((repeats + BATCH_QUERIES, bits), dtype=np.float32)
    tiles = to_tiles(codes, bits)
    index, two = shared(tiles, count, bits, threads=1), shared(tiles, count, bits, threads=2)
    progress(f"b = {bits}: comparing with brute force")
    grown = grown_index(codes, bits)
    row = {"bits": bits, **compare(codes, rng, index, two, grown), "memory": grown.nbytes / codes.nbytes}
    del grown
    contenders: dict[str, Contender] = {
        "read": lambda _: read(tiles),
        "one": lambda turn: index.search(queries[turn], TOP_K),
        "batch": lambda turn: index.search(queries[turn : turn + BATCH_QUERIES], TOP_K),
    }
    with faiss_on_one_thread(faiss):
        if faiss is not None:
            progress(f"b = {bits}: filling the FAISS indexes")
            fast, hamming = fast_scan(faiss, codes, bits), binary_flat(faiss, codes, bits)
            row["fast_recall"] = fast_scan_recall(fast, index, codes, queries[:BATCH_QUERIES])
            contenders |= {
                "fast one": lambda turn: fast.search(queries[turn : turn + 1], TOP_K),
                "fast batch": lambda turn: fast.search(queries[turn : turn + BATCH_QUERIES], TOP_K),
                "hamming one": lambda turn: hamming.search(pack(queries[turn : turn + 1]), TOP_K),
            }
        progress(f"b = {bits}: timing")
        times = interleaved(contenders, repeats)
    row |= {
        "ms": {name: median_ms(times, name) / (BATCH_QUERIES if "batch" in name else 1) for name in times},  # per query
        "read_lanes": read_lanes(),
        "read_gb_per_second": tiles.nbytes / median_ms(times, "read") / 1e6,
        "one/read": ratio(times, "one", "read"),
    }
    if faiss is not None:
        row |= {
            pair: ratio(times, *pair.split("/")) for pair in ("fast one/one", "fast batch/batch", "hamming one/one")
        }
    if usable_cores() > 1:
        pair = {
            "one": lambda turn: index.search(queries[turn : turn + BATCH_QUERIES], TOP_K),
            "two": lambda turn: two.search(queries[turn : turn + BATCH_QUERIES], TOP_K),
        }
        row["batch, 1 thread/2 threads"] = ratio(interleaved(pair, repeats, wall=True), "one", "two")
    return row


def goals_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    bits = row["bits"]
    goals = [
        goal(f"hits unlike brute force, b = {bits}", "<= 0", row["wrong_hits"]),
        goal(f"memory / bytes of codes, b = {bits}", "<= 1.1", row["memory"]),
        goal(f"one query / read, b = {bits}", READ_GOALS[bits], row["one/read"]["median"]),
    ]
    if "fast_recall" in row:
        goals += [
            goal(f"FastScan / ours, one query, b = {bits}", ">= 1.3", row["fast one/one"]["median"]),
            goal(f"FastScan / ours, batch of {BATCH_QUERIES}, b = {bits}", ">= 2", row["fast batch/batch"]["median"]),
        ]
    return goals


def shared(tiles: Tiles, count: int, bits: int, threads: int) -> Scan:
    """Return an index over these very tiles, so that a bare read of them reads the same bytes."""
    index = Scan(bits, threads=threads)
    index.add_tiles(tiles, count)
    return index


def grown_index(codes: Codes, bits: int) -> Scan:
    """Return an index filled in a hundred steps, with the spare memory that growing leaves."""
    index = Scan(bits, threads=1)
    for part in np.array_split(codes, 100):
        index.add(part)
    return index


def read_lanes() -> str:
    return "avx2" if "avx2" in kernels.available() else kernels.lanes()


def read(tiles: Tiles) -> int:
    """Touch every byte once: no scan can be faster."""
    lanes = read_lanes()
    if lanes == "numpy":
        return int(np.bitwise_xor.reduce(tiles.reshape(-1).view(np.uint64)))
    return int(kernels.native.stream_read(lanes, tiles))


# ---- exactness ----


def compare(codes: Codes, rng: np.random.Generator, *indexes: Scan) -> dict[str, Any]:
    """Count hits that differ from brute force, in a batch and alone. Two of the queries are full of ties."""
    queries = rng.standard_normal((5, indexes[0].bits), dtype=np.float32)
    queries[3] = np.sign(queries[3])  # Hamming distance
    queries[4] = np.rint(queries[4])
    best = [brute_force(codes, weights, TOP_K) for weights in snap(queries)]
    places = np.arange(BATCH_QUERIES) % len(queries)
    pairs = [
        (best[q], Hits(scores, ids))
        for index in indexes
        for batch in (places, *places[: len(queries), None])
        for q, scores, ids in zip(batch, *index.search(queries[batch], TOP_K), strict=True)
    ]
    wrong = sum(int(np.count_nonzero((a.scores != b.scores) | (a.ids != b.ids))) for a, b in pairs)
    ties = sum(TOP_K - len(np.unique(hits.scores)) for hits in best)
    return {"wrong_hits": wrong, "checked_hits": len(pairs) * TOP_K, "tied_hits": ties, "exact": wrong == 0}


def brute_force(codes: Codes, weights: NDArray[np.float64], k: int) -> Hits:
    """Score every code by a table for each of its bytes: on the grid of `snap` any order of summation is exact."""
    corners = signs(np.arange(256, dtype=np.uint8)[:, None], 8).astype(np.float64)
    tables = weights.reshape(-1, 8) @ corners.T  # (bytes, 256)
    scores = np.empty(len(codes), np.float32)
    for s in range(0, len(codes), CODES_PER_STEP):
        part = codes[s : s + CODES_PER_STEP]
        scores[s : s + CODES_PER_STEP] = sum(table[part[:, j]] for j, table in enumerate(tables))
    candidates = np.flatnonzero(scores >= np.partition(scores, -k)[-k])  # all ties of the last place included
    order = np.lexsort((candidates, -scores[candidates]))[:k]
    return Hits(scores[candidates[order]], candidates[order])


# ---- FAISS ----


def installed_faiss() -> Any:
    """Return FAISS, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its wrappers are deprecated by newer Pythons
            return import_module("faiss")
    except ImportError:
        return None


@contextmanager
def faiss_on_one_thread(faiss: Any) -> Iterator[None]:
    if faiss is None:
        yield
        return
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def fast_scan(faiss: Any, codes: Codes, bits: int) -> Any:
    """Return a product quantiser of four bits whose centroids are the corners {-1, +1}^4: the codes themselves."""
    index = faiss.IndexPQFastScan(bits, bits // 4, 4, faiss.METRIC_INNER_PRODUCT)
    corners = signs(np.arange(16, dtype=np.uint8)[:, None], 4)
    faiss.copy_array_to_vector(np.tile(corners, (bits // 4, 1)).ravel(), index.pq.centroids)
    index.is_trained = True
    for s in range(0, len(codes), CODES_PER_STEP):
        index.add(signs(codes[s : s + CODES_PER_STEP], bits))
    return index


def binary_flat(faiss: Any, codes: Codes, bits: int) -> Any:
    index = faiss.IndexBinaryFlat(bits)
    index.add(codes)
    return index


def fast_scan_recall(fast: Any, index: Scan, codes: Codes, queries: Floats) -> float:
    """Return the share of FastScan's hits whose true score is among the best TOP_K."""
    last = index.search(queries, TOP_K).scores[:, -1]
    _, ids = fast.search(queries, TOP_K)
    grid = snap(queries)
    good = [
        np.count_nonzero((signs(codes[ids[q]], index.bits) @ grid[q]).astype(np.float32) >= last[q])
        for q in range(len(queries))
    ]
    return sum(good) / (len(queries) * TOP_K)


# ---- printing ----


def tables(result: dict[str, Any]) -> list[TableData | str]:
    gain = "batch, 1 thread/2 threads"
    columns = f"""b: {{bits}} | read: {{ms[read]:.2f}} | GB/s: {{read_gb_per_second:.1f}} | 1 query: {{ms[one]:.2f}} |
        batch of {BATCH_QUERIES}: {{ms[batch]:.2f}} | 1 query / read: {{one/read}} | memory: {{memory:.3f}}"""
    if gain in result["rows"][0]:
        columns += f"| 2 threads gain: {{{gain}}}"
    title = f"Scan of {result['codes']:,} codes, k = {TOP_K}, one thread: ms per query, and ratios with quartiles"
    sections: list[TableData | str] = [format_table(title, columns, result["rows"])]
    if result["faiss"] is None:
        sections.append("FAISS is not installed, so there is nothing to compare with: pip install faiss-cpu\n")
    contests = (
        ("FastScan, 1 query", "fast one", "one"),
        (f"FastScan, batch of {BATCH_QUERIES}", "fast batch", "batch"),
        ("Hamming only, 1 query", "hamming one", "one"),
    )
    for r in (r for r in result["rows"] if "fast_recall" in r):
        recall = f"FastScan's recall@{TOP_K} is {r['fast_recall']:.3f}, ours is exact"
        rows = [{"name": name, "a": r["ms"][a], "b": r["ms"][b], "ratio": r[f"{a}/{b}"]} for name, a, b in contests]
        columns = ": {name} | FAISS ms: {a:.2f} | ours ms: {b:.2f} | FAISS / ours: {ratio}"
        sections.append(format_table(f"FAISS {result['faiss']}, b = {r['bits']}: {recall}", columns, rows))
    return sections
