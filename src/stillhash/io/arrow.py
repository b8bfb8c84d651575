"""Arrow record batches and Parquet files, by pyarrow. A null is a missing value; dates become texts.

A batch is converted column by column, without objects per number. `batch_rows` does the same row by row: it is what the
fast conversion is tested against, and it finds the row where the fast one fails.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, MissingExtra, StillhashError
from stillhash.io.rows import (
    BLOCK_ROWS,
    USUAL_NAMES,
    BatchContent,
    ColumnNames,
    Columns,
    LazyChunk,
    Row,
    RowBlock,
    check_vector,
    is_missing,
    is_valid,
    join_lists,
    parse_labels,
    parse_metadata,
    reading,
    vector_length,
)

BLOCK_COLUMNS = ("id", "features", "labels", "metadata")
ROW_BATCH = 1000  # rows of a batch that is read row by row
RUN_CHUNKS = 16  # chunks of row groups that are read together, so that few chunks are shorter than the others
COLUMN_READ_BYTES = 1 << 20  # of a column are read at a time, so that a large row group is not held in memory
CONVERSION_ERRORS = (ValueError, TypeError, NotImplementedError, OverflowError)  # of pyarrow too, for rare types


def load_pyarrow(what: str, module: str = "pyarrow") -> Any:
    """Import pyarrow, or a module of it; MissingExtra names the extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise MissingExtra(f"{what} needs pyarrow: pip install 'stillhash[parquet]'") from None


def rebatch(batches: Iterator[Any], rows: int) -> Iterator[Any]:
    """Yield the same rows in record batches of `rows` each; the last may be shorter."""
    pending: list[Any] = []
    size = 0
    for batch in batches:
        if not pending and len(batch) == rows:
            yield batch
            continue
        start = 0
        while len(batch) - start >= rows - size:
            part = batch.slice(start, rows - size)
            yield _concatenate([*pending, part])
            start, pending, size = start + len(part), [], 0
        if start < len(batch):
            pending.append(batch.slice(start))
            size += len(batch) - start
    if pending:
        yield _concatenate(pending)


def batch_content(batch: Any, columns: Columns, first_row: int, separator: str | None) -> BatchContent | None:
    """Convert a batch column by column; None if some value needs a look at its row."""
    features = _features(batch, columns)
    if features is None:
        return None
    where = f"{columns.source}, rows {first_row} to {first_row + len(batch) - 1}"
    lists = [_label_lists(batch.column(name), name, where, separator) for name in columns.labels]
    return BatchContent(features, join_lists(lists, len(batch)), _metadata(batch, columns, where))


def batch_rows(batch: Any, columns: Columns, first_row: int, separator: str | None) -> Iterator[Row]:
    """Yield the rows of a batch, each parsed by itself."""
    vectors = batch.column(columns.vector).to_pylist() if columns.vector is not None else None
    names = [name for name in batch.schema.names if name in (columns.id, *columns.labels, *columns.others)]
    for number in range(len(batch)):
        where = f"{columns.source}, row {first_row + number}"
        record = {name: batch.column(name)[number].as_py() for name in names}
        labels = columns.row_labels(record, where, separator)
        metadata = columns.row_metadata(plain({name: record[name] for name in columns.others}), where)
        if vectors is None:
            features = np.array([batch.column(name)[number].as_py() for name in columns.numbered])
        else:
            features = vectors[number]
        id_ = plain_id(record.get(columns.id or ""))
        yield Row(f"row {first_row + number}", 0.0, id_, features, labels, metadata)


def read_batch(batch: Any, columns: Columns, first_row: int, separator: str | None, dim: int | None) -> BatchContent:
    """Convert a record batch to features, labels and metadata, each vector with `dim` finite numbers.

    Where the fast conversion cannot, rows are parsed one by one: then the error names the row.
    """
    try:
        content = batch_content(batch, columns, first_row, separator)
        if content is not None and is_valid(content.features, dim):
            return content
        rows = list(batch_rows(batch, columns, first_row, separator))
    except CONVERSION_ERRORS as error:
        if isinstance(error, StillhashError):
            raise
        raise InvalidInput(f"{columns.source}, from row {first_row} on: cannot be converted: {error}") from None
    dim = vector_length(rows[0].features) if dim is None else dim
    features = [check_vector(row.features, dim, f"{columns.source}, {row.place}") for row in rows]
    return BatchContent(np.stack(features), [row.labels or [] for row in rows], [row.metadata for row in rows])


