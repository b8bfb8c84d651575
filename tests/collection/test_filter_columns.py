"""Columns of a collection: kept up to date by every write, saved beside segments, and never needed."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.collection.filters import columns
from stillhash.collection.filters.language import compile_filter
from stillhash.collection.storage import columns as stored_columns
from stillhash.collection.storage.columns import ColumnFile
from stillhash.collection.validation import check_metadata
from stillhash.errors import BadState, InvalidInput, WrongType
from tests.collection.fixtures import DIM, begin, some_rows

pytestmark = pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
FILTERS: list[dict[str, Any]] = [
    {"odd": True},
    {"tone": {"$gte": 0.25, "$lt": 1}},
    {"n": {"$in": [1, 2, 3, 50, 99, 200, 299]}},
    {"labels": "a"},
    {"labels": {"$exists": False}, "$not": {"odd": True}},
    {"new": {"$exists": True}},
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a collection with two segments, deleted and relabelled rows, and unsealed ones."""
    path = tmp_path_factory.mktemp("columns") / "c"
    collection, _ = begin(path, 320)
    with collection:
        collection.seal()
        collection.upsert([f"t{r}" for r in range(100)], *some_rows(100, seed=1))
        collection.seal()
        collection.relabel([1, 2, "t5"], [["a"], [], ["a", "d"]], learn=False)
        collection.delete([3, 4, "t7"])
        collection.upsert([5, "t6", "u"], *some_rows(3, seed=2))
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "c"))


def by_sql(collection: Collection, where: dict[str, Any]) -> list[int]:
    """Return the rows that SQL selects."""
    store = collection._store
    with store.reading() as connection:
        return rows_in(store.items.matching(connection, compile_filter(where).sql))


def by_columns(collection: Collection, where: dict[str, Any]) -> list[int]:
    with collection._view.pinned(compile_filter(where)) as snapshot:
        return rows_in(snapshot.allowed)


def rows_in(bitmap: Any) -> list[int]:
    rows: list[int] = np.flatnonzero(np.unpackbits(bitmap, bitorder="little")).tolist()
    return rows


def check(collection: Collection) -> None:
    """Check that columns answer, and as SQL does."""
    for where in FILTERS:
        assert by_columns(collection, where) == by_sql(collection, where), where
        assert by_columns(collection, where) == by_sql(collection, where), where  # now remembered
    stats = collection.stats()["filter_columns"]
    assert stats["by_sql"] == []
    if collection.count():
        assert set(stats["fields"]) >= {"odd", "tone", "n", "labels"} and stats["bytes"] > 0


