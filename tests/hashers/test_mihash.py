"""What the paper says of MIHash, and what the blocks that make it fast must not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stillhash.errors import BadState, InvalidInput, WrongType
from stillhash.experiments.metrics import evaluate
from stillhash.hashers import mihash
from stillhash.hashers.mihash import MIHash, ascent, soft_information, table_information
from stillhash.numeric.labels import share_label
from tests.support.toys import toy

Doubles = NDArray[np.float64]


def entropy(P: Doubles) -> float:
    return -sum(p * np.log2(p) for p in P if p > 0)


def plain_information(histograms: Doubles, similar: NDArray[np.bool_]) -> float:
    """H(P) - p+ H(P+) - p- H(P-) for the bins (n, bins) that each item's distance fills."""
    total = entropy(histograms.mean(axis=0))
    for kind in (similar, ~similar):
        if kind.any():
            total -= kind.mean() * entropy(histograms[kind].mean(axis=0))
    return total


def triangles(distances: Doubles, bits: int, bins: int) -> Doubles:
    d = bits / bins
    return np.maximum(0, 1 - np.abs(distances[:, None] - d * np.arange(bins + 1)) / d)


def soft(z: Doubles, A: float) -> Doubles:
    return 2 / (1 + np.exp(-np.clip(A * z, -42, 42))) - 1


def information_of(W: Doubles, x: Doubles, R: Doubles, Phi: Doubles, similar: Any, bins: int, A: float) -> float:
    distances = (W.shape[1] - Phi @ soft(x @ W, A)) / 2
    return plain_information(triangles(distances, W.shape[1], bins), similar)


def case(seed: int, n: int = 30, D: int = 6, b: int = 12) -> tuple[Doubles, Doubles, Doubles, NDArray[np.bool_]]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((D, b)), rng.standard_normal(D), rng.standard_normal((n, D)), rng.random(n) < 0.4


@pytest.mark.parametrize("bins", [1, 4, 16])
@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_is_that_of_the_mutual_information(seed: int, bins: int) -> None:
    W, x, R, similar = case(seed)
    A, eps = 0.7, 1e-6
    Phi = soft(R @ W, A)  # the codes of the reservoir are constants of the step
    gradient = np.outer(x, ascent(x @ W, R @ W, similar, bins, A))
    numeric = np.zeros_like(W)
    for place in np.ndindex(*W.shape):
        up, down = W.copy(), W.copy()
        up[place] += eps
        down[place] -= eps
        numeric[place] = (
            information_of(up, x, R, Phi, similar, bins, A) - information_of(down, x, R, Phi, similar, bins, A)
        ) / (2 * eps)
    assert np.abs(numeric).max() > 1e-5
    np.testing.assert_allclose(gradient, numeric, atol=1e-6 * np.abs(numeric).max() + 1e-9)


def test_soft_bins_are_triangles() -> None:
    rng = np.random.default_rng(0)
    distances, similar = rng.uniform(0, 32, 50), rng.random(50) < 0.3
    distances[:5] = [0, 2, 16, 31.9, 32]  # on centres too
    value, _ = soft_information(distances, similar, 32, 16)
    assert value == pytest.approx(plain_information(triangles(distances, 32, 16), similar), abs=1e-12)


def test_nothing_is_learnt_where_all_items_are_alike() -> None:
    W, x, R, _ = case(0)
    for similar in (np.ones(30, bool), np.zeros(30, bool)):
        assert not ascent(x @ W, R @ W, similar, 16, 10.0).any()
    X, _ = toy(300)
    hasher = MIHash(bits=16).fit(X)
    before = hasher.W_.tobytes()
    hasher.partial_fit(X, [1] * 300)
    assert hasher.Wt_.tobytes() == before == hasher.W_.tobytes() and not hasher.stale_


def test_the_information_of_a_table_counts_whole_distances() -> None:
    rng = np.random.default_rng(1)
    ones, labels = rng.random((40, 16)) < 0.5, rng.integers(4, size=40)
    similar = labels[:, None] == labels
    distances = (ones[:, None] != ones).sum(axis=2)
    rows = [plain_information(np.eye(17)[distances[i]], similar[i]) for i in range(40)]
    assert table_information(ones, similar) == pytest.approx(np.mean(rows), abs=1e-12)


