"""What LEMON and OESH have in common: codes of labels that stay, and hash functions that follow them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stillhash import LEMON, METHODS, OESH, PCAITQ
from stillhash.errors import BadState, WrongType
from stillhash.experiments.metrics import evaluate
from stillhash.hashers.labelled_codes import LabelCodeHasher, balanced_orthogonal, regularised
from stillhash.numeric.codes import signs
from tests.support.toys import toy

BOTH = pytest.mark.parametrize("method", [LEMON, OESH])
NAMES = np.array(["cat", "dög", ("a", 1), 7, 2.5, b"raw", "emu", "fox"], dtype=object)


def stream(hasher: LabelCodeHasher, X: NDArray[Any], Y: Any, chunk: int = 300) -> NDArray[np.uint8]:
    """Learn and store rows chunk by chunk; return the stored codes."""
    stored = []
    for s in range(0, len(X), chunk):
        hasher.partial_fit(X[s : s + chunk], Y[s : s + chunk])
        stored.append(hasher.encode(X[s : s + chunk], Y[s : s + chunk]))
    return np.concatenate(stored)


@pytest.mark.parametrize(("n", "b", "rank"), [(60, 16, 16), (60, 16, 5), (60, 16, 0), (17, 16, 16), (9, 16, 16)])
def test_balanced_orthogonal_is_the_maximiser(n: int, b: int, rank: int) -> None:
    rng = np.random.default_rng(n + rank)
    Z = 1e9 * (rng.standard_normal((n, rank)) @ rng.standard_normal((rank, b)) + 3.0)
    V = balanced_orthogonal(Z, rng)
    np.testing.assert_allclose(V.sum(axis=0), 0, atol=1e-6)
    if n > b:
        np.testing.assert_allclose(V.T @ V, n * np.eye(b), atol=1e-6)
    assert np.linalg.matrix_rank(V) == min(n - 1, b)
    best = np.sqrt(n) * np.linalg.svd(Z - Z.mean(axis=0), compute_uv=False).sum()  # von Neumann's bound
    np.testing.assert_allclose((V * Z).sum(), best, rtol=1e-9, atol=1e-3)


def test_one_row_has_no_direction_of_sum_zero() -> None:
    assert not balanced_orthogonal(np.ones((1, 8)), np.random.default_rng(0)).any()


def test_a_huge_matrix_keeps_an_inverse() -> None:
    K = np.full((4, 4), 1e30)
    assert np.isfinite(np.linalg.inv(regularised(K, 1.0))).all()
    np.testing.assert_array_equal(regularised(np.zeros((4, 4)), 0.5), 0.5 * np.eye(4))


@BOTH
def test_encode_gives_the_codes_that_were_learnt(method: type[LabelCodeHasher]) -> None:
    """The sums show which codes were learnt: those of features and codes are X^T B."""
    X, Y = toy(900)
    hasher = method(bits=24).fit(X[:300])
    codes = stream(hasher, X, Y)
    B, x = signs(codes, 24).astype(np.float64), hasher.prepare(X).astype(np.float64)
    np.testing.assert_allclose(hasher.XB_, x.T @ B, atol=1e-9)
    np.testing.assert_allclose(hasher.XX_, x.T @ x, atol=1e-9)
    assert hasher.seen_ == 900 and not hasher.stale_


@BOTH
def test_hash_functions_are_the_ridge_regression_of_all_stored_codes(method: type[LabelCodeHasher]) -> None:
    X, Y = toy(900)
    hasher = method(bits=24).fit(X[:300])
    B, x = signs(stream(hasher, X, Y), 24).astype(np.float64), hasher.prepare(X).astype(np.float64)
    W = np.linalg.inv(x.T @ x + np.eye(x.shape[1])) @ x.T @ B
    np.testing.assert_allclose(hasher.W_, W, atol=1e-5)
    Q = toy(50, seed=5).X
    np.testing.assert_array_equal(hasher.weigh(Q), np.where(hasher.prepare(Q) @ W.astype(np.float32) >= 0, 1, -1))


@BOTH
def test_rows_with_equal_labels_of_one_chunk_have_one_code(method: type[LabelCodeHasher]) -> None:
    X, Y = toy(900)
    hasher = method(bits=32).fit(X[:300])
    stored = stream(hasher, X, Y, chunk=900)
    by_labels: dict[bytes, list[NDArray[np.uint8]]] = {}
    for labels, code in zip(Y, stored, strict=True):
        by_labels.setdefault(labels.tobytes(), []).append(code)
    several = [signs(np.array(codes), 32) for codes in by_labels.values() if len(codes) > 4]
    agreement = [float((codes == np.sign(codes.sum(axis=0) + 0.5)).mean()) for codes in several]
    assert len(several) > 10 and min(agreement) > 0.97 and np.mean(agreement) > 0.999
    assert method is OESH or min(agreement) == 1


@BOTH
def test_quality_is_above_pca_itq_and_above_codes_of_features(method: type[LabelCodeHasher]) -> None:
    X, Y = toy(2000, labels=16)
    Q, answers = toy(200, seed=5, labels=16)
    hasher, plain = method(bits=32).fit(X[:300]), PCAITQ(bits=32).fit(X[:300])
    stored = stream(hasher, X, Y, chunk=500)
    quality = evaluate(hasher.weigh(Q), stored, answers, Y).map
    assert quality > evaluate(plain.weigh(Q), plain.encode(X), answers, Y).map + 0.05
    assert quality > evaluate(hasher.weigh(Q), hasher.encode(X), answers, Y).map


@BOTH
def test_labels_of_later_chunks_are_learnt_too(method: type[LabelCodeHasher]) -> None:
    X, Y = toy(2000)
    late = Y[:, 4:].any(axis=1)
    early = np.flatnonzero(~late)[:200]
    rows = np.concatenate([early, np.setdiff1d(np.arange(2000), early)])
    X, Y = X[rows], Y[rows]
    hasher = method(bits=32).fit(X)
    stored = np.concatenate([stream(hasher, X[:200], Y[:200]), stream(hasher, X[200:], Y[200:])])
    Q, answers = toy(300, seed=5)
    new = answers[:, 4:].any(axis=1) & ~answers[:, :4].any(axis=1)
    chance = float((answers[new] @ Y.T.astype(int) > 0).mean())
    assert evaluate(hasher.weigh(Q[new]), stored, answers[new], Y).map > chance + 0.25


@BOTH
def test_labels_of_any_kind_and_any_shape(method: type[LabelCodeHasher]) -> None:
    X, Y = toy(600)
    sets = [[NAMES[j] for j in np.flatnonzero(row)] for row in Y]
    hasher = method(bits=16).fit(X)
    codes = stream(hasher, X, sets)
    again = method.load(hasher.state())
    assert again.state() == hasher.state()
    backwards = [labels[::-1] for labels in sets]
    for part in (hasher, again):
        assert part.encode(X[300:], backwards[300:]).tobytes() == codes[300:].tobytes()
        part.partial_fit(X, [["new", *labels] for labels in sets])
    assert again.state() == hasher.state()
    before = hasher.state()
    with pytest.raises(WrongType, match=r"^label\b"):
        hasher.partial_fit(X, [object() for _ in X])
    assert hasher.state() == before


@BOTH
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_chunks_smaller_than_the_code_are_learnt(method: type[LabelCodeHasher], rows: int) -> None:
    X, Y = toy(60)
    hasher = method(bits=16).fit(X)
    codes = stream(hasher, X, Y, chunk=rows)
    np.testing.assert_allclose(
        hasher.XB_, hasher.prepare(X).astype(np.float64).T @ signs(codes, 16).astype(np.float64), atol=1e-9
    )
    assert np.isfinite(hasher.W_).all()


@BOTH
def test_a_chunk_of_one_label_is_learnt(method: type[LabelCodeHasher]) -> None:
    X = toy(200).X
    hasher = method(bits=16).fit(X).partial_fit(X, ["only"] * 200)
    codes = signs(hasher.encode(X, ["only"] * 200), 16)
    np.testing.assert_allclose(hasher.XB_, hasher.prepare(X).astype(np.float64).T @ codes, atol=1e-9)


@BOTH
def test_the_state_does_not_grow_with_the_stream(method: type[LabelCodeHasher]) -> None:
    X, Y = toy(1200)
    hasher = method(bits=16).fit(X)
    stream(hasher, X[:300], Y[:300])
    size = len(hasher.state())
    stream(hasher, X, Y)
    assert len(hasher.state()) <= size + 64  # a counter has more digits


@BOTH
@pytest.mark.parametrize("spoil", ["XX_", "XB_", "VV_", "GB_", "GV_", "seen_"])
def test_state_that_does_not_fit_together_is_refused(method: type[LabelCodeHasher], spoil: str) -> None:
    X, Y = toy(100)
    hasher = method(bits=16).fit(X).partial_fit(X, Y)
    setattr(hasher, spoil, -1 if spoil == "seen_" else getattr(hasher, spoil)[:-1])
    with pytest.raises(BadState):
        method.load(hasher.state())


def test_they_are_methods_whose_codes_see_labels() -> None:
    seeing = {name for name, method in METHODS.items() if method.codes_see_labels}
    assert seeing == {"tally", "lemon", "oesh"}
