"""Codes of Tally that hold the labels of rows that are stored with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stillhash import Index, Tally, load
from stillhash.errors import BadState, InvalidInput, WrongType
from stillhash.experiments.metrics import evaluate
from stillhash.hashers.state import read_state, write_state
from stillhash.numeric.codes import signs
from stillhash.numeric.sufficient_stats import label_bits
from stillhash.search.first_page import search_page
from tests.support.toys import toy

BITS = 32


def mixture(rows: int = 1500, labels: int = 12, noise: float = 2.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features that tell their labels only roughly, and the labels."""
    rng = np.random.default_rng(seed)
    Y = rng.random((rows, labels)) < 1.5 / labels
    Y[np.arange(rows), rng.integers(0, labels, rows)] = True
    centres = np.random.default_rng(99).standard_normal((labels, 40))
    return (Y @ centres + noise * rng.standard_normal((rows, 40))).astype(np.float32), Y.astype(np.uint8)


def quality(hasher: Tally, codes: np.ndarray, Y: np.ndarray) -> float:
    Q, labels = mixture(200, seed=7)
    return evaluate(hasher.ranking(Q), codes, labels, Y).map


def test_labels_decide_the_first_bits_and_features_the_others() -> None:
    X, Y = mixture()
    hasher = Tally(BITS).fit(X[:500], Y[:500])
    plain, codes, k = hasher.encode(X), hasher.encode(X, Y), label_bits(BITS)
    assert 0 < k < BITS and hasher.label_bits_ == k
    bits, plain_bits = signs(codes, BITS), signs(plain, BITS)
    assert np.array_equal(bits[:, k:], plain_bits[:, k:]) and not np.array_equal(bits, plain_bits)
    _, kinds = np.unique(Y, axis=0, return_inverse=True)
    for kind in np.unique(kinds):
        assert len(np.unique(bits[kinds.reshape(-1) == kind, :k], axis=0)) == 1
    some = np.where(np.arange(len(Y))[:, None] % 2, Y, 0)
    assert np.array_equal(hasher.encode(X, some)[::2], plain[::2])
    assert np.array_equal(hasher.encode(X, some)[1::2], codes[1::2])
    order = np.random.default_rng(0).permutation(len(X))
    assert np.array_equal(hasher.encode(X[order], Y[order]), codes[order])
    assert np.array_equal(np.concatenate([hasher.encode(x[None], y[None]) for x, y in zip(X, Y, strict=True)]), codes)
    without = Tally(BITS, codes_see_labels=False).fit(X[:500], Y[:500])
    assert np.array_equal(without.encode(X, Y), without.encode(X))


@pytest.mark.parametrize("labelled_start", [True, False])
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_they_rank_better_than_codes_of_features(labelled_start: bool, share: float) -> None:
    X, Y = mixture(3000)
    known = Y * (np.random.default_rng(0).random((len(Y), 1)) < share)
    results = {}
    for seeing in (True, False):
        hasher = Tally(BITS, codes_see_labels=seeing).fit(X[:500], Y[:500] if labelled_start else None)
        stored = []
        for start in range(0, len(X), 500):
            chunk = slice(start, start + 500)
            stored.append(hasher.encode(X[chunk], known[chunk]))
            hasher.partial_fit(X[chunk], known[chunk], stored[-1])
        results[seeing] = quality(hasher, np.concatenate(stored), Y)
    assert results[True] > results[False] + (0.05 if share == 1 else 0.005)


def test_a_later_label_is_held_once_enough_rows_show_it() -> None:
    X, Y = mixture(2000, labels=6)
    new = Y[:, 5] == 1
    hasher = Tally(BITS).fit(X[~new][:500], Y[~new][:500])
    rows = X[new][:5], [["new"]] * 5
    assert np.array_equal(hasher.encode(*rows), hasher.encode(rows[0]))  # five rows say too little
    hasher.partial_fit(X[:800], [["new"] if is_new else ["old"] for is_new in new[:800]])
    k = label_bits(BITS)
    bits = signs(hasher.encode(*rows), BITS)[:, :k]
    assert len(np.unique(bits, axis=0)) == 1 and not np.array_equal(bits, signs(hasher.encode(rows[0]), BITS)[:, :k])
    fresh = Tally(BITS).fit(X[:500])
    assert not np.array_equal(fresh.encode(X[:300], Y[:300]), fresh.encode(X[:300]))  # shown by these rows alone
    assert fresh.stats_.rows == 0  # and not learnt


def test_learning_with_codes_is_undone_and_merged() -> None:
    X, Y = mixture()
    whole = Tally(BITS).fit(X[:500], Y[:500])
    codes, first = whole.encode(X, Y), whole.state()
    whole.partial_fit(X, Y, codes)
    one, other = load(first), load(first)
    one.partial_fit(X[:700], Y[:700], codes[:700])
    other.partial_fit(X[700:], Y[700:], codes[700:])
    assert isinstance(one, Tally) and isinstance(other, Tally)
    np.testing.assert_allclose(load(one.state()).merge(other).weigh(X[:9]), whole.weigh(X[:9]), rtol=1e-3, atol=1e-4)
    whole.unlearn(X[700:], Y[700:], codes[700:])
    np.testing.assert_allclose(whole.weigh(X[:9]), one.weigh(X[:9]), rtol=1e-3, atol=1e-4)
    plain = load(first).partial_fit(X[:700], Y[:700])
    assert np.abs(plain.weigh(X[:9]) - one.weigh(X[:9])).max() > 1e-3  # the codes matter


