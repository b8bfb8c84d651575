"""A readable NumPy twin of every kernel: the oracle of the tests, and the fallback without the extension."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.validation import Codes, ScoredIds, TableHits

if TYPE_CHECKING:
    from stillhash.numeric.kernels import Blocks, Ends, Slots, Table
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.validation import Floats

if TYPE_CHECKING:
    from stillhash.numeric.kernels import PageCandidates, PageLabels, PageQueries


Array = NDArray[Any]

CHUNK_TILES = 64  # tiles unpacked at a time
BY_SCORE, BY_LABELS, NEAR, LIKED, DISLIKED = range(5)  # what placed a hit on the first page
ENCODE_BATCH = 128  # rows encoded at a time, so that they stay in the cache
PA_BLOCK = 64  # rows of a block of the Passive-Aggressive recursion


def passive_aggressive_literal(Ut: Array, X: Array, G: Array, C: float, norm_power: int) -> None:
    """Run the recursion as it is written, one row at a time (Eqs. 16-17)."""
    for x, g in zip(X, G, strict=True):
        norm = np.sqrt(x @ x) ** norm_power
        if norm > 0:
            loss = np.maximum(0, 1 - g * (x @ Ut))
            tau = np.minimum(C, loss / norm)
            Ut += np.outer(x, tau * g)


def passive_aggressive(Ut: Array, X: Array, G: Array, C: float, norm_power: int) -> None:
    """Do the same, a block of rows at a time: margins and Gram matrix first, then one product (see learn.inl)."""
    C = Ut.dtype.type(C)
    for s in range(0, len(X), PA_BLOCK):
        x, g = X[s : s + PA_BLOCK], G[s : s + PA_BLOCK]
        P, K = x @ Ut, x @ x.T  # margins at the block's start (B, l); Gram matrix (B, B)
        norms = np.sqrt(np.diagonal(K)) ** norm_power
        A = np.zeros_like(P)  # tau g of each row
        for j in np.flatnonzero(norms):
            margin = g[j] * (P[j] + K[j, :j] @ A[:j])
            A[j] = g[j] * np.minimum(C, np.maximum(0, 1 - margin) / norms[j])
        Ut += x.T @ A


def snap(weights: Array) -> NDArray[np.float64]:
    exact = weights.astype(np.float64)
    _, exponent = np.frexp(np.abs(exact).cumsum(axis=1)[:, -1:])  # sum < 2^exponent
    shift = exponent - 51
    return np.asarray(np.ldexp(np.rint(np.ldexp(exact, -shift)), shift))


def project(X: Array, W: Array) -> Array:
    return X @ W


def encode_rows(X: Array, mean: Array, unit_norm: bool, W: Array, t: Array) -> tuple[NDArray[np.uint8], Array]:
    codes, norms = np.empty((len(X), (W.shape[1] + 7) // 8), np.uint8), np.empty(len(X), np.float32)
    for some in (slice(s, s + ENCODE_BATCH) for s in range(0, len(X), ENCODE_BATCH)):
        with np.errstate(all="ignore"):  # a caller may check by the norms that all was finite
            Z = X[some] - mean
            norms[some] = np.sqrt(np.einsum("ij,ij->i", Z, Z))
            if unit_norm:
                Z /= np.where(norms[some] > 0, norms[some], np.float32(1))[:, None]
            codes[some] = pack_signs(project(Z, W) + t)
    return codes, norms


def pack_signs(Z: Array) -> NDArray[np.uint8]:
    return np.packbits(Z >= 0, axis=1, bitorder="little")


def write_tiles(tiles: Array, start: int, codes: Array) -> None:
    rows = np.arange(start, start + len(codes))
    tiles[rows // tiles.shape[2], :, rows % tiles.shape[2]] = codes


def read_tiles(tiles: Array, rows: Array) -> NDArray[np.uint8]:
    codes: NDArray[np.uint8] = tiles[rows // tiles.shape[2], :, rows % tiles.shape[2]]
    return codes


def read_codes(blocks: Blocks, ids: Array, width: int) -> NDArray[np.uint8] | None:
    codes, unknown = np.empty((len(ids), width), np.uint8), np.ones(len(ids), bool)
    for tiles, rows, first, names, live in blocks:
        at = ids - first if names is None else np.searchsorted(names, ids)
        known = (at >= 0) & (at < rows)
        known[known] = True if names is None else names[at[known]] == ids[known]
        known[known] = True if live is None else np.unpackbits(live, bitorder="little")[at[known]] == 1
        codes[known] = read_tiles(tiles, at[known])
        unknown &= ~known
    return None if unknown.any() else codes


def predict_labels(codes: Array, V: Array, v: Array, power: float) -> Array:
    x = np.unpackbits(codes, axis=1, count=len(V), bitorder="little").astype(np.float32) * 2 - 1
    F = np.maximum(x @ V + v, 0) ** np.float32(power)
    return np.asarray(F / np.sqrt(np.maximum((F * F).sum(axis=1, keepdims=True), np.float32(1e-30))))


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
    scores = np.empty(codes.shape[:2], np.float32)
    for q, some in enumerate(codes):
        x = np.unpackbits(some, axis=1, count=similarity.shape[1], bitorder="little") * 2.0 - 1
        alike = ((x @ similarity[q]).astype(np.float32) / max(most[q], 1e-30)).astype(np.float32)
        cosines = predict_labels(some, V, v, power) @ labels[q]
        scores[q] = np.float32(shares[0]) * cosines + np.float32(shares[1]) * alike
    return scores


def arrange_page(
    hits: ScoredIds, again: Array, weights: Array, ends: Ends, k: int, tiers: Array
) -> tuple[Array, Array, NDArray[np.uint8]]:
    m, pages = again.shape
    page = np.full((m, k), -np.inf, np.float32), np.full((m, k), -1, np.int64), np.zeros((m, k), np.uint8)
    end = 0
    for q, counts in enumerate(ends.counts):
        scores, ids = hits[0][q], hits[1][q]
        order = np.lexsort((-again[q], tiers[q], ids[:pages] < 0))
        order = np.concatenate([order, np.arange(pages, len(ids))])
        some = slice(end, end + counts.sum())
        others = (ids[order] >= 0) & ~np.isin(ids[order], ends.ids[some])
        x = np.unpackbits(ends.codes[some], axis=1, count=weights.shape[1], bitorder="little") * 2.0 - 1
        at_ends = (x @ weights[q]).astype(np.float32), ends.ids[some], np.repeat([LIKED, NEAR, DISLIKED], counts)
        placed = np.where(np.arange(len(ids)) < pages, BY_LABELS, BY_SCORE)
        between = scores[order][others], ids[order][others], placed[others]
        front = counts[:2].sum()
        for n in range(3):
            row = np.concatenate([at_ends[n][:front], between[n], at_ends[n][front:]])[:k]
            page[n][q, : len(row)] = row
        end = some.stop
    return page


def scan_top(blocks: Blocks, weights: Array, k: int, floors: Array, ceilings: Array) -> ScoredIds:
    best = [(np.empty(0, np.float32), np.empty(0, np.int64)) for _ in weights]
    for signs, ids in _rows(blocks, weights.shape[1]):
        scores = (weights @ signs.T).astype(np.float32)  # exact before it is rounded: see exact_scores.py
        for q in range(len(weights)):
            merged = np.concatenate([best[q][0], scores[q]]), np.concatenate([best[q][1], ids])
            floor = max(floors[q], min(merged[0].max(initial=-np.inf), ceilings[q]))
            best[q] = _ranked(*merged, floor, k)
    out = np.full((len(weights), k), -np.inf, np.float32), np.full((len(weights), k), -1, np.int64)
    for q, (top, names) in enumerate(best):
        out[0][q, : len(top)], out[1][q, : len(top)] = top, names
    return out


def scan_all(blocks: Blocks, weights: Array, floors: Array) -> list[ScoredIds]:
    parts = [((weights @ signs.T).astype(np.float32), ids) for signs, ids in _rows(blocks, weights.shape[1])]
    ids = np.concatenate([np.empty(0, np.int64)] + [ids for _, ids in parts])
    scores = np.concatenate([np.empty((len(weights), 0), np.float32)] + [scores for scores, _ in parts], axis=1)
    return [_ranked(scores[q], ids, floors[q], len(ids)) for q in range(len(weights))]


def _ranked(scores: Array, ids: Array, floor: float, k: int) -> ScoredIds:
    """Return the best k of at least the floor: higher score first, smaller id among equals."""
    scores, ids = scores[scores >= floor], ids[scores >= floor]
    order = np.lexsort((ids, -scores))[:k]
    return scores[order], ids[order]


def _rows(blocks: Blocks, bits: int) -> Iterator[tuple[Array, Array]]:
    """Yield the live rows of all blocks, a few tiles at a time: signs (n, bits) float64 and ids (n,)."""
    for tiles, rows, first, ids, live in blocks:
        for start in range(0, rows, CHUNK_TILES * tiles.shape[2]):
            here = np.arange(start, min(rows, start + CHUNK_TILES * tiles.shape[2]))
            if live is not None:
                here = here[np.unpackbits(live, bitorder="little")[here] == 1]
            ones = np.unpackbits(read_tiles(tiles, here), axis=1, count=bits, bitorder="little")
            yield ones * 2.0 - 1, first + here if ids is None else ids[here]


def values_of(codes: Array, at: int, width: int) -> NDArray[np.int64]:
    """Return the value of `width` bits from bit `at` of each code."""
    bits = np.unpackbits(codes, axis=1, bitorder="little")[:, at : at + width]
    return bits.astype(np.int64) @ (1 << np.arange(width))


def fill_table(codes: Array, slots: Array, at: int, width: int) -> tuple[Array, Array, Array]:
    values = values_of(codes, at, width)
    order = np.argsort(values, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(values, minlength=2**width))])
    return starts.astype(np.uint32), slots[order], codes[order]


class BestFirst:
    """Yield the values of a substring in order of loss: textbook MIWQ, with a heap.

    With the bits sorted by loss, a set of disagreeing bits whose dearest is bit j has two children: add bit j + 1, or
    have it in place of j. Neither loses less, and every set has one parent, so each comes once and in order.
    """

    def __init__(self, losses: Array, signs: Array) -> None:
        self.order = np.argsort(losses, kind="stable")
        self.losses = losses[self.order]
        self.best = int((signs > 0) @ (1 << np.arange(len(signs))))
        self.heap: list[tuple[float, int, int]] = [(0.0, -1, 0)]  # loss, dearest bit, the set

    @property
    def frontier(self) -> float:
        """Return the loss of the next value."""
        return self.heap[0][0] if self.heap else np.inf

    def pop(self) -> int:
        loss, j, chosen = heapq.heappop(self.heap)
        if j + 1 < len(self.losses):
            bit = 1 << int(self.order[j + 1])
            heapq.heappush(self.heap, (loss + self.losses[j + 1], j + 1, chosen | bit))
            if j >= 0:
                swapped = chosen & ~(1 << int(self.order[j])) | bit
                heapq.heappush(self.heap, (loss + self.losses[j + 1] - self.losses[j], j + 1, swapped))
        return self.best ^ chosen


def table_top(tables: list[Table], slots: Slots, weights: Array, k: int, floors: Array) -> TableHits:
    """Run MIWQ as it is described, without a budget: always complete, unless the weights are zero."""
    scores, ids = np.full((len(weights), k), -np.inf, np.float32), np.full((len(weights), k), -1, np.int64)
    effort = np.zeros((len(weights), 3), np.int64)
    for q, w in enumerate(weights):
        if not w.any():
            continue
        best = float(np.abs(w).sum())
        walks = [
            BestFirst(2 * np.abs(w[t.at : t.at + t.width]), np.where(w >= 0, 1, -1)[t.at : t.at + t.width])
            for t in tables
        ]
        seen = set[int]()
        top = np.empty(0, np.float32), np.empty(0, np.int64)
        floor = floors[q]
        # A row not yet seen loses at least the sum of the frontiers. Test it only after a whole bucket: the rows
        # still to come in the same bucket lose less than the frontier beyond it.
        while all(walk.heap for walk in walks) and np.float32(best - sum(walk.frontier for walk in walks)) >= floor:
            table, walk = min(zip(tables, walks, strict=True), key=lambda pair: pair[1].frontier)
            value = walk.pop()
            bucket = slice(int(table.starts[value]), int(table.starts[value + 1]))
            names = table.slots[bucket].astype(np.int64)
            effort[q] += 1, len(names), 0
            new = np.array([int(s) not in seen for s in names], bool)
            seen.update(names.tolist())
            if slots.live is not None:
                new &= np.unpackbits(slots.live, bitorder="little")[names] == 1
            ones = np.unpackbits(table.codes[bucket][new], axis=1, count=len(w), bitorder="little")
            exact = ((ones * 2.0 - 1) @ w).astype(np.float32)
            known = names[new] + slots.first if slots.ids is None else slots.ids[names[new]]
            top = _ranked(np.concatenate([top[0], exact]), np.concatenate([top[1], known]), floor, k)
            if len(top[0]) == k:
                floor = max(floor, top[0][-1])
        scores[q, : len(top[0])], ids[q, : len(top[0])] = top
        effort[q, 2] = 1
    return scores, ids, effort


def rotate(X: Array, signs: Array, back: bool) -> Array:
    """Rotate rows by rounds of signs (rounds, dim), a Hadamard transform of a power of two, and turns by 45 degrees.

    All is elementwise in float32, so that the kernel gives the same to the last bit.
    """
    X, dim = X.copy(), signs.shape[1]
    for r in reversed(range(len(signs))) if back else range(len(signs)):
        if back:
            _turn_halves(X)
            _hadamard(X, r)
            X *= signs[r]
        else:
            X *= signs[r]
            _hadamard(X, r)
            _turn_halves(X)
    return X.reshape(-1, dim)


def _hadamard(X: Array, r: int) -> None:
    """Transform the first coordinates in even rounds, and the last in odd ones: as many as the largest power of two."""
    n, dim = X.shape
    p = 1 << dim.bit_length() - 1
    part = X[:, dim - p :] if r % 2 else X[:, :p]
    Z = part.copy()
    for h in (1 << stage for stage in range(p.bit_length() - 1)):
        pairs = Z.reshape(n, p // (2 * h), 2, h)
        sums = pairs[:, :, 0] + pairs[:, :, 1]
        np.subtract(pairs[:, :, 0], pairs[:, :, 1], out=pairs[:, :, 1])
        pairs[:, :, 0] = sums
    np.multiply(Z, np.float32(1 / np.sqrt(p)), out=part)


def _turn_halves(X: Array) -> None:
    """Turn coordinates i and i + dim // 2 by 45 degrees; where dim is a power of two, the transform mixes them all."""
    dim = X.shape[1]
    half, c = dim // 2, np.float32(np.sqrt(0.5))
    if dim & dim - 1:
        a, b = X[:, :half].copy(), X[:, half : 2 * half].copy()
        X[:, :half], X[:, half : 2 * half] = (a + b) * c, (a - b) * c


