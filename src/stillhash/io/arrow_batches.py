"""Convert Arrow record batches to ids, features, labels and metadata: column by column, without objects per number.

`batch_rows` does the same row by row. It is what the fast conversion is tested against, and it finds the row where the
fast one fails.
"""

from collections.abc import Callable, Iterator
from datetime import date, time
from importlib import import_module
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, MissingExtra
from stillhash.io.columns import Columns
from stillhash.io.rows import Row, is_missing, parse_labels, parse_metadata


class BatchContent(NamedTuple):
    """Features, labels and metadata of the rows of a batch, with one entry for each."""

    features: NDArray[Any]  # (n, D)
    labels: Any
    metadata: Any


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


def join_lists(lists: list[list[list[Any]]], rows: int) -> list[list[Any]]:
    """Join the labels of several columns row by row. Rows may share a list."""
    if len(lists) <= 1:
        return lists[0] if lists else [[]] * rows
    return [[label for some in row for label in some] for row in zip(*lists, strict=True)]


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
