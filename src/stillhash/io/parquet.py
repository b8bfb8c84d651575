"""Parquet, by pyarrow. A null is a missing value; dates become texts."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, MissingExtra
from stillhash.io.arrays import BLOCK_ROWS, RowBlock
from stillhash.io.rows import Row, parse_labels, parse_metadata
from stillhash.io.tables import Columns

BLOCK_COLUMNS = ("id", "features", "labels", "metadata")


def parquet_rows(path: Path) -> Iterator[Row]:
    """Yield rows with the columns of CSV; features and labels may be lists, and metadata a struct."""
    with _open(path) as file:
        columns, number = Columns(file.schema_arrow.names, path), 0
        for batch in file.iter_batches(batch_size=1000):
            names = [name for name in batch.schema.names if name in ("id", "labels", *columns.others)]
            records = batch.select(names).to_pylist() if names else [{}] * len(batch)
            for record, features in zip(records, _row_features(batch, columns), strict=True):
                where = f"{path.name}, row {number}"
                labels = parse_labels(record["labels"], where) if "labels" in record else None
                metadata = columns.metadata(_plain(record), where)
                progress = (number + 1) / file.metadata.num_rows
                yield Row(f"row {number}", progress, record.get("id"), features, labels, metadata)
                number += 1


def count_parquet(path: Path) -> int:
    """Count the rows of a file that has features."""
    with _open(path) as file:
        names = file.schema_arrow.names
        if "features" not in names:
            raise InvalidInput(f"{path.name}: columns: expected features, got {', '.join(names)}")
        return int(file.metadata.num_rows)


def parquet_blocks(path: Path, start: int, stop: int) -> Iterator[RowBlock]:
    """Yield rows start to stop - 1, reading only the row groups that hold them, and only the columns of a block."""
    with _open(path) as file:
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
def _open(path: Path) -> Iterator[Any]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise MissingExtra(f"{path.name}: Parquet needs pyarrow: pip install 'stillhash[parquet]'") from None
    damage: tuple[type[Exception], ...] = (import_module("pyarrow").ArrowException, UnicodeDecodeError)
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except damage as error:
        raise InvalidInput(f"{path.name}: cannot be read as Parquet: {error}") from None


def _block(batch: Any, where: str) -> RowBlock:
    columns = {name: batch.column(name) for name in batch.schema.names}
    values = {name: column.to_pylist() for name, column in columns.items() if name != "features"}
    if None in values.get("id", ()):
        raise InvalidInput(f"{where}: id: expected one for each row or no such column, got null")
    features = _matrix(columns["features"])
    if features is None:
        kind = columns["features"].type
        raise InvalidInput(f"{where}: features: expected lists of numbers of one length without nulls, got {kind}")
    labels, metadata = values.get("labels"), values.get("metadata")
    if labels is not None:
        labels = [one if isinstance(one, list) or one is None else [one] for one in labels]
    if metadata is not None:
        metadata = [_plain(parse_metadata(one, where) or {}) or None for one in metadata]
    return RowBlock(features, values.get("id"), labels, metadata)


def _matrix(column: Any) -> NDArray[Any] | None:
    """Return lists of numbers, of any kind of list, as (n, D); None if there are nulls or several lengths."""
    types = import_module("pyarrow").types
    kind = column.type
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return None
    flat = column.flatten()
    if column.null_count or flat.null_count or len(set(column.value_lengths().to_pylist())) != 1:
        return None
    return np.asarray(flat.to_numpy(zero_copy_only=False).reshape(len(column), -1))


def _row_features(batch: Any, columns: Columns) -> Any:
    """Return the features of each row of a batch, as stored."""
    if columns.numbered:
        return np.stack([batch.column(name).to_numpy(zero_copy_only=False) for name in columns.numbered], axis=1)
    matrix = _matrix(batch.column("features"))
    return batch.column("features").to_pylist() if matrix is None else matrix


def _plain(value: Any) -> Any:
    """Return a value without nulls, in a struct at any depth, and with dates as texts."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items() if one is not None}
    return value.isoformat() if isinstance(value, (date, time)) else value
