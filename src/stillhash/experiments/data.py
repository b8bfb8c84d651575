"""Open datasets for experiments: labels, a list of queries, and features that are read in chunks.

A feature folder holds, as .npy, .npz, .mat (v7, or v7.3 through HDF5) or .h5 files:

  features    (n, D) numbers; several files features_0, features_1, ... are rows in order
  labels      (n, C) indicator matrix, or (n,) class numbers; packed bits as `labels_packed` with `num_labels`, or as
              `labels21_packed` for 21 of them
  queries     row numbers; every other row is database and stream. Drawn per class where there are none

Array names inside .npz, .mat and .h5 files are recognised by the words above (x, fc7 and the like count as features).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
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
QUERIES_PER_CLASS = 50  # the paper's queries for each category

RowIndices = NDArray[np.int64]
RowMask = NDArray[np.bool_]
StreamPosition = int | RowIndices  # in the stream, counted from 0; one for all rows, or one each


class QueryGroup(NamedTuple):
    """Queries that are judged by themselves, and by these labels only."""

    rows: RowMask  # (n,)
    labels: RowMask  # (C,)


@dataclass(frozen=True)
class Dataset:
    """Rows `queries` are queries; all others, in order, are the stream and the database.

    The last four describe drift, see `drift.py`; where nothing drifts they keep their defaults.
    """

    name: str
    parts: tuple[NDArray[Any], ...]  # features, rows in order; may be mapped from disk
    scale: float
    labels: NDArray[np.uint8]  # (n, C)
    queries: RowIndices
    order: RowIndices | None = None  # the stream, if in another order
    changes: tuple[int, ...] = ()  # positions in the stream where something changes
    groups: Mapping[str, QueryGroup] = field(default_factory=dict)
    transform: Callable[[Floats, StreamPosition], Floats] | None = None  # features at a position of the stream

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def dim(self) -> int:
        return int(self.parts[0].shape[1])

    @property
    def stream(self) -> RowIndices:
        return np.delete(np.arange(len(self)), self.queries) if self.order is None else self.order

    def read(self, rows: RowIndices, at: StreamPosition = 0) -> Floats:
        """Return the features of these rows, as float32, as they are at a position of the stream."""
        out = np.empty((len(rows), self.dim), np.float32)
        start = 0
        for part in self.parts:
            here = (rows >= start) & (rows < start + len(part))
            out[here] = part[rows[here] - start]
            start += len(part)
        if self.scale != 1:
            out *= np.float32(self.scale)
        return out if self.transform is None else self.transform(out, at)


def open_dataset(data: str | Path) -> Dataset:
    """Open a feature folder, `simulated:` and a folder of labels without features, or the generated `scenes`."""
    if str(data) == "scenes":
        return digit_scenes()
    simulate, folder = str(data).startswith("simulated:"), Path(str(data).removeprefix("simulated:"))
    if not folder.is_dir():
        raise InvalidInput(f"data: expected a feature folder, simulated:FOLDER or scenes, got {str(data)!r}")
    source, arrays = folder.name, dict[str, Any]()
    features: list[NDArray[Any]] = []
    for name, array in chain.from_iterable(map(_arrays, sorted(folder.iterdir(), key=_natural))):
        if name.lower() in FEATURE_NAMES and array.ndim == 2:
            features.append(array)
        elif name.lower() in QUERY_NAMES:
            arrays["queries"] = np.asarray(array).ravel()
        else:
            arrays.setdefault("labels" if name.lower() in LABEL_NAMES else name.lower(), array)
    if not features and not simulate:
        names = ", ".join(FEATURE_NAMES)
        raise InvalidInput(f"features: expected an array named {names} in {source}, got none. Use simulated:FOLDER")
    labels = _labels(arrays, sum(map(len, features)) if features else None, source)
    queries = arrays["queries"].astype(np.int64) if "queries" in arrays else draw_queries(labels, QUERIES_PER_CLASS, 0)
    if len(queries) and (queries.min() < 0 or queries.max() >= len(labels)):
        raise InvalidInput(f"queries: expected rows from 0 to {len(labels) - 1} in {source}, got others")
    if simulate:
        return simulated(source, labels, np.unique(queries))
    return Dataset(source, tuple(features), float(arrays.get("scale", 1.0)), labels, np.unique(queries))


def digit_scenes(count: int = 10_000, queries: int = 500, seed: int = 0) -> Dataset:
    """Make the built-in scenes, for a quick run without any files."""
    query_scenes, items = make_scenes(queries, seed, part="queries"), make_scenes(count, seed)
    features = np.concatenate([query_scenes.features, items.features])
    labels = np.concatenate([query_scenes.labels, items.labels]).astype(np.uint8)
    return Dataset("scenes", (features,), 1.0, labels, np.arange(queries))


def simulated(name: str, labels: NDArray[np.uint8], queries: RowIndices, dim: int = 512, seed: int = 0) -> Dataset:
    """Make features up from true labels; the name says so. Rows are shuffled, since releases sort them."""
    order = np.random.default_rng(seed).permutation(len(labels))
    labels = labels[order]
    features = simulate_features(labels, dim, 1.0, seed)
    return Dataset(f"{name}-simulated", (features,), 1.0, labels, np.sort(np.argsort(order)[queries]))


def simulate_features(labels: NDArray[Any], dim: int, noise: float, seed: int) -> Floats:
    """Make semi-synthetic features (n, dim) from labels alone.

    Each label adds a direction of its own strength, over shared nuisance and noise, rectified like those of a network.
    """
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
    """Write a feature folder whose stream repeats this one to so many rows of float32: for measuring time."""
    check_integer(rows, "rows", 1)
    folder.mkdir(parents=True, exist_ok=True)
    order = np.concatenate([data.queries, np.resize(data.stream, rows)])
    out = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (len(order), data.dim))
    for s in range(0, len(order), 1000):
        out[s : s + 1000] = data.read(order[s : s + 1000])
    out.flush()
    np.save(folder / "labels.npy", data.labels[order])
    np.save(folder / "queries.npy", np.arange(len(data.queries)))


def draw_queries(labels: NDArray[Any], per_class: int, seed: int) -> RowIndices:
    """Draw rows class by class, rare classes first, none of them twice: the paper's 50 a category."""
    rng = np.random.default_rng(seed)
    free = np.ones(len(labels), bool)
    for c in np.argsort(labels.sum(axis=0), kind="stable"):
        rows = np.flatnonzero(free & (labels[:, c] > 0))
        free[rng.permutation(rows)[:per_class]] = False
    return np.flatnonzero(~free)


