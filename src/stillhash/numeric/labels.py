"""Parse labels of any accepted shape into one: for each row, the set of its labels.

Accepted are an indicator matrix (2-D array of 0 and 1, or scipy sparse; label j is column j), a table of 0 and 1 (of
pandas, polars or Arrow; the names of its columns are the labels), a list of label lists, or flat single labels, also as
a column of a table. A row may have none: an all-zero row, an empty list, or in place of a label None, NaN, or what
pandas has for a missing value. Labels are any hashable with a stable meaning: numbers, text, bytes, tuples, enum
members, dates. Equal labels are one label, whatever their type: 3, 3.0 and numpy.int64(3) are the same.
"""

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState, InvalidInput, WrongType
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Floats, Mask, on_host

TEXT_TYPES = {str}  # what labels mostly are: text is canonical already


@dataclass(frozen=True)
class Labels:
    """The labels of rows: row r has the labels names[i] for i in indices[indptr[r]:indptr[r + 1]], each once."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]
    names: list[Hashable]

    @classmethod
    def empty(cls, rows: int = 0) -> "Labels":
        """Return rows without labels."""
        return cls(np.zeros(rows + 1, np.int64), np.empty(0, np.int64), [])

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def labelled(self) -> Mask:
        """Return which rows have a label."""
        return np.diff(self.indptr) > 0

    def rows(self, keep: Mask) -> "Labels":
        """Return the labels of these rows."""
        counts = np.diff(self.indptr)
        indptr = np.concatenate([[0], np.cumsum(counts[keep])])
        return Labels(indptr, self.indices[np.repeat(keep, counts)], self.names)

    def take(self, places: NDArray[np.int64]) -> "Labels":
        """Return the labels of the rows at these places, in this order."""
        starts, counts = self.indptr[places], self.indptr[places + 1] - self.indptr[places]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(indptr[-1]) - np.repeat(indptr[:-1], counts)
        return Labels(indptr, self.indices[np.repeat(starts, counts) + within], self.names)

    def row(self, r: int) -> list[Hashable]:
        return [self.names[i] for i in self.indices[self.indptr[r] : self.indptr[r + 1]]]

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """Return the arrays of saved state; the names are saved as JSON."""
        return {"indptr": self.indptr, "indices": self.indices}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], names: list[str], rows: int) -> "Labels":
        """Return the labels of so many rows from saved state."""
        indptr, indices = arrays["indptr"], arrays["indices"]
        if {indptr.dtype, indices.dtype} != {np.dtype(np.int64)}:
            raise BadState(f"indptr, indices: expected int64, got {indptr.dtype} and {indices.dtype}")
        counts = np.diff(indptr)
        if len(counts) != rows or (counts < 0).any() or indptr[0] != 0 or counts.sum() != len(indices):
            raise BadState(f"indptr: expected {rows} rows of {len(indices)} labels, got {indptr}")
        if not ((indices >= 0) & (indices < len(names))).all():
            raise BadState(f"indices: expected 0 to {len(names) - 1}, got others")
        return cls(indptr, indices, list(names))


def parse_labels(Y: Any, rows: int, name: str = "Y") -> Labels:
    """Return the labels of so many rows, from any of the accepted shapes or parsed already; None is unlabelled."""
    if Y is None:
        return Labels.empty(rows)
    labels = Y if isinstance(Y, Labels) else _parse(Y, name)
    if len(labels) != rows:
        raise InvalidInput(f"{name}: expected labels of {rows} rows, as of the features, got {len(labels)}")
    return labels


def _parse(Y: Any, name: str) -> Labels:
    if hasattr(Y, "tocsr"):
        csr = Y.tocsr()
        return _from_indicator(csr, csr.data, name)
    if hasattr(Y, "columns"):
        return _from_table(Y, name)
    if not isinstance(Y, (list, tuple)):
        Y = _list_rows(Y, name)
        if isinstance(Y, np.ndarray):
            return _from_indicator(Y, Y, name)
    sets = Y if set(map(type, Y)) == {list} else [_label_set(entry) for entry in Y]
    flat: list[Any] = list(chain.from_iterable(sets))
    if not set(map(type, flat)) <= TEXT_TYPES:
        flat = [canonical(label, name) for label in flat]
    places = {label: place for place, label in enumerate(dict.fromkeys(flat))}
    r = np.repeat(np.arange(len(sets)), list(map(len, sets)))
    indices = np.fromiter(map(places.__getitem__, flat), np.int64, len(flat))
    return _from_pairs(r, indices, len(sets), list(places))


def _list_rows(Y: Any, name: str) -> Any:
    """Return the rows of flat labels as a list; a 2-D array as it is."""
    for method in ("to_list", "to_pylist"):  # a column of pandas or polars; one of Arrow
        if hasattr(Y, method):
            return getattr(Y, method)()
    masked = isinstance(Y, np.ndarray) and hasattr(Y, "mask")
    array: Any = Y if masked else np.asarray(on_host(Y))
    if array.ndim == 1:  # a masked entry is listed as None
        return list(map(python_scalar, array)) if array.dtype.kind in "mM" else array.tolist()
    if array.ndim != 2 or (masked and np.any(array.mask)):
        got = f"{array.ndim}-D" if array.ndim != 2 else "masked entries"
        raise InvalidInput(f"{name}: expected 1-D labels or a 2-D indicator matrix, got {got}")
    return array


def _from_table(table: Any, name: str) -> Labels:
    """Return the labels of a table of 0 and 1, whose columns have the names of the labels."""
    is_arrow = hasattr(table, "column_names")
    names = [canonical(column, name) for column in (table.column_names if is_arrow else table.columns)]
    if len(set(names)) < len(names):
        raise InvalidInput(f"{name}: expected each column once, got some names more than once")
    try:
        array = np.column_stack([column.to_numpy() for column in table.columns]) if is_arrow else table.to_numpy()
        array = array.astype(np.float64) if array.dtype == object else array
        return _from_indicator(array, array, name, names)
    except (TypeError, ValueError):
        use = "Where a column has the labels, pass that column"
        raise InvalidInput(f"{name}: expected a table of 0 and 1, with a column for each label. {use}.") from None


def _from_indicator(matrix: Any, values: NDArray[Any], name: str, names: list[Any] | None = None) -> Labels:
    """Return the labels of an indicator matrix; `values` are its entries, or those that a sparse one stores.

    names: of its columns; their numbers if None.
    """
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise InvalidInput(f"{name}: expected an indicator matrix of 0 and 1, got other values")
    r, c = matrix.nonzero()
    used, indices = np.unique(c, return_inverse=True)
    labels = used.tolist() if names is None else [names[column] for column in used]
    return _from_pairs(r, indices, matrix.shape[0], labels)


def _from_pairs(r: NDArray[Any], indices: NDArray[Any], rows: int, names: list[Any]) -> Labels:
    """Return the labels of pairs of a row and the place of a name, in any order."""
    columns = max(1, len(names))
    r, indices = np.divmod(np.unique(r.astype(np.int64) * columns + indices), columns)  # in order, each once
    indptr = np.concatenate([[0], np.cumsum(np.bincount(r, minlength=rows))])
    return Labels(indptr, indices, names)


def _label_set(entry: Any) -> Collection[Any]:
    if type(entry) is str:
        return (entry,)
    if is_missing(entry):
        return ()
    if isinstance(entry, np.ndarray) and entry.ndim == 1:
        return list(entry)
    if hasattr(entry, "to_list"):  # a column of a table, of one row
        return list(entry.to_list())
    return entry if isinstance(entry, (list, tuple, set, frozenset)) else (entry,)


def canonical(label: Any, name: str = "Y") -> Hashable:
    """Return one representative of all labels equal to this one, of a plain Python type where there is one."""
    if isinstance(label, np.generic):
        label = python_scalar(label)
    if isinstance(label, tuple):
        return tuple(canonical(part, name) for part in label)
    if isinstance(label, bool):
        return int(label)
    if isinstance(label, float):
        if not math.isfinite(label):
            raise InvalidInput(f"{name}: expected finite labels, got {label}")
        return int(label) if label.is_integer() else label
    try:
        hash(label)
    except TypeError:
        raise WrongType(f"{name}: expected hashable labels, got {type(label).__name__}") from None
    if label is None:
        raise WrongType(f"{name}: expected labels, got None among others")
    return cast(Hashable, label)


def stable_key(label: Hashable) -> bytes:
    """Return bytes that are the same for a canonical label in every process, and differ between labels."""
    kind = type(label)
    if kind is str:
        return b"str:" + str(label).encode("utf-8", "surrogatepass")
    if isinstance(label, tuple):
        parts = [stable_key(part) for part in label]
        return b"tuple:" + b"".join(b"%d:%b" % (len(part), part) for part in parts)
    if isinstance(label, frozenset):
        return b"frozenset:" + stable_key(tuple(sorted(stable_key(part) for part in label)))
    if kind.__repr__ is object.__repr__:
        raise WrongType(f"label: expected a type with a __repr__ of its value, got {kind.__name__}")
    return f"{kind.__module__}.{kind.__qualname__}:{label!r}".encode()


def from_json(name: Any) -> Hashable:
    """Return a label read from JSON: lists become tuples."""
    return tuple(map(from_json, name)) if isinstance(name, list) else name


def concat_labels(stored: Labels, new: Labels) -> Labels:
    """Return the stored rows, then the new ones. Labels become their stable keys, which are text for any label."""
    columns = {name: c for c, name in enumerate(stored.names)}
    keys = [stable_key(name).decode("latin-1") for name in new.names]
    places = np.array([columns.setdefault(key, len(columns)) for key in keys], np.int64)
    indptr = np.concatenate([stored.indptr, stored.indptr[-1] + new.indptr[1:]])
    return Labels(indptr, np.concatenate([stored.indices, places[new.indices]]), list(columns))


def drop_unused(labels: Labels) -> Labels:
    """Return the labels without names that no row has, so that a bounded number of rows has a bounded vocabulary."""
    used, indices = np.unique(labels.indices, return_inverse=True)
    return Labels(labels.indptr, indices.astype(np.int64), [labels.names[c] for c in used])


def share_label(A: Labels, B: Labels) -> Mask:
    """Return which rows of A share a label with which rows of B (rows of A, rows of B); both have the same names."""
    return _count_shared(A, B) > 0


def label_jaccard(A: Labels, B: Labels) -> Floats:
    """Return the Jaccard of the label sets of rows of A and rows of B, (rows of A, rows of B); as `share_label`."""
    return jaccard(_count_shared(A, B), np.diff(A.indptr), np.diff(B.indptr))


def jaccard(shared: Floats, sizes_A: NDArray[Any], sizes_B: NDArray[Any]) -> Floats:
    """Return shared labels over all labels of two sets, (m, n) in [0, 1]; 0 if both sets are empty.

    shared: (m, n) labels that both sets have; sizes_A (m,) and sizes_B (n,): labels of each set.
    """
    either = np.add.outer(sizes_A.astype(np.float32), sizes_B.astype(np.float32)) - shared
    return np.divide(shared, np.maximum(either, 1, out=either), out=either)


@one_thread
def _count_shared(A: Labels, B: Labels) -> Floats:
    used = np.unique(A.indices)
    places = np.full(len(A.names), len(used))
    places[used] = np.arange(len(used))
    return np.asarray(_indicator(A, places, len(used)) @ _indicator(B, places, len(used)).T)


def _indicator(labels: Labels, places: NDArray[np.int64], columns: int) -> Floats:
    """Return an indicator matrix (rows, columns) of labels at places < columns."""
    Y = np.zeros((len(labels), columns + 1), np.float32)  # the last column takes the other labels
    Y[np.repeat(np.arange(len(labels)), np.diff(labels.indptr)), places[labels.indices]] = 1
    return Y[:, :-1]


PANDAS_MISSING = frozenset(("NAType", "NaTType"))
EXACT_UNITS = frozenset(("generic", "Y", "M", "W", "D", "h", "m", "s", "ms", "us"))  # of time, that Python has too


def python_scalar(value: Any) -> Any:
    """Return the Python object that equals a NumPy scalar; the scalar itself if there is none."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        if np.isnat(value):
            return None
        kind = "datetime64" if isinstance(value, np.datetime64) else "timedelta64"
        rounded = value if np.datetime_data(value.dtype)[0] in EXACT_UNITS else value.astype(f"{kind}[us]")
        plain = rounded.item()
        return value if isinstance(plain, int) or rounded != value else plain  # an integer: out of Python's range
    return float(value) if isinstance(value, np.longdouble) else value.item()