def list_matrix(column: Any) -> NDArray[Any] | None:
    """Return lists of numbers, or bytes of a fixed length, as (n, D); None if there are nulls or several lengths."""
    pyarrow = import_module("pyarrow")
    types = pyarrow.types
    if isinstance(column, pyarrow.ExtensionArray):
        column = column.storage
    kind = column.type
    if types.is_fixed_size_binary(kind) and not column.null_count:
        return np.frombuffer(b"".join(column.to_pylist()), np.uint8).reshape(len(column), kind.byte_width)
    variable = types.is_list(kind) or types.is_large_list(kind)
    if not (variable or types.is_fixed_size_list(kind)) or column.null_count or not len(column):
        return None
    if not (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        return None
    if variable:
        ends = column.offsets.to_numpy()
        if (np.diff(ends) != ends[1] - ends[0]).any():
            return None
    flat = column.flatten()
    return None if flat.null_count else np.asarray(flat.to_numpy(zero_copy_only=False).reshape(len(column), -1))


def id_list(column: Any, where: Callable[[int], str]) -> list[Any]:
    """Return the ids of a column, which must not have nulls."""
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InvalidInput(f"{where(row)}: id: expected one for each row, got null")
    return list(map(plain_id, column.to_pylist()))


def plain_id(value: Any) -> Any:
    """Return an id; a UUID as text."""
    return str(value) if isinstance(value, UUID) else value


def plain(value: Any) -> Any:
    """Return a value without nulls, in a struct at any depth, without NaN, and with dates as texts."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if not is_missing(one)}
    return value.isoformat() if isinstance(value, (date, time)) else value


def _concatenate(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    pyarrow = import_module("pyarrow")
    tables = [pyarrow.Table.from_batches([batch]) for batch in batches]
    return pyarrow.concat_tables(tables, promote_options="permissive").combine_chunks().to_batches()[0]


def _features(batch: Any, columns: Columns) -> NDArray[Any] | None:
    if columns.vector is not None:
        return list_matrix(batch.column(columns.vector))
    arrays = [batch.column(name) for name in columns.numbered]
    if any(array.null_count for array in arrays):
        return None
    return np.stack([array.to_numpy(zero_copy_only=False) for array in arrays], axis=1)


def _label_lists(column: Any, name: str, where: str, separator: str | None) -> list[list[Any]]:
    """Return the labels of each row; a text that occurs often is parsed once."""
    types = import_module("pyarrow").types
    none: list[Any] = []
    if types.is_string(column.type) or types.is_large_string(column.type):
        coded = column.dictionary_encode()
        parsed = [parse_labels(value, where, separator, name) for value in coded.dictionary.to_pylist()]
        return [none if code is None else parsed[code] for code in coded.indices.to_pylist()]
    values = column.to_pylist()
    return [none if value is None else parse_labels(value, where, separator, name) for value in values]


def _metadata(batch: Any, columns: Columns, where: str) -> list[dict[str, Any] | None]:
    if not columns.others:
        return [None] * len(batch)
    names = [name for name in columns.others if name != "metadata"]
    fields = [[plain(value) for value in batch.column(name).to_pylist()] for name in names]
    values = zip(*fields, strict=True) if names else iter([()] * len(batch))
    rows = [{n: one for n, one in zip(names, row, strict=True) if not is_missing(one)} for row in values]
    if "metadata" in columns.others:
        wholes = [plain(parse_metadata(one, where) or {}) for one in batch.column("metadata").to_pylist()]
        rows = [whole | row for whole, row in zip(wholes, rows, strict=True)]
    return [row or None for row in rows]


def parquet_rows(path: Path, names: ColumnNames = USUAL_NAMES) -> Iterator[Row]:
    """Yield rows with the columns of CSV; features and labels may be lists, and metadata a struct."""
    with open_parquet(path) as file:
        columns, number = Columns(file.schema_arrow.names, path.name, names), 0
        for batch in file.iter_batches(ROW_BATCH, columns=columns.needed):
            for row in batch_rows(batch, columns, number, columns.separator or "|"):
                number += 1
                yield row._replace(progress=number / file.metadata.num_rows)


def parquet_chunks(path: Path, chunk_rows: int, names: ColumnNames, dim: int | None) -> Iterator[LazyChunk]:
    """Yield the rows in chunks: their ids are read first, and the other columns only of chunks that are needed."""
    with open_parquet(path) as file:
        columns, first = Columns(file.schema_arrow.names, path.name, names), 0
        total = file.metadata.num_rows
        size = max(1, min(chunk_rows, total))
        for groups, rows in _group_runs(file, RUN_CHUNKS * size):
            content = _BatchesFromFirstNeeded(path, file, groups, size, columns)
            id_columns = [] if columns.id is None else [columns.id]
            id_batches = rebatch(file.iter_batches(size, row_groups=groups, columns=id_columns), size)
            for number, start in enumerate(range(0, rows, size)):
                count = min(size, rows - start)
                ids = None
                if columns.id is not None:
                    ids = id_list(next(id_batches).column(0), partial(_place, path, first))
                read = partial(content.read, number, first, dim)
                yield LazyChunk(_place(path, first, 0, count), (first + count) / total, count, ids, read)
                first += count


class _BatchesFromFirstNeeded:
    """The batches of some row groups, which are read from the first one that is needed."""

    def __init__(self, path: Path, file: Any, groups: list[int], rows: int, columns: Columns) -> None:
        batches = file.iter_batches(rows, row_groups=groups, columns=columns.needed)
        self._batches = enumerate(rebatch(batches, rows))
        self.path, self.columns = path, columns

    def read(self, number: int, first: int, dim: int | None) -> BatchContent:
        """Read batch `number`, which begins at row `first`; numbers must rise."""
        with reading(self.path), _report_damage(self.path):
            batch = next(batch for n, batch in self._batches if n == number)
        return read_batch(batch, self.columns, first, self.columns.separator or "|", dim)


def parquet_columns(path: Path) -> list[str]:
    """Return the names of the columns."""
    with open_parquet(path) as file:
        return list(file.schema_arrow.names)


def count_parquet(path: Path) -> int:
    """Count the rows of a file that has features."""
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        if "features" not in names:
            raise InvalidInput(f"{path.name}: columns: expected features, got {', '.join(names)}")
        return int(file.metadata.num_rows)


def parquet_blocks(path: Path, start: int, stop: int) -> Iterator[RowBlock]:
    """Yield rows start to stop - 1, reading only the row groups that hold them, and only the columns of a block."""
    with open_parquet(path) as file:
        ends = np.cumsum([file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)])
        low_group, high_group = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
        groups = list(range(low_group, high_group + 1))
        at = int(ends[groups[0] - 1]) if groups[0] else 0
        columns = [name for name in BLOCK_COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(BLOCK_ROWS, row_groups=groups, columns=columns):
            low, high = max(start, at), min(stop, at + len(batch))
            if low < high:
                yield _block(batch.slice(low - at, high - low), f"{path.name}, rows {low} to {high - 1}")
            at += len(batch)


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a file, with InvalidInput for one that pyarrow cannot read, now or later."""
    parquet = load_pyarrow(f"{path.name}: Parquet", "pyarrow.parquet")
    with _report_damage(path), parquet.ParquetFile(path, pre_buffer=False, buffer_size=COLUMN_READ_BYTES) as file:
        yield file


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    """Raise InvalidInput for a file that pyarrow cannot read."""
    try:
        yield
    except (load_pyarrow("Parquet").ArrowException, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path.name}: cannot be read as Parquet: {error}") from None


def _group_runs(file: Any, least_rows: int) -> Iterator[tuple[list[int], int]]:
    """Yield consecutive row groups that have so many rows together, with their number; the last may have fewer."""
    groups: list[int] = []
    rows = 0
    for group in range(file.metadata.num_row_groups):
        groups, rows = [*groups, group], rows + file.metadata.row_group(group).num_rows
        if rows >= least_rows:
            yield groups, rows
            groups, rows = [], 0
    if rows:
        yield groups, rows


def _place(path: Path, first: int, offset: int, count: int = 1) -> str:
    last = f" to row {first + offset + count - 1}" if count > 1 else ""
    return f"{path.name}, row {first + offset}{last}"


def _block(batch: Any, where: str) -> RowBlock:
    columns = {name: batch.column(name) for name in batch.schema.names}
    values = {name: column.to_pylist() for name, column in columns.items() if name != "features"}
    if None in values.get("id", ()):
        raise InvalidInput(f"{where}: id: expected one for each row or no such column, got null")
    features = list_matrix(columns["features"])
    if features is None:
        kind = columns["features"].type
        raise InvalidInput(f"{where}: features: expected lists of numbers of one length without nulls, got {kind}")
    labels, metadata = values.get("labels"), values.get("metadata")
    if labels is not None:
        labels = [one if isinstance(one, list) or one is None else [one] for one in labels]
    if metadata is not None:
        metadata = [plain(parse_metadata(one, where) or {}) or None for one in metadata]
    return RowBlock(features, values.get("id"), labels, metadata)
