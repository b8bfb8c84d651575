"""Arrays: .npy and .npz. Nothing is unpickled, so arrays hold numbers or texts."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.io.rows import Row, labels_of, metadata_of, word

FIELDS = ("ids", "features", "labels", "metadata")


def array_of(path: Path) -> NDArray[Any]:
    """An array of a .npy file, mapped."""
    try:
        found = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise InvalidInput(f"{path.name}: it is no .npy array of numbers or texts: {error}") from None
    if not 1 <= found.ndim <= 2:
        raise InvalidInput(f"{path.name}: the array has shape {found.shape}; one entry or one line a row is wanted")
    return found


def npy(path: Path) -> Iterator[Row]:
    """Features only."""
    yield from _arrays(path, {"features": array_of(path)})


def npz(path: Path) -> Iterator[Row]:
    """Arrays ids, features, labels (an indicator matrix, or one text or number a row), metadata (JSON texts)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{path.name}: it cannot be read as arrays of numbers and texts: {error}") from None
    yield from _arrays(path, arrays)


def _arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> Iterator[Row]:
    for name, array in arrays.items():
        if name not in FIELDS:
            raise InvalidInput(f"{path.name}: the array {name!r} is not known; {', '.join(FIELDS)} are")
        if array.ndim not in {"features": (2,), "labels": (1, 2)}.get(name, (1,)):
            raise InvalidInput(f"{path.name}: the array {name} is {array.ndim}-dimensional; an entry a row is wanted")
    if "features" not in arrays:
        raise InvalidInput(f"{path.name}: there is no array features")
    rows = len(arrays["features"])
    for name, array in arrays.items():
        if len(array) != rows:
            raise InvalidInput(f"{path.name}: the array {name} has {len(array)} entries for {rows} rows of features")
    for r in range(rows):
        told = {name: array[r] if array.ndim == 2 else array[r].item() for name, array in arrays.items()}
        where = f"{path.name}, row {r}"
        id_ = word(told["ids"]) if isinstance(told.get("ids"), str) else told.get("ids")
        labels = labels_of(told["labels"], where) if "labels" in told else None
        yield Row(f"row {r}", (r + 1) / rows, id_, told["features"], labels, metadata_of(told.get("metadata"), where))
