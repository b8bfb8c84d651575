"""A collection whose rescoring codes are built later is as one that had them from the start, and loses nothing else."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.collection.maintenance import rescoring
from stillhash.collection.storage.database import stored_format
from stillhash.collection.storage.row_arrays import RowArrayTable
from stillhash.collection.storage.segments import CodeTable
from stillhash.errors import Conflict, InvalidInput, StoreFailed
from tests.collection.fixtures import DIM, begin, rescoring_codes, some_rows
from tests.collection.golden import FOLDER
from tests.collection.golden import QUERIES as GOLDEN_QUERIES
from tests.collection.rescoring_process import CHUNK, POINTS, ROWS, SEGMENT_ROWS, build
from tests.collection.test_crash import ROOT
from tests.collection.test_summed_rows import learner, same_model

X, LABELS, METADATA = some_rows(ROWS)
QUERIES = some_rows(20, seed=9).X
# Where the hash functions do not depend on `rescore_bits`, the codes are the same without them and with them.
SETTINGS: list[dict[str, Any]] = [
    {"bits": 128},
    {"bits": 16, "codes_see_labels": False},
    {"bits": 128, "keep_features": True},
    {"bits": 128, "params": {"half_life": 200}},
    {"bits": 32, "method": "ohsl", "keep_features": True},
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeTable, "segment_rows", SEGMENT_ROWS)
    monkeypatch.setattr(rescoring, "KEPT_ROWS", CHUNK)


def create(path: Path, **settings: Any) -> Collection:
    """Create a collection of these rows, all learnt, in segments and not."""
    collection = stillhash.open(path, DIM, init_rows=300, learn_rows=40, **settings)
    collection.add(range(500), X[:500], LABELS[:500], METADATA[:500])
    collection.seal()
    collection.add(range(500, ROWS), X[500:], LABELS[500:], METADATA[500:])
    collection.flush()
    return collection


def without(path: Path, **settings: Any) -> Collection:
    return create(path, rescore_bits=0, **settings)


def answers(collection: Collection) -> list[Any]:
    options: list[dict[str, Any]] = [{"k": 40}, {"k": 9, "where": {"odd": True}}, {"k": 9, "balance": 0.3}]
    found = [answer for some in options for answer in collection.search(QUERIES, **some)]
    return [[(hit.id, hit.score, hit.placed, hit.labels) for hit in answer.hits] for answer in found]


@pytest.mark.medium
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_is_as_one_with_codes_from_the_start(tmp_path: Path, settings: dict[str, Any]) -> None:
    collection, twin = without(tmp_path / "c", **settings), create(tmp_path / "twin", **settings)
    reader = stillhash.open(tmp_path / "c", read_only=True)
    before = answers(reader)
    kept, versions = settings.get("keep_features", False), collection.versions()
    if not kept:
        for start in range(0, ROWS, CHUNK):
            left = collection.build_rescoring(range(start, min(start + CHUNK, ROWS)), X[start : start + CHUNK])
            assert left == max(0, ROWS - start - CHUNK)
            assert answers(collection) == before == answers(reader)
    assert collection.verify() == [] and stored_format(tmp_path / "c") == 5
    assert collection.build_rescoring() == 0
    assert stored_format(tmp_path / "c") == 7
    exact = "params" not in settings  # otherwise sums are rounded, in another order
    for one in (collection, reader):
        assert one.verify() == [] and one.stats()["rescore_bits"] == 4
        if exact:
            assert answers(one) == answers(twin) != before
        placed = [[hit.placed for hit in answer.hits] for answer in one.search(QUERIES, 5)]
        assert placed == [[hit.placed for hit in answer.hits] for answer in twin.search(QUERIES, 5)]
    codes, known = rescoring_codes(collection, [*range(ROWS)])
    assert known.all()
    np.testing.assert_array_equal(codes, rescoring_codes(twin, [*range(ROWS)])[0])
    assert collection.versions()[: len(versions)] == [{**one, "current": False} for one in versions[:-1]] + [
        {**versions[-1], "current": settings.get("method") == "ohsl"}
    ]
    if settings.get("method") != "ohsl" and exact:
        check_later_changes(collection, twin)
    for one in (collection, reader, twin):
        assert one.verify() == []
        one.close()


def check_later_changes(collection: Collection, twin: Collection) -> None:
    """Check that late labels, corrections and forgetting leave both with the same sums."""
    for one in (collection, twin):
        one.relabel([3, 6, 9, 12], [["a", "zebra"], [], ["b"], ["zebra"]])
        one.upsert([20, "new"], X[:2], [["d"], ["a"]])
        one.delete([30, 31])
        one.flush()
    same_model(collection, twin)
    for one in (collection, twin):
        one.forget([3, 40, "new"])
        one.compact()
    same_model(collection, twin)
    assert collection.verify() == []


def test_late_labels_count_as_in_one_with_codes_from_the_start(tmp_path: Path) -> None:
    """Items without labels, pending ones, and labels that changed before: all is learnt by what is stored now."""
    collections = []
    for name, bits in (("c", 0), ("twin", None)):
        with stillhash.open(
            tmp_path / name, DIM, 64, init_rows=300, learn_rows=40, codes_see_labels=False, rescore_bits=bits
        ) as one:
            one.add(range(400), X[:400])
            one.relabel(range(300), LABELS[:300])
            one.relabel(range(50), [["e"]] * 50)
            one.flush()
            one.relabel([300, 301, 303], LABELS[300:303])  # pending
            one.delete(range(60, 90))
        collections.append(stillhash.open(tmp_path / name))
    collection, twin = collections
    assert collection.build_rescoring(range(400), X[:400]) == 0 == collection.build_rescoring()
    assert collection.stats()["pending"] == twin.stats()["pending"] > 0
    for one in collections:
        one.relabel(range(100, 140), [["f"]] * 40)
        one.flush()
        assert one.verify() == []
    same_model(collection, twin)


@pytest.mark.parametrize("keep_features", [False, True])
def test_what_else_is_stored_stays(tmp_path: Path, keep_features: bool) -> None:
    collection = without(tmp_path / "c", bits=128, keep_features=keep_features)
    collection.feedback(QUERIES[0], [1, 2], ["up", "down"], source="ann")
    collection.tag(1, "first")
    collection.update_metadata([7], {"new": 1})
    collection.relabel([8], [["late"]])  # pending
    kept = lambda: (collection.votes(), collection.get(range(20)), collection.quality(), collection.codes([*range(9)]))  # noqa: E731
    before, audit = repr(kept()), collection.audit(after=0)
    build(collection)
    assert repr(kept()) == before and next(v["tag"] for v in collection.versions()) == "first"
    entry = collection.audit(after=0)[len(audit) :]
    assert [(one.what, one.rows, one.ids) for one in entry] == [("build_rescoring", ROWS, [])]
    assert collection.search(QUERIES[0], 3).hits[0].placed == "liked"
    assert collection.stats()["pending"] == 1
    assert collection.build_rescoring() == 0 == collection.build_rescoring([1], QUERIES[:1])  # nothing is left to do
    assert len(collection.audit(after=0)) == len(audit) + 1
    collection.rollback(1)
    collection.flush()
    assert collection.verify() == []
    assert collection.forget([8]).versions and collection.verify() == []
    assert collection.snapshot(tmp_path / "copy") and collection.compact() == 0
    collection.close()
    assert stillhash.repair(tmp_path / "c").actions == []
    with stillhash.open(tmp_path / "copy") as copy, stillhash.open(tmp_path / "c") as collection:
        assert copy.verify() == [] and answers(copy) == answers(collection)


def test_a_golden_store(tmp_path: Path) -> None:
    """A store of an earlier release, whose codes hold labels, gets codes from the features of its items."""
    with zipfile.ZipFile(FOLDER / "format-5.zip") as archive:
        archive.extractall(tmp_path)
    features = dict(zip(range(320), some_rows(320).X, strict=True))
    features |= {f"c{r}": x for r, x in enumerate(some_rows(400, seed=5).X)}
    features |= dict(zip([*(f"a{r}" for r in range(40)), 5, 6], some_rows(42, seed=1).X, strict=True))
    features |= {f"b{r}": x for r, x in enumerate(some_rows(15, seed=2).X)}
    with stillhash.open(tmp_path / "golden") as collection:
        ids = collection.ids(limit=2000)
        before, versions, votes = collection.get(ids), collection.versions(), collection.votes()
        names, left = list(features), []  # items that are deleted are skipped
        for start in range(0, len(names), 100):
            some = names[start : start + 100]
            left.append(collection.build_rescoring(some, np.array([features[name] for name in some])))
        assert left[-1] == 0 and left == sorted(left, reverse=True) and collection.build_rescoring() == 0
        assert collection.get(ids) == before and collection.votes() == votes
        assert [v["version"] for v in collection.versions()] == [*(v["version"] for v in versions), 5]
        hits = collection.search(GOLDEN_QUERIES, 20)
        assert "labels" in {hit.placed for hit in hits[1].hits} and collection.verify() == []
        again = collection.reconstruct(ids)
        wanted = np.array([features[name] for name in ids]) - collection._trainer._functions[1].mean_  # type: ignore[union-attr]
        again -= collection._trainer._functions[1].mean_  # type: ignore[union-attr]
        cosines = (again * wanted).sum(1) / np.linalg.norm(again, axis=1) / np.linalg.norm(wanted, axis=1)
        assert np.median(cosines) > 0.97
        collection.relabel(ids[:60], [["e"]] * 60)
        collection.forget(ids[:3])
        collection.compact()
        assert collection.verify() == [] and collection.search(GOLDEN_QUERIES[0], 5, version=0).hits


def test_changes_in_between(tmp_path: Path) -> None:
    """New items get their codes when they are added, deleted ones need none, and a forgotten one leaves none."""
    collection = without(tmp_path / "c", bits=128)
    assert collection.build_rescoring(range(400), X[:400]) == 300
    secret = some_rows(3, seed=77)
    collection.add(["x", "y", "z"], *secret)
    assert collection.build_rescoring([], X[:0]) == 300
    collection.upsert([5, 600], X[[5, 600]], [["a"], ["b"]])  # of which one had a code
    collection.delete([6, 601])
    collection.compact()
    with collection._store.reading() as connection:
        (code,) = connection.execute(
            "SELECT codes FROM rescoring WHERE row = (SELECT row FROM items WHERE id = 'x')"
        ).fetchone()
    collection.forget(["x"])
    assert not any(code in file.read_bytes() for file in (tmp_path / "c").rglob("*") if file.is_file())
    with pytest.raises(Conflict, match=r"^features: 298 of 700 items have no rescoring code yet: 400, 401, 402"):
        collection.build_rescoring()
    assert collection.verify() == [] and stored_format(tmp_path / "c") == 6
    collection.close()
    with stillhash.open(tmp_path / "c") as collection:
        rest = [name for name in collection.ids(limit=ROWS) if isinstance(name, int)]
        assert collection.build_rescoring(rest, X[rest]) == 0 == collection.build_rescoring()
        assert collection.verify() == [] and rescoring_codes(collection, [*rest, "y", "z"])[1].all()
        assert stored_format(tmp_path / "c") == 7


@pytest.mark.parametrize("settings", [{"bits": 128}, {"bits": 64, "codes_see_labels": False}], ids=str)
def test_features_of_something_else_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    collection = without(tmp_path / "c", **settings)
    wrong = X[:50].copy()
    wrong[[20, 33]] = X[[33, 20]]
    with pytest.raises(InvalidInput, match=r"^features: .* for 20: "):
        collection.build_rescoring(range(50), wrong)
    with pytest.raises(InvalidInput, match=r"^features: "):
        collection.build_rescoring(range(1, 51), X[:50])
    assert collection.build_rescoring([], X[:0]) == ROWS  # nothing was stored
    nearly = X * np.float32(1 + 1e-6)  # as another processor computes them
    assert collection.build_rescoring(range(ROWS), nearly) == 0 == collection.build_rescoring()
    assert collection.verify() == []


def test_arguments(tmp_path: Path) -> None:
    collection = without(tmp_path / "c", bits=64)
    for wrong in ({"ids": [1]}, {"features": X[:1]}, {"ids": [1, 2], "features": X[:1]}, {"ids": [1, 1]}):
        with pytest.raises(InvalidInput):
            collection.build_rescoring(**{"features": X[:2], **wrong} if wrong == {"ids": [1, 1]} else wrong)
    with pytest.raises(InvalidInput, match=r"^features"):
        collection.build_rescoring([1], X[:1, :3])
    for bits in (3, 16, "2"):
        with pytest.raises((InvalidInput, TypeError), match=r"^rescore_bits"):
            collection.build_rescoring([1], X[:1], rescore_bits=bits)  # type: ignore[arg-type]
    assert collection.build_rescoring(range(10), X[:10], rescore_bits=1) == ROWS - 10
    assert collection.build_rescoring(range(5), X[:5]) == ROWS - 10
    assert collection.build_rescoring(range(5), X[:5], rescore_bits=2) == ROWS - 5  # from the start
    assert collection.build_rescoring(rescore_bits=0) == 0  # dropped
    with collection._store.reading() as connection:
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'rescoring'").fetchall()
    collection.build_rescoring(range(ROWS), X, rescore_bits=8)
    with pytest.raises(Conflict, match=r"^rescore_bits: expected 8"):
        collection.build_rescoring(rescore_bits=2)
    with stillhash.open(tmp_path / "c", read_only=True) as reader, pytest.raises(Conflict):
        reader.build_rescoring()
    assert collection.build_rescoring() == 0 and collection.stats()["rescore_bits"] == 8
    assert collection.build_rescoring(rescore_bits=8) == 0
    for bits in (0, 2):
        with pytest.raises(Conflict, match=r"^rescore_bits: expected 8"):
            collection.build_rescoring(rescore_bits=bits)
    others: list[dict[str, Any]] = [{"bits": 64, "codes_only": True}, {"dim": DIM, "params": {"unit_norm": False}}]
    for name, settings in zip("de", others, strict=True):
        with stillhash.open(tmp_path / name, **settings) as other, pytest.raises(InvalidInput, match=r"^rescore_bits"):
            other.build_rescoring()


@pytest.mark.parametrize("given", [False, True])
def test_before_there_are_hash_functions(tmp_path: Path, given: bool) -> None:
    collection = stillhash.open(tmp_path / "c", DIM, 128, init_rows=300, learn_rows=40, rescore_bits=0)
    collection.add(range(200), X[:200], LABELS[:200])
    if given:
        assert collection.build_rescoring(range(200), X[:200]) == 0
    assert collection.build_rescoring() == 0 and collection.verify() == []
    collection.add(range(200, 400), X[200:400], LABELS[200:400])
    with stillhash.open(tmp_path / "twin", DIM, 128, init_rows=300, learn_rows=40) as twin:
        twin.add(range(200), X[:200], LABELS[:200])
        twin.add(range(200, 400), X[200:400], LABELS[200:400])
        same_model(collection, twin)
    assert collection.verify() == []


def test_others_follow(tmp_path: Path) -> None:
    """What reads while the collection changes over is right, whatever it has read before."""
    collection = without(tmp_path / "c", bits=128, keep_features=True)
    readers = [stillhash.open(tmp_path / "c", read_only=True) for _ in range(4)]
    before = answers(readers[0])
    with readers[0]._view.pinned() as snapshot:
        assert collection.build_rescoring() == 0
        assert snapshot.page_items is None and snapshot.page_model(snapshot.model) is None
    assert readers[1].verify() == [] and readers[2].snapshot(tmp_path / "copy")
    assert readers[3].duplicates(cosine=0.97) == collection.duplicates()
    assert answers(readers[0]) == answers(collection) != before
    with stillhash.open(tmp_path / "copy") as copy:
        assert copy.verify() == [] and answers(copy) == answers(collection)


def test_progress_and_its_errors(tmp_path: Path) -> None:
    collection = without(tmp_path / "c", bits=128, keep_features=True)
    before, shares = answers(collection), list[float]()

    def cancel(share: float) -> None:
        shares.append(share)
        if share > 0.6:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        collection.build_rescoring(progress=cancel)
    assert answers(collection) == before and collection.verify() == []
    assert not list((tmp_path / "c" / "segments").glob("*.rescoring"))
    shares.clear()
    assert collection.build_rescoring(progress=shares.append) == 0
    assert shares == sorted(shares) and shares[-1] == 1 and len(shares) > 3
    assert collection.verify() == []


def test_a_failed_change_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = without(tmp_path / "c", bits=128, keep_features=True)
    before = answers(collection)
    calls = iter(range(1000))
    original = RowArrayTable.write_values

    def fail(*args: Any) -> None:
        if isinstance(args[0], RowArrayTable) and next(calls) < 1:
            original(*args)
            return
        raise StoreFailed("the disk is full")

    collection.seal()
    for holder, name in ((RowArrayTable, "write_values"), (rescoring, "_change_over")):
        with monkeypatch.context() as patch:
            patch.setattr(holder, name, fail)
            with pytest.raises(StoreFailed):
                collection.build_rescoring()
        assert answers(collection) == before and collection.verify() == []
        collection.relabel([1, 4], [["a"], ["b"]])
        collection.flush()
        before = answers(collection)
    collection.compact()
    assert not list((tmp_path / "c" / "segments").glob("*.rescoring"))
    assert collection.build_rescoring() == 0 and collection.verify() == []


# ---- kill -9 ----


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("templates")
    bound, CodeTable.segment_rows = CodeTable.segment_rows, SEGMENT_ROWS
    for name, settings in (("given", {"keep_features": False}), ("kept", {"keep_features": True})):
        without(path / name, bits=128, **settings).close()
        create(path / f"{name}-twin", bits=128, **settings).close()
    CodeTable.segment_rows = bound
    yield path


@pytest.mark.medium
@pytest.mark.parametrize("features", ["given", "kept"])
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_process_leaves_a_sound_collection(templates: Path, tmp_path: Path, features: str, point: str) -> None:
    path = shutil.copytree(templates / features, tmp_path / "c", ignore=shutil.ignore_patterns("lock"))
    with stillhash.open(path, read_only=True) as reader:
        before = answers(reader)
        command = [sys.executable, "-m", "tests.collection.rescoring_process", str(path), point]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True)
        assert ended.returncode == -signal.SIGKILL and b"done" not in ended.stdout, ended.stderr
        with stillhash.open(templates / f"{features}-twin", read_only=True) as twin:
            after = answers(twin)
        with stillhash.open(path) as collection:
            assert answers(collection) == answers(reader) == (after if point == "commit" else before)
            assert collection.verify() == [] == reader.verify()
            collection.relabel([3], [["a"]], learn=False)  # the first write removes files that are left over
            collection.relabel([3], [LABELS[3]], learn=False)
            assert bool(list((path / "segments").glob("*.rescoring"))) == (point == "commit")
            build(collection)
            assert answers(collection) == after == answers(reader) and collection.verify() == []
            assert learner(collection).stats_.rows > 0
            assert [entry.what for entry in collection.audit()].count("build_rescoring") == 1


def test_a_collection_without_any_item(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 0, rescore_bits=0)
    assert collection.build_rescoring() == 0 and collection.stats()["rescore_bits"] == 4
    collection.fit(X[:300])
    collection.add(range(320), X[:320], LABELS[:320])
    assert collection.verify() == [] and rescoring_codes(collection, [*range(320)])[1].all()