def rescore_encode(X: Array, signs: Array, steps: float, bits: int) -> NDArray[np.uint8]:
    plane, half = (signs.shape[1] + 7) // 8, 1 << bits - 1
    codes = np.empty((len(X), bits * plane + 4), np.uint8)
    for some in (slice(s, s + ENCODE_BATCH) for s in range(0, len(X), ENCODE_BATCH)):
        R = rotate(X[some], signs, back=False)
        u = (np.floor(np.clip(R * np.float32(steps), -half, half - 1)) + half).astype(np.uint8)
        for b in range(bits):
            codes[some, b * plane : (b + 1) * plane] = np.packbits(u >> b & 1, axis=1, bitorder="little")
        products = R.astype(np.float64) * (u.astype(np.float64) * 2 - (2 * half - 1))
        padded = np.pad(products, ((0, 0), (0, -products.shape[1] % 4))).reshape(len(R), -1, 4)
        sums = padded.cumsum(axis=1)[:, -1]  # four sums, each in order, as the kernel has them
        total = (sums[:, 0] + sums[:, 1]) + (sums[:, 2] + sums[:, 3])
        correction = np.where(total > 0, 1 / np.where(total > 0, total, 1), 0)
        codes[some, bits * plane :] = correction.astype("<f4")[:, None].view(np.uint8)
    return codes


