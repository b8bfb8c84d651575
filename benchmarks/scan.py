"""Time the exact scan: ours against a bare read of the same bytes, and against FAISS where it is installed.

Random codes, the ten best hits, one thread. First the hits are compared with brute force, ties included. FAISS's
FastScan can rank by any weights too, once its codebook is the corners of a cube; its sums are of 8 bits, so it is
not exact, and its recall is reported. FAISS's binary index ranks by plain Hamming distance, an easier job.
"""

import warnings
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import TOP_K, Contenders, Figures, Goal, Sections, compare_speed, interleaved, ratio
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric import kernels
from stillhash.numeric.codes import Tiles, pack, signs, to_tiles
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.extension import native
from stillhash.numeric.ranking import Ranking
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search import Hits, Scan
from stillhash.search.blocks import IdArray
from stillhash.search.first_page import search_page

SCAN_BITS = (32, 64, 96, 128)
FAISS_BITS = 64
BATCH_QUERIES = 32
PAGE_BITS = 64  # the code length at which the first page has a goal
PAGE_LABELS = 20  # labels of the ranking whose first page is timed
CODES_PER_STEP = 100_000  # codes that are added, or unpacked, at a time
READ_GOAL = "<= 1.15"  # of one query, at every code length
FAISS_CONTESTS = {  # FAISS's time over ours
    "FastScan, 1 query": "fast one/one",
    f"FastScan, batch of {BATCH_QUERIES}": "fast batch/batch",
    "Hamming only, 1 query": "hamming one/one",
}
THREAD_GAIN = "batch, 1 thread/2 threads"


def run(quick: bool, progress: ReportProgress, repeats: int = 15, codes: int = 10_000_000) -> Figures:
    """Check and time the scan of `codes` random codes at each code length."""
    count = check_integer(codes, "codes", 1000)
    if quick:
        count = min(count, 20_000)
    faiss = installed_faiss()
    rows = [measure(count, bits, repeats, faiss if bits == FAISS_BITS else None, progress) for bits in SCAN_BITS]
    version = None if faiss is None else faiss.__version__
    return {"codes": count, "faiss": version, "rows": rows, "goals": [one for row in rows for one in goals_of(row)]}


