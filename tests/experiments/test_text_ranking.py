"""BM25, cosine and the fusion of rankings, each against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from stillhash.experiments.text_ranking import BM25_B, BM25_K1, bm25_scores, cosine_scores, fuse_ranks, tokenize


def slow_bm25(items: list[list[str]], queries: list[list[str]]) -> NDArray[np.float64]:
    """The definition of BM25, as Lucene has it."""
    mean = sum(map(len, items)) / len(items)
    scores = np.zeros((len(queries), len(items)))
    for q, query in enumerate(queries):
        for word in query:
            holding = sum(word in item for item in items)
            rarity = math.log(1 + (len(items) - holding + 0.5) / (holding + 0.5))
            for i, item in enumerate(items):
                count = item.count(word)
                scores[q, i] += rarity * count / (count + BM25_K1 * (1 - BM25_B + BM25_B * len(item) / mean))
    return scores


@pytest.mark.parametrize("seed", range(5))
def test_bm25_is_its_definition(seed: int) -> None:
    pytest.importorskip("bm25s", reason="needs stillhash[text-study]")
    rng = np.random.default_rng(seed)
    words = [f"w{number}" for number in range(30)]
    items = [rng.choice(words, rng.integers(1, 40)).tolist() for _ in range(50)]
    queries = [*(rng.choice([*words, "unknown"], rng.integers(1, 20)).tolist() for _ in range(10)), [], ["unknown"]]
    assert np.allclose(bm25_scores(items, queries), slow_bm25(items, queries), rtol=1e-5, atol=1e-6)


def test_words_are_lower_case_without_stop_words() -> None:
    pytest.importorskip("bm25s", reason="needs stillhash[text-study]")
    assert tokenize(["The price of WHEAT rose, wheat", ""]) == [["price", "wheat", "rose", "wheat"], []]


def test_cosine_is_its_definition_and_zero_for_zeros() -> None:
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((7, 5)).astype(np.float32), rng.standard_normal((3, 5)).astype(np.float32)
    X[2] = 0
    expected = [[float(q @ x / max(1e-30, np.linalg.norm(q) * np.linalg.norm(x))) for x in X] for q in Q]
    assert np.allclose(cosine_scores(X, Q), expected, atol=1e-6)


def test_fusion_adds_reciprocal_ranks_with_ties_in_database_order() -> None:
    a, b = np.array([[3, 1, 2]], np.float32), np.array([[0, 0, 5]], np.float32)
    ranks_a, ranks_b = np.array([1, 3, 2]), np.array([2, 3, 1])
    assert np.allclose(fuse_ranks(a, b), 1 / (60 + ranks_a) + 1 / (60 + ranks_b))
