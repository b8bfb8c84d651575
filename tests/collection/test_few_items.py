"""Collections of few items: labels and votes count before there are hash functions, and are learnt by them later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.collection import Vote
from tests.collection.fixtures import DIM, some_rows

EARLY = 300  # items from which on the hash functions are fitted, once something is to be learnt


def opened(path: Path, rows: int, labels: bool = False, **settings: Any) -> tuple[Collection, Any]:
    """Return a collection of rows that wait for hash functions, and its features."""
    X, names, metadata = some_rows(rows)
    collection = stillhash.open(path, DIM, 32, **settings)
    collection.add(range(rows), X, names if labels else None, metadata)
    return collection, X


def order(collection: Collection, query: Any, k: int = 1000, **options: Any) -> list[Any]:
    return [(hit.id, hit.placed) for hit in collection.search(query, k, **options).hits]


def labels_of(collection: Collection, name: int) -> list[Any]:
    (item,) = collection.get([name])
    assert item is not None
    return item.labels


def fitted(collection: Collection) -> bool:
    return bool(collection.stats()["fitted"])


def test_votes_count_for_their_query_before_there_are_hash_functions(tmp_path: Path) -> None:
    collection, X = opened(tmp_path / "c", 20)
    with collection:
        before = order(collection, X[0])
        assert collection.feedback(X[0], [7, 8], ["up", "down"]) == 0
        assert collection.feedback(X[0], [9, 8], ["up", "down"], source="ann") == 0
        assert collection.feedback(X[0], 9, "up", source="bob") == 0
        rest = [hit for hit in before if hit[0] not in (7, 8, 9)]
        assert order(collection, X[0]) == [(9, "liked"), (7, "liked"), *rest, (8, "disliked")]
        assert order(collection, X[0], 3) == [(9, "liked"), (7, "liked"), rest[0]]
        assert order(collection, X[1]) == order(collection, X[1], version=0) and rest[0][1] == "score"
        allowed = {"n": {"$lt": 9}}
        assert order(collection, X[0], where=allowed)[0] == (7, "liked")
        assert len(collection.votes()) == 5 and {entry.time for entry in collection.votes()} == {None}
        assert collection.feedback(X[0], [7, 9], [0, 0]) == 0
        assert collection.feedback(X[0], [9], ["down"], source="bob") == 0
        assert order(collection, X[0])[-1][0] == 8 and order(collection, X[0])[0][1] == "score"
        assert collection.flush() == 0 and not collection.verify() and not fitted(collection)
    with stillhash.open(tmp_path / "c", read_only=True) as reader:
        assert order(reader, X[0])[-1] == (8, "disliked")


def test_votes_by_the_id_of_a_query(tmp_path: Path) -> None:
    collection, X = opened(tmp_path / "c", 20)
    with collection:
        assert collection.feedback_many([Vote(None, 3, "up", query_id=9)]) == 0
        assert order(collection, collection.reconstruct([9])[0])[0] == (3, "liked")
        assert np.array_equal(collection.reconstruct([9]), X[9:10])


@pytest.mark.parametrize("settings", [{}, {"rescore_bits": 0}, {"keep_features": True}, {"method": "ohsl"}])
def test_votes_and_labels_are_learnt_once_there_are_hash_functions(tmp_path: Path, settings: dict[str, Any]) -> None:
    collection, X = opened(tmp_path / "c", 200, **settings)
    more, labels, _ = some_rows(400)
    with collection:
        for query in range(30):
            collection.feedback(X[query], [50 + query, 100 + query], ["up", "down"])
        collection.relabel(range(60), labels[:60])
        collection.relabel([0], [["z"]])
        collection.add_labels([1], ["y"])
        collection.relabel(range(60, 70), labels[60:70], learn=False)
        collection.delete([50, 59])
        assert collection.stats()["version"] == 0
        collection.add(range(200, 400), more[200:400])
        assert not fitted(collection)
        assert collection.flush() == collection.stats()["version"] > 0
        stats = collection.stats()
        assert fitted(collection) and stats["pending"] == 0 and stats["awaiting_codes"] == 0
        assert labels_of(collection, 0) == ["z"] and "y" in labels_of(collection, 1)
        assert order(collection, X[1])[0] == (51, "liked") and order(collection, X[1])[-1] == (101, "disliked")
        assert order(collection, X[0])[-1] == (100, "disliked")
        learnt = [entry for entry in collection.versions() if entry["kind"] == "learn"]
        assert sum(entry["rows"] for entry in learnt) == 39
        version = collection.feedback(X[2], 53, "up")
        assert version == stats["version"] + 1
        collection.rollback(version - 1)
        assert order(collection, X[1])[0] == (51, "liked") and not collection.verify()


def test_votes_teach_once_there_is_a_model(tmp_path: Path) -> None:
    weights = []
    for number, votes in enumerate((False, True)):
        X, labels, _ = some_rows(EARLY)
        with stillhash.open(tmp_path / str(number), DIM, 32, init_rows=EARLY) as collection:
            collection.add(range(200), X[:200], labels[:200])
            if votes:
                collection.feedback(X[1], [51, 101], ["up", "down"])
            collection.add(range(200, EARLY), X[200:], labels[200:])
            weights.append(collection.weigh(X[1:2]))
    assert not np.array_equal(weights[0], weights[1])


@pytest.mark.parametrize("method", ["tally", "ohsl"])
@pytest.mark.parametrize("change", ["relabel", "where", "upsert", "add_labels", "feedback", "learn", "flush"])
def test_what_is_to_be_learnt_fits_the_hash_functions_early(tmp_path: Path, change: str, method: str) -> None:
    for rows in (EARLY - 1, EARLY + 50):
        collection, X = opened(tmp_path / str(rows), rows, labels=change == "flush", method=method)
        with collection:
            if change == "relabel":
                collection.relabel([1], [["a"]], learn=False)
                assert not fitted(collection)
                collection.relabel([1, 2], [["a"], ["b"]])
            elif change == "where":
                collection.relabel(where="all", labels=["a"])
            elif change == "upsert":
                collection.upsert([1, 2], labels=[["a"], ["b"]])
            elif change == "add_labels":
                collection.add_labels([1, 2], ["a"])
            elif change == "feedback":
                assert (collection.feedback(X[0], 1, "up") > 0) == (rows >= EARLY)
            elif change == "learn" and rows >= EARLY:
                collection.learn(X[:5], [["a"]] * 5)
            elif change == "flush":
                collection.flush()
            assert fitted(collection) == (rows >= EARLY)
            assert not collection.verify() and len(order(collection, X[0])) == rows
            collection.relabel([5], [["c"]])
            collection.flush()
            assert labels_of(collection, 5) == ["c"] and not collection.verify()


def test_flush_without_labels_fits_nothing(tmp_path: Path) -> None:
    collection, _ = opened(tmp_path / "c", EARLY + 1)
    with collection:
        assert collection.flush() == 0 and not fitted(collection)


def test_votes_before_the_hash_functions_are_forgotten_and_copied(tmp_path: Path) -> None:
    collection, X = opened(tmp_path / "c", 30)
    with collection:
        collection.feedback(X[0], [7, 8], ["up", "down"], source="ann")
        collection.feedback(X[1], 9, "up")
        collection.feedback(X[2], 10, "up")
        collection.snapshot(tmp_path / "copy")
        assert collection.forget(source="ann").votes == 2
        assert order(collection, X[0])[0][1] == "score"
        assert collection.forget([9]).votes == 1
        assert collection.forget([2]).votes == 1  # its features are the query
        assert collection.votes() == []
    with stillhash.open(tmp_path / "c") as again:
        assert again.count() == 28 and not again.verify()
    with stillhash.open(tmp_path / "copy") as copy:
        assert order(copy, X[0])[0] == (7, "liked") and order(copy, X[1])[0] == (9, "liked")
        copy.fit()
        assert order(copy, X[0])[0] == (7, "liked") and not copy.verify()


def test_an_item_that_is_deleted_before_it_has_a_code(tmp_path: Path) -> None:
    X, labels, _ = some_rows(EARLY)
    with stillhash.open(tmp_path / "c", DIM, 32, init_rows=EARLY) as collection:
        collection.add(range(100), X[:100], labels[:100])
        collection.feedback(X[0], [7, 8], ["up", "up"])
        collection.delete([7])
        collection.upsert([8, *range(100, EARLY + 1)], np.concatenate([X[8:9], X[100:], X[:1]]), None)
        assert fitted(collection) and order(collection, X[0])[0] == (8, "liked")
        assert collection.feedback(X[1], 9, "up") > 0
        json.dumps([entry.query for entry in collection.votes()])
        assert not collection.verify()
