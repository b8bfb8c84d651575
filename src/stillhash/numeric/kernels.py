"""One name per kernel. Each runs in the native extension, or as its NumPy twin in `reference`.

The extension picks the widest instruction set of the machine ("avx512", "avx2", "neon", "portable"); without it, or
with "numpy", the twins run. `STILLHASH_LANES` or `using` choose another: search answers are the same to the bit.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.numeric import reference
from stillhash.numeric.extension import native
from stillhash.numeric.reference import Array
from stillhash.numeric.validation import ScoredIds, TableHits

Blocks = Sequence[tuple[Array, int, int, Array | None, Array | None]]  # as search.blocks.Block


class Table(NamedTuple):
    """Rows by the value of `width` bits from bit `at`: bucket v is slots[starts[v] : starts[v + 1]], codes likewise."""

    at: int
    width: int
    starts: Array  # (2^width + 1,) uint32
    slots: Array  # (rows,) uint32
    codes: Array  # (rows, planes) uint8


class Slots(NamedTuple):
    """Slot s has the id `first + s`, or `ids[s]`; `live` (bits) hides slots."""

    first: int
    ids: Array | None
    live: Array | None


class Ends(NamedTuple):
    """Hits that come before and after those by score: liked and near ones first, disliked ones last.

    They are those of all queries one after another.
    """

    codes: Array  # (n, width) uint8
    ids: Array  # (n,) int64
    counts: Array  # (m, 3) int64: how many of each query are liked, near and disliked


class PageCandidates(NamedTuple):
    """What m queries may have on the first page, up to n each; `all` are those of all queries one after another."""

    codes: Array  # (m, n, width) uint8
    counts: Array  # (m,) int64: so many of the n
    rescoring_codes: Array  # (all, bytes) uint8
    indptr: Array  # (all + 1,) int64: candidate i has the labels indices[indptr[i] : indptr[i + 1]]
    indices: Array  # int64: columns of the model, or other numbers past these


class PageQueries(NamedTuple):
    """What m queries are compared with candidates by."""

    levels: Array  # (m, dim) int16, as rescoring.RescoreQueries
    scale: Array  # (m,) float32
    votes: Array  # (m, b) float32 weights of the bits that votes add; (m, 0) for none
    labels: Array  # (m, labels) float32, predicted, of unit norm
    strength: Array  # (m,) float32: how much labels count, 0 to 1
    labelled_share: float  # of the stored items, those that have labels now
    fixed: bool  # neighbours do not change the strength


class PageLabels(NamedTuple):
    """What predicts the labels of items from their codes, and how much sharing each counts; all are float32."""

    U: Array  # (dim, labels)
    u: Array  # (labels,)
    V: Array  # (2 * width, 16, labels), by `label_table`
    v: Array  # (labels,)
    power: float  # a multiple of 0.5
    weights: Array  # (labels,)


class RankingQuality(NamedTuple):
    """Means over queries."""

    map: float  # mean average precision, ties in database order
    expected_map: float  # the same, averaged over all orders of ties
    precision_10: float  # share of relevant items among the first ten
    precision_100: float
    ndcg_10: float  # of the first ten; the gain of an item is its grade


def available() -> tuple[str, ...]:
    """Return the lanes that run on this machine, the fastest first."""
    return (*(native.lanes() if native else ()), "numpy")


def _check_lanes(name: str | None) -> str:
    if not name:
        return available()[0]
    if name not in available():
        raise InvalidInput(f"lanes: expected one of {', '.join(available())}, got {name!r}")
    return name


_lanes = _check_lanes(os.environ.get("STILLHASH_LANES"))


def lanes() -> str:
    """Return the lanes in use."""
    return _lanes


@contextmanager
def using(name: str) -> Iterator[None]:
    """Run kernels on these lanes within the block, in the whole process."""
    global _lanes
    before, _lanes = _lanes, _check_lanes(name)
    try:
        yield
    finally:
        _lanes = before


def scan_top(
    blocks: Blocks, weights: Array, k: int, floors: Array, threads: int = 1, ceilings: Array | None = None
) -> ScoredIds:
    """Return the k best hits of each query, (m, k) scores and ids, padded with -inf and -1.

    weights: (m, bits) float64 on the grid of `exact_scores.snap`; floors: (m,) float32, lower scores are not hits.
    ceilings: (m,) float32, a hit below both this and the best score of its query is none either; -inf has no effect.
    """
    if ceilings is None:
        ceilings = np.full(len(weights), -np.inf, np.float32)
    if _lanes == "numpy":
        return reference.scan_top(blocks, weights, k, floors, ceilings)
    scores = np.full((len(weights), k), -np.inf, dtype=np.float32)
    ids = np.full((len(weights), k), -1, dtype=np.int64)
    native.scan_top(_lanes, list(blocks), weights, floors, ceilings, threads, scores, ids)
    return scores, ids


def scan_all(blocks: Blocks, weights: Array, floors: Array, threads: int = 1) -> list[ScoredIds]:
    """Return for each query the scores and ids of all rows of at least its floor, best first."""
    if _lanes == "numpy":
        return reference.scan_all(blocks, weights, floors)
    return list(native.scan_all(_lanes, list(blocks), weights, floors, threads))


def passive_aggressive(U: Array, X: Array, G: Array, C: float) -> None:
    """Update U (l, D) in place by PA-I over the rows of X (n, D) in order, towards the targets G (n, l) int8.

    For each row x with target g and each row u of U: tau = min(C, max(0, 1 - g u.x) / |x|^2), u += tau g x.
    U has the dtype of X and is in Fortran order: the kernels read the l bits of one feature together.
    """
    if _lanes == "numpy":
        reference.passive_aggressive(U.T, X, G, C, 2)
    else:
        learn = native.learn_f32 if U.dtype == np.float32 else native.learn_f64
        learn(_lanes, U.T, X, np.ascontiguousarray(G), C)


def snap(weights: Array) -> NDArray[np.float64]:
    """Return weights (m, bits), float32, on the grid of `exact_scores`."""
    if _lanes == "numpy":
        return reference.snap(weights)
    grid = np.empty(weights.shape, np.float64)
    native.snap(np.ascontiguousarray(weights, np.float32), grid)
    return grid


def project(X: Array, W: Array) -> Array:
    """Return X (n, D) times W (D, b), float32; on native lanes each row's result is independent of the batch."""
    if _lanes == "numpy":
        return reference.project(X, W)
    Z = np.empty((len(X), W.shape[1]), dtype=np.float32)
    native.project(_lanes, X, W, Z)
    return Z


