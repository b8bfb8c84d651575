"""The order of all codes equals its definition, one query at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.numeric import kernels
from stillhash.numeric.exact_scores import score_all, snap
from stillhash.numeric.ranking import Ranking, code_page_scores, order_rows, rank_all, rank_scores, similarity_scores
from stillhash.numeric.rescored_page import CANDIDATES

native = [lanes for lanes in kernels.available() if lanes != "numpy"]  # where results do not depend on the batch


def rank_one(ranking: Ranking, codes: np.ndarray) -> list[int]:
    """Rank all codes for a single query with similarity, by definition."""
    numbers, exact_similarity = np.arange(len(codes)), similarity_scores(ranking)
    (scores,), (by_similarity,) = score_all(snap(ranking.weights), codes), score_all(exact_similarity.grid, codes)
    near = [n for n in numbers if by_similarity[n] >= exact_similarity.near[0]]
    if not near and by_similarity.max() >= exact_similarity.nearest[0]:
        near = [int(np.argmax(by_similarity))]
    order = sorted(numbers, key=lambda n: (-scores[n], n))
    if ranking.labels is not None:
        (again,) = code_page_scores(ranking, codes[None])
        page = sorted(order[:CANDIDATES], key=lambda n: (-again[n], -scores[n], n))
        order = page + order[CANDIDATES:]
    return sorted(near, key=lambda n: (-by_similarity[n], n)) + [n for n in order if n not in near]


@given(st.integers(0, 2**32), st.integers(0, 50), st.booleans())
def test_rows_are_ordered_as_by_a_stable_sort(seed: int, columns: int, coarse: bool) -> None:
    scores = part(np.random.default_rng(seed), coarse, 3, columns)
    scores[:, ::5] *= np.float32(-0.0)
    scores[0, ::7] = -np.inf
    assert np.array_equal(order_rows(scores), np.argsort(-scores, axis=1, kind="stable"))


def part(rng: np.random.Generator, coarse: bool, *shape: int) -> np.ndarray:
    """Draw an array; coarse values make many ties."""
    return (rng.integers(-2, 3, shape) if coarse else rng.standard_normal(shape)).astype(np.float32)


@pytest.mark.parametrize("lanes", native)
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 700), st.sampled_from([8, 13, 64]), st.sampled_from([0, 3]), st.booleans())
def test_all_codes_are_ranked_as_one_query_at_a_time(lanes, seed, rows, bits, labels, coarse):
    rng = np.random.default_rng(seed)
    codes = np.packbits(rng.integers(0, 2, (rows, bits), np.uint8), axis=1, bitorder="little")
    codes = codes[rng.integers(0, max(1, rows // 2), rows)]  # equal codes are ties
    ranking = Ranking(part(rng, coarse, 4, bits), part(rng, coarse, 4, bits))
    if labels:
        predicted = np.abs(part(rng, coarse, 4, labels)) + np.float32(0.1)
        predicted *= rng.random((4, 1)).astype(np.float32) / np.linalg.norm(predicted, axis=1, keepdims=True)
        item_side = part(rng, coarse, bits, labels), part(rng, coarse, labels)
        ranking = Ranking(*ranking[:2], predicted, *item_side, 1.5, float(rng.random()))
        if rng.random() < 0.5:
            ranking = ranking._replace(page_similarity=part(rng, coarse, 4, bits))
    with kernels.using(lanes):
        orders = rank_all(ranking, codes)
        assert orders.tolist() == [rank_one(ranking.rows([q]), codes) for q in range(4)]
        assert np.array_equal(np.argsort(-rank_scores(ranking, codes), axis=1), orders)
