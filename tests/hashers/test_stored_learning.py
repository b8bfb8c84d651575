"""Tally that learns from rescoring codes: what is learnt is a function of what is stored, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash import Tally, load
from stillhash.errors import Conflict, InvalidInput
from stillhash.experiments.metrics import evaluate
from stillhash.hashers.state import read_state, write_state
from stillhash.numeric.labels import LabelBelief, parse_labels
from stillhash.numeric.sufficient_stats import label_bits
from tests.hashers.test_labels_in_codes import mixture

X, Y = mixture(1500)
QUERIES, ANSWERS = mixture(200, seed=7)
SETS = [[f"label {c}" for c in np.flatnonzero(row)] for row in Y]
ONE_EACH = [[labels[0]] for labels in SETS]
SOME = [labels if row % 3 else [] for row, labels in enumerate(SETS)]
PARAMS: dict[str, Any] = {"bits": 64, "rescore_bits": 2}


def stored(hasher: Tally, Y: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the rescoring codes and the codes of all rows."""
    assert hasher.rescorer_ is not None
    return hasher.rescorer_.encode(hasher.prepare(X.copy())), hasher.encode(X, Y)


def some(labels: list[list[str]], rows: np.ndarray) -> Any:
    return parse_labels([labels[row] for row in rows], len(rows))


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("with_labels", [True, False])
@pytest.mark.parametrize("rescore_bits", [1, 2, 4, 8])
def test_it_ranks_as_learning_from_features_does(rescore_bits: int, labelled: bool, with_labels: bool) -> None:
    def quality(bits: int) -> tuple[float, float]:
        hasher = Tally(64, rescore_bits=bits, share=0.75).fit(X[:500], Y[:500] if labelled else None)
        codes = hasher.encode(X, Y if with_labels else None)
        hasher.partial_fit(X, Y, codes)
        linear = Tally(64, rescore_bits=bits, share=0.75, sharpness=1).fit(X[:500], Y[:500] if labelled else None)
        linear.partial_fit(X, Y, codes)
        return tuple(evaluate(each.ranking(QUERIES), codes, ANSWERS, Y).map for each in (hasher, linear))  # type: ignore[return-value]

    np.testing.assert_allclose(quality(rescore_bits), quality(0), rtol=0, atol=0.01)


@pytest.mark.medium
@settings(max_examples=15)
@given(
    st.sampled_from([SETS, ONE_EACH, SOME]),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
    st.lists(st.integers(0, 1500), max_size=4),
    st.lists(st.integers(0, 700), max_size=4),
    st.randoms(use_true_random=False),
)
def test_a_model_is_a_function_of_the_rows_that_are_left(
    labels: list[list[str]], rescore_bits: int, start: bool, added: list[int], removed: list[int], random: Any
) -> None:
    params = {**PARAMS, "rescore_bits": rescore_bits}
    fitted = Tally(**params).fit(X[:500], SETS[:500] if start else None)
    learner, other = fitted.without_rows(), fitted.without_rows()
    rescoring, codes = stored(fitted, labels)
    order, gone, left = np.arange(1500), np.arange(700), np.arange(700, 1500)
    random.shuffle(order)
    random.shuffle(gone)
    for place, part in enumerate(np.split(order, sorted(added))):
        (learner, other)[place % 2].learn_stored(rescoring[part], some(labels, part), codes[part])
    learner.merge(other)
    for part in np.split(gone, sorted(removed)):
        rows = some(labels, part)
        learner.unlearn_stored(rescoring[part], rows, codes[part]).count_unlabelled(-int((~rows.labelled).sum()))
    fresh = learner.without_rows()
    assert fresh.stats_.same(fitted.stats_) and not learner.stats_.same(fitted.stats_)
    fresh.learn_stored(rescoring[left], some(labels, left), codes[left])
    assert learner.stats_.same(fresh.stats_)
    assert learner.state() == fresh.state()
    for mine, theirs in zip(learner.model(), fresh.model(), strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.medium
@settings(max_examples=15)
@given(
    st.sampled_from([1, 2, 8]),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 1499), min_size=1, max_size=200, unique=True),
    st.integers(0, 99),
)
def test_relabelling_is_taking_out_and_learning_again_to_the_bit(
    rescore_bits: int, start: bool, doubts: bool, chosen: list[int], seed: int
) -> None:
    """Also where labels come for the first time, are gone, or are not believed before, after, or both."""
    fitted = Tally(64, rescore_bits=rescore_bits).fit(X[:500], SETS[:500] if start else None)
    if doubts and start:
        fitted.belief_ = LabelBelief(0.3, np.array([0.1], np.float32), np.array([0.2, 0.9], np.float32))
    rescoring, codes = stored(fitted, SETS)
    assert fitted.rescorer_ is not None
    rescoring = fitted.rescorer_.mark(rescoring, (codes != fitted.encode(X)).any(axis=1))
    fast, slow = fitted.without_rows(), fitted.without_rows()
    rows, rng = np.array(chosen), np.random.default_rng(seed)
    before = [["old"] if row % 50 == 0 else labels for row, labels in enumerate(SETS)]
    names = ["new", "old", *(f"label {c}" for c in range(12))]
    after = [list(rng.choice(names, rng.integers(1, 4), replace=False)) for _ in rows]
    for hasher in (fast, slow):
        hasher.learn_stored(rescoring, parse_labels(before, len(X)), codes)
    fast.relabel_stored(rescoring[rows], some(before, rows), parse_labels(after, len(rows)), codes[rows])
    slow.unlearn_stored(rescoring[rows], some(before, rows), codes[rows])
    slow.learn_stored(rescoring[rows], parse_labels(after, len(rows)), codes[rows])
    assert fast.stats_.same(slow.stats_) and fast.state() == slow.state()
    with pytest.raises(InvalidInput, match=r"^Y\b"):
        fast.relabel_stored(rescoring[:1], parse_labels([["never"]], 1), parse_labels([["a"]], 1), codes[:1])


