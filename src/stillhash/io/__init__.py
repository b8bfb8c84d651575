"""Rows from files, a chunk at a time: .npy, .npz, .csv, .jsonl, .parquet, and JSON lines from stdin as '-'.

Whatever the format, a file is a stream of rows. A row that cannot be read ends the stream with an error that names the
file, the place and what is wanted; nothing is skipped. Lines count from 1, rows of arrays and of Parquet from 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.io.arrays import array_of, npy, npz
from stillhash.io.rows import Row, json_lines, labels_of, lines_of, metadata_of, parsed, readable, word
from stillhash.io.tables import csv_table, parquet

READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": json_lines,
    ".csv": csv_table,
    ".parquet": parquet,
    ".npz": npz,
    ".npy": npy,
}
ARRAYS = (".npz", ".npy")

Features = NDArray[Any]  # (n, D) real numbers, finite


class Chunk(NamedTuple):
    place: str  # of its first and last row
    done: float  # the share of the file that is read
    ids: list[Any] | None
    features: Features
    labels: list[Any]
    metadata: list[Any]


def chunks(
    path: Path,
    dim: int,
    size: int,
    *,
    ids: Path | None = None,
    labels: Path | None = None,
    metadata: Path | None = None,
    named: bool = False,
    first: int | None = None,
) -> Iterator[Chunk]:
    """The rows of a file, `size` at a time, each with `dim` features.

    ids, labels, metadata : files of their own for what this file lacks, with an entry for each of its rows.
    named : whether every row must have an id.
    first : rows of .npy and .npz without ids are numbered from here.
    """
    rows = rows_of(path)
    for field, beside in (("ids", ids), ("labels", labels), ("metadata", metadata)):
        if beside is not None:
            rows = _joined(rows, path, field, beside)
    some: list[Row] = []
    for number, row in enumerate(rows):
        if named and row.ids is None:
            if first is None or path.suffix.lower() not in ARRAYS:
                raise InvalidInput(f"{path.name}, {row.place}: there is no id; each row wants one, or --ids FILE")
            row = row._replace(ids=first + number)
        some.append(row._replace(features=_vector(row.features, dim, f"{path.name}, {row.place}")))
        if len(some) == size:
            yield _chunk(some, path, named)
            some = []
    if some:
        yield _chunk(some, path, named)


def rows_of(path: Path) -> Iterator[Row]:
    suffix = ".jsonl" if str(path) == "-" else path.suffix.lower()
    if suffix not in READERS:
        known = ", ".join(READERS)
        raise InvalidInput(f"{path}: files of rows end in {known}; or '-' for JSON lines from stdin")
    with readable(path):
        yield from READERS[suffix](path)


def all_features(path: Path, dim: int) -> Features:
    """The features of all rows of a file."""
    found = [chunk.features for chunk in chunks(path, dim, 1000)]
    if not found:
        raise InvalidInput(f"{path.name}: there are no rows")
    return np.concatenate(found)


def queries(text: str, dim: int) -> Features:
    """Query vectors (m, D): from JSON itself, from JSON on stdin ('-'), from a .json file, or from a file of rows."""
    path = Path(text)
    if not text.lstrip().startswith("["):
        if text != "-" and path.suffix.lower() != ".json":
            return one[None] if (one := _single(path, dim)) is not None else all_features(path, dim)
        with readable(path):
            text = "".join(line for _, line, _ in lines_of(path))
    found: list[Any] = []
    while text := text.strip():  # one array after another, as a program prints them
        value, end = _first_array(text)
        found += value if isinstance(value[0], list) else [value]
        text = text[end:]
    if not found:
        raise InvalidInput("vector: there is nothing; a JSON array of numbers, or an array of such arrays, is wanted")
    return np.stack([_vector(one, dim, f"vector {number}") for number, one in enumerate(found)])


def _single(path: Path, dim: int) -> NDArray[Any] | None:
    """The one vector that a .npy file holds, if it does."""
    if path.suffix.lower() != ".npy":
        return None
    with readable(path):
        array = array_of(path)
    return _vector(array, dim, path.name) if array.ndim == 1 else None


def _first_array(text: str) -> tuple[list[Any], int]:
    """The JSON array that a text begins with, and where it ends."""
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"vector: it is not JSON: {error}") from None
    if not isinstance(value, list) or not value:
        raise InvalidInput("vector: a JSON array of numbers, or an array of such arrays, is wanted")
    return value, end


def _vector(value: Any, dim: int, where: str) -> NDArray[Any]:
    try:
        vector = np.asarray(value)
    except ValueError:
        vector = np.empty((0, 0))  # lists within, of several lengths
    if vector.ndim != 1 or (vector.size and vector.dtype.kind not in "fiub"):
        raise InvalidInput(f"{where}: features holds other than numbers; {dim} numbers are wanted")
    if len(vector) != dim:
        raise InvalidInput(f"{where}: features has {len(vector)} numbers; {dim} are wanted")
    if not np.isfinite(vector).all():
        at = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise InvalidInput(f"{where}: features[{at}] is {vector[at]}; finite numbers are wanted")
    return vector


def _chunk(rows: list[Row], path: Path, named: bool) -> Chunk:
    ids: dict[Any, str] = {}
    for row in rows if named else ():
        if isinstance(row.ids, (str, int)) and row.ids in ids:
            raise InvalidInput(f"{path.name}, {row.place}: id {row.ids!r} is there already, in {ids[row.ids]}")
        if isinstance(row.ids, (str, int)):
            ids[row.ids] = row.place
    return Chunk(
        f"{path.name}, {rows[0].place}" + (f" to {rows[-1].place}" if len(rows) > 1 else ""),
        rows[-1].done,
        [row.ids for row in rows] if named else None,
        np.stack([row.features for row in rows]),
        [row.labels for row in rows],
        [row.metadata for row in rows],
    )


# ---- what comes in a file of its own ----


def _joined(rows: Iterator[Row], path: Path, field: str, beside: Path) -> Iterator[Row]:
    """The rows with one field from another file; counted first, for one row too many means all are suspect."""
    if str(path) == "-":
        raise InvalidInput(f"--{field}: rows from stdin carry their own {field}")
    wanted, found = sum(1 for _ in rows_of(path)), sum(1 for _ in _entries(beside, field))
    if wanted != found:
        raise InvalidInput(f"{beside.name}: there are {found} entries for the {wanted} rows of {path.name}")
    for row, value in zip(rows, _entries(beside, field), strict=True):
        if getattr(row, field) is not None:
            raise InvalidInput(f"{path.name}, {row.place}: it has {field} of its own; --{field} gives them again")
        yield row._replace(**{field: value})


def _entries(path: Path, field: str) -> Iterator[Any]:
    """One entry for each row: of a .npy array, of JSON lines, or of lines of text."""
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".jsonl", ".txt"):
        raise InvalidInput(f"{path.name}: files of {field} end in .npy, .jsonl (JSON a line) or .txt (a row a line)")
    with readable(path):
        if suffix == ".npy":
            yield from (_entry(value, field, f"{path.name}, row {n}") for n, value in enumerate(array_of(path)))
            return
        for number, line, _ in lines_of(path):
            where = f"{path.name}, line {number}"
            value = parsed(line, where) if suffix == ".jsonl" else line.strip()
            yield value if suffix == ".jsonl" and field != "metadata" else _entry(value, field, where)


def _entry(value: Any, field: str, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if field == "labels":
        return labels_of(value, where)
    if field == "metadata":
        return metadata_of(value, where)
    if isinstance(value, np.ndarray) or value == "":
        raise InvalidInput(f"{where}: there is no id; one for each row is wanted")
    return word(value) if isinstance(value, str) else value


def ids_from(lines: Iterator[str]) -> list[str | int]:
    """Ids, one a line; empty lines are none."""
    return [word(line.strip()) for line in lines if line.strip()]


def json_object(text: str | None, name: str) -> dict[str, Any] | None:
    """An option that holds a JSON object."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{name} is {text!r}; a JSON object is wanted: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"{name} is {text!r}; a JSON object is wanted")
    return found
