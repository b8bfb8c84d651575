"""What is exported is a plain table of one commit, which other programs read, and `import` where it has features."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.collection.transfer import export as exporting
from stillhash.errors import BadState, Conflict, InvalidInput, StoreFailed
from stillhash.io.rows import CODE_NAME
from tests.collection.fixtures import BITS, DIM, begin, some_rows
from tests.collection.golden import PICTURE
from tests.collection.test_snapshot import full_disk

pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
from pyarrow import parquet

FORMATS = ("jsonl", "parquet")


def read_table(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a table, metadata as objects and codes as bytes."""
    if file.suffix == ".jsonl":
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [{name: bytes.fromhex(one) if name == CODE_NAME else one for name, one in row.items()} for row in rows]
    rows = parquet.read_table(file).to_pylist()
    return [{**row, "metadata": None if row["metadata"] is None else json.loads(row["metadata"])} for row in rows]


def filled(path: Path, **options: Any) -> Collection:
    """Return a collection with sealed, deleted and unsealed rows, compacted once."""
    collection, _ = begin(path, 320, **options)
    collection.seal()
    collection.delete(range(40, 90))
    collection.compact()
    collection.upsert([f"x{r}" for r in range(30)], *some_rows(30, seed=2), pictures=[PICTURE] * 30)
    collection.seal()
    collection.upsert(["y", 7], *some_rows(2, seed=3))
    collection.relabel(["y"], [[]])
    return collection


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("where", [None, {"odd": True}, {"labels": "a"}, {"n": -1}])
@pytest.mark.parametrize("keep_features", [False, True])
def test_a_table_holds_the_items(tmp_path: Path, format: str, where: Any, keep_features: bool) -> None:
    with filled(tmp_path / "c", keep_features=keep_features) as collection:
        file, calls = tmp_path / f"e.{format}", []
        report = collection.export(file, where=where, progress=lambda done, total: calls.append((done, total)))
        count = collection.count(where)
        assert report == {"format": format, "items": count, "bytes": file.stat().st_size}
        assert calls[-1:] == ([(count, count)] if count else [])
        rows = read_table(file)
        text = str if format == "parquet" else (lambda name: name)  # ids of both kinds are texts in a column
        expected = {text(item.id): item for item in collection.items(where)}
        assert sorted(map(str, expected)) == sorted(str(row["id"]) for row in rows)
        codes, features = collection.codes(ids := collection.ids(where)), collection.reconstruct(collection.ids(where))
        for row in rows:
            item = expected[row["id"]]
            assert (row["labels"], row["metadata"]) == (item.labels, item.metadata)
            assert codes is not None and row["stillhash_code"] == codes[ids.index(item.id)].tobytes()
            assert list(row) == ["id", "labels", "metadata", *["features"] * keep_features, CODE_NAME]
            if keep_features:
                np.testing.assert_array_equal(np.float32(row["features"]), features[ids.index(item.id)])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("waiting", [False, True])
def test_a_table_with_features_is_imported(tmp_path: Path, format: str, waiting: bool) -> None:
    rows = 50 if waiting else 320  # items that wait for hash functions have features, and no codes
    with begin(tmp_path / "c", rows, keep_features=not waiting)[0] as collection:
        collection.export(file := tmp_path / f"e.{format}")
        assert ("stillhash_code" in read_table(file)[0]) == (not waiting)
        with stillhash.open(tmp_path / "d", DIM, BITS) as other:
            assert other.import_file(file) == rows
            assert list(other.items()) == list(collection.items()) and other.check_file(file).added == 0
        if format == "parquet":
            with stillhash.open(tmp_path / "e", DIM, BITS) as other:
                assert other.add_table(parquet.read_table(file)) == rows
                assert list(other.items()) == list(collection.items())


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_of_codes_alone_is_refused(tmp_path: Path, format: str) -> None:
    with begin(tmp_path / "c", 320)[0] as collection:
        collection.export(file := tmp_path / f"e.{format}")
        with stillhash.open(tmp_path / "d", DIM, BITS) as other:
            with pytest.raises(InvalidInput, match="expected features, got stillhash_code without them"):
                other.import_file(file)
            if format == "parquet":
                with pytest.raises(InvalidInput, match="expected features, got stillhash_code without them"):
                    other.add_table(parquet.read_table(file))
            assert other.count() == 0


