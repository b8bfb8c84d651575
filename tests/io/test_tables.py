"""Tables of other libraries: all give the same chunks, in memory or read bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.errors import InvalidInput, WrongType
from stillhash.io import Chunk, table_chunks

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

ROWS, DIM = 23, 4
FEATURES = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)
IDS = [f"n{row}" for row in range(ROWS)]
TEXTS: list[str | None] = ["cat, dog", None, "", "sea"] * 5 + ["4", "cat,,dog ", None]
LABELS: list[list[Any]] = [["cat", "dog"], [], [], ["sea"]] * 5 + [[4], ["cat", "dog"], []]
YEARS: list[int | None] = [1990 + row if row % 3 else None for row in range(ROWS)]
COLUMNS: dict[str, Any] = {"image_id": IDS, "embedding": FEATURES.tolist(), "label": TEXTS, "year": YEARS}


def arrow_table() -> Any:
    columns = {**COLUMNS, "embedding": pyarrow.array(COLUMNS["embedding"], pyarrow.list_(pyarrow.float32()))}
    return pyarrow.table(columns)


def arrow_reader() -> Any:
    table = arrow_table()
    return pyarrow.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=5))


class Stream:
    """What only the protocol of Arrow describes."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return arrow_table().__arrow_c_stream__(requested_schema)


def pandas_frame() -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    return pandas.DataFrame({**COLUMNS, "embedding": list(FEATURES)})


def polars_frame(*, lazy: bool = False) -> Any:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.DataFrame({**COLUMNS, "embedding": FEATURES})
    return frame.lazy() if lazy else frame


def hugging_face(*, streamed: bool = False, generated: bool = False) -> Any:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    if generated:
        return datasets.IterableDataset.from_generator(iterate_rows)
    dataset = datasets.Dataset.from_dict({**COLUMNS, "embedding": FEATURES})
    return dataset.to_iterable_dataset() if streamed else dataset


def iterate_rows() -> Any:
    for row in range(ROWS):
        yield {name: values[row] for name, values in COLUMNS.items()}


def folder_of_files(path: Path) -> Any:
    dataset, parquet = pytest.importorskip("pyarrow.dataset"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow_table().slice(0, 10), path / "0.parquet")
    parquet.write_table(arrow_table().slice(10), path / "1.parquet")
    return dataset.dataset(sorted(map(str, path.iterdir())))


TABLES: dict[str, Callable[[], Any]] = {
    "arrow table": arrow_table,
    "arrow batch": lambda: arrow_table().combine_chunks().to_batches()[0],
    "arrow reader": arrow_reader,
    "arrow stream": Stream,
    "pandas": pandas_frame,
    "polars": polars_frame,
    "polars lazy": partial(polars_frame, lazy=True),
    "datasets": hugging_face,
    "datasets streamed": partial(hugging_face, streamed=True),
    "datasets generated": partial(hugging_face, generated=True),
}


