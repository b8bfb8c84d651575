from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.numeric import kernels, reference


def plain_average_precision(scores: np.ndarray, relevant: np.ndarray) -> float:
    order = np.argsort(-scores, kind="stable")
    relevant_so_far, total = 0, 0.0
    for rank, item in enumerate(order, 1):
        if relevant[item]:
            relevant_so_far += 1
            total += relevant_so_far / rank
    return total / relevant_so_far if relevant_so_far else 0.0


def measured(scores: object, grades: object) -> np.ndarray:
    return kernels.rank_quality(np.array([scores], np.float32), np.array([grades], np.float32))[0]


@pytest.fixture(params=kernels.available(), autouse=True)
def on_every_lane(request: pytest.FixtureRequest):
    with kernels.using(request.param):
        yield


def test_a_hand_made_example() -> None:
    scores, grades = [0.9, 0.8, 0.7, 0.6], [0.5, 0, 1, 0]
    quality = measured(scores, grades)
    assert quality[0] == quality[1] == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert quality[2:4] == pytest.approx([2 / 10, 2 / 100])  # places without an item are not relevant
    assert quality[4] == pytest.approx((0.5 + 1 / 2) / (1 + 0.5 / np.log2(3)))


def test_only_the_first_hits_count() -> None:
    grades = np.zeros(300)
    grades[[3, 9, 10, 99, 100, 200]] = [1, 1, 1, 1, 1, 1]
    quality = measured(-np.arange(300), grades)
    assert quality[2:4] == pytest.approx([2 / 10, 4 / 100])
    assert quality[4] == pytest.approx((1 / np.log2(5) + 1 / np.log2(11)) / sum(1 / np.log2(np.arange(2, 8))))


def test_without_anything_relevant_the_measures_are_zero() -> None:
    np.testing.assert_array_equal(measured(range(5), np.zeros(5)), 0)
    np.testing.assert_array_equal(measured([], []), 0)
    assert kernels.rank_quality(np.empty((0, 3), np.float32), np.empty((0, 3), np.float32)).shape == (0, 5)


some_scores = st.lists(st.floats(-100, 100, width=32) | st.sampled_from([0.0, -0.0, 1.0]), min_size=1, max_size=150)


@given(some_scores, st.randoms())
def test_it_equals_a_stable_sort_and_its_reference(values: list[float], random: object) -> None:
    grades = [random.choice([0, 0, 0, 1 / 3, 1 / 4, 2 / 3, 1]) for _ in values]  # type: ignore[attr-defined]
    quality = measured(values, grades)
    assert quality[0] == pytest.approx(plain_average_precision(np.array(values, np.float32), np.array(grades) > 0))
    twin = reference.rank_quality(np.array([values], np.float32), np.array([grades], np.float32))[0]
    np.testing.assert_allclose(quality, twin, rtol=1e-12, atol=1e-14)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_the_expectation_is_the_mean_over_all_orders_of_ties(items: list[tuple[int, bool]]) -> None:
    orders = [plain_average_precision(*_columns(order)) for order in itertools.permutations(items)]
    assert measured(*_columns(items))[1] == pytest.approx(np.mean(orders))


def _columns(items: object) -> tuple[np.ndarray, np.ndarray]:
    scores, relevant = zip(*items, strict=True)  # type: ignore[call-overload]
    return np.array(scores, np.float32), np.array(relevant, bool)


def test_many_items() -> None:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((3, 5000)).astype(np.float32)
    scores[1] = np.round(scores[1] * 4)
    grades = (rng.integers(0, 4, (3, 5000)) / 3).astype(np.float32)
    quality = kernels.rank_quality(scores, grades)
    np.testing.assert_allclose(quality, reference.rank_quality(scores, grades), rtol=1e-11)


@pytest.mark.parametrize("items", [7, 60, 700])
def test_it_equals_trec_eval(items: int) -> None:
    pytrec_eval = pytest.importorskip("pytrec_eval")  # there is no wheel for ARM
    rng = np.random.default_rng(items)
    queries, labels = 20, 5
    A, B = rng.random((queries, labels)) < 0.4, rng.random((items, labels)) < 0.3
    A[:2] = 0  # nothing is relevant
    both, either = (A[:, None] & B).sum(axis=2), np.maximum((A[:, None] | B).sum(axis=2), 1)
    scores = rng.permuted(np.tile(np.arange(items, dtype=np.float32), (queries, 1)), axis=1)  # no ties
    quality = kernels.rank_quality(scores, (both / either).astype(np.float32))
    # There grades are whole numbers; nDCG does not change if all of them are multiplied.
    whole = both * math.lcm(*range(1, labels + 1)) // either
    judged = {f"q{q}": {f"d{i}": int(grade) for i, grade in enumerate(row)} for q, row in enumerate(whole)}
    ranked = {f"q{q}": {f"d{i}": float(score) for i, score in enumerate(row)} for q, row in enumerate(scores)}
    measures = ("map", "P_10", "P_100", "ndcg_cut_10")
    results = pytrec_eval.RelevanceEvaluator(judged, set(measures)).evaluate(ranked)
    expected = [[results[f"q{q}"][measure] for measure in measures] for q in range(queries)]
    np.testing.assert_allclose(quality[:, [0, 2, 3, 4]], expected, rtol=1e-6)
    np.testing.assert_allclose(quality[:, 1], quality[:, 0], rtol=1e-11)
