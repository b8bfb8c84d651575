from __future__ import annotations

import numpy as np
import pytest

from stillhash import DEFAULT_HASHER, METHODS, load
from stillhash.errors import Conflict, InvalidInput
from stillhash.experiments.metrics import evaluate
from stillhash.hashers import OHSL, PCAITQ, Tally
from stillhash.numeric.ranking import half_power
from tests.support.toys import toy

X, Y = toy()
QUERIES, ANSWERS = toy(200, seed=5)


def quality(hasher: Tally, X: np.ndarray = X, Y: np.ndarray = Y, answers: np.ndarray = ANSWERS) -> float:
    return evaluate(hasher.weigh(QUERIES), hasher.encode(X), answers, Y).map


def fitted(**params: object) -> Tally:
    return Tally(**params).fit(X[:300], Y[:300])  # type: ignore[arg-type]


def close(one: Tally, other: Tally, tolerance: float = 1e-5) -> None:
    expected = other.weigh(QUERIES)
    np.testing.assert_allclose(one.weigh(QUERIES), expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_it_is_the_default_and_in_methods() -> None:
    assert DEFAULT_HASHER is Tally is METHODS["tally"]


def test_it_beats_ohsl_and_hamming_on_the_same_stream() -> None:
    tally, ohsl, itq = (m(bits=32).fit(X[:300]) for m in (Tally, OHSL, PCAITQ))
    for hasher in (tally, ohsl, itq):
        hasher.partial_fit(X, Y)
    assert quality(tally) > max(quality(ohsl), quality(itq)) + 0.01  # type: ignore[arg-type]


def test_labels_choose_the_hash_functions_where_there_are_any() -> None:
    labelled, unlabelled = Tally(bits=16).fit(X[:300], Y[:300]), Tally(bits=16).fit(X[:300])
    assert labelled.encode(X).tobytes() != unlabelled.encode(X).tobytes()
    assert unlabelled.encode(X).tobytes() == Tally(bits=16, init="pca-itq").fit(X[:300], Y[:300]).encode(X).tobytes()
    buried, few = noisy(X), 16  # the labels' directions are no longer those of the largest variance
    labelled, unlabelled = Tally(bits=few).fit(buried[:600], Y[:600]), Tally(bits=few).fit(buried[:600])
    maps = [
        evaluate(h.partial_fit(buried, Y).weigh(noisy(QUERIES)), h.encode(buried), ANSWERS, Y).map
        for h in (labelled, unlabelled)
    ]
    assert maps[0] > maps[1] + 0.02


def noisy(X: np.ndarray) -> np.ndarray:
    """Sixteen more dimensions, loud and without meaning."""
    return np.concatenate([X, 6 * np.random.default_rng(len(X)).standard_normal((len(X), 16))], axis=1)


@pytest.mark.parametrize("params", [{}, {"rarity": 0.0}, {"rarity": 0.5, "label_weights": {0: 2.0, 3: 0.0}}])
def test_four_shards_merge_to_one_pass(params: dict[str, object]) -> None:
    whole = fitted(**params).partial_fit(X, Y)
    shards = [fitted(**params).partial_fit(X[s::4], Y[s::4]) for s in range(4)]
    merged = shards[0]
    for shard in shards[1:]:
        before = shard.state()
        merged.merge(shard)
        assert shard.state() == before
    close(merged, whole)


def test_merge_needs_the_same_hash_functions() -> None:
    one, other = fitted(), Tally().fit(X[:200])
    before = one.state()
    with pytest.raises(Conflict, match=r"^other\b"):
        one.merge(other)
    assert one.state() == before


@pytest.mark.parametrize("half_life", [None, 500.0])
def test_unlearn_undoes_learning(half_life: float | None) -> None:
    never = fitted(half_life=half_life).partial_fit(X[:600], Y[:600])
    hasher = load(never.state())
    assert isinstance(hasher, Tally)
    hasher.partial_fit(X[600:700], Y[600:700])
    hasher.unlearn(X[600:700], Y[600:700], age=None if half_life is None else 0)
    if half_life is not None:  # the clock has run on for the others
        never.stats_.decay(0.5 ** (100 / half_life))
        never = load(never.state())
    close(hasher, never, 1e-4)


def test_unlearning_the_past_equals_never_having_seen_it() -> None:
    rest = fitted().partial_fit(X[200:], Y[200:])
    hasher = fitted().partial_fit(X, Y).unlearn(X[:200], Y[:200])
    close(hasher, rest, 1e-4)
    assert hasher.unlearn(X[200:], Y[200:]).stats_.rows == pytest.approx(0)
    assert hasher.weigh(QUERIES).tobytes() == PCAITQ.weigh(hasher, QUERIES).tobytes()  # type: ignore[arg-type]


def test_unlearning_what_was_never_learnt_is_refused() -> None:
    hasher = fitted().partial_fit(X[:100], Y[:100])
    before = hasher.state()
    with pytest.raises(InvalidInput, match=r"^Y\b"):
        hasher.unlearn(X[:1], [["nonsense"]])
    with pytest.raises(InvalidInput, match=r"^Y\b"):
        hasher.unlearn(X, Y)
    with pytest.raises(InvalidInput, match=r"^age\b"):
        hasher.unlearn(X[:1], Y[:1], age=3)
    with pytest.raises(InvalidInput, match=r"^age\b"):
        fitted(half_life=10).partial_fit(X[:9], Y[:9]).unlearn(X[:1], Y[:1])
    with pytest.raises(InvalidInput, match=r"^X\b"):
        hasher.unlearn(np.full_like(X[:1], np.nan), Y[:1])
    assert hasher.state() == before


def test_forgetting_weighs_rows_by_their_age_whatever_the_chunks() -> None:
    whole, parts = fitted(half_life=200.0).partial_fit(X, Y), fitted(half_life=200.0)
    for s in range(0, 1200, 7):
        parts.partial_fit(X[s : s + 7], Y[s : s + 7])
    close(parts, whole, 1e-4)
    ages = np.arange(1200)[::-1]
    assert whole.stats_.rows == pytest.approx((0.5 ** (ages / 200)).sum(), rel=1e-5)


def test_forgetting_follows_a_change_of_meaning() -> None:
    def after(X: np.ndarray) -> np.ndarray:
        """From now on labels mean something else: which of these dimensions are above their middle."""
        return (X[:, 40:46] > np.median(toy().X[:, 40:46], axis=0)).astype(np.uint8)

    def last(half_life: float | None) -> float:
        hasher = fitted(half_life=half_life).partial_fit(X[:800], Y[:800]).partial_fit(X[800:], after(X[800:]))
        return evaluate(hasher.weigh(QUERIES), hasher.encode(X), after(QUERIES), after(X)).map

    assert last(100.0) > last(None) + 0.005
    assert np.isfinite(last(1.0))


def test_new_labels_may_come_at_any_time() -> None:
    names = np.array([f"label {c}" for c in range(Y.shape[1])])
    hasher = fitted().partial_fit(X[:600], Y[:600])
    hasher.partial_fit(X[600:], [list(names[row > 0]) for row in Y[600:]])
    assert len(hasher.stats_.names) == 2 * Y.shape[1]
    again = load(hasher.state())
    assert again.weigh(QUERIES).tobytes() == hasher.weigh(QUERIES).tobytes()


def test_label_weights_decide_what_counts() -> None:
    only = {c: float(c == 2) for c in range(Y.shape[1])}
    plain, judged = fitted().partial_fit(X, Y), fitted(label_weights=only).partial_fit(X, Y)
    relevant = ANSWERS[:, 2] > 0

    def label_map(hasher: Tally) -> float:
        return evaluate(hasher.weigh(QUERIES[relevant]), hasher.encode(X), ANSWERS[relevant][:, 2:3], Y[:, 2:3]).map

    assert label_map(judged) > label_map(plain)
    again = load(judged.state())
    assert again.get_params() == judged.get_params() and again.get_params()["label_weights"] == only


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"ridge": 0}, "ridge"),
        ({"half_life": -1}, "half_life"),
        ({"rarity": -0.1}, "rarity"),
        ({"sharpness": 0.5}, "sharpness"),
        ({"sharpness": 1.7}, "sharpness"),
        ({"sharpness": float("nan")}, "sharpness"),
        ({"share": 1.5}, "share"),
        ({"init": "nonsense"}, "init"),
        ({"label_weights": {1: -1}}, "label_weights"),
        ({"label_weights": {1: float("nan")}}, "label_weights"),
    ],
)
def test_bad_parameters_are_refused(params: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        fitted(**params)


def test_one_label_alone_leaves_hamming_ranking() -> None:
    hasher = fitted().partial_fit(X, ["all the same"] * len(X))
    assert hasher.weigh(QUERIES).tobytes() == PCAITQ.weigh(hasher, QUERIES).tobytes()  # type: ignore[arg-type]


# ---- the query's labels ----


@pytest.mark.parametrize("sharpness", [1.5, 2, 3])
def test_labels_of_a_query_are_predicted_and_sharpened(sharpness: float) -> None:
    hasher = fitted(sharpness=sharpness, rarity=0.0, balance=1.0).partial_fit(X, Y)
    linear = fitted(sharpness=1, rarity=0.0, balance=1.0).partial_fit(X, Y)
    sides = hasher.stats_.sides(hasher.ridge)
    assert sides is not None
    y = hasher.prepare(QUERIES) @ sides.U + sides.u
    for one, learnt in ((hasher, np.maximum(y, 0) ** sharpness), (linear, y)):
        unit = learnt @ sides.V.T / np.linalg.norm(learnt @ sides.V.T, axis=1, keepdims=True)
        np.testing.assert_allclose(one.weigh(QUERIES), unit, rtol=1e-3, atol=1e-5)
    assert (hasher.model().side, linear.model().side) == ("labels", "features")


def test_very_many_labels_are_not_held_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stillhash.hashers.tally.MAX_MODEL_LABELS", 3)
    assert fitted(sharpness=2).partial_fit(X, Y).model().side == "features"


def test_a_power_rounds_alike_in_any_batch() -> None:
    y = np.random.default_rng(0).standard_normal((37, 13)).astype(np.float32)
    for power in (1, 1.5, 2, 2.5, 4):
        whole = half_power(y, power)
        np.testing.assert_allclose(whole, np.maximum(y, 0).astype(np.float64) ** power, rtol=1e-6)
        assert b"".join(half_power(row, power).tobytes() for row in y) == whole.tobytes()