def rescore_values(codes: Array, dim: int, bits: int) -> NDArray[np.uint8]:
    """Return the value of the bits of each dimension, (n, dim)."""
    planes = codes[:, :-4].reshape(len(codes), bits, (dim + 7) // 8)
    ones = np.unpackbits(planes, axis=2, count=dim, bitorder="little")
    return np.asarray((ones << np.arange(bits, dtype=np.uint8)[:, None]).sum(axis=1, dtype=np.uint8))


def rescore_levels(codes: Array, dim: int, bits: int) -> Array:
    corrections = np.ascontiguousarray(codes[:, -4:]).view("<f4")
    levels = rescore_values(codes, dim, bits).astype(np.float32) * 2 - (2**bits - 1)
    return np.where(np.isfinite(corrections) & (corrections != 0), levels, np.float32(0))


def rescore_products(codes: Array, queries: Array, bits: int) -> NDArray[np.int64]:
    products = np.empty(codes.shape[:2], np.int64)
    for q, levels in enumerate(queries.astype(np.int64)):
        products[q] = (rescore_values(codes[q], len(levels), bits).astype(np.int64) * 2 - (2**bits - 1)) @ levels
    return products


FIRST_PAGE, FIRST_HUNDRED = 10, 100  # hits that precision looks at; nDCG looks at the first page


def rank_quality(scores: Array, grades: Array) -> NDArray[np.float64]:
    """Return the measures (m, 5) of each row, see `kernels.rank_quality`."""
    rows = zip(scores, grades, strict=True)
    return np.array([_quality_of(s, g) for s, g in rows], np.float64).reshape(-1, 5)


def _quality_of(scores: Array, grades: Array) -> tuple[float, float, float, float, float]:
    order = np.argsort(-scores, kind="stable")
    relevant = grades[order] > 0
    ranks = np.arange(1, len(order) + 1)
    hits = np.cumsum(relevant)
    most = max(1, int(relevant.sum()))
    discount = 1 / np.log2(np.arange(2, FIRST_PAGE + 2))
    gained, ideal = ((g[:FIRST_PAGE] * discount[: len(g)]).sum() for g in (grades[order], -np.sort(-grades)))
    return (
        float((hits / ranks)[relevant].sum()) / most,
        _over_orders_of_ties(scores[order], relevant) / most,
        float(relevant[:FIRST_PAGE].sum()) / FIRST_PAGE,
        float(relevant[:FIRST_HUNDRED].sum()) / FIRST_HUNDRED,
        float(gained / ideal) if ideal else 0.0,
    )


def _over_orders_of_ties(scores: Array, relevant: Array) -> float:
    """Return the expected sum of precisions at the ranks of relevant items.

    A group of n ties from rank t + 1 on, r of them relevant, c relevant before it: the item at place i of the group is
    relevant with chance r/n, and then c, itself and (i - 1)(r - 1)/(n - 1) others are among the first t + i. The sum
    over i of (c + 1 + (i - 1) rho) / (t + i) is n rho + (c + 1 - rho (t + 1)) (H(t + n) - H(t)).
    """
    t = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]])) if len(scores) else np.empty(0, np.int64)
    r = np.add.reduceat(relevant, t, dtype=np.int64) if len(t) else t
    n = np.diff(t, append=len(scores))
    c = np.cumsum(r) - r
    rho = (r - 1) / np.maximum(n - 1, 1)
    H = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, len(scores) + 1))])
    return float((r / n * (n * rho + (c + 1 - rho * (t + 1)) * (H[t + n] - H[t])))[r > 0].sum())


