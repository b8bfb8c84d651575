"""The label sets of rows that a method keeps, over a vocabulary that may grow for ever."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState
from stillhash.numeric.labels import Labels, stable_key
from stillhash.numeric.validation import Floats

Mask = NDArray[np.bool_]


def joined(kept: Labels, new: Labels) -> Labels:
    """The kept rows, then the new ones. Labels go by their stable keys, which are text whatever the label was."""
    columns = {name: c for c, name in enumerate(kept.names)}
    keys = [stable_key(name).decode("latin-1") for name in new.names]
    places = np.array([columns.setdefault(key, len(columns)) for key in keys], np.int64)
    indptr = np.concatenate([kept.indptr, kept.indptr[-1] + new.indptr[1:]])
    return Labels(indptr, np.concatenate([kept.indices, places[new.indices]]), list(columns))


def in_use(labels: Labels) -> Labels:
    """The same without names that no row has, so that a bounded number of rows holds a bounded vocabulary."""
    used, indices = np.unique(labels.indices, return_inverse=True)
    return Labels(labels.indptr, indices.astype(np.int64), [labels.names[c] for c in used])


def sharing(A: Labels, B: Labels) -> Mask:
    """Which rows of A share a label with which rows of B (rows of A, rows of B); both count names alike."""
    used = np.unique(A.indices)
    places = np.full(len(A.names), len(used))
    places[used] = np.arange(len(used))

    def indicator(labels: Labels) -> Floats:
        """Over the labels that A uses; the rest share the last column, which is dropped."""
        Y = np.zeros((len(labels), len(used) + 1), np.float32)
        Y[np.repeat(np.arange(len(labels)), np.diff(labels.indptr)), places[labels.indices]] = 1
        return Y[:, :-1]

    return np.asarray(indicator(A) @ indicator(B).T > 0)


def restored(arrays: dict[str, NDArray[Any]], names: list[str], rows: int) -> Labels:
    """The labels of so many rows from saved state."""
    labels = Labels(arrays["indptr"], arrays["indices"], list(names))
    if {labels.indptr.dtype, labels.indices.dtype} != {np.dtype(np.int64)}:
        raise BadState(f"indptr and indices are {labels.indptr.dtype} and {labels.indices.dtype}; int64 is wanted")
    counts = np.diff(labels.indptr)
    if len(counts) != rows or (counts < 0).any() or labels.indptr[0] != 0 or counts.sum() != len(labels.indices):
        raise BadState(f"indptr does not cut {len(labels.indices)} labels into {rows} rows")
    if not ((labels.indices >= 0) & (labels.indices < len(names))).all():
        raise BadState(f"indices go beyond the {len(names)} labels")
    return labels