def test_with_a_half_life_rows_do_not_come_back_as_they_were() -> None:
    hasher = Tally(64, rescore_bits=2, half_life=100.0).fit(X[:500])
    rescoring, codes = stored(hasher)
    with pytest.raises(InvalidInput, match=r"^half_life\b"):
        hasher.relabel_stored(rescoring[:1], parse_labels([["a"]], 1), parse_labels([["b"]], 1), codes[:1])


@pytest.mark.parametrize("codes_see_labels", [True, False])
def test_features_are_learnt_as_their_rescoring_codes(codes_see_labels: bool) -> None:
    one, other = (Tally(**PARAMS, codes_see_labels=codes_see_labels).fit(X[:500], SETS[:500]) for _ in range(2))
    rescoring, codes = stored(one, SETS)
    assert one.rescorer_ is not None
    rescoring = one.rescorer_.mark(rescoring, (codes != one.encode(X)).any(axis=1))
    one.partial_fit(X, SOME, codes)
    other.learn_stored(rescoring, parse_labels(SOME, len(X)), codes)
    assert one.stats_.same(other.stats_) and one.stats_.unlabelled >= 500
    assert one.unlearn(X[:300], SOME[:300], codes[:300]).stats_.rows < other.stats_.rows
    other.unlearn_stored(rescoring[:300], parse_labels(SOME[:300], 300), codes[:300])
    assert one.stats_.same(other.stats_)


def test_labels_that_come_late_leave_codes_without_labels() -> None:
    for labels in (SETS, None):
        hasher = Tally(**PARAMS).fit(X[:500], None if labels is None else labels[:500])
        hasher.partial_fit(X, SETS)
        assert np.array_equal(hasher.stats_.cc, hasher.stats_.pp) and hasher.model().label_bits == 0
        other = Tally(**PARAMS).fit(X[:500], None if labels is None else labels[:500])
        assert other.partial_fit(X, SETS, other.encode(X)).stats_.same(hasher.stats_)


def test_an_own_item_is_unlearnt_to_the_bit_and_labels_leave_with_it() -> None:
    hasher = Tally(**PARAMS).fit(X[:500], SETS[:500]).partial_fit(X, SETS)
    before = hasher.state()
    hasher.partial_fit(X[:3], [["new"], ["new", "newer"], ["label 1"]])
    assert "newer" in hasher.stats_.names
    hasher.unlearn(X[:3], [["new"], ["new", "newer"], ["label 1"]])
    assert "new" not in hasher.stats_.names and hasher.state() == before
    with pytest.raises(InvalidInput, match=r"^Y\b"):
        hasher.unlearn(X[:1], [["new"]])


