"""A search sees one commit, frozen, however long it takes; no other search waits for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from stillhash import Collection
from stillhash.collection.filters.language import compile_filter
from tests.collection.fixtures import begin, some_rows

WAIT = 60.0  # seconds until a search that waits is a failure
ODD = compile_filter({"odd": True})


def change(collection: Collection, turn: int) -> None:
    """Add, replace and delete rows, seal, and learn."""
    rows = some_rows(30, seed=100 + turn)
    collection.add([f"t{turn}-{r}" for r in range(30)], *rows)
    collection.upsert([f"t{turn}-{r}" for r in range(5)], *some_rows(5, seed=200 + turn))
    collection.delete([f"t{turn}-{r}" for r in range(5, 9)] + [turn])
    if turn % 3 == 2:
        collection.seal()


def test_a_search_after_a_commit_does_not_wait_for_one_before_it(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    query, began, end = some_rows(1, seed=5).X[0], threading.Event(), threading.Event()

    def slow_search() -> None:
        with collection._view.pinned(ODD):
            began.set()
            end.wait(WAIT)

    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(slow_search)
        assert began.wait(WAIT)
        try:
            collection.add(["new"], query[None])
            answer = pool.submit(collection.search, query, 1).result(WAIT)
            count = pool.submit(collection.count, {"odd": True}).result(WAIT)
            assert not slow.done()
        finally:
            end.set()
    assert answer.hits[0].id == "new" and count == collection.count({"odd": True})
    collection.close()


def test_a_pinned_view_stays_at_its_commit(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    query = some_rows(1, seed=5).X
    with collection._view.pinned(ODD) as before:
        weights = before.weigh(query)
        everything = before.index.search(weights, 500)
        allowed = np.asarray(before.allowed).copy()
        with ThreadPoolExecutor(1) as writer:
            for turn in range(6):
                writer.submit(change, collection, turn).result()
                writer.submit(collection.search, query, 10, where={"odd": True}).result()
                again = before.index.search(weights, 500)
                assert (again.ids == everything.ids).all() and (again.scores == everything.scores).all()
                assert (np.asarray(before.allowed) == allowed).all()
    assert collection.count() > before.index.ids().size
    collection.close()


def test_searches_beside_a_writer_see_whole_commits(tmp_path: Path) -> None:
    """Each commit moves rows from one half of a pair to the other; no filter may see both or none."""
    collection, _ = begin(tmp_path / "c")
    X = some_rows(40, seed=9).X
    collection.add([f"p{r}" for r in range(40)], X, None, [{"side": 0}] * 40)
    done = threading.Event()

    def write() -> None:
        for turn in range(60):
            collection.upsert([f"p{r}" for r in range(40)], X, None, [{"side": 1 - turn % 2}] * 40)
        done.set()

    def read(side: int) -> int:
        rounds = 0
        while not done.is_set() or not rounds:
            hits = collection.search(X[0], 400, where={"side": {"$in": [0, 1]}}).hits
            sides = {hit.metadata["side"] for hit in hits if hit.metadata}
            assert len(hits) == 40 and len(sides) == 1
            assert len(collection.search(X[0], 400, where={"side": side}).hits) in (0, 40)
            assert collection.search(X[3], 1).hits[0].id == "p3"  # by its digest, at this commit
            rounds += 1
        return rounds

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read, number % 2) for number in range(3)]
        pool.submit(write).result()
        assert all(reader.result() for reader in readers)
    collection.close()