def test_codes_must_belong_to_the_rows() -> None:
    X, Y = mixture(600)
    hasher = Tally(BITS).fit(X, Y)
    before = hasher.state()
    with pytest.raises(InvalidInput, match=r"^codes: expected one for each of 600 rows, got 3"):
        hasher.partial_fit(X, Y, hasher.encode(X[:3]))
    with pytest.raises(WrongType, match=r"^codes"):
        hasher.partial_fit(X, Y, np.zeros((600, 4)))
    assert hasher.state() == before


@pytest.mark.parametrize("learnt", [False, True])
def test_items_find_themselves_and_near_duplicates(learnt: bool) -> None:
    X, Y = mixture(4000, noise=1.0)
    hasher = Tally(128).fit(X[:1000], Y[:1000])
    codes = hasher.encode(X, Y)
    if learnt:
        hasher.partial_fit(X, Y, codes)
        assert hasher.model().label_bits == label_bits(128)
    index = Index(128)
    index.add(codes)
    rows = np.arange(300)
    near = X[rows] + 0.05 * np.random.default_rng(1).standard_normal((300, 40)).astype(np.float32)
    for queries in (X[rows], near):
        hits = search_page(index, hasher.ranking(queries), 10)
        assert (hits.ids == rows[:, None]).any(axis=1).mean() > 0.98


def test_wrong_labels_are_not_believed() -> None:
    X, Y = mixture(3000, noise=1.0)
    rng = np.random.default_rng(3)
    wrong = rng.random(len(Y)) < 0.3
    given = Y.copy()
    given[wrong] = Y[rng.permutation(len(Y))[: wrong.sum()]]
    wrong &= (given != Y).any(axis=1)
    hasher = Tally(64).fit(X[:1500], given[:1500])
    assert abs(hasher.belief_.wrong_share - 0.3) < 0.08
    plain = (hasher.encode(X, given) == hasher.encode(X)).all(axis=1)[1500:]  # as without labels
    assert plain[wrong[1500:]].mean() > 0.7 and plain[~wrong[1500:]].mean() < 0.15
    hasher.partial_fit(X[1500:], given[1500:], hasher.encode(X[1500:], given[1500:]))
    assert hasher.stats_.rows == 1500 - hasher.stats_.unlabelled
    assert 0 <= plain.sum() - hasher.stats_.unlabelled < 15  # labels may say what features do
    right = Tally(64).fit(X[:1500], Y[:1500])
    assert right.belief_.wrong_share < 0.05 and not len(right.belief_.edges)
    few = Tally(64).fit(X[:200], given[:200])
    assert few.belief_.wrong_share == 0


def test_without_labels_in_the_initial_sample_what_is_learnt_judges() -> None:
    X, Y = mixture(4000, noise=1.0)
    rng = np.random.default_rng(4)
    wrong = rng.random(len(Y)) < 0.3
    given = np.where(wrong[:, None], Y[rng.permutation(len(Y))], Y)
    wrong &= (given != Y).any(axis=1)
    hasher = Tally(64).fit(X[:500]).partial_fit(X[:2000], given[:2000])
    later, labels = X[2000:], given[2000:]
    plain = (hasher.encode(later, labels) == hasher.encode(later)).all(axis=1)
    assert plain[wrong[2000:]].mean() > 0.7 and plain[~wrong[2000:]].mean() < 0.15
    assert not (hasher.encode(later[:50], labels[:50]) == hasher.encode(later[:50])).all(axis=1).any()  # too few
    right = Tally(64).fit(X[:500]).partial_fit(X[:2000], Y[:2000])
    assert (right.encode(later, Y[2000:]) == right.encode(later)).all(axis=1).mean() < 0.05


def test_state_with_other_label_bits_is_refused() -> None:
    X, Y = toy(400)
    state = Tally(BITS).fit(X, Y).state()
    changes: list[tuple[str, Any]] = [("label_bits", 5), ("wrong_share", 2.0), ("direction_labels", [1])]
    for name, value in changes:
        about, arrays = read_state(state)
        about["extra"][name] = value
        with pytest.raises(BadState):
            load(write_state(about, arrays))


def test_few_labelled_rows_of_many_do_not_choose_hash_functions() -> None:
    X, Y = mixture(1000)
    unlabelled = Tally(BITS).fit(X)
    for count, by_labels in ((10, False), (299, False), (300, True), (1000, True)):
        hasher = Tally(BITS).fit(X, np.where(np.arange(len(X))[:, None] < count, Y, 0))
        assert bool(hasher.directions_.names) is by_labels
        assert np.array_equal(hasher.encode(X), unlabelled.encode(X)) is not by_labels
    small = Tally(BITS).fit(X[:60], np.where(np.arange(60)[:, None] < 30, Y[:60], 0))  # half of a small sample
    assert small.directions_.names
