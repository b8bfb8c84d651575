"""Labels in the shapes people have them, as one thing: for each row, the set of its labels.

Accepted are an indicator matrix (2-D array of 0 and 1, or scipy sparse; label j is column j), a list of label lists, or
flat single labels. A row may have none: an all-zero row, an empty list, or None. Labels are any hashable with
a stable meaning: numbers, text, bytes, tuples, enum members, dates. Equal labels are one label, whatever
their type: 3, 3.0 and numpy.int64(3) are the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, WrongType

TEXT = {str}  # what labels mostly are, and what needs no representative


@dataclass(frozen=True)
class Labels:
    """Row r has the labels names[i] for i in indices[indptr[r]:indptr[r + 1]], each once."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]
    names: list[Hashable]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Which rows have a label."""
        return np.diff(self.indptr) > 0

    def rows(self, keep: NDArray[np.bool_]) -> Labels:
        """The rows that are kept."""
        counts = np.diff(self.indptr)
        indptr = np.concatenate([[0], np.cumsum(counts[keep])])
        return Labels(indptr, self.indices[np.repeat(keep, counts)], self.names)

    def row(self, r: int) -> list[Hashable]:
        return [self.names[i] for i in self.indices[self.indptr[r] : self.indptr[r + 1]]]


def parse_labels(Y: Any, rows: int, name: str = "Y") -> Labels:
    """Labels for so many rows, from any of the accepted shapes; None leaves all rows without."""
    if Y is None:
        return Labels(np.zeros(rows + 1, np.int64), np.empty(0, np.int64), [])
    found = Y if isinstance(Y, Labels) else _from_sparse(Y, name) if hasattr(Y, "tocsr") else _from_dense(Y, name)
    if len(found) != rows:
        raise InvalidInput(f"{name} has {len(found)} rows of labels for {rows} rows of features; one each is wanted")
    return found


def _from_sparse(Y: Any, name: str) -> Labels:
    csr = Y.tocsr()
    if csr.nnz and not np.isin(csr.data, (0, 1)).all():
        raise InvalidInput(f"{name} holds values other than 0 and 1; an indicator matrix is wanted")
    r, c = csr.nonzero()
    return _from_pairs(np.asarray(r), np.asarray(c), csr.shape[0])


def _from_dense(Y: Any, name: str) -> Labels:
    if not isinstance(Y, (list, tuple)):
        array = np.asarray(Y)
        if array.ndim == 2:
            if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
                raise InvalidInput(f"{name} is 2-D and holds other than 0 and 1; an indicator matrix is wanted")
            r, c = np.nonzero(array)
            return _from_pairs(r, c, len(array))
        if array.ndim != 1:
            raise InvalidInput(f"{name} is {array.ndim}-dimensional; 1-D labels or a 2-D indicator matrix is wanted")
        Y = array.tolist()
    return _from_sets([_label_set(entry, name) for entry in Y], name)


def _from_pairs(r: NDArray[Any], c: NDArray[Any], rows: int) -> Labels:
    used, indices = np.unique(c, return_inverse=True)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(r, minlength=rows))])
    order = np.lexsort((indices, r))
    return Labels(indptr, indices[order].astype(np.int64), [int(column) for column in used])


def _label_set(entry: Any, name: str) -> Collection[Any]:
    if entry is None:
        return ()
    if isinstance(entry, np.ndarray) and entry.ndim == 1:
        return list(entry)
    return entry if isinstance(entry, (list, tuple, set, frozenset)) else (entry,)


def _from_sets(sets: list[Collection[Any]], name: str) -> Labels:
    told = list(chain.from_iterable(sets))
    flat = told if set(map(type, told)) <= TEXT else [canonical(label, name) for label in told]
    places = {label: place for place, label in enumerate(dict.fromkeys(flat))}
    r = np.repeat(np.arange(len(sets)), list(map(len, sets)))
    c = np.fromiter(map(places.__getitem__, flat), np.int64, len(flat))
    pairs = np.unique(r * max(1, len(places)) + c)  # in order, each once
    r, indices = np.divmod(pairs, max(1, len(places)))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(r, minlength=len(sets)))])
    return Labels(indptr, indices, list(places))


def canonical(label: Any, name: str = "Y") -> Hashable:
    """One representative of all labels equal to this one, of a plain Python type where there is one."""
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, tuple):
        return tuple(canonical(part, name) for part in label)
    if isinstance(label, bool):
        return int(label)
    if isinstance(label, float):
        if not math.isfinite(label):
            raise InvalidInput(f"{name} contains {label}; a label must not be NaN or infinite")
        return int(label) if label.is_integer() else label
    if label is None or not isinstance(label, Hashable):
        raise WrongType(f"{name} contains {label!r}; a label must be hashable and not None")
    return label


def stable_key(label: Hashable) -> bytes:
    """The same bytes for a canonical label in every process, and different ones for different labels."""
    kind = type(label)
    if kind is str:
        return b"str:" + str(label).encode("utf-8", "surrogatepass")
    if isinstance(label, tuple):
        parts = [stable_key(part) for part in label]
        return b"tuple:" + b"".join(b"%d:%b" % (len(part), part) for part in parts)
    if isinstance(label, frozenset):
        return b"frozenset:" + stable_key(tuple(sorted(stable_key(part) for part in label)))
    if kind.__repr__ is object.__repr__:
        raise WrongType(f"a label of type {kind.__name__} has no stable form; give the class a __repr__ of its value")
    return f"{kind.__module__}.{kind.__qualname__}:{label!r}".encode()


def from_json(name: Any) -> Hashable:
    """JSON has lists where labels have tuples."""
    return tuple(map(from_json, name)) if isinstance(name, list) else name
