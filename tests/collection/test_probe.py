"""Versions on a fixed probe: which items it has, what it measures, and how two versions differ."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stillhash
from stillhash import Collection, Item
from stillhash.collection.learning.probe import MIN_LABEL_QUERIES, ProbeQuality, choose_probe, choose_rows, hash_numbers
from stillhash.errors import Conflict, InvalidInput, NotFitted
from stillhash.numeric.ranking import rank_all
from stillhash.numeric.regression import unit_rows
from tests.collection.fixtures import rescoring_codes
from tests.collection.reference import Entry, StoredEntries
from tests.support.toys import toy

DIM, BITS = 16, 32
QUERIES, ITEMS = 20, 60
SIZES = {"queries": QUERIES, "items": ITEMS}
WORD = 2**64 - 1


def hash_number(number: int, seed: int) -> int:
    z = (number + 1 + seed) * 0x9E3779B97F4A7C15 & WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return z ^ z >> 31


def chosen_rows(rows: list[int], count: int, seed: int) -> list[int]:
    first = count
    while 2 * first <= len(rows):
        first *= 2
    return sorted(rows[:first] if len(rows) >= count else rows, key=lambda row: hash_number(row, seed))[:count]


@given(st.sets(st.integers(0, 500), max_size=200), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_rows_are_chosen_by_a_hash_of_the_first(rows: set[int], count: int, seed: int) -> None:
    ordered = np.array(sorted(rows), np.int64)
    assert hash_numbers(ordered, seed).tolist() == [hash_number(row, seed) for row in sorted(rows)]
    assert choose_rows(ordered, count, seed).tolist() == chosen_rows(sorted(rows), count, seed)


def test_rows_stay_until_there_are_twice_as_many() -> None:
    sets = [set(choose_rows(np.arange(n), 100, 0).tolist()) for n in range(100, 1700)]
    changes = [n for n, (early, late) in enumerate(pairwise(sets), 101) if early != late]
    assert changes == [200, 400, 800, 1600]
    assert all(25 < len(sets[n - 101] & sets[n - 100]) < 75 for n in changes)


@given(st.sets(st.integers(0, 300), min_size=2, max_size=200), st.integers(0, 300))
def test_queries_are_no_items_and_are_not_of_the_fitted_rows(rows: set[int], fitted: int) -> None:
    labelled = np.array(sorted(rows), np.int64)
    queries, items = choose_probe(labelled, 20, 60, fitted, 0)
    assert not set(queries.tolist()) & set(items.tolist())
    assert len(queries) == min(20, len(rows) // 2) and len(items) == min(60, len(rows) - len(queries))
    if (labelled >= fitted).sum() >= len(queries):
        assert (queries >= fitted).all()


def learnt(path: Path, rows: int = 700, plain: int = 5, **settings: Any) -> Collection:
    """Return a collection of several versions, with votes; one row in `plain` has no labels."""
    X, Y = toy(rows, DIM, 6)
    options = {"init_rows": 300, "learn_rows": 100, "codes_see_labels": False, **settings}
    collection = stillhash.open(path, DIM, BITS, **options)
    for start in range(0, rows, 100):
        some = range(start, min(start + 100, rows))
        labels = [["abcdef"[c] for c in np.flatnonzero(Y[r])] if r % plain else [] for r in some]
        collection.add(some, X[some.start : some.stop], labels, [{"n": r} for r in some])
    collection.flush()
    collection.feedback(X[1], [2, 3, 4], ["up", "down", "up"])
    return collection


def labels_of(collection: Collection, id_: Any) -> list[Any]:
    item = collection.get(id_)
    assert isinstance(item, Item)
    return item.labels


def twin_probe(collection: Collection, version: Any) -> tuple[list[Any], dict[Any, list[Any]], dict[Any, Any]]:
    """Return the queries, their ranking of the items, and their measures, in plain Python. Rows are ids here."""
    labels: dict[Any, set[str]] = {item.id: set(item.labels) for item in collection.items() if item.labels}
    rows = sorted(labels)
    later = [row for row in rows if row >= 300]
    queries = chosen_rows(later if len(later) >= QUERIES else rows, QUERIES, 0)
    items = sorted(chosen_rows([row for row in rows if row not in queries], ITEMS, 0))
    features = collection.reconstruct(queries)
    with collection._view.pinned() as snapshot:
        _, model = collection._model(snapshot, version)
        functions, rescorer = snapshot.functions, collection._store.rescorer
        assert functions is not None
        page = None if rescorer is None else functions.page_model(model, rescorer)
        ranking = functions.rank_checked(model, features, None, page)
    codes = collection.codes(items)
    assert codes is not None
    if rescorer is None or ranking.page is None:
        places = rank_all(ranking, codes)
    else:  # the first page, of items that all have labels; before learning, the cosine of their rescoring codes
        stored = rescoring_codes(collection, items)[0]
        entries = [Entry(codes[n], sorted(labels[i]), None, codes[n], stored[n]) for n, i in enumerate(items)]
        ranking = ranking._replace(page=ranking.page._replace(labelled_share=1.0))
        places = rank_all(ranking, codes, StoredEntries(entries))
        if model.side == "similarity":
            rotated = rescorer.queries(unit_rows(functions.prepare(features)))
            cosines = rescorer.cosines(rotated, np.repeat(stored[None], len(queries), axis=0))
            places = np.argsort(-cosines, axis=1, kind="stable")
    orders = {q: [items[place] for place in order] for q, order in zip(queries, places, strict=True)}
    measures = {}
    for q, order in orders.items():
        grades = [len(labels[q] & labels[i]) / len(labels[q] | labels[i]) for i in order]
        hits = [rank for rank, grade in enumerate(grades, 1) if grade > 0]
        ideal = sum(g / math.log2(r + 1) for r, g in enumerate(sorted(grades, reverse=True)[:10], 1))
        gained = sum(g / math.log2(r + 1) for r, g in enumerate(grades[:10], 1))
        average = sum(n / rank for n, rank in enumerate(hits, 1)) / max(1, len(hits))
        measures[q] = sum(g > 0 for g in grades[:10]) / 10, gained / ideal if ideal else 0.0, average
    return queries, orders, measures


def means(measures: dict[Any, Any]) -> list[float]:
    return [sum(column) / len(measures) for column in zip(*measures.values(), strict=True)]


@pytest.mark.parametrize("settings", [{}, {"keep_features": True}, {"codes_see_labels": True}, {"method": "ohsl"}])
def test_it_is_what_the_twin_measures(tmp_path: Path, settings: dict[str, Any]) -> None:
    with learnt(tmp_path / "c", **settings) as collection:
        _, _, before = twin_probe(collection, 0)
        versions = [version["version"] for version in collection.versions()]
        for version in (None, 0, "hamming", versions[0], versions[-1]):
            report = collection.probe(version, **SIZES)
            queries, _, now = twin_probe(collection, version)
            assert (report.queries, report.items) == (QUERIES, ITEMS)
            assert report.version == (versions[-1] if version is None else version)
            values = report.quality.precision, report.quality.ndcg, report.quality.map
            assert values == pytest.approx(means(now), abs=1e-6)
            gains = {q: tuple(a - b for a, b in zip(now[q], before[q], strict=True)) for q in queries}
            assert list(vars(report.gain).values()) == pytest.approx(means(gains), abs=1e-6)
            assert list(vars(report.before).values()) == pytest.approx(means(before), abs=1e-6)
            errors = [np.std([gain[m] for gain in gains.values()], ddof=1) / math.sqrt(QUERIES) for m in range(3)]
            assert list(vars(report.gain_error).values()) == pytest.approx(errors, abs=1e-6)
            for row in report.labels:
                of_label = [q for q in queries if row.label in labels_of(collection, q)]
                assert row.queries == len(of_label) > 0
                assert [row.precision, row.ndcg] == pytest.approx(means({q: now[q][:2] for q in of_label}), abs=1e-6)
                expected = means({q: gains[q][:2] for q in of_label})
                assert [row.precision_gain, row.ndcg_gain] == pytest.approx(expected, abs=1e-6)
        assert collection.probe(0, **SIZES).gain == ProbeQuality(0.0, 0.0, 0.0)


def test_the_worst_label_is_first_and_rare_ones_are_last(tmp_path: Path) -> None:
    with learnt(tmp_path / "c") as collection:
        rows = collection.probe(**SIZES).labels
        collection.relabel(range(305, 310), [["rare", "rarer"]] * 5, learn=False)
        keys = [(row.queries < MIN_LABEL_QUERIES, row.ndcg) for row in collection.probe().labels]
    assert {row.label for row in rows} == set("abcdef") and keys == sorted(keys)
    assert [row.ndcg for row in rows] == sorted(row.ndcg for row in rows)


def test_it_stays_the_same_while_items_are_added(tmp_path: Path) -> None:
    X, Y = toy(100, DIM, 6, seed=5)
    with learnt(tmp_path / "c") as collection:
        version = collection.stats()["version"]
        report, compared = (verb(version, **SIZES) for verb in (collection.probe, collection.compare_versions))
        collection.add(range(5000, 5100), X, Y, learn=False)
        collection.delete([5, 10])  # without labels
        assert collection.probe(version, **SIZES) == report
        assert collection.compare_versions(version, **SIZES) == compared
        collection.delete([compared.queries[0].id])
        assert collection.probe(version, **SIZES) != report
        other = collection.probe(version, **SIZES, seed=1)
        assert other != collection.probe(version, **SIZES)


def test_two_versions_are_compared_by_the_hits_of_two_searches(tmp_path: Path) -> None:
    with learnt(tmp_path / "c", plain=10_000) as collection:  # labels count alike among all items and among these
        collection.relabel([0], [["a"]])
        collection.flush()
        last = collection.stats()["version"]
        comparison = collection.compare_versions(0, last, **SIZES)
        assert comparison.versions == (0, last) and comparison.items == ITEMS
        twins = [twin_probe(collection, version) for version in (0, last)]
        items = [{"n": {"$in": sorted(twins[0][1][twins[0][0][0]])}}] * 2
        assert {query.id for query in comparison.queries} == set(twins[0][0])
        for query in comparison.queries:
            features = collection.reconstruct([query.id])[0]
            for side, version in enumerate((0, last)):
                _, orders, measures = twins[side]
                answer = collection.search(features, 10, version=version, where=items[side])
                assert query.hits[side] == orders[query.id][:10] == [hit.id for hit in answer.hits]
                assert (query.precision[side], query.ndcg[side]) == pytest.approx(measures[query.id][:2], abs=1e-6)
            assert query.differing == len(set(query.hits[1]) - set(query.hits[0]))
            assert query.labels == labels_of(collection, query.id)
        gains = [query.ndcg[1] - query.ndcg[0] for query in comparison.queries]
        assert gains == sorted(gains, reverse=True) and gains[0] > 0
        assert comparison.differing == np.mean([query.differing for query in comparison.queries])
        assert comparison.quality[1] == collection.probe(last, **SIZES).quality
        same = collection.compare_versions(last, last, **SIZES)
        assert same.differing == 0 and same.quality[0] == same.quality[1]
        assert collection.compare_versions(0, **SIZES).versions == (0, collection.stats()["version"])


def test_codes_that_hold_labels_are_noticed(tmp_path: Path) -> None:
    with learnt(tmp_path / "held", codes_see_labels=True, rescore_bits=0) as collection:
        assert collection.probe().labels_in_codes
    with learnt(tmp_path / "rescored", codes_see_labels=True) as collection:  # queries are of rescoring codes
        assert not collection.probe().labels_in_codes
    with learnt(tmp_path / "features", codes_see_labels=True, keep_features=True) as collection:
        assert not collection.probe().labels_in_codes
    X, Y = toy(600, DIM, 6)
    with stillhash.open(tmp_path / "later", DIM, BITS, init_rows=300, learn_rows=100) as collection:
        collection.add(range(600), X)
        collection.relabel(range(600), Y)
        assert not collection.probe().labels_in_codes


def test_ready_codes_are_probed_too(tmp_path: Path) -> None:
    X, Y = toy(400, 32, 4)
    codes = np.packbits(X.mean(axis=0) < X, axis=1)
    with stillhash.open(tmp_path / "c", bits=32, codes_only=True, learn_rows=100) as collection:
        collection.add(range(400), codes, Y)
        report = collection.probe()
        assert report.before == collection.probe("hamming").quality and not report.labels_in_codes
        assert report.quality.map > report.before.map


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    X, Y = toy(330, DIM, 6)
    with stillhash.open(tmp_path / "c", DIM, BITS, init_rows=300) as collection:
        with pytest.raises(NotFitted):
            collection.probe()
        collection.add(range(330), X)
        with pytest.raises(Conflict, match="labelled"):
            collection.compare_versions(0, 1)
        collection.relabel(range(20), Y[:20])
        assert (collection.probe().queries, collection.probe().items) == (10, 10)
        wrong: Any
        for name, wrong in (("queries", 0), ("queries", 10**9), ("items", 5), ("items", float("nan")), ("seed", -1)):
            with pytest.raises(InvalidInput, match=name):
                collection.probe(**{name: wrong})
        for wrong in (99, -1, "similarity", float("nan"), 1.5):
            with pytest.raises(InvalidInput, match="version"):
                collection.probe(wrong)
            with pytest.raises(InvalidInput, match="version"):
                collection.compare_versions(0, wrong)


def test_items_that_are_named_are_the_queries(tmp_path: Path) -> None:
    with learnt(tmp_path / "c") as collection:
        ids = collection.ids({"labels": {"$exists": True}, "n": {"$lt": 400}}, limit=7)
        comparison = collection.compare_versions(0, ids=[*ids, "nobody"], items=50)
        assert sorted(query.id for query in comparison.queries) == sorted(ids)
        for query in comparison.queries:
            assert not set(query.hits[0]) & set(ids)
        version = collection.stats()["version"]
        same = collection.compare_versions(version, ids=ids, items=50)
        assert all(query.ndcg[0] == query.ndcg[1] and query.differing == 0 for query in same.queries)
        for wrong in ([], ["nobody"], collection.ids({"labels": {"$exists": False}})):
            with pytest.raises(Conflict, match=r"^ids"):
                collection.compare_versions(0, ids=wrong)