def is_missing_marker(value: Any) -> bool:
    """Return whether this is NA or NaT of pandas, NaT of NumPy, or a masked entry: nothing but "no value"."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    kind = type(value)
    if kind.__module__.startswith("numpy.ma"):
        return kind.__name__ == "MaskedConstant"
    return kind.__name__ in PANDAS_MISSING and kind.__module__.startswith("pandas.")


def is_missing(value: Any) -> bool:
    """Return whether this stands for no value: None, NaN, or a missing marker."""
    return value is None or (isinstance(value, (float, np.floating)) and value != value) or is_missing_marker(value)


# How far labels can be believed: by how well they agree with what features predict. docs/method.md derives it.
#
# Of rows with right labels the agreement of labels and prediction follows one distribution, of rows with labels at
# random another, which shuffled labels show. Where labels are the least plausible, nearly all are wrong, so the
# smallest ratio of the two densities estimates the share of wrong labels, and share / ratio is the chance that those of
# a row are wrong.


BINS = 10  # bins of agreement, with as many shuffled labels in each
MIN_ROWS = 300  # rows at least are needed for an estimate
MIN_WRONG_SHARE = 0.05  # with fewer wrong labels, all are believed


class LabelBelief(NamedTuple):
    """The estimated share of wrong labels, and the chance that the labels of a row are right by their agreement."""

    wrong_share: float = 0.0
    edges: Floats = np.zeros(0, np.float32)  # (BINS - 1,) of agreement; empty: all labels are believed
    right: Floats = np.ones(1, np.float32)  # (BINS,)

    @classmethod
    def estimate(cls, agreements: Floats, shuffled: Floats) -> Self:
        """Estimate it by the agreement of rows with their labels, and with labels of other rows.

        The predictions must not have seen the labels of the rows.
        """
        if len(agreements) < MIN_ROWS:
            return cls()
        edges = np.quantile(shuffled, np.linspace(0, 1, BINS + 1)[1:-1])
        density, random = (np.bincount(np.searchsorted(edges, part), minlength=BINS) for part in (agreements, shuffled))
        ratio = density / np.maximum(random, 1) * (len(shuffled) / len(agreements))
        wrong = min(1.0, float(ratio.min()))
        right = np.maximum.accumulate(np.clip(1 - wrong / np.maximum(ratio, 1e-9), 0, 1))
        if wrong < MIN_WRONG_SHARE:
            return cls(wrong)
        return cls(wrong, edges.astype(np.float32), right.astype(np.float32))

    def chance(self, agreements: Floats) -> Floats:
        """Return the chance that the labels of rows are right."""
        return self.right[np.searchsorted(self.edges, agreements)]


def agreement(predicted: NDArray[np.floating], labels: NDArray[np.floating]) -> Floats:
    """Return the cosines (n,) of what is predicted of rows and their labels, both (n, k) and centred."""
    lengths = np.linalg.norm(predicted, axis=1) * np.linalg.norm(labels, axis=1)
    return np.asarray(np.einsum("ij,ij->i", predicted, labels) / np.maximum(lengths, 1e-30), np.float32)