def test_the_model_is_of_prepared_features() -> None:
    hasher, plain = (Tally(64, rescore_bits=bits, share=0.75).fit(X[:500], Y[:500]) for bits in (8, 0))
    for each in (hasher, plain):
        each.partial_fit(X, Y)
    mine, theirs = hasher.model(), plain.model()
    assert mine.U is not None and theirs.U is not None
    places = [mine.label_names.index(name) for name in theirs.label_names or []]  # type: ignore[union-attr]
    np.testing.assert_allclose(mine.U[:, places], theirs.U, rtol=0, atol=0.02 * np.abs(theirs.U).max())
    spaces = hasher.label_space(), plain.label_space()
    assert spaces[0] is not None and spaces[1] is not None and spaces[0].rows == spaces[1].rows == len(X)
    np.testing.assert_allclose(spaces[0].squares, spaces[1].squares, rtol=0, atol=0.01 * spaces[1].squares.max())


def test_states_load_with_and_without_the_parameter() -> None:
    hasher = Tally(**PARAMS).fit(X[:500], Y[:500]).partial_fit(X, Y)
    again = load(hasher.state())
    assert isinstance(again, Tally) and again.stats_.same(hasher.stats_) and again.rescorer_ is not None
    assert again.ranking(QUERIES).weights.tobytes() == hasher.ranking(QUERIES).weights.tobytes()
    assert again.partial_fit(X, Y).stats_.same(hasher.partial_fit(X, Y).stats_)
    before = Tally(64).fit(X[:500], Y[:500]).partial_fit(X, Y)
    about, arrays = read_state(before.state())
    del about["params"]["rescore_bits"]
    old = load(write_state({name: about[name] for name in ("method", "params", "extra")}, arrays))
    assert isinstance(old, Tally) and old.rescore_bits == 0 and old.rescorer_ is None and old.state() == before.state()


def test_rows_decay_by_their_age() -> None:
    whole, parts = (Tally(**PARAMS, half_life=200.0).fit(X[:500], Y[:500]) for _ in range(2))
    whole.partial_fit(X, Y)
    for start in range(0, 1500, 70):
        parts.partial_fit(X[start : start + 70], Y[start : start + 70])
    np.testing.assert_allclose(parts.stats_.aa, whole.stats_.aa, rtol=0, atol=1e-4 * np.abs(whole.stats_.aa).max())
    rescoring, codes = stored(whole)
    whole.unlearn_stored(rescoring[-70:], parse_labels(Y[-70:], 70), codes[-70:], age=0)
    parts.unlearn(X[-70:], Y[-70:], age=0)
    np.testing.assert_allclose(parts.stats_.aa, whole.stats_.aa, rtol=0, atol=1e-4 * np.abs(whole.stats_.aa).max())
    ages = np.arange(1500)[::-1]
    assert whole.stats_.rows == pytest.approx((0.5 ** (ages[:-70] / 200)).sum(), rel=1e-4)


def test_bits_for_labels_leave_a_quarter_for_similarity() -> None:
    for bits in (16, 64, 128):
        for rescore_bits in (0, 2):
            hasher = Tally(bits, rescore_bits=rescore_bits).fit(X[:500], Y[:500])
            most = label_bits(bits)
            assert hasher.label_bits_ == (min(most, 3 * bits // 4) if rescore_bits else most)
    assert Tally(64, rescore_bits=2, share=0.875).fit(X[:500], Y[:500]).label_bits_ == 56


def test_what_does_not_fit_is_refused() -> None:
    for params in ({"rescore_bits": 3}, {"rescore_bits": 2, "unit_norm": False}):
        with pytest.raises(InvalidInput, match=r"^rescore_bits\b"):
            Tally(64, **params).fit(X[:500])  # type: ignore[arg-type]
    one, other = (Tally(64, rescore_bits=bits, share=0.75).fit(X[:500]) for bits in (2, 4))
    with pytest.raises(Conflict, match=r"^rescore_bits\b"):
        one.merge(other)
    rescoring, _ = stored(one)
    with pytest.raises(InvalidInput, match=r"^rescore_bits\b"):
        Tally(64).fit(X[:500]).learn_stored(rescoring, parse_labels(SETS, len(X)))


def test_without_codes_those_of_the_rescoring_codes_are_learnt() -> None:
    hasher = Tally(64, rescore_bits=2).fit(X[:500])
    rescoring, codes = stored(hasher)
    hasher.learn_stored(rescoring, parse_labels(SETS, len(X)))
    assert hasher.stats_.rows == len(X)
    assert evaluate(hasher.ranking(QUERIES), codes, ANSWERS, Y).map > 0.7
