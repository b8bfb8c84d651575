"""Datasets as experiments see them: labels, a list of queries, and features that are read in chunks.

A feature folder holds, as .npy, .npz, .mat (v7, or v7.3 through HDF5) or .h5 files:

  features    (n, D) numbers; several files features_0, features_1, ... are rows in order
  labels      (n, C) indicator matrix, or (n,) class numbers; packed bits as `labels_packed` with `num_labels`, or as
              `labels21_packed` for 21 of them
  queries     row numbers; every other row is database and stream. Drawn per class where there are none

Array names inside .npz, .mat and .h5 files are found by the words above (x, fc7 and the like count as features).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.experiments.scenes import make_scenes
from stillhash.numeric.validation import Floats, check_integer

FEATURE_NAMES = ("features", "feature", "x", "fc7", "vgg", "data", "feat", "feats")
LABEL_NAMES = ("labels", "label", "y", "gnd", "tags", "l", "lall")
QUERY_NAMES = ("query_rows", "queries", "query", "test_rows")
PER_CLASS = 50  # the paper's queries for each category

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Place = int | Rows  # in the stream, counted from 0; one for all rows, or one each


class Group(NamedTuple):
    """Queries that are judged by themselves, and by these labels only."""

    rows: Mask  # (n,)
    labels: Mask  # (C,)


@dataclass(frozen=True)
class Dataset:
    """Rows `queries` are asked, all others, in order, are the stream and the database.

    The last four tell of drift, see `drift.py`; where nothing drifts they are left alone.
    """

    name: str
    parts: tuple[NDArray[Any], ...]  # features, rows in order; may be mapped from disk
    scale: float
    labels: NDArray[np.uint8]  # (n, C)
    queries: Rows
    order: Rows | None = None  # the stream, if it is in another order
    changes: tuple[int, ...] = ()  # places of the stream from which on something is different
    groups: Mapping[str, Group] = field(default_factory=dict)
    seen: Callable[[Floats, Place], Floats] | None = None  # how features look at a place of the stream

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def dim(self) -> int:
        return int(self.parts[0].shape[1])

    @property
    def stream(self) -> Rows:
        if self.order is not None:
            return self.order
        keep = np.ones(len(self), bool)
        keep[self.queries] = False
        return np.flatnonzero(keep)

    def read(self, rows: Rows, at: Place = 0) -> Floats:
        """The features of these rows, as float32, the way they look at a place of the stream."""
        out = np.empty((len(rows), self.dim), np.float32)
        start = 0
        for part in self.parts:
            here = (rows >= start) & (rows < start + len(part))
            if here.any():
                out[here] = part[rows[here] - start]
            start += len(part)
        if self.scale != 1:
            out *= np.float32(self.scale)
        return out if self.seen is None else self.seen(out, at)


SIMULATED = "simulated:"


def open_dataset(data: str | Path) -> Dataset:
    """A feature folder; `simulated:` and a folder that has labels but no features; or `scenes`, made on the spot."""
    if str(data) == "scenes":
        return digit_scenes()
    simulate, folder = str(data).startswith(SIMULATED), Path(str(data).removeprefix(SIMULATED))
    if not folder.is_dir():
        raise InvalidInput(f"data is {str(data)!r}; a feature folder, simulated:FOLDER, or the word scenes is wanted")
    found: dict[str, Any] = {}
    features: list[NDArray[Any]] = []
    for path in sorted(folder.iterdir(), key=_natural):
        for name, array in _arrays(path):
            if name in FEATURE_NAMES and array.ndim == 2:
                features.append(array)
            elif name in LABEL_NAMES and "labels" not in found:
                found["labels"] = array
            elif name in QUERY_NAMES:
                found["queries"] = np.asarray(array).ravel()
            else:
                found.setdefault(name, array)
    if not features and not simulate:
        names = ", ".join(FEATURE_NAMES)
        raise InvalidInput(f"{folder.name} holds no features; an array named {names} is wanted, or simulated:FOLDER")
    labels = _labels(found, sum(map(len, features)) if features else None, folder.name)
    rows = len(labels)
    queries = found["queries"].astype(np.int64) if "queries" in found else draw_queries(labels, PER_CLASS, 0)
    if len(queries) and (queries.min() < 0 or queries.max() >= rows):
        raise InvalidInput(f"queries of {folder.name} name rows outside 0 to {rows - 1}")
    if simulate:
        return simulated(folder.name, labels, np.unique(queries))
    return Dataset(folder.name, tuple(features), float(found.get("scale", 1.0)), labels, np.unique(queries))


def digit_scenes(count: int = 10_000, queries: int = 500, seed: int = 0) -> Dataset:
    """The built-in scenes, for a quick run without any files."""
    asked, items = make_scenes(queries, seed, part="queries"), make_scenes(count, seed)
    features = np.concatenate([asked.features, items.features])
    labels = np.concatenate([asked.labels, items.labels]).astype(np.uint8)
    return Dataset("scenes", (features,), 1.0, labels, np.arange(queries))


def simulated(name: str, labels: NDArray[np.uint8], queries: Rows, dim: int = 512, seed: int = 0) -> Dataset:
    """True labels with features made up from them: its name says so. Rows are shuffled, since releases sort them."""
    order = np.random.default_rng(seed).permutation(len(labels))
    labels = labels[order]
    features = simulate_features(labels, dim, 1.0, seed)
    return Dataset(f"{name}-simulated", (features,), 1.0, labels, np.sort(np.argsort(order)[queries]))


def simulate_features(labels: NDArray[Any], dim: int, noise: float, seed: int) -> Floats:
    """Semi-synthetic features (n, dim): for each label a direction of its own strength, over shared nuisance and noise,
    rectified like those of a network. They carry the label statistics of the data, and nothing else of it."""
    check_integer(dim, "dim", 1)
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((labels.shape[1], dim), np.float32)
    nuisance = rng.standard_normal((16, dim), np.float32) / 2
    features = np.empty((len(labels), dim), np.float32)
    for s in range(0, len(labels), 10_000):
        some = np.asarray(labels[s : s + 10_000], np.float32)
        strength = rng.uniform(0.5, 1.5, some.shape).astype(np.float32)
        X = (some * strength) @ centres + rng.standard_normal((len(some), 16), np.float32) @ nuisance
        X += np.float32(noise) * 2 * rng.standard_normal(X.shape, np.float32)
        features[s : s + 10_000] = np.maximum(X, 0)
    return features


def repeat(data: Dataset, rows: int, folder: Path) -> None:
    """Writes a feature folder whose stream repeats this one to so many rows of float32: for measuring time."""
    check_integer(rows, "rows", 1)
    folder.mkdir(parents=True, exist_ok=True)
    asked, source = data.queries, np.resize(data.stream, rows)
    order = np.concatenate([asked, source])
    out = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (len(order), data.dim))
    for s in range(0, len(order), 1000):
        out[s : s + 1000] = data.read(order[s : s + 1000])
    out.flush()
    np.save(folder / "labels.npy", data.labels[order])
    np.save(folder / "queries.npy", np.arange(len(asked)))


def draw_queries(labels: NDArray[Any], per_class: int, seed: int) -> Rows:
    """Rows drawn class by class, rare classes first, none of them twice: the paper's 50 a category."""
    rng = np.random.default_rng(seed)
    free = np.ones(len(labels), bool)
    for c in np.argsort(labels.sum(axis=0), kind="stable"):
        rows = np.flatnonzero(free & (labels[:, c] > 0))
        free[rng.permutation(rows)[:per_class]] = False
    return np.flatnonzero(~free)