def near_groups(codes: Codes, distance: int) -> NDArray[np.int64]:
    """Return for each code the number of the first code of its group, which a chain of near codes connects.

    It compares every pair; `near_groups.near_groups` does not.
    """
    groups = np.full(len(codes), -1, np.int64)
    for first in range(len(codes)):
        reached = [] if groups[first] >= 0 else [first]
        while reached:
            code = reached.pop()
            groups[code] = first
            near = np.unpackbits(codes ^ codes[code], axis=1).sum(axis=1, dtype=np.int64) <= distance
            new = np.flatnonzero(near & (groups < 0))
            groups[new] = first
            reached += new.tolist()
    return groups


# The NumPy twins of the kernels of the first page by rescoring codes; `rescored_page` is its definition.


NEIGHBOURS = 10  # candidates of the highest cosine, whose labels a query is expected to have
NEIGHBOUR_POWER = 8  # a neighbour counts by its cosine to this power
STORED_WEIGHT = 0.7  # of the labels that an item has now, beside 1 for those that are predicted of it
SHORT_CODE_WEIGHT = 0.5  # of the labels predicted of a finalist's short code, beside 1 for those of its rescoring code
FINALISTS = 32  # candidates that are scored again, by all that is known of them
NEAR_COSINE = 0.95  # items from this cosine on are near duplicates: .97, less what the estimate may be off
NEAREST_COSINE = 0.9  # the nearest item is one from here on: a cosine of .97 may be .93 once the mean is subtracted


