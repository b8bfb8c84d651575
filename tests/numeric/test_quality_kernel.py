from __future__ import annotations

import itertools

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


def measured(scores: object, grades: object, k: int = 100) -> np.ndarray:
    return kernels.rank_quality(np.array([scores], np.float32), np.array([grades], np.float32), k)[0]


@pytest.fixture(params=kernels.available(), autouse=True)
def on_every_lane(request: pytest.FixtureRequest):
    with kernels.using(request.param):
        yield


def test_a_hand_made_example() -> None:
    scores, grades = [0.9, 0.8, 0.7, 0.6], [2, 0, 1, 0]  # gains 3, 0, 1, 0
    assert measured(scores, grades)[0] == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert measured(scores, grades, k=2)[2] == 0.5
    assert measured(scores, grades, k=3)[3] == pytest.approx((3 + 1 / 2) / (3 + 1 / np.log2(3)))


def test_without_anything_relevant_the_measures_are_zero() -> None:
    np.testing.assert_array_equal(measured(range(5), np.zeros(5), k=3), 0)
    np.testing.assert_array_equal(measured([], []), 0)
    assert kernels.rank_quality(np.empty((0, 3), np.float32), np.empty((0, 3), np.float32), 5).shape == (0, 4)


some_scores = st.lists(st.floats(-100, 100, width=32) | st.sampled_from([0.0, -0.0, 1.0]), min_size=1, max_size=60)


@given(some_scores, st.randoms(), st.integers(1, 70))
def test_it_equals_a_stable_sort_and_its_reference(values: list[float], random: object, k: int) -> None:
    grades = [random.choice([0, 0, 0, 1, 1, 2, 5]) for _ in values]  # type: ignore[attr-defined]
    quality = measured(values, grades, k)
    assert quality[0] == pytest.approx(plain_average_precision(np.array(values, np.float32), np.array(grades) > 0))
    twin = reference.rank_quality(np.array([values], np.float32), np.array([grades], np.float32), k)[0]
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
    grades = rng.integers(0, 4, (3, 5000)).astype(np.float32)
    quality = kernels.rank_quality(scores, grades, 100)
    np.testing.assert_allclose(quality, reference.rank_quality(scores, grades, 100), rtol=1e-11)
