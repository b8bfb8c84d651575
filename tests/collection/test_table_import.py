"""Imports of files and tables: an interruption at any chunk loses nothing and doubles nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stillhash
from stillhash.collection.transfer.table_import import ImportProgress
from stillhash.errors import Conflict, InvalidInput
from stillhash.io import ColumnNames
from tests.support.toys import toy

DIM, ROWS = 8, 60
X, Y = toy(ROWS, DIM, 3)
NAMES = ["cat", "dog", "sea"]
LABELS = [[NAMES[label] for label in np.flatnonzero(row)] for row in Y]


class Interruption(Exception):
    """What ends an import from outside."""


def write_rows(path: Path, ids: list[Any], features: np.ndarray = X) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for name, x, labels in zip(ids, features, LABELS, strict=False):
            file.write(json.dumps({"id": name, "features": x.tolist(), "labels": labels}) + "\n")
    return path


def stop_after(chunks: int) -> Any:
    calls = itertools.count(1)

    def progress(_: ImportProgress) -> None:
        if next(calls) >= chunks:
            raise Interruption

    return progress


def interrupt(collection: stillhash.Collection, path: Path, chunks: int, batch: int, **options: Any) -> None:
    """Import a file, and stop after so many chunks unless it is complete before."""
    with contextlib.suppress(Interruption):
        collection.import_file(path, batch=batch, progress=stop_after(chunks), **options)


def check_complete(collection: stillhash.Collection, ids: list[Any]) -> None:
    assert collection.ids(limit=1000) == sorted(ids) and collection.count() == len(ids)
    assert [item and item.labels for item in collection.get(ids)] == [sorted(some) for some in LABELS[: len(ids)]]
    assert collection.verify() == []


@pytest.mark.medium
@settings(deadline=None, max_examples=8)
@given(
    st.sampled_from([".jsonl", ".npy", ".npz", ".parquet"]),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 40)), max_size=4),
    st.sets(st.integers(0, ROWS - 1), max_size=5),
)
def test_interrupted_imports_go_on(suffix: str, attempts: list[tuple[int, int]], deleted: set[int]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"rows{suffix}"
        write_file(path)
        with stillhash.open(Path(folder) / "c", DIM, 32) as collection:
            for chunks, batch in attempts:
                interrupt(collection, path, chunks, batch)
                assert collection.verify() == []
            collection.delete(sorted(deleted))  # rows that are missing in the midst
            before = collection.count()
            assert collection.import_file(path, batch=7) == ROWS - before
            check_complete(collection, list(range(ROWS)))
            assert collection.import_file(path, batch=1000) == 0


def write_file(path: Path) -> None:
    if path.suffix == ".jsonl":
        write_rows(path, list(range(ROWS)))
    elif path.suffix == ".npy":
        np.save(path, X)
        np.save(path.with_name("rows.labels.npy"), np.array(["|".join(some) for some in LABELS]))
    elif path.suffix == ".npz":
        np.savez(path, image_id=np.arange(ROWS), embeddings=X, label=["|".join(some) for some in LABELS])
    else:
        pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow has no Parquet")
        table = pyarrow.table({"uuid": list(range(ROWS)), "vector": list(X), "labels": LABELS})
        parquet.write_table(table, path, row_group_size=11)


def test_ids_of_other_items_are_a_conflict(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", list(range(ROWS)))
    with stillhash.open(tmp_path / "c", DIM, 32) as collection:
        collection.add([35], X[:1])
        for _ in range(3):  # each attempt adds what it can, and none takes the other item for its own
            with pytest.raises(Conflict, match=r"^rows.jsonl, line 31 to line 40: ids: .*35"):
                collection.import_file(path, batch=10)
            assert collection.count() == 31
        assert collection.import_file(path, batch=10, skip_existing=True) == ROWS - 31
        assert collection.ids() == list(range(ROWS)) and collection.get([35])[0] == stillhash.Item(35, [], None)


def test_another_file_with_the_same_ids_is_a_conflict(tmp_path: Path) -> None:
    first = write_rows(tmp_path / "first.jsonl", list(range(ROWS)))
    second = write_rows(tmp_path / "second.jsonl", list(range(ROWS)), X[::-1])
    with stillhash.open(tmp_path / "c", DIM, 32) as collection:
        interrupt(collection, first, 2, 10)
        for _ in range(2):
            with pytest.raises(Conflict, match=r"^second.jsonl, line 1 to line 10: ids"):
                collection.import_file(second, batch=10)
        first.rename(tmp_path / "moved.jsonl")
        assert collection.import_file(tmp_path / "moved.jsonl") == ROWS - 20
        with pytest.raises(Conflict, match=r"^moved.jsonl: labels: .*None.*'x'"):
            collection.import_file(tmp_path / "moved.jsonl", columns=ColumnNames(labels=("x",)))


@pytest.mark.parametrize("place", [5, 15, 55])
def test_an_id_that_occurs_twice_is_never_skipped(place: int, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [*range(place), 3, *range(place + 1, ROWS)])
    with stillhash.open(tmp_path / "c", DIM, 32) as collection:
        for batch in (10, 7, 60):
            with pytest.raises((InvalidInput, Conflict), match="3"):
                collection.import_file(path, batch=batch)
            assert collection.count() < ROWS
        collection.add([1000], X[:1])  # so that later rows are looked up
        with pytest.raises((InvalidInput, Conflict), match="3"):
            collection.import_file(path, batch=4)


def test_numbered_rows_keep_their_numbers(tmp_path: Path) -> None:
    for number, part in enumerate(np.split(X, 2)):
        np.save(tmp_path / f"{number}.npy", part)
    with stillhash.open(tmp_path / "c", DIM, 32) as collection:
        interrupt(collection, tmp_path / "0.npy", 1, 20)
        assert collection.import_file(tmp_path / "0.npy") == 10
        interrupt(collection, tmp_path / "1.npy", 1, 20)
        collection.add(["between"], X[:1])
        assert collection.import_file(tmp_path / "1.npy") == 10
        assert collection.ids() == [*range(ROWS), "between"]
        (tmp_path / "rows.csv").write_text("f0,f1,f2,f3,f4,f5,f6,f7\n" + "1,2,3,4,5,6,7,8\n" * 3)
        with pytest.raises(InvalidInput, match=r"^rows.csv, line 2: id: .*f0"):
            collection.import_file(tmp_path / "rows.csv")
        assert collection.import_file(tmp_path / "rows.csv", number_rows=True) == 3
        assert collection.ids()[-4:] == [61, 62, 63, "between"]


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with stillhash.open(tmp_path / "c", DIM, 32) as collection:
        for text in ('{"id": 1, "features": [1, 2]}\n', "{", '{"id": 1}\n'):
            path.write_text(text)
            with pytest.raises(InvalidInput, match=r"rows.jsonl, line 1"):
                collection.import_file(path)
        with pytest.raises(InvalidInput, match="absent"):
            collection.import_file(tmp_path / "absent.csv")
        with pytest.raises(InvalidInput, match="stdin"):
            collection.import_file("-")
        assert collection.audit() == []


def bad_rows(path: Path, place: int, **changes: Any) -> Path:
    """Write the rows, with one of them changed."""
    rows = [{"id": number, "features": x.tolist(), "labels": LABELS[number]} for number, x in enumerate(X)]
    rows[place] |= changes
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


BAD_ROWS: list[dict[str, Any]] = [
    {"features": [1.0, 2.0]},
    {"features": [float("nan")] * DIM},
    {"id": 3},
    {"id": "seven"},
    {"id": ["a list"]},
    {"metadata": 7},
    {"labels": [[]]},
]


@pytest.mark.parametrize("change", BAD_ROWS, ids=str)
def test_a_check_finds_what_an_import_would_refuse_and_adds_nothing(change: dict[str, Any], tmp_path: Path) -> None:
    path = bad_rows(tmp_path / "rows.jsonl", 45, **change)
    with stillhash.open(tmp_path / "c", DIM, 32) as collection:
        collection.add(["seven"], X[:1])
        entries = collection.audit()
        with pytest.raises((InvalidInput, Conflict), match=r"^rows.jsonl, line") as checked:
            collection.check_file(path, batch=10)
        assert collection.audit() == entries and collection.count() == 1
        with pytest.raises((InvalidInput, Conflict), match=r"^rows.jsonl, line") as imported:
            collection.import_file(path, batch=10)
        assert type(checked.value) in (type(imported.value), InvalidInput) and collection.count() > 1


def test_a_check_counts_the_rows_that_would_be_added(tmp_path: Path) -> None:
    path, reports = write_rows(tmp_path / "rows.jsonl", list(range(ROWS))), list[ImportProgress]()
    with stillhash.open(tmp_path / "c", DIM, 32) as collection:
        assert collection.check_file(path, batch=25, progress=reports.append) == ImportProgress(ROWS, ROWS, 1.0)
        assert [report.rows for report in reports] == [25, 50, 60]
        interrupt(collection, path, 2, 10)
        assert collection.check_file(path, batch=7) == ImportProgress(ROWS, ROWS - 20, 1.0)
        other = write_rows(tmp_path / "other.jsonl", list(range(10, ROWS)), X[::-1])
        assert collection.check_file(other, batch=7, skip_existing=True).added == ROWS - 20
        assert collection.import_file(other, skip_existing=True) == ROWS - 20
        (tmp_path / "empty.jsonl").write_text("")
        assert collection.check_file(tmp_path / "empty.jsonl") == ImportProgress(0, 0, 0.0)


def test_ids_with_equal_hashes_are_different(tmp_path: Path) -> None:
    assert hash(-1) == hash(-2)
    path = write_rows(tmp_path / "rows.jsonl", [-1, -2, *range(ROWS - 2)])
    with stillhash.open(tmp_path / "c", DIM, 32) as collection:
        assert collection.check_file(path, batch=10).added == ROWS == collection.import_file(path)


def test_progress_counts_rows(tmp_path: Path) -> None:
    reports: list[ImportProgress] = []
    np.save(tmp_path / "rows.npy", X)
    with stillhash.open(tmp_path / "c", DIM, 32) as collection:
        interrupt(collection, tmp_path / "rows.npy", 1, 20)
        collection.import_file(tmp_path / "rows.npy", batch=25, progress=reports.append)
    assert [(report.rows, report.added) for report in reports] == [(25, 5), (50, 30), (60, 40)]
    assert [report.share for report in reports] == [25 / 60, 50 / 60, 1]


def test_tables(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    texts = [", ".join(some) for some in LABELS]
    frame = pandas.DataFrame({"image_id": range(ROWS), "embedding": list(X), "label": texts, "n": range(ROWS)})
    with stillhash.open(tmp_path / "c", DIM, 32) as collection:
        with pytest.raises(Interruption):
            collection.add_table(frame, separator=",", batch=25, progress=stop_after(1))
        with pytest.raises(Conflict, match="row 0 to row 59: ids"):
            collection.add_table(frame, separator=",")
        assert collection.add_table(frame, separator=",", batch=10, resume=True) == ROWS - 25
        check_complete(collection, list(range(ROWS)))
        items = collection.get([3, 59])
        assert [item and item.metadata for item in items] == [{"n": 3}, {"n": 59}]
        array = np.concatenate([X, X])
        labels = np.concatenate([Y, Y])
        assert collection.add_table(array, id=range(2 * ROWS), label=labels, batch=50, resume=True) == ROWS
        assert [item and item.labels for item in collection.get([ROWS])] == [np.flatnonzero(Y[0]).tolist()]
        with pytest.raises(InvalidInput, match=r"table, row 0: features: .*8.*4"):
            collection.add_table(frame.assign(embedding=list(X[:, :4]), image_id=frame.image_id + 1000))