def most_frequent(labels: NDArray[np.uint8], count: int) -> tuple[NDArray[np.uint8], Rows]:
    """The `count` most frequent labels, and the rows that have one of them: NUS-WIDE's 21 concepts."""
    columns = np.sort(np.argsort(-labels.sum(axis=0, dtype=np.int64), kind="stable")[:count])
    rows = np.flatnonzero(labels[:, columns].any(axis=1))
    return labels[np.ix_(rows, columns)], rows


# ---- files ----


def _natural(path: Path) -> tuple[Any, ...]:
    """features_10 after features_9."""
    digits = "".join(c for c in path.stem if c.isdigit())
    return path.stem.rstrip("0123456789"), int(digits or 0), path.suffix


def _arrays(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of a file by name, lower case; a .npy file's array goes by the file's name, and stays on disk."""
    if path.suffix == ".npy":
        yield path.stem.rstrip("0123456789").rstrip("_").lower(), np.load(path, mmap_mode="r")
    elif path.suffix == ".npz":
        with np.load(path) as file:
            yield from ((name.lower(), file[name]) for name in file.files)
    elif path.suffix in (".h5", ".hdf5"):
        yield from _hdf5(path, transpose=False)
    elif path.suffix == ".mat":
        from scipy.io import loadmat

        try:
            contents = loadmat(path)
        except NotImplementedError:  # MATLAB v7.3 is HDF5, with its axes turned round
            yield from _hdf5(path, transpose=True)
        else:
            yield from ((name.lower(), np.asarray(a)) for name, a in contents.items() if not name.startswith("__"))


def _hdf5(path: Path, transpose: bool) -> Iterator[tuple[str, NDArray[Any]]]:
    import h5py

    with h5py.File(path) as file:
        for name, item in file.items():
            if isinstance(item, h5py.Dataset):
                yield name.lower(), item[()].T if transpose else item[()]


def _labels(found: dict[str, Any], rows: int | None, name: str) -> NDArray[np.uint8]:
    packed = {int(m[1]): found[key] for key in found if (m := re.fullmatch(r"labels(\d+)_packed", key))}
    if "labels_packed" in found:
        packed = {int(found["num_labels"]): found["labels_packed"]}
    if packed:
        count = min(packed)  # the most frequent ones, where a release has several sets
        labels = np.unpackbits(packed[count], axis=1)[:, :count]
    elif "labels" in found:
        labels = np.asarray(found["labels"])
        if labels.ndim == 1 or 1 in labels.shape:
            flat = labels.ravel()
            labels = (flat[:, None] == np.unique(flat)).astype(np.uint8)
        elif rows not in (None, len(labels)) and labels.shape[1] == rows:
            labels = labels.T
        if not np.isin(labels, (0, 1)).all():
            raise InvalidInput(f"labels of {name} hold other than 0 and 1; an indicator matrix is wanted")
    else:
        raise InvalidInput(f"{name} holds no labels; an array named {', '.join(LABEL_NAMES)} is wanted")
    if rows not in (None, len(labels)):
        raise InvalidInput(f"labels of {name} have {len(labels)} rows for {rows} rows of features; one each is wanted")
    return labels.astype(np.uint8)
