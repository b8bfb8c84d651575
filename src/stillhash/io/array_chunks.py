"""Read .npy and .npz files in chunks, array by array; `array_rows` does the same row by row."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.io.arrays import open_arrays
from stillhash.io.arrow_batches import BatchContent, join_lists
from stillhash.io.columns import ColumnNames, Columns
from stillhash.io.lazy_chunks import LazyChunk, check_vector, is_valid
from stillhash.io.rows import integer_or_text, is_missing, parse_labels

NamedArrays = dict[str, NDArray[Any]]


def array_file_chunks(
    path: Path, chunk_rows: int, names: ColumnNames, dim: int | None, *, with_siblings: bool = False
) -> Iterator[LazyChunk]:
    """Yield the rows of a .npy or .npz file in chunks; a .npy file is mapped, not read whole."""
    arrays, columns = open_arrays(path, names, with_siblings=with_siblings)
    total = len(arrays[columns.vector or ""])
    for start in range(0, total, chunk_rows):
        rows = range(start, min(total, start + chunk_rows))
        ids = None if columns.id is None else _ids(arrays[columns.id][rows.start : rows.stop])
        read = partial(_content, arrays, columns, rows, dim)
        yield LazyChunk(span(path.name, rows), rows.stop / total, len(rows), ids, read)


def span(source: str, rows: range) -> str:
    """Return where rows are: 'file.npy, row 0 to row 9'."""
    return f"{source}, row {rows.start}" + (f" to row {rows.stop - 1}" if len(rows) > 1 else "")


def check_matrix(features: NDArray[Any], dim: int | None, where: Callable[[int], str]) -> NDArray[Any]:
    """Return rows of `dim` finite numbers, or raise InvalidInput for the first row that is none."""
    if not is_valid(features, dim):
        if features.ndim != 2:
            raise InvalidInput(f"{where(0)}: features: expected rows of numbers, got shape {features.shape}")
        for number, vector in enumerate(features):
            check_vector(vector, features.shape[1] if dim is None else dim, where(number))
    return features


def _content(arrays: NamedArrays, columns: Columns, rows: range, dim: int | None) -> BatchContent:
    part = {name: array[rows.start : rows.stop] for name, array in arrays.items()}
    features = np.asarray(part[columns.vector or ""])
    check_matrix(features, dim, lambda row: f"{columns.source}, row {rows.start + row}")
    where, separator = span(columns.source, rows), columns.separator or "|"
    labels = join_lists([_label_lists(part[name], name, where, separator) for name in columns.labels], len(rows))
    metadata: list[dict[str, Any] | None] = [None] * len(rows)
    for row, values in enumerate(zip(*(part[name].tolist() for name in columns.others), strict=True)):
        named = zip(columns.others, values, strict=True)
        record = {name: value for name, value in named if not is_missing(value)}
        metadata[row] = columns.row_metadata(record, f"{columns.source}, row {rows.start + row}")
    return BatchContent(features, labels, metadata)


def _ids(array: NDArray[Any]) -> list[Any]:
    return [integer_or_text(name) if isinstance(name, str) else name for name in array.tolist()]


def _label_lists(array: NDArray[Any], column: str, where: str, separator: str) -> list[list[Any]]:
    """Return the labels of each row; a text that occurs often is parsed once."""
    if array.ndim == 2:
        if not np.isin(array, (0, 1)).all():
            raise InvalidInput(f"{where}: labels: expected an indicator matrix of 0 and 1, got other values")
        r, c = np.nonzero(array)
        ends = np.searchsorted(r, np.arange(len(array) + 1)).tolist()
        flat = c.tolist()
        return [flat[start:end] for start, end in pairwise(ends)]
    values, codes = np.unique(array, return_inverse=True)
    parsed = [parse_labels(value, where, separator, column) for value in values.tolist()]
    return [parsed[code] for code in codes.tolist()]