def _natural(path: Path) -> tuple[Any, ...]:
    """Sort features_10 after features_9."""
    digits = "".join(c for c in path.stem if c.isdigit())
    return path.stem.rstrip("0123456789"), int(digits or 0), path.suffix


def _arrays(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of a file by name; a .npy file's array has the file's name and stays on disk."""
    if path.suffix == ".npy":
        yield path.stem.rstrip("0123456789").rstrip("_"), np.load(path, mmap_mode="r")
    elif path.suffix == ".npz":
        with np.load(path) as file:
            yield from file.items()
    elif path.suffix in (".h5", ".hdf5"):
        yield from _hdf5(path, transpose=False)
    elif path.suffix == ".mat":
        from scipy.io import loadmat

        try:
            yield from loadmat(path).items()
        except NotImplementedError:  # MATLAB v7.3 is HDF5, with its axes turned round
            yield from _hdf5(path, transpose=True)


def _hdf5(path: Path, transpose: bool) -> Iterator[tuple[str, NDArray[Any]]]:
    import h5py

    with h5py.File(path) as file:
        for name, item in file.items():
            if isinstance(item, h5py.Dataset):
                yield name, item[()].T if transpose else item[()]


def _labels(arrays: dict[str, Any], rows: int | None, name: str) -> NDArray[np.uint8]:
    packed = {int(m[1]): arrays[key] for key in arrays if (m := re.fullmatch(r"labels(\d+)_packed", key))}
    if "labels_packed" in arrays:
        packed = {int(arrays["num_labels"]): arrays["labels_packed"]}
    if packed:
        count = min(packed)  # the most frequent ones, where a release has several sets
        labels = np.unpackbits(packed[count], axis=1)[:, :count]
    elif "labels" in arrays:
        labels = np.asarray(arrays["labels"])
        if labels.ndim == 1 or 1 in labels.shape:
            flat = labels.ravel()
            labels = (flat[:, None] == np.unique(flat)).astype(np.uint8)
        elif rows not in (None, len(labels)) and labels.shape[1] == rows:
            labels = labels.T
        if not np.isin(labels, (0, 1)).all():
            raise InvalidInput(f"labels: expected an indicator matrix of 0 and 1 in {name}, got other values")
    else:
        raise InvalidInput(f"labels: expected an array named {', '.join(LABEL_NAMES)} in {name}, got none")
    if rows not in (None, len(labels)):
        raise InvalidInput(f"labels: expected {rows} rows in {name}, as many as features, got {len(labels)}")
    return labels.astype(np.uint8)