def joined(chunks: list[Chunk]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    parts = [(c.ids or [], np.asarray(c.features, np.float32).tolist(), c.labels, c.metadata) for c in chunks]
    ids, features, labels, metadata = ([x for part in column for x in part] for column in zip(*parts, strict=True))
    return ids, features, labels, metadata


def check_rows(chunks: list[Chunk], size: int) -> None:
    assert [len(chunk.features) for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
    ids, features, labels, metadata = joined(chunks)
    assert ids == IDS and features == FEATURES.tolist() and labels == LABELS
    assert metadata == [None if year is None else {"year": year} for year in YEARS]


@pytest.mark.medium
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("size", [1, 7, 23, 100])
def test_every_table_gives_the_same_chunks(name: str, size: int) -> None:
    check_rows(list(table_chunks(TABLES[name](), separator=",", batch=size)), size)


def test_a_folder_of_files(tmp_path: Path) -> None:
    check_rows(list(table_chunks(folder_of_files(tmp_path), separator=",", batch=7)), 7)


@pytest.mark.parametrize("name", TABLES)
def test_columns_by_name(name: str) -> None:
    chosen: dict[str, Any] = {"vector": "embedding", "label": ["label", "image_id"], "metadata": ()}
    ids, _, labels, metadata = joined(list(table_chunks(TABLES[name](), id=range(ROWS), **chosen)))
    assert ids == list(range(ROWS)) and metadata == [None] * ROWS
    assert labels == [[*([text] if text else []), row] for text, row in zip(TEXTS, IDS, strict=True)]
    with pytest.raises(InvalidInput, match=r"vector column: .*embedding.*'x'"):
        list(table_chunks(TABLES[name](), vector="x"))
    with pytest.raises(InvalidInput, match=r"^id: .*23.*22"):
        list(table_chunks(TABLES[name](), **chosen, id=range(ROWS - 1)))


@pytest.mark.parametrize("name", ["arrow table", "pandas", "polars"])
def test_columns_that_are_not_chosen_may_hold_anything(name: str) -> None:
    table = TABLES[name]()
    if name == "pandas":
        table["object"] = [object()] * ROWS
    ids, *_ = joined(list(table_chunks(table, metadata=["year"])))
    assert ids == IDS
    if name == "pandas":
        with pytest.raises(InvalidInput, match=r"^table: "):
            list(table_chunks(table))


@pytest.mark.parametrize("streamed", [False, True])
def test_classes_of_a_dataset_have_names(streamed: bool) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    kinds = datasets.Features({"id": datasets.Value("int64"), "vector": datasets.List(datasets.Value("float32"))})
    kinds["label"] = datasets.ClassLabel(names=["cat", "dog", "sea"])
    rows = {"id": [0, 1, 2, 3, 4], "vector": [[1.0]] * 5, "label": [2, 0, -1, None, 1]}
    dataset = datasets.Dataset.from_dict(rows, kinds)
    table = dataset.to_iterable_dataset() if streamed else dataset
    assert joined(list(table_chunks(table, batch=2)))[2] == [["sea"], ["cat"], [], [], ["dog"]]


def test_a_mapped_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", FEATURES)
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    metadata = [None if year is None else {"year": year} for year in YEARS]
    chunks = list(table_chunks(array, id=np.array(IDS), label=TEXTS, metadata=metadata, separator=",", batch=5))
    check_rows(chunks, 5)
    indicators = np.eye(ROWS, 3, dtype=np.uint8)
    chunks = list(table_chunks(array, id=range(ROWS), label=indicators, batch=5))
    np.testing.assert_array_equal(np.concatenate([chunk.labels for chunk in chunks]), indicators)
    assert all(chunk.metadata is None for chunk in chunks)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "^id: .*range"),
        ({"id": "id"}, "^id: "),
        ({"id": range(3)}, "^id: .*23.*3"),
        ({"id": range(ROWS), "label": ["a"]}, "^label: .*23.*1"),
        ({"id": range(ROWS), "label": "a"}, "^label: "),
        ({"id": range(ROWS), "vector": "x"}, "^vector: "),
        ({"id": range(ROWS), "batch": 0}, "^batch: "),
        ({"id": range(ROWS), "separator": ""}, "^separator: "),
    ],
)
def test_arrays_have_no_columns(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        list(table_chunks(FEATURES, **options))


def test_what_is_no_table_is_refused() -> None:
    for other in (None, 3, "rows.parquet", {"id": [1]}, FEATURES[0], object()):
        with pytest.raises(WrongType, match=r"^table: expected a pyarrow Table"):
            list(table_chunks(other))
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    with pytest.raises(WrongType, match="split"):
        list(table_chunks(datasets.DatasetDict({"train": hugging_face()})))
    with pytest.raises(InvalidInput, match=r"^id: .*doc_id.*embedding"):
        list(table_chunks(arrow_table().drop_columns("image_id")))
    with pytest.raises(InvalidInput, match="row 20: id"):
        nulls = pyarrow.array([*IDS[:20], None, *IDS[21:]])
        list(table_chunks(arrow_table().set_column(0, "image_id", nulls), batch=7))
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    with pytest.raises(InvalidInput, match="columns: expected strings"):
        list(table_chunks(pandas.DataFrame({0: [1]})))


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 12))
def test_batches_of_any_size_become_batches_of_one_size(sizes: list[int], size: int) -> None:
    total = sum(sizes)
    table = pyarrow.table({"id": list(range(total)), "vector": [[float(row)] for row in range(total)]})
    ends = np.cumsum([0, *sizes]).tolist()
    batches = [b for a, n in zip(ends, sizes, strict=False) for b in table.slice(a, n).combine_chunks().to_batches()]
    reader = pyarrow.RecordBatchReader.from_batches(table.schema, batches)
    chunks = list(table_chunks(reader, batch=size))
    assert [row for chunk in chunks for row in chunk.ids or []] == list(range(total))
    assert [x for chunk in chunks for x in chunk.features[:, 0].tolist()] == list(range(total))
    assert [len(chunk.features) for chunk in chunks] == [min(size, total - a) for a in range(0, total, size)]