def encode_rows(
    X: Array, mean: Array, unit_norm: bool, W: Array, t: Array, threads: int = 1
) -> tuple[NDArray[np.uint8], Array]:
    """Return the codes of the signs of Z W + t, where Z is X - mean, scaled with `unit_norm`; and the norms |X - mean|.

    On native lanes a code is that of these steps one by one, to the last bit. Norms show what is not finite.
    """
    if _lanes == "numpy":
        return reference.encode_rows(X, mean, unit_norm, W, t)
    codes, norms = np.empty((len(X), (W.shape[1] + 7) // 8), np.uint8), np.empty(len(X), np.float32)
    native.encode_rows(_lanes, X, mean, unit_norm, W, t, threads, codes, norms)
    return codes, norms


def pack_signs(Z: Array) -> NDArray[np.uint8]:
    """Return the packed codes of the signs of Z (n, b) float32; zero counts as +1."""
    if _lanes == "numpy":
        return reference.pack_signs(Z)
    codes = np.empty((len(Z), (Z.shape[1] + 7) // 8), dtype=np.uint8)
    native.pack_signs(Z, codes)
    return codes


def write_tiles(tiles: Array, start: int, codes: Array) -> None:
    """Write these codes to rows start, start + 1, ... of the tiles."""
    (reference if _lanes == "numpy" else native).write_tiles(tiles, start, codes)


def read_tiles(tiles: Array, rows: Array) -> NDArray[np.uint8]:
    """Return the codes of these rows of the tiles."""
    if _lanes == "numpy":
        return reference.read_tiles(tiles, rows)
    codes = np.empty((len(rows), tiles.shape[1]), dtype=np.uint8)
    native.read_tiles(tiles, rows, codes)
    return codes


def read_codes(blocks: Blocks, ids: Array, width: int) -> NDArray[np.uint8] | None:
    """Return the codes (n, width) of these ids; None if some are not found: unknown, or in a block of unordered ids."""
    if _lanes == "numpy":
        return reference.read_codes(blocks, ids, width)
    codes = np.empty((len(ids), width), np.uint8)
    return codes if native.read_codes(list(blocks), np.ascontiguousarray(ids), codes) == len(ids) else None


def predict_labels(codes: Array, V: Array, v: Array, power: float) -> Array:
    """Return max(x V + v, 0) ** power of codes with the signs x, of unit norm: (n, labels).

    power: a multiple of 0.5. On native lanes each row's result is independent of the batch and of the lanes.
    """
    if _lanes == "numpy":
        return reference.predict_labels(codes, V, v, power)
    labels = np.empty((len(codes), V.shape[1]), np.float32)
    native.predict_labels(_lanes, codes, np.ascontiguousarray(V), np.ascontiguousarray(v), round(2 * power), labels)
    return labels


def page_scores(
    codes: Array,
    V: Array,
    v: Array,
    power: float,
    labels: Array,
    similarity: Array,
    most: Array,
    shares: tuple[float, float],
) -> Array:
    """Return the scores (m, n) of each query and its codes (m, n, width).

    shares[0] times the cosine of `predict_labels` of the code and labels (m, labels) of the query, and shares[1] times
    the score by similarity (m, bits), on the grid of `exact_scores.snap`, divided by `most` (m,).
    """
    if _lanes == "numpy":
        return reference.page_scores(codes, V, v, power, labels, similarity, most, shares)
    scores = np.empty(codes.shape[:2], np.float32)
    V, v, labels = np.ascontiguousarray(V), np.ascontiguousarray(v), np.ascontiguousarray(labels)
    native.page_scores(_lanes, codes, V, v, round(2 * power), labels, similarity, most, *shares, scores)
    return scores


def label_table(V: Array) -> Array:
    """Return what each value of each nibble of a code with the signs x adds to x V: (2 * width, 16, labels)."""
    table = np.empty((2 * ((len(V) + 7) // 8), 16, V.shape[1]), np.float32)
    if _lanes == "numpy":
        return reference.label_table(V, table)
    native.label_table(np.ascontiguousarray(V, np.float32), table)
    return table


def merge_candidates(scores: Array, ids: Array, codes: Array, weights: Array) -> tuple[Array, Array, Array, Array]:
    """Return hits and others as one list in order of score, then id, each once: scores, ids and codes, and how many.

    scores: (m, n) of the hits, best first. ids: (m, n + more), theirs and those of the others; missing ones are -1.
    codes: (m, n + more, width). weights: (m, bits) on the grid. Arrays that come out are as wide, missing ones last.
    """
    if _lanes == "numpy":
        return reference.merge_candidates(scores, ids, codes, weights)
    merged = np.empty(ids.shape, np.float32), np.empty_like(ids), np.empty_like(codes), np.empty(len(ids), np.int64)
    native.merge_candidates(np.ascontiguousarray(scores), ids, codes, weights, *merged)
    return merged


def rescored_page(
    candidates: PageCandidates, queries: PageQueries, model: PageLabels, bits: int
) -> tuple[Array, NDArray[np.int64], Array]:
    """Return the parts of the scores on the first page by rescoring codes of so many bits, tiers, and strengths.

    Parts are (4, m, n): scores, cosines, cosines of labels and votes; tiers are (m, n): 0 of near duplicates of the
    query, 1 of finalists, 2 of others; strengths (m,). `rescored_page.py` says what they are. A query's results do not
    depend on the others, to the last bit on native lanes.
    """
    parts = np.zeros((4, *candidates.codes.shape[:2]), np.float32)
    tiers = np.full(candidates.codes.shape[:2], 2)
    strength = np.zeros(len(tiers), np.float32)
    if _lanes == "numpy":
        reference.rescored_page(candidates, queries, model, bits, (parts, tiers, strength))
    else:
        native.rescored_page(_lanes, candidates, queries, model, bits, round(2 * model.power), parts, tiers, strength)
    return parts, tiers, strength


def read_arrays(parts: list[tuple[Any, ...]], rows: Array, width: int) -> NDArray[np.uint8]:
    """Return arrays of bytes (n, width) of these rows; all bytes 0xFF where none can be read.

    A part is (first, last, numbers, places, arrays). It has the rows first to last, or those of them that are among the
    ascending numbers, in this order, or at these places; both may be None, and so may the arrays, if they are lost.
    """
    arrays = np.full((len(rows), width), 0xFF, np.uint8)
    (reference if _lanes == "numpy" else native).read_arrays(parts, np.ascontiguousarray(rows), arrays)
    return arrays


def read_labels(parts: list[tuple[Any, ...]], rows: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return indptr and indices of the labels of these rows, as `Labels` has them; None if a part cannot be read.

    Parts are as of `read_arrays`, but for a code of a set of labels in place of an array, and then starts and labels of
    sets: set s is labels[starts[s] : starts[s + 1]]. Where several parts have a row the last of them counts.
    """
    indptr = np.empty(len(rows) + 1, np.int64)
    indices = (reference if _lanes == "numpy" else native).read_labels(parts, np.ascontiguousarray(rows), indptr)
    return None if indices is None else (indptr, indices)


def arrange_page(
    hits: ScoredIds, again: Array, weights: Array, ends: Ends, k: int, tiers: Array | None = None
) -> tuple[Array, Array, NDArray[np.uint8]]:
    """Return scores, ids and places (`reference.BY_SCORE` and so on) of the first k hits of each query, (m, k).

    hits: (m, n) by score. again: (m, up to n) scores, by which as many first hits are ordered again; equal ones stay in
    their order, missing ones come last. tiers: (m, up to n) int64, by which they are ordered before that. weights: (m,
    bits) on the grid, by which the ends are scored. ends: hits that come before and after the others, wherever they are
    among them.
    """
    tiers = np.zeros(again.shape, np.int64) if tiers is None else tiers
    if _lanes == "numpy":
        return reference.arrange_page(hits, again, weights, ends, k, tiers)
    m = len(again)
    page = np.full((m, k), -np.inf, np.float32), np.full((m, k), -1, np.int64), np.zeros((m, k), np.uint8)
    native.arrange_page(*map(np.ascontiguousarray, (*hits, again, tiers, weights, *ends)), *page)
    return page


def fill_table(codes: Array, slots: Array, at: int, width: int) -> Table:
    """Return the table of `width` bits from bit `at` over codes (n, planes) with these slots (uint32)."""
    if _lanes == "numpy":
        return Table(at, width, *reference.fill_table(codes, slots, at, width))
    table = Table(at, width, np.empty(2**width + 1, np.uint32), np.empty_like(slots), np.empty_like(codes))
    native.table_fill(codes, slots, at, width, table.starts, table.slots, table.codes)
    return table


def table_top(
    tables: list[Table],
    slots: Slots,
    weights: Array,
    k: int,
    floors: Array,
    price: tuple[float, float],
    budgets: Array,
    threads: int = 1,
) -> TableHits:
    """Return the k best hits of each query among the rows of the tables, as `scan_top`, and the effort (m, 3).

    price: nanoseconds of a probe and of a row. A query gives up once its effort would cost more than its budget; then
    effort[q] = (probes, rows, 0), and its hits are some good ones, not the best. So does a query of zero weights.
    """
    if _lanes == "numpy":
        return reference.table_top(tables, slots, weights, k, floors)
    scores = np.full((len(weights), k), -np.inf, dtype=np.float32)
    ids = np.full((len(weights), k), -1, dtype=np.int64)
    effort = np.zeros((len(weights), 3), dtype=np.int64)
    native.table_top(tables, slots, weights, floors, *price, budgets, threads, scores, ids, effort)
    return scores, ids, effort


def rank_quality(scores: Array, grades: Array) -> NDArray[np.float64]:
    """Return the quality of ranking n items by each row of scores (m, n), given their grades (m, n), both float32.

    (m, 5): average precision, the same averaged over all orders of ties, precision of the first 10 and of the first
    100, nDCG of the first 10. Items of a grade above 0 are relevant, and the gain of an item is its grade. Where there
    are fewer items, precision counts the missing ones as not relevant.
    """
    if _lanes == "numpy":
        return reference.rank_quality(scores, grades)
    out = np.empty((len(scores), 5))
    scores, grades = np.ascontiguousarray(scores), np.ascontiguousarray(grades)
    native.rank_quality(scores, grades, reference.FIRST_PAGE, reference.FIRST_HUNDRED, out)
    return out


def rotate(X: Array, signs: Array, back: bool) -> Array:
    """Return rows X (n, dim) after the orthogonal transform of signs (rounds, dim), all float32; `back`: its inverse.

    Each round flips the signs, applies a Hadamard transform to the first (then the last) coordinates, as many as the
    largest power of two, and turns the two halves by 45 degrees. The same to the last bit on all lanes.
    """
    X = np.ascontiguousarray(X, np.float32)
    if _lanes == "numpy":
        return reference.rotate(X, signs, back)
    rotated = np.empty_like(X)
    native.rotate(_lanes, X, signs, back, rotated)
    return rotated


def rescore_encode(X: Array, signs: Array, steps: float, bits: int, threads: int = 1) -> NDArray[np.uint8]:
    """Return the rescoring codes of prepared rows X (n, dim), rotated by `signs`, with so many steps to a unit.

    The layout is that of `rescoring`. The same to the last bit on all lanes.
    """
    X = np.ascontiguousarray(X, np.float32)
    if _lanes == "numpy":
        return reference.rescore_encode(X, signs, steps, bits)
    codes = np.empty((len(X), bits * ((X.shape[1] + 7) // 8) + 4), np.uint8)
    native.rescore_encode(_lanes, X, signs, steps, bits, threads, codes)
    return codes


def rescore_levels(codes: Array, dim: int, bits: int) -> Array:
    """Return the levels (n, dim) float32 of rescoring codes (n, width); zeros where the correction is 0 or NaN."""
    if _lanes == "numpy":
        return reference.rescore_levels(codes, dim, bits)
    levels = np.empty((len(codes), dim), np.float32)
    native.rescore_levels(_lanes, np.ascontiguousarray(codes), bits, levels)
    return levels


def rescore_products(codes: Array, queries: Array, bits: int) -> NDArray[np.int64]:
    """Return the products (m, n) of the levels of queries (m, dim) int16 and those of their codes (m, n, width).

    They are exact, whatever the corrections; queries have magnitudes up to `rescoring.QUERY_LEVELS`.
    """
    if _lanes == "numpy":
        return reference.rescore_products(codes, queries, bits)
    products = np.empty(codes.shape[:2], np.int64)
    native.rescore_products(_lanes, np.ascontiguousarray(codes), np.ascontiguousarray(queries), bits, products)
    return products


HUGE_PAGE = 2 << 20  # bytes, on the processors that matter; fewer cannot be in one


def advise_huge_pages(tiles: Array) -> bool:
    """Ask the system to hold these tiles in huge pages, and return whether it takes the request. Never fails.

    The processor finds addresses in huge pages in fewer steps.
    """
    return native is not None and tiles.nbytes >= HUGE_PAGE and bool(native.advise_huge_pages(tiles))