def damage(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(data)


@pytest.mark.medium
def test_columns_follow_every_write(path: Path) -> None:
    with stillhash.open(path) as collection, stillhash.open(path, read_only=True) as reader:
        writes = [
            lambda: collection.relabel([10, 11, "u"], [["a"], ["c"], ["b"]], learn=False),
            lambda: collection.upsert([12, "v"], some_rows(2, seed=3).X, [["a"], []], [{"new": 1}, {"odd": [True]}]),
            lambda: collection.delete([13, "t8"]),
            lambda: collection.relabel([10], [[]], learn=False),
            collection.seal,
            lambda: collection.relabel(["v", 10], [["a"], ["b"]], learn=False),
            collection.compact,
            lambda: collection.add(["w", "x"], *some_rows(2, seed=4)),
            collection.compact,
            lambda: collection.delete(collection.ids()),
            collection.compact,
            lambda: collection.add(["w", "y"], *some_rows(2, seed=4)),
        ]
        for write in writes:
            check(collection)
            check(reader)
            write()
            with stillhash.open(path, read_only=True) as late:
                for where in FILTERS:
                    assert by_columns(late, where) == by_sql(late, where)


def test_many_small_commits_and_groups(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "GROUP_ROWS", 7)
    monkeypatch.setattr(stored_columns, "COLUMN_ROWS", 50)
    monkeypatch.setattr(stored_columns, "ROWS_PER_READ", 16)
    with stillhash.open(path) as collection:
        for r in range(40):
            collection.upsert([f"x{r}"], *some_rows(1, seed=r))
            if r % 9 == 0:
                collection.relabel([r, f"x{r}"], [["a"], ["d"]], learn=False)
            check(collection)
        collection.seal()
        check(collection)
        collection.compact()
        check(collection)


@pytest.mark.parametrize("kind", ["absent", "header", "arrays", "short", "empty", "of another segment"])
def test_files_that_cannot_be_used_are_not_needed(path: Path, kind: str) -> None:
    first, second = sorted((path / "segments").glob("*.columns"))
    sizes = first.stat().st_size
    if kind == "absent":
        first.unlink()
    elif kind == "header":
        damage(first, 100)
    elif kind == "arrays":
        for place in range(4096 + 10, sizes - 4096, 4096):
            damage(first, place)
    elif kind == "short":
        first.write_bytes(first.read_bytes()[:-100])
    elif kind == "empty":
        first.write_bytes(b"")
    else:
        shutil.copyfile(second, first)
    with stillhash.open(path, read_only=True) as collection:
        check(collection)
        assert collection.verify() == [] or kind not in ("absent", "of another segment")
        assert bool(collection.verify()) == (kind not in ("absent", "of another segment"))
    actions, lost = stillhash.repair(path)
    assert lost == [] and (bool(actions) == (kind != "of another segment"))
    with stillhash.open(path, read_only=True) as collection:
        assert collection.verify() == []
        check(collection)


def test_repair_restores_files_that_can_be_used(path: Path) -> None:
    segment, _ = sorted((path / "segments").glob("*.tiles"))
    segment.with_suffix(".columns").unlink()
    stillhash.repair(path)
    with stillhash.open(path, read_only=True) as collection:
        with collection._store.reading() as connection:
            record = collection._store.codes.segment_records(connection)[0]
        assert ColumnFile(segment, record.shape()).blocks[0].rows == record.rows
        with pytest.raises(BadState):
            ColumnFile(segment, (record.rows, record.first, record.last + 1))


def test_a_snapshot_has_the_columns(path: Path, tmp_path: Path) -> None:
    with stillhash.open(path, read_only=True) as collection:
        collection.snapshot(tmp_path / "copy")
    assert len(list((tmp_path / "copy" / "segments").glob("*.columns"))) == 2
    with stillhash.open(tmp_path / "copy") as copy:
        assert copy.verify() == []
        check(copy)


def test_columns_that_would_be_too_large_are_left_to_sql(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stillhash.open(path, read_only=True) as collection:
        by_columns(collection, {"odd": True})
        monkeypatch.setattr(columns, "MAX_COLUMN_BYTES", collection.stats()["filter_columns"]["bytes"])
        for where in FILTERS:
            assert by_columns(collection, where) == by_sql(collection, where), where
        stats = collection.stats()["filter_columns"]
        assert stats["fields"] == ["odd"] and set(stats["by_sql"]) == {"tone", "n", "labels"}


def test_values_that_no_column_holds_are_left_to_sql(path: Path) -> None:
    with stillhash.open(path) as collection:
        collection.upsert(["big", "small"], some_rows(2).X, None, [{"n": 2**53 + 1}, {"n": 0.5}])
        for where in ({"n": {"$gt": 2**53}}, {"n": {"$lt": 1}}, {"odd": True, "n": 3}):
            assert by_columns(collection, where) == by_sql(collection, where)
        assert collection.ids({"n": 2**53 + 1}) == ["big"]
        assert collection.stats()["filter_columns"]["by_sql"] == ["n"]
        collection.delete(["big"])
        collection.compact()
        assert collection.ids({"n": 0.5}) == ["small"]
        assert collection.stats()["filter_columns"]["by_sql"] == []


def test_objects_in_objects_however_deep(path: Path) -> None:
    deep: dict[str, Any] = {"leaf": 1}
    while True:
        try:
            check_metadata([{"odd": True, "d": deep}], 1)
        except InvalidInput:
            break
        deepest, deep = deep, {"d": deep}
    with stillhash.open(path) as collection:
        collection.add(["deep"], some_rows(1).X, None, [{"odd": True, "d": deepest["d"]["d"]["d"]["d"]}])
        for _ in range(2):
            for where in ({"odd": True}, {"d.d.d": {"$exists": True}}, {".".join("d" * 90): {"$exists": True}}):
                assert by_columns(collection, where) == by_sql(collection, where)
            assert collection.seal() in (True, False)


def test_true_and_one_are_not_remembered_as_the_same(path: Path) -> None:
    with stillhash.open(path, read_only=True) as collection:
        assert collection.count({"odd": True}) > 0 == collection.count({"odd": 1})
        assert collection.count({"odd": {"$in": [True]}}) > 0 == collection.count({"odd": {"$in": [1.0]}})


def test_named_fields(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320, filter_fields=["n", "odd"])
    with collection:
        collection.seal()
        for where in FILTERS:
            assert by_columns(collection, where) == by_sql(collection, where), where
        stats = collection.stats()
        assert stats["filter_fields"] == ["n", "odd"] == sorted({*stats["filter_columns"]["fields"]} - {"labels"})
        assert set(stats["filter_columns"]["by_sql"]) == {"tone", "new"}


@pytest.mark.parametrize(
    ("fields", "error"),
    [("year", WrongType), (3, WrongType), ([3], WrongType), (["a", "a"], InvalidInput), (["labels"], InvalidInput)],
)
def test_invalid_names_of_fields_are_refused(tmp_path: Path, fields: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^filter_fields:"):
        stillhash.open(tmp_path / "c", DIM, filter_fields=fields)
    assert not (tmp_path / "c").exists()


@pytest.mark.medium
def test_filters_of_threads_are_of_one_commit(path: Path) -> None:
    """Each commit adds as many even as odd rows, so a filter that mixes two commits counts different numbers."""
    wrong: list[Any] = []
    done = threading.Event()
    with stillhash.open(path) as collection:
        collection.delete(collection.ids())

        def read() -> None:
            while not done.is_set():
                sizes = {collection.count({"mark": {"$exists": True}}) % 20, collection.count({"mark": True}) % 10}
                if sizes != {0}:
                    wrong.append(sizes)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for turn in range(30):
            rows = some_rows(20, seed=turn)
            collection.add([f"{turn} {r}" for r in range(20)], rows.X, None, [{"mark": r % 2 == 0} for r in range(20)])
            if turn % 10 == 5:
                collection.seal()
            if turn % 10 == 8:
                collection.compact()
        done.set()
        for thread in threads:
            thread.join()
        assert wrong == [] and collection.count({"mark": True}) == 300


def test_the_depth_of_metadata_has_a_limit(path: Path) -> None:
    def nested(depth: int, lists: int = 0) -> dict[str, Any]:
        value: Any = {"[{": 1}
        for level in range(depth - 2):
            value = [value] if level % 2 else {'"': value}
        return {"d": value, "lists beside it": [[]] * lists}

    for data, fits in ((nested(498), True), (nested(500, 600), True), (nested(501), False), (nested(501, 600), False)):
        if fits:
            assert check_metadata([data], 1) != [None]
        else:
            with pytest.raises(InvalidInput, match=r"^metadata\[0\]: expected at most 500"):
                check_metadata([data], 1)