def rescored_page(
    candidates: PageCandidates,
    queries: PageQueries,
    model: PageLabels,
    bits: int,
    results: tuple[Array, Array, Array],
) -> None:
    """Write the parts of the scores, the tiers and the strengths, of one query after another."""
    parts, tiers, strengths = results
    start = 0
    for q, count in enumerate(candidates.counts.tolist()):
        some = slice(start, start := start + count)
        indptr = candidates.indptr[some.start : some.stop + 1]
        indices = candidates.indices[indptr[0] : indptr[-1]]
        stored = label_vectors(indptr - indptr[0], indices, len(model.u))
        both = candidates.codes[q, :count], candidates.rescoring_codes[some]
        *of_candidates, strengths[q] = _scores(queries, q, model, bits, both, stored)
        parts[:, q, :count], tiers[q, :count] = of_candidates


def _scores(
    queries: PageQueries, q: int, model: PageLabels, bits: int, both: tuple[Array, Array], stored: Floats
) -> tuple[Array, NDArray[np.int64], float]:
    """Return the parts of the scores, the tiers and the strength of one query.

    stored: the labels of its candidates as unit vectors (n, labels), those of the model and then others.
    """
    codes, rescoring_codes = both
    corrections = corrections_of(rescoring_codes)
    products = rescore_products(rescoring_codes[None], queries.levels[[q]], bits)[0].astype(np.float64)
    cosines = (products * np.float64(queries.scale[q]) * corrections).astype(np.float32)
    near = cosines >= np.float32(NEAR_COSINE)
    if len(codes):
        near[cosines.argmax()] |= cosines.max() >= np.float32(NEAREST_COSINE)
    tiers = np.where(near, 0, 1)
    votes = np.zeros_like(cosines)
    if width := queries.votes.shape[1]:
        signs = np.unpackbits(codes, axis=1, count=width, bitorder="little") * 2.0 - 1
        votes = (signs @ queries.votes[q] / (2 * np.sqrt(width))).astype(np.float32)
    if queries.strength[q] <= 0 or not len(codes):
        return np.stack([cosines + votes, cosines, np.zeros_like(cosines), votes]), tiers, 0.0
    count, share = len(model.u), queries.labelled_share
    expected, coverage = neighbour_labels(cosines, stored, share)
    trust = np.float32(share**0.5)
    of_query = trust * expected
    of_query[:count] += queries.labels[q]
    of_query /= max(float(np.sqrt(of_query @ of_query)), 1e-30)
    strength = queries.strength[q] if queries.fixed else queries.strength[q] * (1 - trust + trust * coverage**8)

    def score(predicted: Floats, some: Any) -> tuple[Floats, Floats]:
        of_items = stored[some] * np.float32(STORED_WEIGHT)
        of_items[:, :count] += predicted
        norms = np.sqrt(np.maximum(np.einsum("ij,ij->i", of_items, of_items), np.float32(1e-30)))
        of_items[:, :count] *= model.weights
        agreement = (of_items @ of_query) / norms
        return agreement, strength * agreement + (np.float32(1) - strength) * cosines[some] + votes[some]

    predicted = _raise(_sum_nibbles(model.V, codes) + model.v, model.power)
    agreement, scores = score(predicted, slice(None))
    finalists = np.lexsort((-scores, tiers))[:FINALISTS]
    tiers[tiers > 0] = 2
    finalists = finalists[tiers[finalists] > 0]
    tiers[finalists] = 1
    levels = rescore_levels(rescoring_codes[finalists], queries.levels.shape[1], bits)
    by_levels = project(levels, model.U) * corrections[finalists][:, None] + model.u
    holds_labels = rescoring_codes[finalists, -1] >= 0x80
    by_both = labels_of_finalists(predicted[finalists], _raise(by_levels, model.power), holds_labels)
    agreement[finalists], scores[finalists] = score(by_both, finalists)
    return np.stack([scores, cosines, agreement, votes]), tiers, float(strength)