@pytest.mark.parametrize(("A", "lr", "interval"), [(2.0, 0.2, 100), (10.0, 1.0, 5)])
def test_a_block_gives_what_sample_by_sample_gives(A: float, lr: float, interval: int) -> None:
    """The ascent again, projecting the whole reservoir for each sample.

    Both start every block from one W, and long blocks take gentle steps: the ascent is chaotic, and rounding grows a
    thousandfold in a few dozen samples at the paper's rate.
    """
    X, Y = toy(410)
    R = 60
    hasher = MIHash(bits=16, A=A, lr=lr, reservoir=R, interval=interval).fit(X[:300])
    x, keys = hasher.prepare(X).astype(np.float64), hasher.reservoir_keys(410)
    sample: list[int] = []
    for s in range(0, 400, interval):
        before = hasher.Wt_
        W = before.astype(np.float64)
        for i in range(s, s + interval):
            if sample:
                W += lr * np.outer(x[i], ascent(x[i] @ W, x[sample] @ W, Y[sample] @ Y[i] > 0, 16, A))
            sample = sorted([*sample, i], key=lambda r: keys[r])[:R]
        hasher.partial_fit(X[s : s + interval], Y[s : s + interval])
        np.testing.assert_allclose(hasher.Wt_, W, atol=1e-3)
        assert np.abs(hasher.Wt_ - before).max() > 0.01
        np.testing.assert_array_equal(hasher.X_, hasher.prepare(X)[np.sort(sample)])


def test_the_stream_may_be_cut_anywhere() -> None:
    X, Y = toy(700)
    states = []
    for chunk in (700, 100, 33, 1):
        hasher = MIHash(bits=16).fit(X[:300])
        for s in range(0, 700, chunk):
            hasher.partial_fit(X[s : s + chunk], Y[s : s + chunk])
        states.append((hasher.W_.tobytes(), hasher.Wt_.tobytes(), hasher.X_.tobytes(), hasher.keys_.tobytes()))
    assert states[1:] == states[:-1]


def test_the_reservoir_holds_the_smallest_keys_of_the_stream() -> None:
    X, Y = toy(2500, dim=6)  # past the first thousand draws
    hasher = MIHash(bits=8, reservoir=50).fit(X)
    keys = hasher.reservoir_keys(2500)
    assert len(np.unique(keys)) == 2500
    hasher.partial_fit(X, Y)
    smallest = np.sort(np.argsort(keys)[:50])
    np.testing.assert_array_equal(hasher.X_, hasher.prepare(X)[smallest])
    np.testing.assert_array_equal(hasher.keys_, keys[smallest])
    similar = Y[smallest] @ Y[smallest].T > 0
    np.testing.assert_array_equal(share_label(hasher.labels_, hasher.labels_), similar)


@pytest.mark.medium
def test_every_row_of_the_stream_is_as_likely_in_the_reservoir() -> None:
    X, counts = toy(300, dim=4).X, np.zeros(300)
    for seed in range(40):
        hasher = MIHash(bits=8, reservoir=60, random_state=seed).fit(X).partial_fit(X, list(range(300)))
        rows = [int(str(hasher.labels_.names[i]).rpartition(":")[2]) for i in hasher.labels_.indices]
        assert len(rows) == len(hasher.labels_.names) == 60  # labels go with the last item that has them
        counts[rows] += 1
    parts = counts.reshape(6, 50).sum(axis=1)  # each 400 of 2,400
    assert ((parts - 400) ** 2 / 400).sum() < 15  # chi-square of 5 degrees, 1 %


