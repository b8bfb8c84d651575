"""The NumPy twins of the kernels of the first page by rescoring codes; `rescored_page` is its definition."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import reference
from stillhash.numeric.alignment import unit_rows
from stillhash.numeric.reference import Array
from stillhash.numeric.validation import Floats

if TYPE_CHECKING:
    from stillhash.numeric.kernels import PageCandidates, PageLabels, PageQueries

NEIGHBOURS = 20  # candidates of the highest cosine, whose labels a query is expected to have
NEIGHBOUR_POWER = 8  # a neighbour counts by its cosine to this power
FINALISTS = 64  # candidates that are scored again, by all that is known of them
NEAR_COSINE = 0.95  # items from this cosine on are near duplicates: .97, less what the estimate may be off
NEAREST_COSINE = 0.9  # the nearest item is one from here on: a cosine of .97 may be .93 once the mean is subtracted


def rescored_page(
    candidates: "PageCandidates",
    queries: "PageQueries",
    model: "PageLabels",
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
    queries: "PageQueries", q: int, model: "PageLabels", bits: int, both: tuple[Array, Array], stored: Floats
) -> tuple[Array, NDArray[np.int64], float]:
    """Return the parts of the scores, the tiers and the strength of one query.

    stored: the labels of its candidates as unit vectors (n, labels), those of the model and then others.
    """
    codes, rescoring_codes = both
    corrections = corrections_of(rescoring_codes)
    products = reference.rescore_products(rescoring_codes[None], queries.levels[[q]], bits)[0].astype(np.float64)
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
    strength = queries.strength[q] if queries.fixed else queries.strength[q] * (1 - trust + trust * coverage**4)

    def score(predicted: Floats, some: Any) -> tuple[Floats, Floats]:
        of_items = stored[some].copy()
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
    levels = reference.rescore_levels(rescoring_codes[finalists], queries.levels.shape[1], bits)
    by_levels = reference.project(levels, model.U) * corrections[finalists][:, None] + model.u
    by_both = unit_rows(predicted[finalists] + _raise(by_levels, model.power))
    agreement[finalists], scores[finalists] = score(by_both, finalists)
    return np.stack([scores, cosines, agreement, votes]), tiers, float(strength)


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
