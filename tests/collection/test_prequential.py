"""Quality over time: measured before learning, kept with the version, and a fall is an alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash.collection.prequential import PREQUENTIAL_QUERIES, evaluate_chunk
from stillhash.collection.validation import check_rows
from stillhash.numeric.reference import rank_quality
from tests.collection.fixtures import BITS, DIM, begin, some_rows
from tests.support.toys import toy


def as_lists(Y: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(y).tolist() for y in Y]


def evaluate(hasher: stillhash.Tally, X: np.ndarray, labels: list[list[int]]) -> dict[str, Any] | None:
    return evaluate_chunk(hasher, check_rows(X, labels, DIM), hasher.encode(X))


def test_it_is_what_the_reference_measures() -> None:
    X, Y = toy(400, DIM, 4, seed=1)
    hasher = stillhash.Tally(bits=BITS).fit(X[:300]).partial_fit(X[:300], Y[:300])
    quality = evaluate(hasher, X[300:], as_lists(Y[300:]))
    assert quality is not None
    queries = np.arange(300, 400, 2)[:PREQUENTIAL_QUERIES]
    sought = np.setdiff1d(np.arange(300, 400), queries)
    taught = Y.any(axis=1)
    assert taught[300:].all()
    codes = np.unpackbits(hasher.encode(X[sought]), axis=1, bitorder="little")[:, :BITS] * 2.0 - 1
    scores = (hasher.weigh(X[queries]) @ codes.T).astype(np.float32)
    grades = [[(a & b).sum() / (a | b).sum() for b in Y[sought]] for a in Y[queries]]
    expected = rank_quality(scores, np.array(grades, np.float32)).mean(axis=0)
    values = quality["map"], quality["precision"], quality["ndcg"]
    assert values == pytest.approx(expected[[0, 2, 4]].tolist(), abs=1e-6)
    assert (quality["queries"], quality["items"]) == (50, 50)


def test_few_rows_tell_nothing() -> None:
    X, Y = toy(100, DIM, 4)
    hasher = stillhash.Tally(bits=BITS).fit(X)
    assert evaluate(hasher, X[:19], as_lists(Y[:19])) is None
    assert evaluate(hasher, X, [[]] * 100) is None


def test_quality_is_stored_with_the_version(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    collection.learn(*some_rows(60, seed=9)[:2])
    last = collection.versions()[-1]
    assert 0.3 < last["quality"]["map"] <= 1 and last["drift"] is False
    assert collection.stats()["quality"] == last["quality"] and collection.stats()["drift_alarms"] == []
    collection.learn(*some_rows(5, seed=9)[:2])
    assert "quality" not in collection.versions()[-1]
    collection.close()
    with stillhash.open(tmp_path / "c", read_only=True) as reader:
        assert reader.stats()["quality"] == last["quality"]


def test_a_change_of_the_stream_is_an_alarm(tmp_path: Path) -> None:
    X, Y = toy(4000, DIM, 4, seed=3)
    names = as_lists(Y)
    other = [[(label + 1) % 4 for label in named] for named in names]
    other = [named if r % 2 else other[r] for r, named in enumerate(names)]  # half of the labels mean something else
    with stillhash.open(tmp_path / "c", DIM, 64, init_rows=300, learn_rows=100) as collection:
        collection.add(range(2500), X[:2500], names[:2500])
        for s in range(0, 2500, 100):
            collection.learn(X[s : s + 100], names[s : s + 100])
        assert collection.stats()["drift_alarms"] == []
        for s in range(2500, 4000, 100):
            collection.learn(X[s : s + 100], other[s : s + 100])
        alarms = collection.stats()["drift_alarms"]
        assert alarms
        assert [version["version"] for version in collection.versions() if version.get("drift")] == alarms