def labels_of_finalists(by_codes: Floats, by_levels: Floats, holds_labels: NDArray[np.bool_]) -> Floats:
    """Return the labels (n, labels) predicted of both codes: of unit vectors by short codes and by rescoring codes.

    A short code that holds labels would only repeat those that its item was stored with.
    """
    weights = np.where(holds_labels, np.float32(0), np.float32(SHORT_CODE_WEIGHT))
    return unit_rows(weights[:, None] * by_codes + by_levels)


def neighbour_labels(cosines: Floats, stored: Floats, share: float) -> tuple[Floats, np.float32]:
    """Return the labels (labels,) that the nearest candidates have, and how many have some beside all items."""
    nearest = np.argsort(-cosines, kind="stable")[:NEIGHBOURS]
    weights = np.maximum(cosines[nearest], 0).astype(np.float64) ** NEIGHBOUR_POWER
    total = max(float(weights.sum()), 1e-9)
    covered = float(weights[stored[nearest].any(axis=1)].sum()) / total
    expected = weights @ stored[nearest]
    expected = expected / max(float(np.sqrt(expected @ expected)), 1e-30)
    return np.asarray(expected, np.float32), np.float32(min(1.0, covered / max(share, 1e-9)))


def label_vectors(indptr: Array, indices: Array, count: int) -> Floats:
    """Return rows of labels as unit vectors: over `count` columns first, then over those others that rows have."""
    others = np.unique(indices[indices >= count])
    columns = np.where(indices < count, indices, count + np.searchsorted(others, indices))
    vectors = np.zeros((len(indptr) - 1, count + len(others)), np.float32)
    vectors[np.repeat(np.arange(len(vectors)), np.diff(indptr)), columns] = 1
    return unit_rows(vectors, out=vectors)


