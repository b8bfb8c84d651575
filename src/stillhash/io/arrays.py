"""NumPy arrays: .npy and .npz. Nothing is unpickled, so arrays hold numbers or texts."""

import lzma
import math
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.io.rows import (
    BLOCK_ROWS,
    USUAL_NAMES,
    BatchContent,
    ColumnNames,
    Columns,
    LazyChunk,
    Row,
    RowBlock,
    check_matrix,
    integer_or_text,
    is_missing,
    join_lists,
    parse_labels,
    span,
)

SIBLING_NAMES = ("ids", "labels")  # arrays in files of their own, beside the features
HEADER_ERRORS = (SyntaxError, tokenize.TokenError, TypeError, OverflowError, MemoryError, RecursionError, EOFError)
ZIP_ERRORS = (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error, lzma.LZMAError, EOFError)


def check_npy(file: IO[bytes], size: int) -> None:
    """Raise ValueError unless this is a .npy file whose array fits into `size` bytes; go back to its beginning.

    NumPy would allocate what the header says. Its parser of headers raises nearly anything.
    """
    try:
        major, _ = np.lib.format.read_magic(file)
        length_bytes = 2 if major == 1 else 4
        if int.from_bytes(file.read(length_bytes), "little") > size:
            raise ValueError("the file ends early")
        file.seek(-length_bytes, 1)
        read_header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
        if math.prod(shape) * dtype.itemsize > size:
            raise ValueError("the file ends early")
    except HEADER_ERRORS as error:
        raise ValueError(f"the header cannot be read: {error}") from None
    file.seek(0)


def check_texts(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array; raise ValueError if texts in it have characters that do not exist."""
    if array.dtype.kind == "U" and array.nbytes:
        points = array.ravel(order="K").view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if points.max() > sys.maxunicode:
            raise ValueError(f"expected texts in Unicode, got the character {points.max():#x}")
    return array


def open_npy(path: Path) -> NDArray[Any]:
    """Map the array of a .npy file, of one or two dimensions."""
    try:
        with path.open("rb") as file:
            check_npy(file, path.stat().st_size)
        array = check_texts(np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)))
    except (ValueError, OverflowError, EOFError) as error:
        raise InvalidInput(f"{path.name}: expected a .npy array of numbers or texts: {error}") from None
    if not 1 <= array.ndim <= 2:
        raise InvalidInput(f"{path.name}: expected an array of 1 or 2 dimensions, got shape {array.shape}")
    return array


def siblings(path: Path) -> dict[str, Path]:
    """Return the files shard.ids.npy and shard.labels.npy that are there beside shard.npy."""
    files = {name: path.with_name(f"{path.stem}.{name}.npy") for name in SIBLING_NAMES}
    return {name: file for name, file in files.items() if file.is_file()}


def count_npy(path: Path) -> int:
    """Count the rows, once features and siblings have as many."""
    features = open_npy(path)
    if features.ndim != 2:
        raise InvalidInput(f"{path.name}: expected features (n, D), got shape {features.shape}")
    for name, file in siblings(path).items():
        if (entries := len(open_npy(file))) != len(features):
            raise InvalidInput(f"{path.name}: {name}: expected {len(features)} entries, one per row, got {entries}")
    return len(features)


def npy_blocks(path: Path, start: int, stop: int) -> Iterator[RowBlock]:
    """Yield rows start to stop - 1, with the ids and labels of the siblings."""
    features = open_npy(path)
    others = {name: open_npy(file) for name, file in siblings(path).items()}
    for first in range(start, stop, BLOCK_ROWS):
        rows = slice(first, min(stop, first + BLOCK_ROWS))
        ids = others["ids"][rows].tolist() if "ids" in others else None
        labels = np.asarray(others["labels"][rows]) if "labels" in others else None
        yield RowBlock(np.asarray(features[rows]), ids, labels, None)


def open_arrays(
    path: Path, names: ColumnNames = USUAL_NAMES, *, with_siblings: bool = False
) -> tuple[dict[str, NDArray[Any]], Columns]:
    """Return the needed arrays of a .npz file by name, or the features of a .npy file, perhaps with its siblings.

    They have one entry for each row.
    """
    if path.suffix.lower() == ".npy":
        files = {"features": path, **(siblings(path) if with_siblings else {})}
        arrays = {name: open_npy(file) for name, file in files.items()}
        columns = Columns(list(arrays), path.name, ColumnNames(separator=names.separator))
    else:
        columns, arrays = _read_npz(path, names)
    assert columns.vector is not None
    dimensions = {columns.vector: "2"} | dict.fromkeys(columns.labels, "1 or 2")
    for name, array in arrays.items():
        if str(array.ndim) not in (expected := dimensions.get(name, "1")):
            raise InvalidInput(f"{path.name}: {name}: expected {expected} dimensions, got {array.ndim}")
    rows = len(arrays[columns.vector])
    for name, array in arrays.items():
        if len(array) != rows:
            raise InvalidInput(f"{path.name}: {name}: expected {rows} entries, one per row, got {len(array)}")
    return arrays, columns


def _read_npz(path: Path, names: ColumnNames) -> tuple[Columns, dict[str, NDArray[Any]]]:
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            columns = _npz_columns(list(members), path.name, names)
            for name in columns.needed:
                with archive.open(members[name]) as file:
                    check_npy(file, members[name].file_size)
                    arrays[name] = check_texts(np.lib.format.read_array(file, allow_pickle=False))
            return columns, arrays
    except InvalidInput:
        raise
    except (ValueError, *ZIP_ERRORS) as error:
        raise InvalidInput(f"{path.name}: expected arrays of numbers and texts: {error}") from None


def _npz_columns(header: list[str], source: str, names: ColumnNames) -> Columns:
    columns = Columns(header, source, names, strict=True)
    if columns.vector is None:
        raise InvalidInput(f"{source}: features: expected one array of vectors, got {', '.join(columns.numbered)}")
    return columns


def array_rows(path: Path, names: ColumnNames = USUAL_NAMES) -> Iterator[Row]:
    """Yield rows of a .npy file, which holds features only, or of the arrays of a .npz file: ids, features,
    labels (indicator matrix, or one entry per row), metadata (JSON)."""
    arrays, columns = open_arrays(path, names)
    assert columns.vector is not None
    rows = len(arrays[columns.vector])
    for r in range(rows):
        record = {name: array[r] if array.ndim == 2 else array[r].item() for name, array in arrays.items()}
        where = f"{path.name}, row {r}"
        name = record.get(columns.id or "")
        id_ = integer_or_text(name) if isinstance(name, str) else name
        labels = columns.row_labels(record, where, columns.separator or "|")
        metadata = columns.row_metadata({n: record[n] for n in columns.others if not is_missing(record[n])}, where)
        yield Row(f"row {r}", (r + 1) / rows, id_, record[columns.vector], labels, metadata)


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
