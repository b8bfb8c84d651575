"""Upgrade of collections that version 0.1 created: everything is there, goes on, and the old one is as it was."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.collection.storage.format_1 import FORMAT_1_TILE, read_format_1_segment
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.verification import verify_store
from stillhash.collection.stored_models import load_functions
from stillhash.errors import BadState
from stillhash.files.sealed_files import read_sealed, write_sealed
from stillhash.numeric.codes import width
from tests.collection.fixtures import live_rows
from tests.collection.format_1 import (
    METHOD_QUERIES,
    STORED_METHODS,
    delete,
    edit,
    method_rows,
    scores,
    seal,
    unpack,
    unpack_golden,
    write_segment,
)
from tests.collection.golden import QUERIES, close
from tests.support.seeds import run_seed


@pytest.mark.parametrize("method", STORED_METHODS)
def test_every_method_encodes_as_before_to_the_bit(tmp_path: Path, method: str) -> None:
    path, answers = unpack(STORED_METHODS[method], method, tmp_path)
    stillhash.upgrade(path)
    with closing(Store(path, writer=False)) as store, store.reading() as connection:
        functions = load_functions(connection)
        assert functions is not None
        assert functions.encode(METHOD_QUERIES).tobytes().hex() == answers[method]["encoded"]
        rows = live_rows(store, connection)
        hasher = store.learner_files.load(store.versions.learners(connection)[2])
    assert hasher.name == method and hasher.encode(METHOD_QUERIES).tobytes().hex() == answers[method]["encoded"]
    assert len(rows.numbers) == answers[method]["items"] and not rows.digests.any()
    assert rows.numbers.tolist() == [row for row in range(355) if row % 11 or row >= 330]
    assert rows.codes.tobytes().hex() == answers[method]["codes"]


@pytest.mark.parametrize("method", STORED_METHODS)
def test_every_method_ranks_and_goes_on_learning_as_before(tmp_path: Path, method: str) -> None:
    path, answers = unpack(STORED_METHODS[method], method, tmp_path)
    stillhash.upgrade(path)
    with stillhash.open(path) as collection:
        for version, expected in answers[method]["versions"].items():
            results = collection.search(METHOD_QUERIES, 30, version=int(version))
            assert close([[[hit.id, hit.score] for hit in answer.hits] for answer in results], expected)
        collection.learn(*method_rows(30, 3))  # after the pending rows, which 0.1 learnt too
        mixed = method.startswith("t")  # these mix looks and what is learnt, each of unit norm
        results = collection.search(METHOD_QUERIES, 1000, balance=1 if mixed else None)
        for result, hits in zip(results, answers[method]["learnt"], strict=True):
            now, then = np.array([[scores(result)[name], score] for name, score in hits]).T
            factor = float(now @ then / (then @ then))
            assert np.allclose(now, factor * then, rtol=1e-4, atol=1e-5) and factor > 0
            assert mixed or np.isclose(factor, 1)
        assert collection.verify() == []


def test_rows_that_wait_for_hash_functions(tmp_path: Path) -> None:
    path, _ = unpack("0.1-early.zip", "unfitted", tmp_path)
    X, labels = method_rows(60, 4)
    labels[::4] = [[] for _ in labels[::4]]
    live = [r for r in range(60) if r not in (0, 7, 59)]
    stillhash.upgrade(path)
    with stillhash.open(path) as collection:
        stats = collection.stats()
        assert (stats["awaiting_codes"], stats["pending"], stats["fitted"]) == (
            57,
            sum(bool(labels[r]) for r in live),
            0,
        )
        assert np.array_equal(collection.reconstruct(live), X[live])
        items = collection.get(live)
        assert [item and (item.labels, item.metadata) for item in items] == [
            (labels[r], {"n": r} if r % 2 else None) for r in live
        ]
        collection.fit()
        assert collection.stats()["pending"] == 0 and collection.verify() == []
        first = collection.search(X[live], 1)
        assert [answer.hits[0].id for answer in first] == live  # by the digests of their features
        collection.add(["next"], X[:1])
    with closing(Store(path, writer=False)) as store, store.reading() as connection:
        assert store.items.rows_of(connection, ["next"]) == {"next": 60}  # a row number is never used again


def test_an_empty_store(tmp_path: Path) -> None:
    path, _ = unpack("0.1-early.zip", "empty", tmp_path)
    with stillhash.open(path, read_only=True) as collection:
        assert collection.count() == 0 and collection.verify() == []
    assert stillhash.upgrade(path, delete_old=True).old_path is None
    with stillhash.open(path) as collection:
        assert collection.add(range(5), *method_rows(5, 1)) == 5
        assert collection.search(METHOD_QUERIES[0], 9).hits and collection.verify() == []
    assert [folder.name for folder in tmp_path.iterdir()] == ["empty"]


def test_row_numbers_pending_rows_and_what_was_bulk_loaded(tmp_path: Path) -> None:
    path, _ = unpack("0.1-learnt.zip", "tally", tmp_path)
    edit(path, "INSERT INTO meta VALUES ('founded', 'digest')", "UPDATE meta SET value = 900 WHERE key = 'next_row'")
    stillhash.upgrade(path)
    with closing(Store(path, writer=False)) as store, store.reading() as connection:
        values = dict(connection.execute("SELECT key, value FROM meta WHERE key IN ('bulk_load_source', 'next_row')"))
        assert values == {"bulk_load_source": "digest", "next_row": 900}
        pending = connection.execute("SELECT row, code, own_features FROM pending ORDER BY number").fetchall()
        codes = dict(zip(*live_rows(store, connection)[:2], strict=True))
        assert len(pending) == 19 and all(code == codes[row].tobytes() and not own for row, code, own in pending)


def test_votes_count_from_the_version_they_came_with(tmp_path: Path) -> None:
    path, _ = unpack_golden(tmp_path)
    stillhash.upgrade(path)
    with stillhash.open(path) as collection:
        assert collection.stats()["feedback"] == 2
        assert [hit.placed for hit in collection.search(QUERIES[0], 2).hits] == ["liked", "score"]
        assert collection.search(QUERIES[0], 1, version=2).hits[0].placed == "score"
        collection.feedback(QUERIES[0], "a1", 0, source="ann")  # takes back the vote of that source
        assert collection.stats()["feedback"] == 1
        assert collection.rollback(2) == 5 and collection.stats()["feedback"] == 0


def test_a_learner_that_cannot_be_converted_is_left_out(tmp_path: Path) -> None:
    path, answers = unpack("0.1-learnt.zip", "ohsl", tmp_path)
    file = path / "learner" / "00000002.safetensors"
    data = read_sealed(file)
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].replace(b"learnt", b"learn!")  # a value that 0.1 always saved
    write_sealed(file, [data[:8] + header + data[8 + size :]])
    report = stillhash.upgrade(path)
    assert "version 2 has no learner" in " ".join(report.actions)
    with stillhash.open(path) as collection:
        results = collection.search(METHOD_QUERIES, 30, version=2)
        assert close([[[hit.id, hit.score] for hit in a.hits] for a in results], answers["ohsl"]["versions"]["2"])
        with pytest.raises(BadState, match="Roll back"):
            collection.learn(*method_rows(30, 3))
        collection.rollback(1)
        collection.learn(*method_rows(30, 3))


def test_segments_of_format_1_have_their_own_tiles(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for rows, bits in ((1, 8), (FORMAT_1_TILE, 20), (FORMAT_1_TILE + 1, 16), (3 * FORMAT_1_TILE - 1, 64)):
        codes = rng.integers(0, 256, (rows, width(bits)), np.uint8)
        for numbers in (np.arange(7, 7 + rows), np.sort(rng.choice(9 * rows + 9, rows, replace=False))):
            write_segment(tmp_path / "segment", numbers, codes, bits)
            result = read_format_1_segment(tmp_path / "segment", bits)
            assert np.array_equal(result[0], numbers) and np.array_equal(result[1], codes)
            with pytest.raises(BadState):
                read_format_1_segment(tmp_path / "segment", bits + 8)


@pytest.mark.parametrize("share", [0, 0.02, 0.5, 0.98, 1])
def test_any_deletions_and_segments(tmp_path: Path, share: float) -> None:
    rng = np.random.default_rng(int(run_seed()))
    path, _ = unpack("0.1-learnt.zip", "tally", tmp_path)
    with closing(sqlite3.connect(path / "store.db")) as connection:
        stored = connection.execute("SELECT row, id, labels, code FROM items ORDER BY row").fetchall()
        lessons = connection.execute("SELECT row FROM lessons ORDER BY number").fetchall()
    rows = [row for row, *_ in stored]
    deleted: set[int] = set()
    for number, last in enumerate(np.sort(rng.integers(0, 330, 3)).tolist(), 1):
        deleted |= set(rng.choice(rows, round(share * len(rows) / 3), replace=False).tolist())
        delete(path, sorted(deleted))
        seal(path, number, last)
    deleted |= set(rows) if share == 1 else set()
    delete(path, sorted(deleted))
    stillhash.upgrade(path)
    live = [row for row in stored if row[0] not in deleted]
    with closing(Store(path, writer=False)) as store:
        assert verify_store(store) == []
        with store.reading() as connection:
            coded = live_rows(store, connection)
            sql = "SELECT row, id, labels FROM items ORDER BY row"
            assert connection.execute(sql).fetchall() == [row[:3] for row in live]
            assert coded.numbers.tolist() == [row for row, *_ in live]
            assert coded.codes.tobytes() == b"".join(code for *_, code in live)
            pending = connection.execute("SELECT row FROM pending ORDER BY number").fetchall()
            assert pending == [row for row in lessons if row[0] not in deleted]
