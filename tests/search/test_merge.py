from __future__ import annotations

import numpy as np
import pytest

from stillhash.search.merge import ScoredIds, merge_all, merge_top, resize


def parts(rng: np.random.Generator, widths: list[int], queries: int = 3) -> list[ScoredIds]:
    """Hits of several sources about different rows, best first, with many ties."""
    ids = rng.permutation(queries * sum(widths)).reshape(queries, -1)
    sources, start = [], 0
    for width in widths:
        own = ids[:, start : start + width]
        scores = rng.integers(0, 3, own.shape).astype(np.float32)
        order = np.lexsort((own, -scores), axis=1)
        sources.append((np.take_along_axis(scores, order, 1), np.take_along_axis(own, order, 1)))
        start += width
    return sources


def ranked(sources: list[ScoredIds], q: int) -> list[tuple[float, int]]:
    hits = [pair for scores, ids in sources for pair in zip(scores[q].tolist(), ids[q].tolist(), strict=True)]
    return sorted(hits, key=lambda hit: (-hit[0], hit[1]))


@pytest.mark.parametrize("widths", [[4], [4, 4], [0, 5, 2], [1, 1, 1, 7]])
@pytest.mark.parametrize("k", [1, 3, 20])
def test_merged_hits_are_those_of_one_index(widths: list[int], k: int) -> None:
    sources = parts(np.random.default_rng(0), widths)
    scores, ids = merge_top(sources, k)
    assert scores.shape == ids.shape == (3, k)
    for q in range(3):
        expected = ranked(sources, q)[:k]
        expected += [(-np.inf, -1)] * (k - len(expected))
        assert list(zip(scores[q].tolist(), ids[q].tolist(), strict=True)) == expected
        flat = merge_all([(scores[q], ids[q]) for scores, ids in sources])
        assert list(zip(flat.scores.tolist(), flat.ids.tolist(), strict=True)) == ranked(sources, q)


def test_missing_hits_come_last() -> None:
    short = resize((np.array([[1.0]], np.float32), np.array([[7]])), 3)
    scores, ids = merge_top([short, (np.array([[0.5, 0.25]], np.float32), np.array([[3, 9]]))], 4)
    assert ids.tolist() == [[7, 3, 9, -1]] and scores[0, -1] == -np.inf


def test_no_source_gives_missing_hits() -> None:
    scores, ids = merge_top([], 2, queries=3)
    assert (scores == -np.inf).all() and (ids == -1).all() and ids.shape == (3, 2)
    assert len(merge_all([]).ids) == 0
