"""A range of the rows of one file, a block at a time, so that a part of any size fits into memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, time
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.types import Id, check_labels, check_metadata
from stillhash.encoders.files import Encoded, encode_files
from stillhash.errors import InvalidInput, MissingExtra
from stillhash.numeric.validation import Floats

BLOCK = 2048  # rows that are read at a time
IMAGES = 256  # the same of images
COLUMNS = ("id", "features", "labels", "metadata")


class Rows(NamedTuple):
    features: Floats  # (n, D) as they lie; the door is further on
    ids: list[Id] | None  # None: by their numbers
    labels: list[list[Any]]
    metadata: list[str | None]  # JSON
    pictures: list[bytes | None] | None = None
    broken: dict[str, str] | None = None  # files that are no images, and why


# ---- .npy ----


def beside(path: Path, what: str) -> Path:
    """Where the ids or labels of a shard would lie."""
    return path.with_name(f"{path.stem}.{what}.npy")


def npy_rows(path: Path) -> int:
    features = _array(path)
    if features.ndim != 2:
        raise InvalidInput(f"the array has shape {features.shape}; features (n, D) are wanted")
    for what in ("ids", "labels"):
        if beside(path, what).is_file() and (found := len(_array(beside(path, what)))) != len(features):
            raise InvalidInput(f"there are {found} {what} for {len(features)} rows")
    return len(features)


def read_npy(path: Path, start: int, stop: int) -> Iterator[Rows]:
    features = _array(path)
    ids, labels = (_array(file) if (file := beside(path, what)).is_file() else None for what in ("ids", "labels"))
    for s in range(start, stop, BLOCK):
        some = slice(s, min(stop, s + BLOCK))
        rows = some.stop - s
        told = check_labels(None, rows) if labels is None else _named(np.asarray(labels[some]))
        yield Rows(np.asarray(features[some]), None if ids is None else ids[some].tolist(), told, [None] * rows)


def _named(labels: NDArray[Any]) -> list[list[Any]]:
    """The labels of each row; where rows have one each, a label is looked at once, however many rows have it."""
    if labels.ndim != 1:
        return check_labels(labels, len(labels))
    values, places = np.unique(labels, return_inverse=True)
    names = check_labels(values, len(values))
    return [names[place] for place in places.tolist()]


def _array(path: Path) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidInput(f"it is no .npy array of numbers or texts: {error}") from None
    if found.ndim < 1:
        raise InvalidInput("the array is one number; rows are wanted")
    return found


# ---- Parquet ----


def parquet_rows(path: Path) -> int:
    with _parquet(path) as file:
        if "features" not in file.schema_arrow.names:
            raise InvalidInput(f"there are the columns {', '.join(file.schema_arrow.names)}; features is wanted")
        return int(file.metadata.num_rows)


def read_parquet(path: Path, start: int, stop: int) -> Iterator[Rows]:
    """Only the row groups that hold these rows are read, and of them only our columns."""
    with _parquet(path) as file:
        ends = np.cumsum([file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)])
        low_group, high_group = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
        groups = list(range(low_group, high_group + 1))
        at = int(ends[groups[0] - 1]) if groups[0] else 0
        columns = [name for name in COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(BLOCK, row_groups=groups, columns=columns):
            low, high = max(start, at), min(stop, at + len(batch))
            if low < high:
                yield _of_batch(batch.slice(low - at, high - low))
            at += len(batch)


def _parquet(path: Path) -> Any:
    try:
        return import_module("pyarrow.parquet").ParquetFile(path)
    except ModuleNotFoundError:
        raise MissingExtra(f"{path.name}: Parquet needs pyarrow: pip install 'stillhash[parquet]'") from None
    except import_module("pyarrow").ArrowException as error:
        raise InvalidInput(f"it cannot be read as Parquet: {error}") from None


def _of_batch(batch: Any) -> Rows:
    columns = {name: batch.column(name) for name in batch.schema.names}
    told = {name: column.to_pylist() for name, column in columns.items() if name != "features"}
    labels = [one if isinstance(one, list) or one is None else [one] for one in told.get("labels", [None] * len(batch))]
    metadata = [_object(one) for one in told.get("metadata", [None] * len(batch))]
    if None in told.get("id", ()):
        raise InvalidInput("id is null somewhere; each row wants one, or none has one")
    return Rows(
        _vectors(columns["features"]),
        told.get("id"),
        check_labels(labels, len(batch)),
        check_metadata(metadata, len(batch)),
    )


def _vectors(column: Any) -> NDArray[Any]:
    """Lists of numbers, of whichever kind of list, as a matrix."""
    types = import_module("pyarrow").types
    kind = column.type
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        raise InvalidInput(f"features is of type {kind}; lists of numbers are wanted")
    flat = column.flatten()
    if column.null_count or flat.null_count or len(set(column.value_lengths().to_pylist())) != 1:
        raise InvalidInput("features is null somewhere, or its lists are of several lengths; one length is wanted")
    return np.asarray(flat.to_numpy(zero_copy_only=False).reshape(len(column), -1))


def _object(value: Any) -> Any:
    """Metadata as a dictionary: JSON is read, dates are told as texts, what is null is left out."""
    if isinstance(value, str):
        return _parsed(value) if value.strip() else None
    if not isinstance(value, dict):
        return value
    known = {key: one for key, one in value.items() if one is not None}
    return {key: one.isoformat() if isinstance(one, (date, time)) else one for key, one in known.items()} or None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"metadata is {text!r}, which is not JSON: {error}") from None


READERS: dict[str, tuple[Callable[[Path], int], Callable[[Path, int, int], Iterator[Rows]]]] = {
    ".npy": (npy_rows, read_npy),
    ".parquet": (parquet_rows, read_parquet),
}

# ---- images ----


def read_images(folder: Path, names: list[str], encoder: str) -> Iterator[Rows]:
    """The images of these names; those that cannot be read are told, and are no rows."""
    usable = [name for name in names if name.isprintable()]
    broken = {ascii(name): "its name cannot be printed, so it can be no id" for name in names if name not in usable}
    encoded = encode_files(encoder, [folder / name for name in usable], workers=1)
    while entries := list(islice(encoded, IMAGES)):
        good = [entry for entry in entries if entry.features is not None]
        broken |= {_name(folder, e): e.error or "it cannot be read" for e in entries if e.features is None}
        if good:
            X = np.stack([entry.features for entry in good if entry.features is not None])
            about = check_metadata([_about(entry) for entry in good], len(good))
            ids: list[Id] = [_name(folder, entry) for entry in good]
            yield Rows(X, ids, [[] for _ in good], about, [entry.thumbnail for entry in good])
    if broken:
        yield Rows(np.empty((0, 0), np.float32), [], [], [], [], broken)


def _name(folder: Path, entry: Encoded) -> str:
    return Path(entry.path).relative_to(folder).as_posix()


def _about(entry: Encoded) -> dict[str, Any] | None:
    """As a folder of images is indexed on one machine, so that either way may go on with what the other began."""
    if entry.size is None or entry.content is None:
        return None
    return {"width": entry.size[0], "height": entry.size[1], "content": entry.content[:32]}