def measure(count: int, bits: int, repeats: int, faiss: Any, progress: ReportProgress) -> Figures:
    """Measure everything at one code length."""
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 256, (count, bits // 8), dtype=np.uint8)
    queries = rng.standard_normal((repeats + BATCH_QUERIES, bits), dtype=np.float32)
    batches = [queries[turn : turn + BATCH_QUERIES] for turn in range(repeats)]
    tiles = to_tiles(codes, bits)
    index, two = Scan(bits, threads=1), Scan(bits, threads=2)
    for each in (index, two):  # over these very tiles, so that a bare read of them reads the same bytes
        each.add_tiles(tiles, count)
    page = random_ranking(queries, rng)
    progress(f"b = {bits}: comparing with brute force")
    grown = Scan(bits, threads=1)
    for part in np.array_split(codes, 100):  # growing leaves spare memory
        grown.add(part)
    row = {"bits": bits, **compare(codes, rng, index, two, grown), "memory": grown.nbytes / codes.nbytes}
    del grown
    contenders: Contenders = {
        "read": lambda _: read(tiles),
        "one": lambda turn: index.search(queries[turn], TOP_K),
        "batch": lambda turn: index.search(batches[turn], TOP_K),
        "page": lambda turn: search_page(index, page.rows([turn]), TOP_K),
    }
    if faiss is not None:
        progress(f"b = {bits}: filling the FAISS indexes")
        fast, hamming = fast_scan(faiss, codes, bits), faiss.IndexBinaryFlat(bits)
        hamming.add(codes)
        row["fast_recall"] = fast_scan_recall(fast, index, codes, batches[0])
        contenders |= {
            "fast one": lambda turn: fast.search(batches[turn][:1], TOP_K),
            "fast batch": lambda turn: fast.search(batches[turn], TOP_K),
            "hamming one": lambda turn: hamming.search(pack(batches[turn][:1]), TOP_K),
        }
    progress(f"b = {bits}: timing")
    row |= compare_speed(
        contenders, repeats, "one/read", "page/one", *(FAISS_CONTESTS.values() if faiss is not None else ())
    )
    row |= {"read_lanes": read_lanes(), "read_gb_per_second": tiles.nbytes / row["ms"]["read"] / 1e6}
    for name in row["ms"]:
        row["ms"][name] /= BATCH_QUERIES if "batch" in name else 1  # per query
    if usable_cores() > 1:
        pair: Contenders = {
            "batch, 1 thread": contenders["batch"],
            "2 threads": lambda turn: two.search(batches[turn], TOP_K),
        }
        row[THREAD_GAIN] = ratio(interleaved(pair, repeats, wall=True), THREAD_GAIN)
    return row


def random_ranking(weights: Floats, rng: np.random.Generator) -> Ranking:
    """Return a ranking with similarity and predicted labels, as a trained model gives."""
    m, bits = weights.shape
    labels = rng.random((m, PAGE_LABELS), dtype=np.float32)
    labels /= np.linalg.norm(labels, axis=1, keepdims=True)
    V, v = (rng.standard_normal(shape, dtype=np.float32) for shape in ((bits, PAGE_LABELS), PAGE_LABELS))
    return Ranking(weights, rng.standard_normal((m, bits), dtype=np.float32), labels, V, v, 1.5, 0.5)


def goals_of(row: Figures) -> list[Goal]:
    bits = row["bits"]
    goals = [
        (f"hits unlike brute force, b = {bits}", "<= 0", row["wrong_hits"]),
        (f"memory / bytes of codes, b = {bits}", "<= 1.1", row["memory"]),
        (f"one query / read, b = {bits}", READ_GOAL, row["one/read"]["median"]),
    ]
    if bits == PAGE_BITS:
        goals.append((f"first page / one query, b = {bits}", "<= 1.5", row["page/one"]["median"]))
    if "fast_recall" in row:
        goals += [
            (f"FastScan / ours, one query, b = {bits}", ">= 1.8", row["fast one/one"]["median"]),
            (f"FastScan / ours, batch of {BATCH_QUERIES}, b = {bits}", ">= 3", row["fast batch/batch"]["median"]),
        ]
    return goals


def read_lanes() -> str:
    return "avx2" if "avx2" in kernels.available() else kernels.lanes()


def read(tiles: Tiles) -> int:
    """Touch every byte once: no scan can be faster."""
    lanes = read_lanes()
    if lanes == "numpy":
        return int(np.bitwise_xor.reduce(tiles.reshape(-1).view(np.uint64)))
    return int(native.stream_read(lanes, tiles))


def compare(codes: Codes, rng: np.random.Generator, *indexes: Scan) -> Figures:
    """Count hits that differ from brute force, in a batch and alone. Two of the queries are full of ties."""
    queries = rng.standard_normal((5, indexes[0].bits), dtype=np.float32)
    queries[3] = np.sign(queries[3])  # Hamming distance
    queries[4] = np.rint(queries[4])
    best = brute_force(np.arange(len(codes)), codes, queries, TOP_K)
    places = np.arange(BATCH_QUERIES) % len(queries)
    wrong = checked = 0
    for index, batch in product(indexes, (places, *places[: len(queries), None])):
        wrong += count_different(index.search(queries[batch], TOP_K), Hits(best.scores[batch], best.ids[batch]))
        checked += len(batch) * TOP_K
    ties = sum(TOP_K - len(np.unique(scores)) for scores in best.scores)
    return {"wrong_hits": wrong, "checked_hits": checked, "tied_hits": ties, "exact": wrong == 0}


def installed_faiss() -> Any:
    """Return FAISS, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its wrappers are deprecated by newer Pythons
            return import_module("faiss")
    except ImportError:
        return None


def fast_scan(faiss: Any, codes: Codes, bits: int) -> Any:
    """Return a product quantiser of four bits whose centroids are the corners {-1, +1}^4: the codes themselves."""
    index = faiss.IndexPQFastScan(bits, bits // 4, 4, faiss.METRIC_INNER_PRODUCT)
    corners = signs(np.arange(16, dtype=np.uint8)[:, None], 4)
    faiss.copy_array_to_vector(np.tile(corners, (bits // 4, 1)).ravel(), index.pq.centroids)
    index.is_trained = True
    for s in range(0, len(codes), CODES_PER_STEP):
        index.add(signs(codes[s : s + CODES_PER_STEP], bits))
    return index


def fast_scan_recall(fast: Any, index: Scan, codes: Codes, queries: Floats) -> float:
    """Return the share of FastScan's hits whose true score is among the best TOP_K."""
    last = index.search(queries, TOP_K).scores[:, -1:]
    _, ids = fast.search(queries, TOP_K)
    scores = [signs(codes[some], index.bits) @ weights for some, weights in zip(ids, snap(queries), strict=True)]
    return float(np.mean(np.array(scores, np.float32) >= last))


def tables(result: Figures) -> Sections:
    columns = f"""b: {{bits}} | read: {{ms[read]:.2f}} | GB/s: {{read_gb_per_second:.1f}} | 1 query: {{ms[one]:.2f}} |
        batch of {BATCH_QUERIES}: {{ms[batch]:.2f}} | 1 query / read: {{one/read}} |
        page: {{page/one[median]:.2f}} | memory: {{memory:.3f}}"""
    if THREAD_GAIN in result["rows"][0]:
        columns += f"| 2 threads gain: {{{THREAD_GAIN}}}"
    title = f"Scan of {result['codes']:,} codes, k = {TOP_K}, one thread: ms per query, and ratios with quartiles"
    sections: Sections = [format_table(title, columns, result["rows"])]
    if result["faiss"] is None:
        sections.append("FAISS is not installed, so there is nothing to compare with: pip install faiss-cpu\n")
    for r in (r for r in result["rows"] if "fast_recall" in r):
        recall = f"FastScan's recall@{TOP_K} is {r['fast_recall']:.3f}, ours is exact"
        rows = [
            {"name": name, "ms": [r["ms"][side] for side in pair.split("/")], "ratio": r[pair]}
            for name, pair in FAISS_CONTESTS.items()
        ]
        columns = ": {name} | FAISS ms: {ms[0]:.2f} | ours ms: {ms[1]:.2f} | FAISS / ours: {ratio}"
        sections.append(format_table(f"FAISS {result['faiss']}, b = {r['bits']}: {recall}", columns, rows))
    return sections


def brute_force(ids: IdArray, codes: Codes, weights: Floats, k: int, allowed: NDArray[np.bool_] | None = None) -> Hits:
    """Rank by definition: every score in float64, rounded to float32, higher first, smaller id among equals.

    Scores are sums over a table for each byte: on the grid of `snap` any order of summation is exact.
    """
    if allowed is not None:
        passing = (ids < len(allowed)) & allowed[np.minimum(ids, len(allowed) - 1)]
        ids, codes = ids[passing], codes[passing]
    hits = Hits(np.full((len(weights), k), -np.inf, np.float32), np.full((len(weights), k), -1, np.int64))
    padded = np.pad(snap(weights), ((0, 0), (0, -weights.shape[1] % 8)))
    corners = signs(np.arange(256, dtype=np.uint8)[:, None], 8)  # (256, 8)
    tables = padded.reshape(len(weights), -1, 8) @ corners.T
    for q, bytewise in enumerate(tables):  # (bytes, 256)
        scores = sum(table[codes[:, j]] for j, table in enumerate(bytewise)).astype(np.float32)
        last = np.partition(scores, -k)[-k] if k < len(scores) else -np.inf
        best = np.flatnonzero(scores >= last)  # all ties of the last place included
        best = best[np.lexsort((ids[best], -scores[best]))[:k]]
        hits.scores[q, : len(best)], hits.ids[q, : len(best)] = scores[best], ids[best]
    return hits


def count_different(hits: Hits, expected: Hits) -> int:
    return int(np.count_nonzero((hits.scores != expected.scores) | (hits.ids != expected.ids)))
