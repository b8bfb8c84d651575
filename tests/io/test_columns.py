"""Columns of files: chosen by name or by the caller, and converted whole exactly as row by row."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.errors import InvalidInput
from stillhash.io import ColumnNames, LazyChunk, read_chunks, scan_chunks
from stillhash.io.arrays import array_rows
from stillhash.io.arrow import parquet_rows
from stillhash.io.rows import Columns, Row, check_vector

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyarrow.parquet", reason="pyarrow has no Parquet")

DIM = 3
VECTOR = st.lists(st.floats(-1e6, 1e6, width=32), min_size=DIM, max_size=DIM)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=6)
LABEL = st.none() | st.sampled_from(["cat", "cat|dog", "4", " a , b,", ""]) | TEXT
TAGS = st.none() | st.lists(st.none() | st.sampled_from(["x", "y"]), max_size=3)
NUMBER = st.none() | st.floats(allow_infinity=False)
ROW = st.tuples(VECTOR, LABEL, TAGS, st.none() | st.booleans(), NUMBER, st.none() | TEXT)
NAMES = ("embedding", "label", "tags", "red", "price", "title")
KINDS = {
    "label": [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())],
    "embedding": [
        pyarrow.list_(pyarrow.float32()),
        pyarrow.large_list(pyarrow.float64()),
        pyarrow.list_(pyarrow.float32(), DIM),
    ],
}
COLUMNS = ColumnNames(labels=("label", "tags", "red"))


def write_parquet(path: Path, columns: dict[str, Any], row_group: int | None = None) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=row_group)


def rows_of(lazy: LazyChunk) -> list[tuple[Any, ...]]:
    chunk = lazy.load()
    ids = chunk.ids or [None] * len(chunk.features)
    return list(zip(ids, np.asarray(chunk.features).tolist(), chunk.labels, chunk.metadata, strict=True))


def as_read(row: Row) -> tuple[Any, ...]:
    return row.ids, check_vector(row.features, DIM, row.place).tolist(), row.labels or [], row.metadata


@settings(deadline=None)
@given(
    st.lists(ROW, min_size=1, max_size=12),
    st.sampled_from(KINDS["embedding"]),
    st.sampled_from(KINDS["label"]),
    st.sampled_from([None, ",", "|"]),
    st.integers(1, 13),
    st.integers(1, 13),
)
def test_parquet_by_columns_equals_row_by_row(
    rows: list[Any], vectors: Any, texts: Any, separator: str | None, group: int, size: int
) -> None:
    columns = {name: [row[n] for row in rows] for n, name in enumerate(NAMES)}
    columns["embedding"] = pyarrow.array(columns["embedding"], vectors)
    columns["label"] = pyarrow.array(columns["label"], pyarrow.string()).cast(texts)
    columns["tags"] = pyarrow.array(columns["tags"], pyarrow.list_(pyarrow.string()))
    columns["image_id"] = list(range(len(rows)))
    columns["metadata"] = [{"deep": {"n": n, "none": None}} for n in range(len(rows))]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        write_parquet(path, columns, group)
        names = COLUMNS._replace(separator=separator)
        chunks = list(scan_eagerly(path, size, names))
        assert [row for chunk in chunks for row in chunk] == [as_read(row) for row in parquet_rows(path, names)]
        assert max(map(len, chunks)) <= size


def scan_eagerly(path: Path, size: int, names: ColumnNames, dim: int | None = None) -> list[list[tuple[Any, ...]]]:
    return [rows_of(chunk) for chunk in scan_chunks(path, size, columns=names, dim=dim)]


@settings(deadline=None)
@given(
    st.lists(ROW, min_size=1, max_size=12),
    st.sampled_from(["text", "matrix", "numbers", "booleans"]),
    st.integers(1, 13),
)
def test_arrays_by_columns_equal_row_by_row(rows: list[Any], kind: str, size: int) -> None:
    labels = {
        "text": np.array([row[1] or "" for row in rows]),
        "matrix": np.array([[bool(row[1]), bool(row[3])] for row in rows]),
        "numbers": np.array([np.nan if row[4] is None else row[4] for row in rows]),
        "booleans": np.array([bool(row[3]) for row in rows]),
    }
    arrays = {"embeddings": np.array([row[0] for row in rows]), "image_id": np.arange(len(rows))}
    arrays |= {"label": labels[kind], "price": labels["numbers"], "unused": np.zeros(1)}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        np.savez(path, **arrays)
        names = ColumnNames(metadata=("price",))
        chunks = scan_eagerly(path, size, names)
        assert [row for chunk in chunks for row in chunk] == [as_read(row) for row in array_rows(path, names)]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_chunks_may_be_left_out(size: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_parquet(path, {"id": list(range(40)), "vector": [[1.0, 2.0, float(n)] for n in range(40)]}, 5)
    read = [row for n, chunk in enumerate(scan_chunks(path, size)) if n % 3 == 2 for row in rows_of(chunk)]
    ids = [name for n, chunk in enumerate(scan_chunks(path, size)) if n % 3 == 2 for name in chunk.ids or []]
    assert [row[0] for row in read] == [row[1][2] for row in read] == ids != []


def test_what_is_not_needed_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    vectors = np.random.default_rng(0).standard_normal((500, DIM)).tolist()
    write_parquet(path, {"id": list(range(500)), "vector": vectors, "unused": vectors}, 100)
    data = bytearray(path.read_bytes())
    metadata = pyarrow.parquet.read_metadata(path)
    for group in range(metadata.num_row_groups):
        for column in (1, 2):
            chunk = metadata.row_group(group).column(column)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            if column == 2 or group == 3:
                data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)
    names = ColumnNames(metadata=())
    assert [name for chunk in scan_chunks(path, 10, columns=names) for name in chunk.ids or []] == list(range(500))
    with pytest.raises(InvalidInput, match=r"rows.parquet: "):
        scan_eagerly(path, 10, names)
    read = [rows_of(chunk) for n, chunk in enumerate(scan_chunks(path, 10, columns=names)) if n < 20]
    assert np.concatenate([[row[1] for row in rows] for rows in read]).tolist() == vectors[:200]


FILES = {
    "rows.csv": 'sku,emb,kind,red,n\na,"[1, 2, 3]","cat, dog",x,7\nb,"[4, 5, 6]", ,,\n',
    "rows.jsonl": '{"sku": "a", "emb": [1, 2, 3], "kind": "cat, dog", "red": "x", "n": 7}\n'
    '{"sku": "b", "emb": [4, 5, 6], "kind": null}\n',
}
NAMED = ColumnNames("sku", "emb", ("kind", "red"), ("n",), ",")


def write_named(path: Path) -> None:
    vectors, texts = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], {"sku": ["a", "b"], "kind": ["cat, dog", None]}
    if path.name in FILES:
        path.write_text(FILES[path.name], encoding="utf-8")
    elif path.suffix == ".parquet":
        write_parquet(path, {**texts, "emb": vectors, "red": ["x", None], "n": [7, None], "other": [1, 2]})
    else:
        arrays = {"kind": np.array(["cat, dog", ""]), "n": np.array([7, np.nan]), "red": np.array(["x", ""])}
        np.savez(path, sku=["a", "b"], emb=vectors, other=np.zeros(7), **arrays)


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet", "rows.npz"])
def test_the_caller_names_the_columns(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_named(path)
    (chunk,) = read_chunks(path, DIM, 10, columns=NAMED, require_ids=True)
    assert chunk.ids == ["a", "b"] and chunk.features.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert list(map(list, (some or [] for some in chunk.labels))) == [["cat", "dog", "x"], []]
    assert chunk.metadata == [{"n": 7}, None]
    assert all(x is None for x in next(read_chunks(path, DIM, 1, columns=NAMED._replace(metadata=()))).metadata)
    for field in ("id", "vector", "labels", "metadata"):
        wrong = "nothing" if field in ("id", "vector") else ("nothing",)
        if name == "rows.jsonl" and field != "vector":
            continue  # the first object may lack all other keys
        with pytest.raises(InvalidInput, match=r"rows.*column: expected one of .*sku.*, got 'nothing'"):
            list(read_chunks(path, DIM, 10, columns=NAMED._replace(**{field: wrong})))


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet", "rows.npz"])
def test_without_a_usual_name_the_error_lists_the_columns(name: str, tmp_path: Path) -> None:
    write_named(tmp_path / name)
    with pytest.raises(InvalidInput, match=r"columns: .*embedding.*sku"):
        list(read_chunks(tmp_path / name, DIM, 10))
    with pytest.raises(InvalidInput, match=r"id: .*image_id.*sku"):
        list(read_chunks(tmp_path / name, DIM, 10, columns=NAMED._replace(id=None), require_ids=True))


def test_usual_names_come_first() -> None:
    columns = Columns(["image_id", "id", "embedding", "label", "labels", "year"], "table")
    assert (columns.id, columns.vector, columns.labels) == ("id", "embedding", ["labels"])
    assert columns.others == ["image_id", "label", "year"]
    columns = Columns(["doc_id", "f1", "f0", "label"], "table", ColumnNames(metadata=()))
    assert (columns.id, columns.numbered, columns.labels) == ("doc_id", ["f0", "f1"], ["label"])
    assert columns.needed == ["doc_id", "f1", "f0", "label"]


def test_lines_of_json_with_other_keys(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [{"_id": 1, "vector": [1, 2, 3]}, {"_id": 2, "vector": [1, 2, 3], "labels": ["a"], "url": "u", "no": None}]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(InvalidInput, match=r"line 2: .*'url'"):
        list(read_chunks(path, DIM, 10, require_ids=True))
    (chunk,) = read_chunks(path, DIM, 10, require_ids=True, columns=ColumnNames(metadata="all"))
    assert chunk.ids == [1, 2] and chunk.metadata == [None, {"url": "u"}] and chunk.labels == [None, ["a"]]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0, 3.0], [1.0, 2.0]], "row 1: features: .*3.*2"),
        ([[1.0, 2.0, 3.0], [1.0, None, 3.0]], "row 1: features: "),
        ([[1.0, 2.0, 3.0], [1.0, float("nan"), 3.0]], r"row 1: features\[1\]: .*nan"),
        ([["a", "b", "c"]], "row 0: features: "),
        ([1.0], "row 0: features: "),
    ],
)
@pytest.mark.parametrize("dim", [None, DIM])
def test_invalid_vectors_are_named(vectors: Any, message: str, dim: int | None, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_parquet(path, {"id": list(range(len(vectors))), "features": vectors})
    with pytest.raises(InvalidInput, match=message):
        scan_eagerly(path, 10, ColumnNames(), dim)


@pytest.mark.skipif(not hasattr(pyarrow, "uuid"), reason="this pyarrow has no type for UUIDs")
def test_uuids_become_texts(tmp_path: Path) -> None:
    names = [uuid.UUID(int=number) for number in (1, 2)]
    array = pyarrow.array([name.bytes for name in names], pyarrow.uuid())
    write_parquet(tmp_path / "rows.parquet", {"uuid": array, "vector": [[1.0, 2.0, 3.0]] * 2})
    expected = [(str(name), [1, 2, 3], [], None) for name in names]
    assert scan_eagerly(tmp_path / "rows.parquet", 10, ColumnNames()) == [expected]
    assert [as_read(row) for row in parquet_rows(tmp_path / "rows.parquet")] == expected


def test_values_that_python_cannot_hold_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table(
            {"id": [1], "features": [[1.0, 2.0, 3.0]], "wait": pyarrow.array([2**62], pyarrow.timestamp("ms"))}
        ),
        path,
    )
    with pytest.raises(InvalidInput, match=r"^rows.parquet, from row 0 on: "):
        scan_eagerly(path, 10, ColumnNames())
    assert scan_eagerly(path, 10, ColumnNames(metadata=()))[0][0][0] == 1
