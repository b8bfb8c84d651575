"""Whom rows are compared with."""

from __future__ import annotations

import numpy as np
import pytest

from stillhash.errors import InvalidInput
from stillhash.hashers.pair_sampling import Reservoir, fingerprints
from stillhash.numeric.labels import parse_labels


def stream(n: int, bits: int = 16, labels: int = 6) -> tuple[np.ndarray, list[frozenset[int]]]:
    rng = np.random.default_rng(3)
    S = np.where(rng.random((n, bits)) < 0.5, 1.0, -1.0)
    return S, [frozenset(rng.choice(labels, rng.integers(1, 3), replace=False).tolist()) for _ in range(n)]


def test_fingerprints_are_of_the_label_and_not_of_its_place() -> None:
    first = fingerprints(parse_labels([["cat"], ["dog", ("a", 1)], []], 3))
    again = fingerprints(parse_labels([[("a", 1), "dog"], [3.0], ["cat"]], 3))
    assert first == [again[2], again[0], frozenset()] and again[1] == fingerprints(parse_labels([3], 1))[0]
    assert fingerprints(parse_labels(None, 0)) == []


def test_partners_are_earlier_rows_of_the_right_kind() -> None:
    S, labels = stream(400)
    met = list(Reservoir(16, seed=0, rows=50).sample_partners(S, labels))
    assert met[0][1] is None and met[0][2] is None
    for i, (x, similar, dissimilar) in enumerate(met):
        np.testing.assert_array_equal(x, S[i])
        if similar is not None:
            assert any((S[j] == similar).all() and labels[i] & labels[j] for j in range(i))
        if dissimilar is not None:
            assert any((S[j] == dissimilar).all() and not labels[i] & labels[j] for j in range(i))
    assert sum(row[1] is None or row[2] is None for row in met) < 20


def test_partners_do_not_depend_on_chunks_nor_on_saving() -> None:
    S, labels = stream(1500)
    whole, parts = Reservoir(16, seed=4, rows=60), Reservoir(16, seed=4, rows=60)
    expected, partners = list(whole.sample_partners(S, labels)), []
    for s in range(0, 1500, 11):
        partners += list(parts.sample_partners(S[s : s + 11], labels[s : s + 11]))
        again = Reservoir(16, seed=4, rows=60)
        again.load(parts.arrays(), parts.seen)
        parts = again
    for a, b in zip(expected, partners, strict=True):
        for one, other in zip(a, b, strict=True):
            assert (one is None) == (other is None)
            assert one is None or (one == other).all()
    assert {name: array.tobytes() for name, array in whole.arrays().items()} == {
        name: array.tobytes() for name, array in parts.arrays().items()
    }


def test_the_sample_is_uniform_and_forgets_labels_that_left_it() -> None:
    counts = np.zeros(200)
    for seed in range(300):
        reservoir = Reservoir(16, seed=seed, rows=20)
        S = np.where(np.unpackbits(np.arange(200, dtype=">u2")[:, None].view(np.uint8), axis=1) > 0, 1.0, -1.0)
        list(reservoir.sample_partners(S, [frozenset([i]) for i in range(200)]))
        rows = [next(iter(row)) for row in reservoir.labels]
        np.testing.assert_array_equal(reservoir.signs, S[rows])
        assert set(reservoir.slots_by_label) == set(rows)
        counts[rows] += 1
    assert counts.sum() == 300 * 20
    quarters = counts.reshape(4, 50).sum(axis=1)  # 1,500 each are expected, with a deviation of 32
    assert np.abs(quarters - 1500).max() < 130


def test_partners_that_do_not_fit_are_refused() -> None:
    S, labels = stream(30)
    reservoir = Reservoir(16, seed=0)
    list(reservoir.sample_partners(S, labels))
    for seen, spoil in ((29, {}), (30, {"partner_counts": np.ones(29, np.int64)}), (30, {"partners": S})):
        with pytest.raises((InvalidInput, ValueError)):
            Reservoir(16, seed=0).load({**reservoir.arrays(), **spoil}, seen)