def test_ready_codes_are_imported_where_their_column_is_named(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 256, (50, BITS // 8), np.uint8)
    with stillhash.open(tmp_path / "c", bits=BITS, codes_only=True) as collection:
        collection.add(range(50), codes, [["a"]] * 50)
        collection.export(file := tmp_path / "e.parquet")
        with stillhash.open(tmp_path / "d", bits=BITS, codes_only=True) as other:
            assert other.add_table(parquet.read_table(file), vector="stillhash_code") == 50
            assert list(other.items()) == list(collection.items())
            assert (other.codes(range(50)) == codes).all()


def test_labels_and_ids_keep_their_type_where_a_column_has_one(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", DIM) as collection:
        collection.add([1, 2], some_rows(2).X, [[7], []])
        collection.export(tmp_path / "integers.parquet")
        collection.add(["3"], some_rows(1).X, [["a", 7, 2.5]])
        collection.export(tmp_path / "both.parquet")
        collection.export(tmp_path / "both.jsonl")
    rows = [(row["id"], row["labels"]) for row in read_table(tmp_path / "integers.parquet")]
    assert rows == [(1, [7]), (2, [])]
    rows = [(row["id"], row["labels"]) for row in read_table(tmp_path / "both.parquet")]
    assert rows == [("1", ["7"]), ("2", []), ("3", ["2.5", "7", "a"])]
    rows = [(row["id"], row["labels"]) for row in read_table(tmp_path / "both.jsonl")]
    assert rows == [(1, [7]), (2, []), ("3", [2.5, 7, "a"])]


@pytest.mark.parametrize("format", FORMATS)
def test_small_batches_hold_the_same(tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(tmp_path / "c") as collection:
        collection.export(tmp_path / f"a.{format}")
        monkeypatch.setattr(exporting, "MAX_BATCH_BYTES", 2000)
        collection.export(tmp_path / f"b.{format}")
    assert read_table(tmp_path / f"a.{format}") == read_table(tmp_path / f"b.{format}")


@pytest.mark.medium
@pytest.mark.parametrize("format", FORMATS)
def test_an_export_is_of_one_commit_while_another_thread_writes(tmp_path: Path, format: str) -> None:
    """Each commit adds a pair: an export must not hold half of one, nor lose features to a compaction."""
    collection, _ = begin(tmp_path / "c", 320, keep_features=format != "parquet")
    done = threading.Event()

    def write() -> None:
        for n in range(12):
            collection.add([f"p{n}", f"q{n}"], *some_rows(2, seed=n))
            collection.delete([2 * n, 2 * n + 1])
            if n % 4 == 0:
                collection.compact()
            if n % 7 == 0:
                collection.learn(*some_rows(45, seed=n)[:2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    exports = 0
    while not done.is_set() or not exports:
        collection.export(tmp_path / f"{exports}.{format}", where={} if exports % 2 else None)
        exports += 1
    writer.join()
    collection.close()
    for n in range(0, exports, max(1, exports // 4)):
        rows = read_table(tmp_path / f"{n}.{format}")
        ids = {row["id"] for row in rows}
        pairs = [f"p{p}" in ids for p in range(12)]
        assert pairs == [f"q{p}" in ids for p in range(12)] == sorted(pairs, reverse=True)
        assert format == "parquet" or all(row["features"] for row in rows)
        assert len(ids) - 2 * sum(pairs) in (320 - 2 * sum(pairs), 322 - 2 * sum(pairs))


@pytest.mark.parametrize("format", FORMATS)
def test_features_that_are_lost_are_null(tmp_path: Path, format: str) -> None:
    collection, _ = begin(tmp_path / "c", 320, keep_features=True)
    collection.seal()
    collection.upsert(["x", "y"], *some_rows(2, seed=4))
    collection.close()
    (lost,) = (tmp_path / "c" / "segments").glob("*.features")
    lost.unlink()
    with stillhash.open(tmp_path / "c", read_only=True) as collection, pytest.raises(BadState, match="missing"):
        collection.export(tmp_path / f"a.{format}")
    stillhash.repair(tmp_path / "c")
    with stillhash.open(tmp_path / "c", read_only=True) as collection:
        collection.export(tmp_path / f"a.{format}")
        features = [row["features"] for row in read_table(tmp_path / f"a.{format}")]
        assert features[:320] == [None] * 320
        assert np.array_equal(np.array(features[320:], np.float32), collection.reconstruct(["x", "y"]))


def test_other_verbs_may_be_called_by_progress(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    collection.export(tmp_path / "e.jsonl", progress=lambda done, total: collection.delete([done - 20]))
    assert collection.count() == 19
    assert len(read_table(tmp_path / "e.jsonl")) == 20
    collection.close()


def test_a_file_is_replaced_only_on_request_and_never_in_part(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    file = tmp_path / "e.jsonl"
    file.write_text("mine")
    with pytest.raises(Conflict, match=r"^path:"):
        collection.export(file)
    with pytest.raises(ZeroDivisionError):
        collection.export(file, overwrite=True, progress=lambda done, total: done // 0)
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(Conflict, match=r"^path:"):
        collection.export(tmp_path / "folder.parquet", overwrite=True)
    with pytest.raises(StoreFailed, match=r"^path:"):
        collection.export(tmp_path / "none" / "e.jsonl")
    assert file.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"c", "e.jsonl", "folder.parquet"}
    collection.export(file, overwrite=True)
    assert len(read_table(file)) == 20
    collection.close()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("most", [100, 4000])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, format: str, most: int) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    collection.export(tmp_path / f"a.{format}")
    with full_disk(most), pytest.raises(StoreFailed, match=r"^path:"):
        collection.export(tmp_path / f"b.{format}")
    assert {path.name for path in tmp_path.iterdir()} == {"c", f"a.{format}"}
    collection.export(tmp_path / f"b.{format}")
    assert (tmp_path / f"b.{format}").read_bytes() == (tmp_path / f"a.{format}").read_bytes()
    collection.close()


def test_the_format_is_that_of_the_suffix(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    assert collection.export(tmp_path / "a.PARQUET")["format"] == "parquet"
    for name in ("c.data", "c.csv", "c.npz", "c"):
        with pytest.raises(InvalidInput, match=r"^path:"):
            collection.export(tmp_path / name)
    with pytest.raises(InvalidInput, match=r"^where:"):
        collection.export(tmp_path / "c.jsonl", where={"a": {}})
    collection.close()
