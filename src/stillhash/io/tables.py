"""Tables of other libraries, in memory or read bit by bit: Arrow, pandas, polars, Hugging Face datasets, arrays.

A table is recognised by the module of its type, or by a protocol, so that no library is imported that the caller does
not use. All but arrays are converted by pyarrow, a batch at a time, and only the columns that are needed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, WrongType
from stillhash.io.arrow import id_list, load_pyarrow, read_batch, rebatch
from stillhash.io.rows import (
    ID_NAMES,
    BatchContent,
    Chunk,
    ColumnNames,
    Columns,
    LazyChunk,
    check_matrix,
    parse_labels,
    span,
)
from stillhash.numeric.validation import check_integer

DEFAULT_BATCH = 10_000  # rows
ACCEPTED = (
    "a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or polars DataFrame, a polars LazyFrame, a Dataset or "
    "IterableDataset of datasets, an object with __arrow_c_stream__, or an array (n, D)"
)
LabelColumnsOrValues = str | Sequence[Any] | NDArray[Any] | None


class TableSource(NamedTuple):
    """A table whose rows can be read in record batches."""

    header: list[str]
    rows: int | None  # None if they are not counted
    batches: Callable[[list[str], int], Iterable[Any]]  # of these columns, with about so many rows


def table_chunks(
    table: Any,
    *,
    id: str | Sequence[Any] | NDArray[Any] | None = None,
    vector: str | None = None,
    label: LabelColumnsOrValues = None,
    metadata: Sequence[Any] | Literal["all"] | None = None,
    separator: str | None = None,
    batch: int = DEFAULT_BATCH,
) -> Iterator[Chunk]:
    """Yield the rows of a table in chunks of `batch` rows: ids, features, labels and metadata.

    id : the column of ids, or the ids themselves, such as `range(n)`.
    vector : the column of vectors.
    label : a column of labels, or several, whose labels are joined. A column of booleans gives its name as label.
    metadata : columns of metadata; none for (), and all others by default.
    separator : splits texts of labels, such as "," for "cat, dog"; None keeps them whole.

    Columns that are not named are recognised by usual names, such as `image_id` and `embedding`. An array has no
    columns: id, label and metadata are then sequences with one entry for each of its rows.
    """
    for chunk in scan_table(
        table, id=id, vector=vector, label=label, metadata=metadata, separator=separator, batch=batch
    ):
        yield chunk.load()


def scan_table(
    table: Any,
    *,
    id: Any = None,
    vector: str | None = None,
    label: LabelColumnsOrValues = None,
    metadata: Any = None,
    separator: str | None = None,
    batch: int = DEFAULT_BATCH,
    dim: int | None = None,
) -> Iterator[LazyChunk]:
    """Yield the rows of a table as `table_chunks` does, but read only the ids until a chunk is loaded."""
    if separator == "":
        raise InvalidInput("separator: expected a text, got an empty one")
    check_integer(batch, "batch", 1)
    source = table_source(table)
    if source is None:
        if vector is not None:
            raise InvalidInput(f"vector: expected None, since an array has no columns, got {vector!r}")
        return _array_chunks(table, id, label, metadata, separator, batch, dim)
    named = id if isinstance(id, str) else None
    labels = label if label is None else tuple([label] if isinstance(label, str) else label)
    others = metadata
    if metadata is not None and not (isinstance(metadata, str) and metadata == "all"):
        others = tuple([metadata] if isinstance(metadata, str) else metadata)
    columns = Columns(source.header, "table", ColumnNames(named, vector, labels, others, separator))
    if id is None and columns.id is None:
        usual, listed = ", ".join(ID_NAMES), ", ".join(source.header)
        raise InvalidInput(f"id: expected a column {usual}, or the name of another, or ids; got the columns {listed}")
    if id is not None and named is None:
        columns.id = None
    return _batch_chunks(source, columns, None if named or id is None else id, batch, dim)


def table_source(table: Any) -> TableSource | None:
    """Recognise a table; None for an array of vectors. WrongType for all else."""
    package, kind = _package(table), type(table).__name__
    if package == "polars" and kind in ("DataFrame", "LazyFrame"):
        return _polars_source(table, lazy=kind == "LazyFrame")
    if package == "pandas" and kind == "DataFrame":
        return TableSource(list(table.columns), len(table), partial(_pandas_batches, table))
    if package == "datasets" and kind in ("Dataset", "IterableDataset"):
        return _datasets_source(table, counted=kind == "Dataset")
    if package == "datasets":
        raise WrongType(f"table: expected one split, as in dataset['train'], got a {kind}")
    if package == "pyarrow" or hasattr(table, "__arrow_c_stream__") or hasattr(table, "__arrow_c_array__"):
        return _arrow_source(table)
    if hasattr(table, "__array__") and len(getattr(table, "shape", ())) == 2:
        return None
    raise WrongType(f"table: expected {ACCEPTED}, got a value of type {kind}")


def _package(table: Any) -> str:
    """Return the library that a table belongs to, also if the caller made a subclass of its type."""
    packages = [cls.__module__.partition(".")[0] for cls in type(table).__mro__]
    return next((name for name in packages if name in ("pyarrow", "pandas", "polars", "datasets")), "")


def _arrow_source(table: Any) -> TableSource:
    pyarrow = load_pyarrow("table: an Arrow table")
    with _report_arrow_errors():
        if isinstance(table, pyarrow.RecordBatch):
            table = pyarrow.Table.from_batches([table])
        elif not hasattr(table, "schema") and hasattr(table, "__arrow_c_stream__"):
            table = pyarrow.RecordBatchReader.from_stream(table)
        elif not hasattr(table, "schema"):
            table = pyarrow.Table.from_batches([pyarrow.record_batch(table)])
    rows = table.num_rows if isinstance(table, pyarrow.Table) else None
    return TableSource(list(table.schema.names), rows, partial(_arrow_batches, table))


def _arrow_batches(table: Any, columns: list[str], rows: int) -> Iterator[Any]:
    if hasattr(table, "scanner"):  # a dataset of files
        yield from table.to_batches(columns=columns, batch_size=rows)
    elif hasattr(table, "read_next_batch"):
        for batch in table:
            yield from (batch.select(columns).slice(start, rows) for start in range(0, len(batch), rows))
    else:
        yield from table.select(columns).to_batches(max_chunksize=rows)


def _pandas_batches(frame: Any, columns: list[str], rows: int) -> Iterator[Any]:
    pyarrow = load_pyarrow("table: a pandas DataFrame")
    chosen = frame[columns]
    for start in range(0, len(frame), rows):
        yield pyarrow.RecordBatch.from_pandas(chosen.iloc[start : start + rows], preserve_index=False)


def _polars_source(frame: Any, *, lazy: bool) -> TableSource:
    if not lazy:
        return TableSource(list(frame.columns), len(frame), partial(_polars_batches, frame))
    if not hasattr(frame, "collect_batches"):
        raise WrongType(
            "table: expected a DataFrame, got a LazyFrame, which this version of polars cannot read in batches"
        )
    return TableSource(list(frame.collect_schema().names()), None, partial(_polars_batches, frame))


def _polars_batches(frame: Any, columns: list[str], rows: int) -> Iterator[Any]:
    chosen = frame.select(columns)
    if hasattr(chosen, "collect_batches"):
        parts = chosen.collect_batches(chunk_size=rows, maintain_order=True)
    else:
        parts = chosen.iter_slices(rows)
    for part in parts:
        yield from part.to_arrow().combine_chunks().to_batches()


def _datasets_source(dataset: Any, *, counted: bool) -> TableSource:
    if dataset.column_names is None:  # rows of a generator, without types
        return TableSource(list(next(iter(dataset), {})), None, partial(_example_batches, dataset))
    rows = len(dataset) if counted else None
    return TableSource(list(dataset.column_names), rows, partial(_datasets_batches, dataset))


def _example_batches(examples: Iterable[dict[str, Any]], columns: list[str], rows: int) -> Iterator[Any]:
    pyarrow, remaining = load_pyarrow("table: an IterableDataset"), iter(examples)
    while part := list(islice(remaining, rows)):
        yield pyarrow.RecordBatch.from_pydict({name: [one.get(name) for one in part] for name in columns})


def _datasets_batches(dataset: Any, columns: list[str], rows: int) -> Iterator[Any]:
    classes = {name: kind.names for name, kind in (dataset.features or {}).items() if hasattr(kind, "int2str")}
    for table in dataset.select_columns(columns).with_format("arrow").iter(batch_size=rows):
        for place, name in enumerate(columns):
            if name in classes:
                table = table.set_column(place, name, _class_names(table.column(name), classes[name]))
        yield from table.combine_chunks().to_batches()


def _class_names(numbers: Any, names: list[str]) -> Any:
    """Return the names of classes by their numbers; -1 is no class."""
    pyarrow, compute = load_pyarrow("table: a Dataset"), load_pyarrow("table: a Dataset", "pyarrow.compute")
    known = compute.if_else(compute.less(numbers, 0), None, numbers)
    return pyarrow.array(names, pyarrow.string()).take(known.combine_chunks())


def _batch_chunks(source: TableSource, columns: Columns, ids: Any, rows: int, dim: int | None) -> Iterator[LazyChunk]:
    first = 0
    with _report_arrow_errors():
        for batch in rebatch(iter(source.batches(columns.needed, rows)), rows):
            place = range(first, first + len(batch))
            if ids is not None:
                names = _part(ids, "id", place, source.rows)
            else:
                names = id_list(batch.column(columns.id), partial(_row_place, first))
            read = partial(read_batch, batch, columns, first, columns.separator, dim)
            share = place.stop / source.rows if source.rows else 0.0
            yield LazyChunk(span("table", place), share, len(batch), names, read)
            first = place.stop


def _row_place(first: int, row: int) -> str:
    return f"table, row {first + row}"


@contextmanager
def _report_arrow_errors() -> Iterator[None]:
    """Raise InvalidInput for a table that pyarrow cannot convert."""
    try:
        yield
    except load_pyarrow("table").ArrowException as error:
        raise InvalidInput(f"table: cannot be converted to Arrow: {error}") from None


def _array_chunks(
    array: Any, ids: Any, labels: Any, metadata: Any, separator: str | None, rows: int, dim: int | None
) -> Iterator[LazyChunk]:
    total = int(array.shape[0])
    if ids is None or isinstance(ids, str):
        raise InvalidInput(f"id: expected one for each row of the array, such as range({total}), got {ids!r}")
    for start in range(0, total, rows):
        place = range(start, min(total, start + rows))
        read = partial(_array_content, array, labels, metadata, separator, place, dim)
        yield LazyChunk(span("array", place), place.stop / total, len(place), _part(ids, "id", place, total), read)


def _array_content(
    array: Any, labels: Any, metadata: Any, separator: str | None, place: range, dim: int | None
) -> BatchContent:
    features = np.asarray(array[place.start : place.stop])
    check_matrix(features, dim, lambda row: f"array, row {place.start + row}")
    total = int(array.shape[0])
    label_part = None if labels is None else _part(labels, "label", place, total)
    if separator is not None and label_part is not None:
        label_part = [parse_labels(one, span("array", place), separator) for one in label_part]
    return BatchContent(features, label_part, None if metadata is None else _part(metadata, "metadata", place, total))


def _part(values: Any, name: str, place: range, total: int | None) -> Any:
    """Return the entries of these rows; an array that is longer than memory is read only there."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__getitem__") or not hasattr(values, "__len__"):
        raise WrongType(f"{name}: expected one entry for each row, got a value of type {type(values).__name__}")
    entries = values.shape[0] if hasattr(values, "shape") else len(values)
    if entries < place.stop or (total is not None and entries != total):
        raise InvalidInput(f"{name}: expected one entry for each of {total or place.stop} rows, got {entries}")
    part = values[place.start : place.stop]
    if isinstance(part, range):
        return list(part)
    return part.tolist() if name == "id" and hasattr(part, "tolist") else part
