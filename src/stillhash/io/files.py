"""Read the rows of any file in chunks, with ids, labels and metadata from other files if need be; and queries."""

import csv
import hashlib
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.io.arrays import array_file_chunks, array_rows, open_npy, siblings
from stillhash.io.arrow import parquet_chunks, parquet_columns, parquet_rows
from stillhash.io.rows import (
    ID_NAMES,
    USUAL_NAMES,
    BatchContent,
    Chunk,
    ColumnNames,
    LazyChunk,
    Row,
    check_vector,
    integer_or_text,
    parse_json,
    parse_labels,
    parse_metadata,
    read_lines,
    reading,
    vector_length,
)
from stillhash.io.text_files import csv_rows, jsonl_rows

ROW_READERS: dict[str, Callable[[Path, ColumnNames], Iterator[Row]]] = {
    ".jsonl": jsonl_rows,
    ".csv": csv_rows,
    ".parquet": parquet_rows,
    ".npz": array_rows,
    ".npy": array_rows,
}
ARRAY_SUFFIXES = (".npz", ".npy")
COLUMN_SUFFIXES = (*ARRAY_SUFFIXES, ".parquet")  # of files that are read column by column
VECTORS = "a JSON array of numbers, or an array of such arrays"


def read_chunks(
    path: Path,
    dim: int,
    chunk_rows: int,
    *,
    ids: Path | None = None,
    labels: Path | None = None,
    metadata: Path | None = None,
    columns: ColumnNames = USUAL_NAMES,
    require_ids: bool = False,
    first_id: int | None = None,
) -> Iterator[Chunk]:
    """Yield the rows of a file, `chunk_rows` at a time, each with `dim` features.

    ids, labels, metadata : files for what this file lacks, with one entry per row.
    columns : names of columns, where they are not the usual ones.
    require_ids : whether every row must have an id.
    first_id : number the rows of .npy and .npz files without ids from here.
    """
    number_from = first_id if path.suffix.lower() in ARRAY_SUFFIXES else None
    files = {"ids": ids, "labels": labels, "metadata": metadata}
    if check_suffix(path) in COLUMN_SUFFIXES and not any(files.values()):
        options: dict[str, Any] = {"columns": columns, "first_id": number_from, "require_ids": require_ids}
        for lazy in scan_chunks(path, chunk_rows, dim=dim, **options):
            yield lazy.load()._replace(ids=lazy.ids if require_ids else None)
        return
    rows = read_rows(path, columns)
    for field, file in files.items():
        if file is not None:
            rows = _join(rows, path, field, file, columns)
    yield from row_chunks(rows, path, chunk_rows, dim=dim, first_id=number_from, require_ids=require_ids)


def scan_chunks(
    path: Path,
    chunk_rows: int,
    *,
    dim: int | None = None,
    columns: ColumnNames = USUAL_NAMES,
    first_id: int | None = None,
    require_ids: bool = True,
    with_siblings: bool = False,
) -> Iterator[LazyChunk]:
    """Yield the rows of a file in chunks whose ids are read first, and the rest on demand.

    dim : how many numbers each vector must have; None for as many as the first one has.
    first_id : number the rows of a file without ids from here.
    require_ids : whether every row must have an id.
    with_siblings : whether rows of shard.npy have the ids and labels of shard.ids.npy and shard.labels.npy, if any.
    """
    suffix = check_suffix(path)
    with reading(path):
        if suffix in COLUMN_SUFFIXES:
            if suffix == ".parquet":
                chunks = parquet_chunks(path, chunk_rows, columns, dim)
            else:
                chunks = array_file_chunks(path, chunk_rows, columns, dim, with_siblings=with_siblings)
            for lazy in number_rows(chunks, first_id):
                if require_ids and lazy.ids is None:
                    raise InvalidInput(f"{path.name}, row 0: id: {_expected_ids(path)}")
                yield lazy
            return
        rows = read_rows(path, columns)
        for chunk in row_chunks(rows, path, chunk_rows, dim=dim, first_id=first_id, require_ids=require_ids):
            content = BatchContent(chunk.features, chunk.labels, chunk.metadata)
            yield LazyChunk(chunk.place, chunk.progress, len(chunk.features), chunk.ids, partial(_identity, content))


