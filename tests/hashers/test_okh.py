"""What the paper says of OKH: zero-loss codes, and a Passive-Aggressive step towards them, pair by pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stillhash import LSH
from stillhash.errors import BadState, InvalidInput
from stillhash.experiments.metrics import evaluate
from stillhash.hashers.okh import OKH, zero_loss_codes
from stillhash.numeric.codes import sgn
from tests.support.toys import toy


def similarity_loss(H: NDArray[Any], similar: bool, Ts: int, Td: int) -> int:
    D = int((H[0] != H[1]).sum())
    return max(0, D - Ts) if similar else max(0, Td - D)


@given(st.integers(0, 2**32), st.integers(8, 40), st.booleans(), st.data())
def test_zero_loss_codes(seed: int, bits: int, similar: bool, data: st.DataObject) -> None:
    Ts, Td = data.draw(st.integers(0, bits)), data.draw(st.integers(0, bits))
    F = np.random.default_rng(seed).standard_normal((2, bits)).astype(np.float32)
    H = sgn(F)
    before = H.copy()
    G = zero_loss_codes(F, H, similar, Ts, Td)
    R = similarity_loss(H, similar, Ts, Td)
    flips = G != H
    np.testing.assert_array_equal(H, before)
    assert similarity_loss(G, similar, Ts, Td) == 0
    assert flips.sum() == R and not flips.all(axis=0).any()  # so many flips, and never both rows in one bit
    loss = ((H - G) * F).sum() + np.sqrt(R)
    assert loss >= 0
    candidates = (H[0] != H[1]) == similar
    cheapest = np.sort(np.abs(F).min(axis=0)[candidates])[:R]
    np.testing.assert_allclose(loss, 2 * cheapest.sum() + np.sqrt(R), rtol=1e-5, atol=1e-6)


def literal(hasher: OKH, X: NDArray[Any], Y: NDArray[Any]) -> NDArray[np.float64]:
    """W after the pairs of X one at a time, in float64, from the text."""
    W = hasher.W_.astype(np.float64)
    Z = hasher.kernel_features(hasher.prepare(X)).astype(np.float64)
    for i in range(0, len(Z) - 1, 2):
        zi, zj, s = Z[i], Z[i + 1], (Y[i] & Y[i + 1]).any()
        fi, fj = W.T @ zi, W.T @ zj
        hi, hj = np.where(fi >= 0, 1, -1), np.where(fj >= 0, 1, -1)
        D = (hi != hj).sum()
        R = max(0, D - hasher.Ts) if s else max(0, -(-hasher.bits // 2) - D)
        if R:
            gi, gj = hi.copy(), hj.copy()
            bits = [k for k in range(hasher.bits) if (hi[k] != hj[k]) == s]
            for k in sorted(bits, key=lambda k: min(abs(fi[k]), abs(fj[k])))[:R]:
                if abs(fi[k]) <= abs(fj[k]):
                    gi[k] *= -1
                else:
                    gj[k] *= -1
            loss = (hi - gi) @ fi + (hj - gj) @ fj + np.sqrt(R)
            M = np.outer(zi, gi - hi) + np.outer(zj, gj - hj)
            W += min(hasher.C, loss / (M**2).sum()) * M
    return W


@pytest.mark.parametrize("params", [{}, {"Ts": 3, "C": 0.001}])
def test_it_is_the_published_loop(params: dict[str, Any]) -> None:
    X, Y = toy(400)
    hasher = OKH(bits=19, anchors=40, **params).fit(X[:100])
    expected = literal(hasher, X, Y)
    hasher.partial_fit(X, Y)
    assert hasher.stale_
    np.testing.assert_allclose(hasher.W_, expected, atol=1e-4)


def test_kernel_features() -> None:
    X, _ = toy(200)
    hasher = OKH(bits=8, anchors=50).fit(X)
    x = hasher.prepare(X).astype(np.float64)
    A = hasher.anchors_.T.astype(np.float64)
    assert len(A) == 50 and all((a == hasher.prepare(X)).all(axis=1).any() for a in hasher.anchors_.T)
    d2 = ((x[:, None] - A[None]) ** 2).sum(axis=2)
    width = ((A[:, None] - A[None]) ** 2).sum(axis=2).mean()
    Z = hasher.kernel_features(hasher.prepare(X))
    np.testing.assert_allclose(Z[:, :-1] + hasher.middle_, np.exp(-d2 / (2 * width)), atol=1e-5)
    assert (Z[:, -1] == 1).all()
    at_anchors = hasher.kernel_features(np.ascontiguousarray(hasher.anchors_.T))[:, :-1]
    np.testing.assert_allclose(at_anchors.mean(axis=0), 0, atol=1e-6)


def test_an_odd_row_waits_for_the_next_chunk_and_survives_saving() -> None:
    X, Y = toy(301)
    names = [[("tuple", int(j)), b"raw%d" % j] for j in Y.argmax(axis=1)]  # labels that JSON could not hold
    whole = OKH(bits=16, anchors=50).fit(X[:100]).partial_fit(X, names)
    parts = OKH(bits=16, anchors=50).fit(X[:100])
    for i in range(301):
        parts = OKH.load(parts.partial_fit(X[i : i + 1], names[i : i + 1]).state())
    assert len(parts.pending_) == len(whole.pending_) == 1 and len(parts.pending_labels_) == 2
    np.testing.assert_allclose(parts.W_, whole.W_, atol=1e-5)
    assert not whole.load(whole.state()).stale_
    assert not OKH(bits=16).fit(X[:100]).partial_fit(X[:1], Y[:1]).stale_  # nothing to learn from one row


def test_it_learns_single_labels() -> None:
    X, Y = (part[toy(5000).Y.sum(axis=1) == 1] for part in toy(5000))
    maps = []
    for hasher in (LSH(bits=32), OKH(bits=32)):
        hasher.fit(X[:300]).partial_fit(X, Y)
        maps.append(evaluate(hasher.weigh(X[:100]), hasher.encode(X), Y[:100], Y).map)
    assert maps[1] > maps[0] + 0.1


def test_a_tolerance_helps_several_labels() -> None:
    X, Y = toy(3000)
    queries, answers = toy(200, seed=5)
    maps = []
    for hasher in (LSH(bits=32), OKH(bits=32, Ts=6)):
        hasher.fit(X[:300]).partial_fit(X, Y)
        maps.append(evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map)
    assert maps[0] < maps[1] - 0.02


def test_state_round_trips() -> None:
    X, Y = toy(201)
    hasher = OKH(bits=16).fit(X[:60]).partial_fit(X, Y)
    again = OKH.load(hasher.state())
    assert again.state() == hasher.state()
    assert again.partial_fit(X, Y).state() == hasher.partial_fit(X, Y).state()
    with pytest.raises(BadState):
        OKH.load(hasher.state().replace(b'\\"bits\\": 16', b'\\"bits\\": 17'))


@pytest.mark.parametrize(
    "params",
    [
        {"anchors": 1},
        {"anchors": 2.5},
        {"C": 0},
        {"C": "big"},
        {"Ts": -1},
        {"Ts": 17},
        {"Td": 17},
        {"Td": "half"},
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(params))):
        OKH(bits=16, **params).fit(toy(50).X)


def test_a_sample_without_variance_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^X\b"):
        OKH(bits=16).fit(np.ones((20, 5)))