def test_the_snapshot_is_replaced_only_where_information_rises() -> None:
    X, Y = toy(2000)
    hasher = MIHash(bits=16).fit(X[:300])
    outcomes = set()
    for s in range(0, 2000, 50):
        before, codes = hasher.W_, hasher.encode(X)
        hasher.partial_fit(X[s : s + 50], Y[s : s + 50])
        assert hasher.stale_ == (hasher.encode(X).tobytes() != codes.tobytes())
        if s % 100 == 0:  # half way between two runs of the trigger
            assert hasher.W_ is before
            continue
        similar = share_label(hasher.labels_, hasher.labels_)
        old, new = (table_information(hasher.X_ @ W >= 0, similar) for W in (before, hasher.Wt_))
        assert hasher.stale_ == (new > old)
        np.testing.assert_array_equal(hasher.W_, hasher.Wt_ if new > old else before)
        outcomes.add(hasher.stale_)
    assert outcomes == {True, False}


def test_a_threshold_out_of_reach_keeps_the_first_snapshot() -> None:
    X, Y = toy()
    hasher = MIHash(bits=16, theta=5.0).fit(X[:300])
    before = hasher.encode(X)
    assert not hasher.partial_fit(X, Y).stale_
    assert hasher.encode(X).tobytes() == before.tobytes()
    assert not np.array_equal(hasher.Wt_, hasher.W_)


@pytest.mark.parametrize("interval", [1, 7, 100, 250, 1000])
def test_any_interval_learns_at_its_multiples(interval: int) -> None:
    X, Y = toy(600)
    hasher = MIHash(bits=16, interval=interval).fit(X[:300])
    for s in range(0, 600, 30):
        hasher.partial_fit(X[s : s + 30], Y[s : s + 30])
        due = (s + 30) // interval > s // interval
        assert due or not hasher.stale_
        assert hasher.pending_ == (s + 30) % interval % mihash.ASCENT_ROWS
    assert np.array_equal(hasher.W_, MIHash(bits=16).fit(X[:300]).W_) == (interval > 600)


def test_learning_raises_quality() -> None:
    X, Y = toy()
    queries, answers = toy(150, seed=5)
    hasher = MIHash(bits=32).fit(X[:300])
    before = evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map
    hasher.partial_fit(X, Y)
    assert evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map > before + 0.1


def test_state_round_trips_within_a_block() -> None:
    X, Y = toy()
    names = np.array(["cat", "dög", ("a", 1), 7, 2.5, b"raw", "emu", "fox"], dtype=object)
    sets = [[names[j] for j in np.flatnonzero(row)] for row in Y]
    hasher = MIHash(bits=16).fit(X[:300]).partial_fit(X[:730], sets[:730])
    assert hasher.pending_ == 30
    again = MIHash.load(hasher.state())
    for part in (hasher, again):
        part.partial_fit(X[730:], sets[730:])
    assert again.state() == hasher.state()


def test_a_label_without_a_stable_form_is_refused_and_nothing_changes() -> None:
    X, Y = toy(250)
    hasher = MIHash(bits=16).fit(X).partial_fit(X, Y)
    before = hasher.state()
    with pytest.raises(WrongType, match=r"^label\b"):
        hasher.partial_fit(X, [*range(249), object()])
    assert hasher.state() == before


@pytest.mark.parametrize(
    "params",
    [
        {"reservoir": 0},
        {"reservoir": 2.5},
        {"bins": 0},
        {"A": 0},
        {"A": "steep"},
        {"lr": -1},
        {"lr": float("nan")},
        {"interval": 0},
        {"interval": True},
        {"theta": float("inf")},
        {"theta": None},
        {"random_state": -1},
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(params))):
        MIHash(bits=16, **params).fit(toy(50).X)


@pytest.mark.parametrize(
    "spoil",
    [
        {"Wt_": np.zeros((3, 16), np.float32)},
        {"X_": np.zeros((250, 3), np.float32)},
        {"keys_": np.zeros(3)},
        {"seen_": 3},
        {"pending_": 100},
    ],
)
def test_state_that_does_not_fit_together_is_refused(spoil: dict[str, Any]) -> None:
    X, Y = toy(250)
    hasher = MIHash(bits=16).fit(X).partial_fit(X, Y)
    vars(hasher).update(spoil)
    with pytest.raises(BadState):
        MIHash.load(hasher.state())