def number_rows(chunks: Iterator[LazyChunk], first_id: int | None) -> Iterator[LazyChunk]:
    """Number the rows of chunks that have no ids, unless `first_id` is None."""
    for chunk in chunks:
        if chunk.ids is None and first_id is not None:
            yield chunk._replace(ids=list(range(first_id, first_id + chunk.rows)))
            first_id += chunk.rows
        else:
            yield chunk


def _identity(content: BatchContent) -> BatchContent:
    return content


def read_features(path: Path, dim: int) -> NDArray[Any]:
    """Return the features (n, dim) of all rows of a file."""
    for chunk in read_chunks(path, dim, sys.maxsize):
        return chunk.features
    raise InvalidInput(f"{path.name}: expected rows, got an empty file")


def read_queries(text: str, dim: int) -> NDArray[Any]:
    """Return queries (m, dim) from JSON itself, from JSON on stdin ('-'), from a .json file, or from a file of rows."""
    path = Path(text)
    if not text.lstrip().startswith("["):
        with reading(path):
            if path.suffix.lower() == ".npy" and (array := open_npy(path)).ndim == 1:
                return check_vector(array, dim, path.name)[None]
            if text != "-" and path.suffix.lower() != ".json":
                return read_features(path, dim)
            text = "".join(line for _, line, _ in read_lines(path))
    vectors: list[Any] = []
    while text := text.strip():  # one array after another, as a program prints them
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"vector: expected {VECTORS}: {error}") from None
        if not isinstance(value, list) or not value:
            raise InvalidInput(f"vector: expected {VECTORS}, got {text[:40]!r}")
        vectors += value if isinstance(value[0], list) else [value]
        text = text[end:]
    if not vectors:
        raise InvalidInput(f"vector: expected {VECTORS}, got nothing")
    return np.stack([check_vector(vector, dim, f"vector {number}") for number, vector in enumerate(vectors)])


def check_suffix(path: Path) -> str:
    """Return the suffix of a file of rows, '.jsonl' for stdin."""
    suffix = ".jsonl" if str(path) == "-" else path.suffix.lower()
    if suffix not in ROW_READERS:
        known = ", ".join(ROW_READERS)
        raise InvalidInput(f"{path}: expected a file that ends in {known}, or '-' for JSON lines from stdin")
    return suffix


def has_columns(path: Path) -> bool:
    """Return whether this is a file of named columns; arrays without ids are numbered."""
    return check_suffix(path) not in ARRAY_SUFFIXES


def read_rows(path: Path, columns: ColumnNames = USUAL_NAMES) -> Iterator[Row]:
    """Yield the rows of a file, as its suffix says; '-' is JSON lines from stdin."""
    suffix = check_suffix(path)
    with reading(path):
        yield from ROW_READERS[suffix](path, columns)


def row_chunks(
    rows: Iterator[Row], path: Path, chunk_rows: int, *, dim: int | None, first_id: int | None, require_ids: bool
) -> Iterator[Chunk]:
    """Collect rows to chunks; number those of a file without ids from `first_id`, unless it is None."""
    pending: list[Row] = []
    for number, row in enumerate(rows):
        where = f"{path.name}, {row.place}"
        if number == 0 and row.ids is not None:
            first_id = None
        if require_ids and row.ids is None:
            if first_id is None:
                raise InvalidInput(f"{where}: id: {_expected_ids(path)}")
            row = row._replace(ids=first_id + number)
        dim = vector_length(row.features) if dim is None else dim
        pending.append(row._replace(features=check_vector(row.features, dim, where)))
        if len(pending) == chunk_rows:
            yield _chunk(pending, path, require_ids)
            pending = []
    if pending:
        yield _chunk(pending, path, require_ids)


def _expected_ids(path: Path) -> str:
    expected = f"expected one for each row, in a column {', '.join(ID_NAMES)} or one that is named"
    return f"{expected}, got none in {', '.join(list_columns(path)) or 'the file'}"


