"""Quality over time: measured before learning, kept with the version, and a fall is an alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash.collection.learning.prequential import (
    MAX_CURVE_POINTS,
    PREQUENTIAL_QUERIES,
    Chunk,
    evaluate_chunk,
    thinned,
)
from stillhash.collection.learning.trainer import MAX_STEPS, MIN_STEP_ROWS, step_rows
from stillhash.collection.validation import check_rows
from stillhash.experiments.scenes import make_scenes
from stillhash.hashers import METHODS
from stillhash.numeric.ranking import rank_all
from stillhash.numeric.reference import rank_quality
from stillhash.numeric.regression import unit_rows
from tests.collection.fixtures import BITS, DIM, begin, some_rows
from tests.collection.reference import Entry, StoredEntries
from tests.support.toys import toy


def as_lists(Y: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(y).tolist() for y in Y]


def evaluate(hasher: stillhash.Tally, X: np.ndarray, labels: list[list[int]]) -> dict[str, Any] | None:
    rows, stored = check_rows(X, labels, DIM), None
    if hasher.rescorer_ is not None:
        stored = hasher.rescorer_.encode(hasher.prepare(rows.features))
    return evaluate_chunk(hasher, Chunk(rows.features, rows.labels, hasher.encode(X), hasher.rescorer_, stored))


@pytest.mark.parametrize("rescore_bits", [0, 2])
def test_it_is_what_the_reference_measures(rescore_bits: int) -> None:
    X, Y = toy(400, DIM, 4, seed=1)
    fresh = stillhash.Tally(bits=BITS, rescore_bits=rescore_bits).fit(X[:300])
    hasher = stillhash.Tally(bits=BITS, rescore_bits=rescore_bits).fit(X[:300]).partial_fit(X[:300], Y[:300])
    quality = evaluate(hasher, X[300:], as_lists(Y[300:]))
    assert quality is not None
    queries = np.arange(300, 400, 100 // PREQUENTIAL_QUERIES)[:PREQUENTIAL_QUERIES]
    sought = np.setdiff1d(np.arange(300, 400), queries)
    taught = Y.any(axis=1)
    assert taught[300:].all()
    grades = np.array([[(a & b).sum() / (a | b).sum() for b in Y[sought]] for a in Y[queries]], np.float32)
    ranking, entries = hasher.ranking(X[queries]), None
    if hasher.rescorer_ is not None:  # the first page of items without labels
        functions, codes = hasher.functions(), hasher.rescorer_.encode(hasher.prepare(X[sought]))
        page = functions.page_model(hasher.model(), hasher.rescorer_, 0.0)
        ranking = functions.rank_checked(hasher.model(), X[queries], None, page)
        entries = StoredEntries([Entry(x, [], None, None, code) for x, code in zip(X[sought], codes, strict=True)])
    places = np.argsort(rank_all(ranking, hasher.encode(X[sought]), entries), axis=1)
    expected = rank_quality(-places.astype(np.float32), grades).mean(axis=0)
    values = quality["map"], quality["precision"], quality["ndcg"]
    assert values == pytest.approx(expected[[0, 2, 4]].tolist(), abs=1e-6)
    if hasher.rescorer_ is not None:  # before learning, by the cosine of their rescoring codes
        rotated = hasher.rescorer_.queries(unit_rows(hasher.prepare(X[queries])))
        cosines = hasher.rescorer_.cosines(rotated, np.repeat(codes[None], len(queries), axis=0))
        first = rank_quality(cosines, grades).mean(axis=0)[[0, 2, 4]].tolist()
        assert [quality["before"][name] for name in ("map", "precision", "ndcg")] == pytest.approx(first, abs=1e-6)
    assert (quality["queries"], quality["items"]) == (len(queries), len(sought))
    unlearnt = evaluate(fresh, X[300:], as_lists(Y[300:]))
    assert unlearnt is not None
    assert {name: unlearnt[name] for name in quality["before"]} == quality["before"] == unlearnt["before"]


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


def test_the_curve_has_a_point_for_each_step(tmp_path: Path) -> None:
    X, Y = toy(1000, DIM, 4)
    with stillhash.open(tmp_path / "c", DIM, 32, init_rows=300, learn_rows=100, keep_versions=2) as collection:
        assert collection.quality() == {"curve": [], "alarms": []}
        collection.add(range(330), X[:330], Y[:330])
        collection.learn(X[:5], Y[:5])  # too few to evaluate
        for start in range(330, 1000, 100):
            collection.add(range(start, min(start + 100, 1000)), X[start : start + 100], Y[start : start + 100])
        curve = collection.quality()["curve"]
        assert [point["version"] for point in curve] == [2, 2, 2, 4, 5, 6, 7, 8, 9]
        assert [point["rows"] for point in curve] == [0, 100, 200, 335, 435, 535, 635, 735, 835]
        assert collection.stats()["pending"] == 70
        first, last = curve[0], curve[-1]
        assert {name: first[name] for name in first["before"]} == first["before"]  # nothing is learnt yet
        assert all(0 < last[name] <= 1 and 0 < last["before"][name] <= 1 for name in ("map", "precision", "ndcg"))
        assert last["map"] > last["before"]["map"]


@pytest.mark.medium
def test_the_first_large_add_shows_what_was_gained(tmp_path: Path) -> None:
    scenes = make_scenes(4000, seed=0)
    with stillhash.open(tmp_path / "c", 128, 64, init_rows=1000, learn_rows=500) as collection:
        collection.add(range(4000), scenes.features, scenes.labels)
        (_, learnt), curve = collection.versions(), collection.quality()["curve"]
        assert [point["rows"] for point in curve] == list(range(0, 4000, 500))
        assert {point["version"] for point in curve} == {learnt["version"]} and learnt["rows"] == 4000
        quality = collection.stats()["quality"]
        assert quality == learnt["quality"] and curve[-1]["ndcg"] == quality["ndcg"]
        for name in ("map", "precision", "ndcg"):
            assert quality[name] > quality["before"][name] + 0.01, name


@pytest.mark.medium
@pytest.mark.parametrize("method", ["tally", "ohsl"])
def test_one_large_add_learns_what_many_learn(tmp_path: Path, method: str) -> None:
    X, Y = toy(900, DIM, 4)
    labels = as_lists(Y)
    settings: dict[str, Any] = {"method": method, "init": (X[:300], labels[:300])}
    settings |= {"learn_rows": 200, "codes_see_labels": True}
    with stillhash.open(tmp_path / "one", DIM, BITS, **settings) as one:
        one.add(range(900), X, labels)
    with stillhash.open(tmp_path / "many", DIM, BITS, **settings) as many:
        for start in range(0, 900, 200):
            many.add(range(start, min(start + 200, 900)), X[start : start + 200], labels[start : start + 200])
        assert many.stats()["pending"] == 100
        many.flush()
    with stillhash.open(tmp_path / "one") as one, stillhash.open(tmp_path / "many") as many:
        for _ in range(2):  # and both go on alike from what is on disk
            for expected, answer in zip(one.search(X[:5], 900), many.search(X[:5], 900), strict=True):
                scores = {hit.id: hit.score for hit in answer.hits}
                result = [scores[hit.id] for hit in expected.hits]
                assert result == pytest.approx([hit.score for hit in expected.hits], rel=1e-4, abs=1e-6)
            one.learn(X[:200], labels[:200])
            many.learn(X[:200], labels[:200])
        rows = [point["rows"] for point in one.quality()["curve"]]
        assert rows == [point["rows"] for point in many.quality()["curve"]] == [0, 200, 400, 600, 800, 900, 1100]


def test_steps_are_neither_too_short_nor_too_many() -> None:
    tally = stillhash.Tally(bits=BITS)
    assert step_rows(tally, 1, 50) == MIN_STEP_ROWS and step_rows(tally, 1000, 20_000) == 1000
    assert step_rows(tally, 1000, 10**6) == 10**6 // MAX_STEPS
    assert step_rows(METHODS["bsodh"](bits=BITS), 1, 10**6) == 1  # what it learns depends on its chunks


def test_a_long_curve_is_thinned_and_keeps_alarms() -> None:
    curve = [{"rows": row, "drift": row in (1, 7)} for row in range(3 * MAX_CURVE_POINTS)]
    thin = thinned(curve)
    assert len(thin) <= MAX_CURVE_POINTS and thin[-1] == curve[-1] and thin[0] == curve[0]
    assert [point["rows"] for point in thin if point["drift"]] == [1, 7]
    always = [{**point, "drift": True} for point in curve]
    assert thinned(always) == always


@pytest.mark.medium
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
