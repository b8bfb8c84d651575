"""What the paper says of OASIS, and what fixed codes add."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash import LSH, PCAITQ
from stillhash.errors import BadState, InvalidInput
from stillhash.experiments.metrics import evaluate
from stillhash.hashers.oasis import OASIS, triplet_step
from stillhash.hashers.pair_sampling import Reservoir, fingerprints
from stillhash.numeric.codes import signs
from stillhash.numeric.labels import parse_labels
from tests.support.toys import toy


@given(st.integers(0, 2**32), st.integers(8, 64))
def test_a_step_that_is_not_capped_ends_the_loss_of_its_triplet(seed: int, bits: int) -> None:
    rng = np.random.default_rng(seed)
    p, similar, dissimilar = np.where(rng.random((3, bits)) < 0.5, 1.0, -1.0)
    dissimilar[0] = -similar[0]
    start = np.eye(bits) + 0.1 * rng.standard_normal((bits, bits))
    before = 1 - p @ start @ (similar - dissimilar)
    M = start.copy()
    triplet_step(M, p, similar, dissimilar, C=np.inf)
    after = 1 - p @ M @ (similar - dissimilar)
    if before > 0:
        assert abs(after) < 1e-9
    else:
        np.testing.assert_array_equal(M, start)
    capped = start.copy()
    triplet_step(capped, p, similar, dissimilar, C=1e-6)
    norm = bits * 4 * (similar != dissimilar).sum()  # |p (p+ - p-)^T|_F^2 on codes
    np.testing.assert_allclose(1 - p @ capped @ (similar - dissimilar), before - max(0, min(before, 1e-6 * norm)))
    triplet_step(capped, p, similar, similar, C=1.0)  # partners with one code are the same
    assert np.isfinite(capped).all()


def test_it_is_the_published_loop_over_the_triplets_of_the_stream() -> None:
    X, Y = toy(700)
    hasher = OASIS(bits=16, C=0.01).fit(X[:300]).partial_fit(X, Y)
    S, M = signs(hasher.encode(X), 16).astype(np.float64), np.eye(16)
    for p, plus, minus in Reservoir(16, seed=0).sample_partners(S, fingerprints(parse_labels(Y, 700))):
        if plus is not None and minus is not None and (plus != minus).any():
            V = np.outer(p, plus - minus)
            M += min(0.01, max(0, 1 - p @ M @ (plus - minus)) / (V**2).sum()) * V
    np.testing.assert_allclose(hasher.M_, M, atol=1e-9)
    np.testing.assert_allclose(hasher.weigh(X[:9]), S[:9] @ M, rtol=1e-4, atol=1e-4)


def test_codes_are_pca_itq_and_never_change() -> None:
    X, Y = toy()
    hasher = OASIS(bits=32).fit(X[:300])
    fixed = PCAITQ(bits=32).fit(X[:300])
    np.testing.assert_array_equal(hasher.weigh(X), fixed.weigh(X))  # Hamming ranking, before it learns
    for s in range(0, 1200, 300):
        assert not hasher.partial_fit(X[s : s + 300], Y[s : s + 300]).stale_
    assert hasher.encode(X).tobytes() == fixed.encode(X).tobytes()
    assert (hasher.weigh(X) != fixed.weigh(X)).any()


def test_it_beats_hamming_ranking_of_the_same_codes() -> None:
    X, Y = toy(3000)
    queries, answers = toy(200, seed=5)
    maps = []
    for hasher in (LSH(bits=32), PCAITQ(bits=32), OASIS(bits=32)):
        hasher.fit(X[:300]).partial_fit(X, Y)
        maps.append(evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map)
    assert maps[0] < maps[1] < maps[2] - 0.01


def test_a_stream_without_both_kinds_of_partners_changes_nothing() -> None:
    X, _ = toy(100)
    for names in (["same"] * 100, list(range(100))):
        np.testing.assert_array_equal(OASIS(bits=16).fit(X).partial_fit(X, names).M_, np.eye(16))


def test_any_label_survives_saving() -> None:
    X, Y = toy(300)
    names = [[("tuple", int(j)), b"raw%d" % j] for j in Y.argmax(axis=1)]
    hasher = OASIS(bits=16).fit(X).partial_fit(X, names)
    again = OASIS.load(hasher.state())
    assert again.partial_fit(X, names).state() == hasher.partial_fit(X, names).state()
    for bits in (b"15", b"17", b"24"):
        with pytest.raises(BadState):
            OASIS.load(hasher.state().replace(b'\\"bits\\": 16', b'\\"bits\\": ' + bits))


@pytest.mark.parametrize("C", [0, -1.0, float("nan"), float("inf"), "big", None])
def test_bad_parameters_are_named(C: Any) -> None:
    with pytest.raises(InvalidInput, match="C"):
        OASIS(bits=16, C=C).fit(toy(50).X)
