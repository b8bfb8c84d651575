from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.experiments.metrics import (
    average_precision,
    evaluate,
    expected_average_precision,
    ndcg_at,
    precision_at,
    ranked,
)
from stillhash.numeric.codes import pack, signs


def plain_average_precision(scores: np.ndarray, relevant: np.ndarray) -> float:
    order = np.argsort(-scores, kind="stable")
    found, total = 0, 0.0
    for rank, item in enumerate(order, 1):
        if relevant[item]:
            found += 1
            total += found / rank
    return total / found if found else 0.0


def test_a_hand_made_example() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6], np.float32)
    relevant = np.array([True, False, True, False])
    assert average_precision(scores, relevant) == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert precision_at(ranked(scores, relevant), 2) == 0.5
    grades = np.array([2, 0, 1, 0])  # gains 3, 0, 1, 0
    assert ndcg_at(grades, ranked(scores, relevant), 3) == pytest.approx((3 + 1 / 2) / (3 + 1 / np.log2(3)))


def test_without_anything_relevant_the_measures_are_zero() -> None:
    scores, none = np.arange(5, dtype=np.float32), np.zeros(5, bool)
    assert average_precision(scores, none) == expected_average_precision(scores, none) == 0
    assert ndcg_at(np.zeros(5), ranked(scores, none), 3) == 0


some_scores = st.lists(st.floats(-100, 100, width=32) | st.sampled_from([0.0, -0.0, 1.0]), min_size=1, max_size=60)


@given(some_scores, st.randoms())
def test_average_precision_equals_a_stable_sort(values: list[float], random: object) -> None:
    scores = np.array(values, np.float32)
    relevant = np.array([random.random() < 0.4 for _ in values])  # type: ignore[attr-defined]
    assert average_precision(scores, relevant) == pytest.approx(plain_average_precision(scores, relevant))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_the_expectation_is_the_mean_over_all_orders_of_ties(items: list[tuple[int, bool]]) -> None:
    orders = [plain_average_precision(*_columns(order)) for order in itertools.permutations(items)]
    assert expected_average_precision(*_columns(items)) == pytest.approx(np.mean(orders))


def _columns(items: object) -> tuple[np.ndarray, np.ndarray]:
    scores, relevant = zip(*items, strict=True)  # type: ignore[call-overload]
    return np.array(scores, np.float32), np.array(relevant, bool)


def test_evaluate_equals_the_plain_measures() -> None:
    rng = np.random.default_rng(0)
    codes = pack(rng.standard_normal((500, 16)).astype(np.float32))
    weights = rng.integers(-3, 4, (70, 16)).astype(np.float32)
    asked, items = rng.random((70, 6)) < 0.3, rng.random((500, 6)) < 0.3
    done: list[int] = []
    quality = evaluate(weights, codes, asked, items, k=20, progress=done.append)
    scores, shared = weights @ signs(codes, 16).T, asked.astype(int) @ items.T.astype(int)
    plain = [plain_average_precision(s, r > 0) for s, r in zip(scores, shared, strict=True)]
    expected = [expected_average_precision(s, r > 0) for s, r in zip(scores, shared, strict=True)]
    order = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    assert quality.map == pytest.approx(np.mean(plain))
    assert quality.expected_map == pytest.approx(np.mean(expected))
    assert quality.precision == pytest.approx(np.mean(np.take_along_axis(shared, order, 1) > 0))
    gains, discount = 2.0**shared - 1, 1 / np.log2(np.arange(2, 22))
    best = np.sort(gains, axis=1)[:, ::-1][:, :20] @ discount
    assert quality.ndcg == pytest.approx(
        np.mean(np.take_along_axis(gains, order, 1) @ discount / np.maximum(best, 1e-9))
    )
    assert sum(done) == 70