def corrections_of(rescoring_codes: Array) -> Floats:
    """Return the corrections of rescoring codes (..., bytes): 0 of a zero row, and of a lost one."""
    corrections = np.abs(np.ascontiguousarray(rescoring_codes[..., -4:]).view("<f4")[..., 0])
    return np.where(np.isfinite(corrections), corrections, np.float32(0))


def _raise(labels: Floats, power: float) -> Floats:
    return unit_rows(np.maximum(labels, 0) ** np.float32(power))


def label_table(V: Array, table: Array) -> Array:
    bits = np.unpackbits(np.arange(16, dtype=np.uint8)[:, None], axis=1, count=4, bitorder="little") * np.float32(2) - 1
    padded = np.zeros((4 * len(table), V.shape[1]), np.float32)
    padded[: len(V)] = V
    np.matmul(bits, padded.reshape(len(table), 4, -1), out=table)
    return table


def _sum_nibbles(table: Array, codes: Array) -> Floats:
    nibbles = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
    return np.asarray(table[np.arange(len(table)), nibbles].sum(axis=1))


def merge_candidates(scores: Array, ids: Array, codes: Array, weights: Array) -> tuple[Array, Array, Array, Array]:
    merged = np.full(ids.shape, -np.inf, np.float32), np.full_like(ids, -1), np.zeros_like(codes)
    counts = np.zeros(len(ids), np.int64)
    for q, own in enumerate(ids):
        signs = np.unpackbits(codes[q], axis=1, count=weights.shape[1], bitorder="little") * 2.0 - 1
        exact = (signs @ weights[q]).astype(np.float32)
        exact[: scores.shape[1]] = scores[q]
        order = np.lexsort((own, -exact))
        order = order[own[order] >= 0]
        order = order[np.diff(own[order], prepend=-1) != 0]  # equal ids have equal scores
        counts[q] = len(order)
        for to, some in zip(merged, (exact, own, codes[q]), strict=True):
            to[q, : len(order)] = some[order]
    return *merged, counts


def read_arrays(parts: list[tuple[Any, ...]], rows: Array, arrays: Array) -> None:
    for *where, stored in parts:
        which, places = _find(where, rows)
        if stored is not None:
            arrays[which] = stored[places]


def read_labels(parts: list[tuple[Any, ...]], rows: Array, indptr: Array) -> Array | None:
    lists: list[Array] = [np.empty(0, np.int64)] * len(rows)
    unread = np.zeros(len(rows), bool)
    for *where, codes, starts, labels in parts:
        which, places = _find(where, rows)
        unread[which] = codes is None
        for row, place in zip(which.tolist(), places.tolist() if codes is not None else (), strict=False):
            lists[row] = labels[starts[codes[place]] : starts[int(codes[place]) + 1]]
    indptr[0] = 0
    np.cumsum([len(some) for some in lists], out=indptr[1:])
    return None if unread.any() else np.concatenate([np.empty(0, np.int64), *lists])


def _find(where: list[Any], rows: Array) -> tuple[Array, Array]:
    """Return which of these rows a part has, and their places in it; of a number that is there twice the last."""
    first, last, numbers, places = where
    which = np.flatnonzero((rows >= first) & (rows <= last))
    if numbers is None:
        return which, rows[which] - first
    at = np.searchsorted(numbers, rows[which], "right") - 1
    found = (at >= 0) & (numbers[at] == rows[which])
    return which[found], at[found] if places is None else places[at[found]]
