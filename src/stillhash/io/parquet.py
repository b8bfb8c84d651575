"""Parquet, by pyarrow. A null is a missing value; dates become texts."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.errors import InvalidInput
from stillhash.io.arrays import BLOCK_ROWS, RowBlock
from stillhash.io.arrow_batches import BatchContent, batch_rows, id_list, list_matrix, load_pyarrow, plain, rebatch
from stillhash.io.columns import USUAL_NAMES, ColumnNames, Columns
from stillhash.io.lazy_chunks import LazyChunk, read_batch
from stillhash.io.rows import Row, parse_metadata, reading

BLOCK_COLUMNS = ("id", "features", "labels", "metadata")
ROW_BATCH = 1000  # rows of a batch that is read row by row
RUN_CHUNKS = 16  # chunks of row groups that are read together, so that few chunks are shorter than the others
COLUMN_READ_BYTES = 1 << 20  # of a column at a time, so that a large row group is not held in memory


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
