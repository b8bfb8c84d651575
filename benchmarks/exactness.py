"""Rank by brute force, and compare MIWQ with it after random histories of additions, removals and merges."""

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.codes import signs, width
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.validation import Codes, Floats
from stillhash.search import MIWQ, Hits
from stillhash.search.blocks import IdArray


def compare_histories(cases: int, seed: int = 0) -> dict[str, int]:
    """Count hits that differ from brute force, over so many queries of small indexes after random writes."""
    rng = np.random.default_rng(seed)
    counts = {"cases": 0, "histories": 0, "hits": 0, "tied_hits": 0, "wrong_hits": 0}
    while counts["cases"] < cases:
        index, ids, codes = random_history(rng)
        counts["histories"] += 1
        for _ in range(2):
            weights = random_weights(rng, index.bits)[: cases - counts["cases"]]
            if not len(weights):
                break
            k = int(rng.choice([1, 3, 10, 100, len(ids) + 5]))
            allowed = None
            if rng.random() < 0.5:
                known = min(int(ids.max(initial=0)) + 1, 60_000)  # ids past its end are not allowed
                allowed = rng.random(known) < rng.choice([0.0, 0.05, 0.5, 0.95])
            expected = brute_force(ids, codes, weights, k, allowed)
            hits = index.search(weights, k, allowed=allowed)
            tied = (expected.scores[:, 1:] == expected.scores[:, :-1]) & (expected.ids[:, 1:] >= 0)
            counts["cases"] += len(weights)
            counts["hits"] += int(np.count_nonzero(expected.ids >= 0))
            counts["tied_hits"] += int(np.count_nonzero(tied))
            counts["wrong_hits"] += count_different(hits, expected)
    return counts


def random_history(rng: np.random.Generator) -> tuple[MIWQ, IdArray, Codes]:
    """Return an index after a few random writes and merges, and the rows that it must hold."""
    bits = int(rng.integers(8, 97))
    index = MIWQ(bits, tables=None if rng.random() < 0.7 else int(rng.integers(-(-bits // 12), bits + 1)), threads=1)
    ids, codes, free = np.empty(0, np.int64), np.empty((0, width(bits)), np.uint8), 0
    for step in rng.choice(["add", "add", "named", "remove", "merge", "merge"], int(rng.integers(2, 9))):
        n = int(600 ** rng.random())
        if step == "merge":
            index.merge()
        elif step == "remove":
            removed = rng.choice(np.append(ids, free), min(n, len(ids) + 1), replace=False)  # one never existed
            index.remove(removed)
            rest = ~np.isin(ids, removed)
            ids, codes = ids[rest], codes[rest]
        else:
            names = np.arange(free, free + n)
            if step == "named":  # again, in the gaps that removals left, or far apart
                names = np.setdiff1d(rng.integers(0, rng.choice([free + 2 * n, 50_000, 2**40]), n), ids)
                rng.shuffle(names)
            new = random_codes(rng, len(names), bits)
            index.add(new, names if step == "named" else None)
            ids, codes = np.append(ids, names), np.concatenate([codes, new])
            free = max(free, int(names.max(initial=-1)) + 1)
    return index, ids, codes


def random_codes(rng: np.random.Generator, count: int, bits: int) -> Codes:
    """Make codes of fair coins or near to one code, all different or with many duplicates."""
    ones = rng.random((count, bits)) < rng.choice([0.5, 0.1])
    codes = np.packbits(ones ^ (rng.random(bits) < 0.5), axis=1, bitorder="little")
    return codes if rng.random() < 0.6 or not count else codes[rng.integers(0, min(count, 5), count)]


def random_weights(rng: np.random.Generator, bits: int) -> Floats:
    """Make weights of all sorts: plain, of magnitudes far apart, mostly zero, full of ties, all zero; tiny, or huge."""
    normal = rng.standard_normal((6, bits))
    normal[1] *= 10.0 ** rng.integers(-6, 7, bits)
    normal[2] *= rng.random(bits) < 0.2
    normal[3] = np.sign(normal[3])
    normal[4] = np.rint(normal[4])
    normal[5] *= rng.random() < 0.5
    return np.asarray((normal * rng.choice([1e-25, 1, 1e25])).astype(np.float32))


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
