"""What the paper says of BSODH, and what bounds its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stillhash.errors import BadState, InvalidInput, WrongType
from stillhash.experiments.metrics import evaluate
from stillhash.hashers import bsodh
from stillhash.hashers.bsodh import BSODH, best_bit, ridge
from stillhash.numeric.codes import signs
from stillhash.numeric.labels import concat_labels, drop_unused, parse_labels, share_label
from tests.support.toys import toy

Doubles = NDArray[np.float64]


def objective(Bs: Doubles, Be: Doubles, S: Doubles, W: Doubles, X: Doubles, sigma: float, lam: float) -> float:
    b = Bs.shape[1]
    return float(
        ((Bs @ Be.T - b * S) ** 2).sum() + sigma * ((X @ W - Bs) ** 2).sum() + lam * (W.astype(np.float64) ** 2).sum()
    )


def problem(seed: int, n: int = 40, N: int = 70, D: int = 12, b: int = 16) -> dict[str, Doubles]:
    rng = np.random.default_rng(seed)
    return {
        "Bs": rng.choice([-1.0, 1.0], (n, b)),
        "Be": rng.choice([-1.0, 1.0], (N, b)),
        "S": np.where(rng.random((n, N)) < 0.3, 1.2, -0.2),
        "X": rng.standard_normal((n, D)),
        "W": rng.standard_normal((D, b)),
    }


@pytest.mark.parametrize("seed", range(5))
def test_a_bit_step_never_raises_the_objective(seed: int) -> None:
    now, sigma = problem(seed), 0.5
    Bs, Be, S, X, W = (now[name] for name in ("Bs", "Be", "S", "X", "W"))
    P = 16 * S @ Be + sigma * X @ W
    before = objective(**now, sigma=sigma, lam=0.6)
    first = before
    for r in range(16):
        Bs[:, r] = best_bit(r, P, Bs, Be.T @ Be)
        after = objective(**now, sigma=sigma, lam=0.6)
        assert after <= before * (1 + 1e-12)
        for i in range(0, 40, 13):  # and flipping any bit of the step back is no better
            Bs[i, r] *= -1
            assert objective(**now, sigma=sigma, lam=0.6) >= after * (1 - 1e-12)
            Bs[i, r] *= -1
        before = after
    assert before < first


@pytest.mark.parametrize("n", [5, 12, 40])  # fewer rows than features, as many, more
def test_the_step_of_w_has_no_gradient_left(n: int) -> None:
    now = problem(0, n=n)
    X, Bs = now["X"].astype(np.float32), now["Bs"]
    W = ridge(X, Bs.astype(np.float32), 0.5, 0.6)
    gradient = 0.5 * X.T @ (X @ W - Bs) + 0.6 * W
    np.testing.assert_allclose(gradient, 0, atol=1e-5)


def test_features_of_huge_norm_and_low_rank_have_a_w() -> None:
    X = np.repeat(np.arange(12.0, dtype=np.float32)[:, None] * 1e12, 3, axis=1)
    W = ridge(X, np.sign(X[:, :1] - 5e12).astype(np.float32), 0.5, 0.6)
    assert np.isfinite(W).all()


def test_it_is_the_published_chunk_step() -> None:
    """Two chunks again, from the description, with the full similarity matrix."""
    X, Y = toy(260, dim=20)
    hasher = BSODH(bits=16).fit(X[:100]).partial_fit(X[:150], Y[:150])
    W = hasher.W_.astype(np.float64)
    hasher.partial_fit(X[150:], Y[150:])

    x = hasher.prepare(X).astype(np.float64)
    old, new = x[:150], x[150:]
    similar = Y[150:] @ Y[:150].T > 0
    S = np.where(similar, 1.2, -0.2)  # (n, N)
    Be = np.where(old @ W >= 0, 1.0, -1.0)
    Bs = np.where(new @ W >= 0, 1.0, -1.0)
    for i in range(len(Bs)):
        if similar[i].any():
            Bs[i] = Be[similar[i].argmax()]
    P = 16 * S @ Be + 0.5 * new @ W
    for r in range(16):
        others = [k for k in range(16) if k != r]
        Bs[:, r] = np.where(P[:, r] - Bs[:, others] @ (Be[:, others].T @ Be[:, r]) >= 0, 1, -1)
    votes = S.T @ Bs
    Be = np.where(np.abs(votes) < 1e-9, Be, np.sign(votes))
    W = 0.5 * np.linalg.inv(0.5 * new.T @ new + 0.6 * np.eye(20)) @ new.T @ Bs

    np.testing.assert_allclose(hasher.W_, W, atol=1e-4)
    stored = signs(hasher.codes_, 16)
    np.testing.assert_array_equal(stored[150:], Bs)
    tied = np.abs(votes) < 1e-9
    np.testing.assert_array_equal(stored[:150][~tied], Be[~tied])


def test_the_first_chunk_is_only_stored() -> None:
    X, Y = toy(300)
    hasher = BSODH(bits=16).fit(X)
    before = hasher.encode(X)
    hasher.partial_fit(X, Y)
    assert not hasher.stale_ and not hasher.t_.any()
    assert hasher.encode(X).tobytes() == before.tobytes() == hasher.codes_.tobytes()
    assert hasher.partial_fit(X, Y).stale_


def test_items_unlike_the_whole_chunk_keep_their_codes_without_dissimilar_pairs() -> None:
    X, _ = toy(200)
    hasher = BSODH(bits=16, eta_d=0).fit(X).partial_fit(X[:100], ["old"] * 100)
    before = hasher.codes_.copy()
    hasher.partial_fit(X[100:], ["new"] * 100)
    np.testing.assert_array_equal(hasher.codes_[:100], before)


def test_learning_raises_quality() -> None:
    X, Y = toy(2000, labels=40)
    queries, answers = toy(150, seed=5, labels=40)
    hasher = BSODH(bits=32).fit(X[:300])
    before = evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map
    for s in range(0, 2000, 500):
        hasher.partial_fit(X[s : s + 500], Y[s : s + 500])
        if s:
            assert evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map > before + 0.05


def test_blocks_of_stored_items_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = toy(400)

    def learnt() -> BSODH:
        hasher = BSODH(bits=16).fit(X)
        for s in range(0, 400, 100):
            hasher.partial_fit(X[s : s + 100], Y[s : s + 100])
        return hasher

    whole = learnt()
    monkeypatch.setattr(bsodh, "SIMILARITY_ITEMS", 37)
    assert learnt().state() == whole.state()


def test_memory_is_bounded_by_a_uniform_sample_in_order_of_arrival() -> None:
    X = toy(300).X
    counts = np.zeros(300)
    for seed in range(60):
        hasher = BSODH(bits=8, memory=60, random_state=seed).fit(X)
        for s in range(0, 300, 50):
            hasher.partial_fit(X[s : s + 50], list(range(s, s + 50)))
        names = [int(str(name).rpartition(":")[2]) for name in hasher.labels_.names]
        rows = np.array(names)[hasher.labels_.indices]
        assert len(rows) == len(hasher.codes_) == len(hasher.keys_) == 60
        assert (np.diff(rows) > 0).all()
        counts[rows] += 1
    parts = counts.reshape(6, 50).sum(axis=1)  # each 600 of 3,600
    assert ((parts - 600) ** 2 / 600).sum() < 15  # chi-square of 5 degrees, 1 %


def test_a_memory_large_enough_for_all_changes_nothing() -> None:
    X, Y = toy(300)
    bounded, free = (BSODH(bits=16, memory=memory).fit(X) for memory in (300, None))
    for s in range(0, 300, 100):
        for hasher in (bounded, free):
            hasher.partial_fit(X[s : s + 100], Y[s : s + 100])
    np.testing.assert_array_equal(bounded.W_, free.W_)
    assert len(free.codes_) == 300
    assert len(free.partial_fit(X, Y).codes_) == 600


def test_labels_of_any_kind_come_and_go() -> None:
    X, Y = toy(400)
    names = np.array(["cat", "dög", ("a", 1), 7, 2.5, b"raw", "emu", "fox"], dtype=object)
    sets = [[names[j] for j in np.flatnonzero(row)] for row in Y]
    named, plain = (BSODH(bits=16).fit(X) for _ in range(2))
    for s in range(0, 400, 100):
        named.partial_fit(X[s : s + 100], sets[s : s + 100])
        plain.partial_fit(X[s : s + 100], Y[s : s + 100])
    np.testing.assert_array_equal(named.W_, plain.W_)
    assert BSODH.load(named.state()).state() == named.state()

    hasher = BSODH(bits=16, memory=50).fit(X)
    for s in range(0, 400, 100):
        hasher.partial_fit(X[s : s + 100], list(range(s, s + 100)))
    assert len(hasher.labels_.names) == 50


def test_a_label_without_a_stable_form_is_refused_and_nothing_changes() -> None:
    X, Y = toy(100)
    hasher = BSODH(bits=16).fit(X).partial_fit(X, Y)
    before = hasher.state()
    with pytest.raises(WrongType, match=r"^label\b"):
        hasher.partial_fit(X, [object() for _ in X])
    assert hasher.state() == before


def test_share_label_is_an_intersection_of_sets() -> None:
    rng = np.random.default_rng(0)
    A = [list(rng.choice(30, rng.integers(4), replace=False)) for _ in range(40)]
    B = [list(rng.choice(60, rng.integers(4), replace=False)) for _ in range(25)]
    both = concat_labels(drop_unused(concat_labels(parse_labels([[]], 1), parse_labels(A, 40))), parse_labels(B, 25))
    rows = np.arange(66)
    met = share_label(both.rows(rows > 40), both.rows((rows > 0) & (rows <= 40)))
    np.testing.assert_array_equal(met, [[bool({*b} & {*a}) for a in A] for b in B])


@pytest.mark.parametrize(
    "params",
    [
        {"lam": 0},
        {"lam": "much"},
        {"sigma": -0.5},
        {"sigma": float("inf")},
        {"eta_s": 0},
        {"eta_d": -0.1},
        {"eta_d": float("nan")},
        {"memory": 0},
        {"memory": 1.5},
        {"random_state": -1},
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(params))):
        BSODH(bits=16, **params).fit(toy(50).X)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda hasher: setattr(hasher, "keys_", hasher.keys_[:-1]),
        lambda hasher: setattr(hasher, "codes_", hasher.codes_[:, :1]),
        lambda hasher: setattr(hasher, "seen_", 5),
        lambda hasher: hasher.labels_.indices.__setitem__(0, 99),
        lambda hasher: hasher.labels_.indptr.__setitem__(1, 99),
        lambda hasher: setattr(hasher, "labels_", hasher.labels_.rows(np.arange(50) < 40)),
    ],
)
def test_state_that_does_not_fit_together_is_refused(spoil: Any) -> None:
    X, Y = toy(50)
    hasher = BSODH(bits=16).fit(X).partial_fit(X, Y)
    spoil(hasher)
    with pytest.raises(BadState):
        BSODH.load(hasher.state())