def _chunk(rows: list[Row], path: Path, require_ids: bool) -> Chunk:
    places: dict[Any, str] = {}
    for row in rows if require_ids else ():
        if isinstance(row.ids, (str, int)) and (first := places.setdefault(row.ids, row.place)) != row.place:
            raise InvalidInput(f"{path.name}, {row.place}: id: expected a new one, got {row.ids!r} as in {first}")
    return Chunk(
        f"{path.name}, {rows[0].place}" + (f" to {rows[-1].place}" if len(rows) > 1 else ""),
        rows[-1].progress,
        [row.ids for row in rows] if require_ids else None,
        np.stack([row.features for row in rows]),
        [row.labels for row in rows],
        [row.metadata for row in rows],
    )


def _join(rows: Iterator[Row], path: Path, field: str, file: Path, columns: ColumnNames) -> Iterator[Row]:
    """Add one field from another file; both are counted first, since one row too many makes every pair suspect."""
    if str(path) == "-":
        raise InvalidInput(f"--{field}: expected no file with rows from stdin, which carry their own {field}")
    expected, entries = sum(1 for _ in read_rows(path, columns)), sum(1 for _ in _entries(file, field))
    if expected != entries:
        raise InvalidInput(f"{file.name}: expected {expected} entries, one per row of {path.name}, got {entries}")
    for row, value in zip(rows, _entries(file, field), strict=True):
        if getattr(row, field) is not None:
            raise InvalidInput(f"{path.name}, {row.place}: {field}: expected none with --{field}, got some")
        yield row._replace(**{field: value})


def _entries(path: Path, field: str) -> Iterator[Any]:
    """Yield one entry per row: of a .npy array, of JSON lines, or of lines of text."""
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".jsonl", ".txt"):
        expected = ".npy, .jsonl (JSON per line) or .txt (one line per row)"
        raise InvalidInput(f"--{field}: expected {expected}, got {path.name}")
    with reading(path):
        if suffix == ".npy":
            yield from (_entry(value, field, f"{path.name}, row {n}") for n, value in enumerate(open_npy(path)))
            return
        for number, line, _ in read_lines(path):
            where = f"{path.name}, line {number}"
            value = parse_json(line, where) if suffix == ".jsonl" else line.strip()
            yield value if suffix == ".jsonl" and field != "metadata" else _entry(value, field, where)


def _entry(value: Any, field: str, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if field == "labels":
        return parse_labels(value, where)
    if field == "metadata":
        return parse_metadata(value, where)
    if isinstance(value, np.ndarray) or value == "":
        raise InvalidInput(f"{where}: id: expected one for each row, got none")
    return integer_or_text(value) if isinstance(value, str) else value


def list_columns(path: Path) -> list[str]:
    """Return the columns of a file of rows: of its header, its schema, its arrays or its first object."""
    match path.suffix.lower():
        case ".parquet":
            return parquet_columns(path)
        case ".csv":
            lines = (line for _, line, _ in read_lines(path))
            return [name.strip() for name in next(csv.reader(lines, skipinitialspace=True), [])]
        case ".npz":
            with zipfile.ZipFile(path) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist()]
        case ".jsonl":
            first = islice((line for _, line, _ in read_lines(path) if line.strip()), 1)
            return [str(key) for line in first for key in parse_json(line, path.name)]
        case _:
            return []


EDGE_BYTES = 1 << 20  # of the beginning and of the end of a file are compared


def source_digest(path: Path) -> str:
    """Return a digest of the size, the beginning and the end of a file, and of the siblings of a .npy file."""
    if str(path) == "-":
        raise InvalidInput("file: expected a file, which can be read again, got stdin")
    digest = hashlib.sha256()
    with reading(path):
        for file in (path, *(siblings(path).values() if path.suffix.lower() == ".npy" else ())):
            size = file.stat().st_size
            digest.update(size.to_bytes(8, "little"))
            with file.open("rb") as handle:
                digest.update(handle.read(EDGE_BYTES))
                handle.seek(max(0, size - EDGE_BYTES))
                digest.update(handle.read(EDGE_BYTES))
    return digest.hexdigest()
