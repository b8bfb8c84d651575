"""Additive sufficient statistics of labelled rows, and the two ridge regressions that follow from them.

A label set A is a unit vector over labels, y_c = 1 / sqrt(|A|) for its members, so y . y' = |A n B| / sqrt(|A| |B|).
Four sums are all that linear least squares needs of the rows: a = (1, features), c = (1, signs of the code),

  aa = sum a a^T     ay = sum y a^T     cc = sum c c^T     cy = sum y c^T

Where codes hold labels, the same rows have other codes p without them, as rows that are stored without labels do:

  pp = sum p p^T     py = sum y p^T     and how many rows are stored without labels

They do not depend on the order of rows or on chunks, they add up across machines, and a row can be taken out again.
Labels are columns of y in order of arrival, so new ones only add rows to ay and cy.

Sums of features are rounded. Those of levels, small whole numbers in place of features, are exact: y is rounded to
multiples of 1/1024, a chunk is cut so that its sums fit the precision, and doubles hold whole numbers up to 2^53.
"""

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.labels import Labels, stable_key
from stillhash.numeric.regression import Regression, random_signs, regress
from stillhash.numeric.rescoring import Rescorer
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Doubles, Floats, Mask, check_arrays

LABEL_PROBES = 256  # random directions stand for the labels where there are more labels than these
LABEL_STEP = 2.0**-10  # label vectors are multiples of it where sums are exact
EXACT = {"f4": 2.0**24, "f8": 2.0**53}  # whole numbers up to these are exact, by precision
MIN_EXACT_ROWS = 1000  # where fewer rows fit an exact product of single precision, double precision is faster


class Similarity(NamedTuple):
    """The weights of a prepared query are q @ M + m."""

    M: Floats  # (D, b)
    m: Floats  # (b,)
    reliability: float = 1.0  # of both regressions, from 0


class Sides(NamedTuple):
    """The two regressions: labels y(q) = q @ U + u of a prepared query, and y(x~) = x~ @ V + v of a code."""

    U: Floats  # (D, labels)
    u: Floats  # (labels,)
    V: Floats  # (b, labels)
    v: Floats  # (labels,)
    reliability: float
    query_length: float  # the root mean square of |y(q)| over the rows


def unit_labels(labels: Labels) -> tuple[Floats, list[Hashable]]:
    """Return rows of labels as unit vectors (n, labels in use), and the names of the columns."""
    used, columns = np.unique(labels.indices, return_inverse=True)
    sizes = np.diff(labels.indptr)
    Y = np.zeros((len(labels), len(used)), np.float32)
    Y[np.repeat(np.arange(len(labels)), sizes), columns] = np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes)
    return Y, [labels.names[c] for c in used]


def exact_precision(largest: int, *, double: bool = False) -> tuple[np.dtype[Any], int]:
    """Return the precision of sums over the levels of rows, up to this one, and how many rows have exact sums in it."""
    size = largest * max(largest, 1 / LABEL_STEP)  # of a term, in units of LABEL_STEP where it is of labels
    name = "f8" if double or EXACT["f4"] / size < MIN_EXACT_ROWS else "f4"
    return np.dtype(name), int(EXACT[name] / size)


class SufficientStats:
    """The sums over the rows learnt so far.

    largest_level: of rows that are levels, whole numbers, in place of features, so that their sums are exact.
    """

    def __init__(self, dim: int, bits: int, *, double: bool = False, largest_level: int | None = None) -> None:
        self.precision: np.dtype[Any] = np.dtype("f8" if double else "f4")  # of the sums over the rows of a chunk
        self.chunk_rows: int | None = None  # that are summed at once, where sums are exact
        if largest_level is not None:
            self.precision, self.chunk_rows = exact_precision(largest_level, double=double)
        self.names: dict[Hashable, int] = {}
        self.aa, self.cc, self.pp = (np.zeros((width, width)) for width in (dim + 1, bits + 1, bits + 1))
        self._ay, self._cy, self._py = (np.zeros((0, width)) for width in (dim + 1, bits + 1, bits + 1))  # spare rows
        self.unlabelled = 0.0  # rows that are stored without labels
        self.held = 0.0  # rows whose codes hold labels

    @property
    def rows(self) -> float:
        """Return how many rows the statistics hold; a row that has decayed counts for less."""
        return float(self.aa[0, 0])

    @property
    def plain_share(self) -> float:
        """Return the share of rows without labels among all that are stored."""
        return float(self.unlabelled / max(self.unlabelled + self.rows, 1))

    @property
    def held_share(self) -> float:
        """Return the share of rows whose codes hold labels among all that are stored."""
        return float(self.held / max(self.unlabelled + self.rows, self.held, 1))

    def label_rows(self, name: Hashable) -> float:
        """Return how much of a label the statistics hold: the sum of its part of the unit vectors of rows."""
        return float(self._ay[self.names[name], 0]) if name in self.names else 0.0

    @property
    def ay(self) -> Doubles:
        return self._ay[: len(self.names)]

    @property
    def cy(self) -> Doubles:
        return self._cy[: len(self.names)]

    @property
    def py(self) -> Doubles:
        return self._py[: len(self.names)]

    @one_thread
    def add(
        self,
        X: Floats,
        signs: Floats,
        labels: Labels,
        weights: Floats | None = None,
        *,
        plain: Floats | None = None,
        sign: int = 1,
    ) -> None:
        """Add labelled rows, each counted `weights` times; the sign -1 takes them out.

        plain: the signs of their codes without labels, where these are others.
        """
        if plain is not None:
            self.held += sign * int((plain != signs).any(axis=1).sum())
        Y, names = self._label_vectors(labels)
        places, merge = self._places(names), np.add if sign > 0 else np.subtract
        for some in self._chunks(len(Y)):
            p, counts = (None if side is None else side[some] for side in (plain, weights))
            self._add_chunk(Y[some], X[some], signs[some], p, counts, places, merge)

    @one_thread
    def relabel(self, X: Floats, signs: Floats, before: Labels, after: Labels, *, plain: Floats | None = None) -> None:
        """Take rows out with the labels `before`, and add them with the labels `after`.

        Only sums with labels change. Where sums are exact, they are then equal to the bit to those of doing both.
        """
        (old, old_names), (new, new_names) = (self._label_vectors(labels) for labels in (before, after))
        names = list(dict.fromkeys([*old_names, *new_names]))
        Y, place = np.zeros((len(new), len(names)), np.float32), {name: column for column, name in enumerate(names)}
        Y[:, [place[name] for name in new_names]] = new
        Y[:, [place[name] for name in old_names]] -= old
        places = self._places(names)
        for some in self._chunks(len(Y)):
            p = None if plain is None else plain[some]
            self._add_chunk(Y[some], X[some], signs[some], p, None, places, np.add, squares=False)

    def _label_vectors(self, labels: Labels) -> tuple[Floats, list[Hashable]]:
        """Return label vectors as they are summed, and the names of the columns."""
        Y, names = unit_labels(labels)
        if self.chunk_rows is not None:
            Y = np.rint(Y / np.float32(LABEL_STEP)) * np.float32(LABEL_STEP)
        return Y, names

    def _chunks(self, rows: int) -> Iterator[slice]:
        """Yield the rows that are summed at once."""
        most = self.chunk_rows or max(1, rows)
        return (slice(start, start + most) for start in range(0, rows, most))

    def _add_chunk(
        self,
        Y: Floats,
        X: Floats,
        signs: Floats,
        plain: Floats | None,
        weights: Floats | None,
        places: NDArray[np.int64],
        merge: np.ufunc,
        *,
        squares: bool = True,
    ) -> None:
        Y = Y.astype(self.precision, copy=False)
        a, c = (np.insert(side, 0, 1, axis=1).astype(self.precision, copy=False) for side in (X, signs))
        p = c if plain is None else np.insert(plain, 0, 1, axis=1).astype(self.precision, copy=False)
        if weights is not None:  # half on either side of a product, so that squares stay symmetric to the bit
            Y, a, c, p = (np.sqrt(weights)[:, None] * side for side in (Y, a, c, p))
        if squares:
            merge(self.aa, a.T @ a, out=self.aa)
            merge(self.cc, code_squares := c.T @ c, out=self.cc)
            merge(self.pp, code_squares if plain is None else p.T @ p, out=self.pp)
        self._ay[places] = merge(self._ay[places], Y.T @ a)
        self._cy[places] = merge(self._cy[places], code_labels := Y.T @ c)
        self._py[places] = merge(self._py[places], code_labels if plain is None else Y.T @ p)

    def drop_labels(self, least: float) -> None:
        """Drop the labels of which less than this is left."""
        left = np.flatnonzero(self.ay[:, 0] >= least)
        if len(left) < len(self.names):
            self._take_labels(left)

    def sort_labels(self) -> None:
        """Put labels in the order of their stable keys, which does not depend on the order of rows."""
        names = list(self.names)
        keys = [stable_key(name) for name in names]
        if keys != (ordered := sorted(keys)):
            place = {key: column for column, key in enumerate(keys)}
            self._take_labels(np.array([place[key] for key in ordered]))

    def _take_labels(self, columns: NDArray[np.intp]) -> None:
        """Leave these labels, in this order."""
        names = list(self.names)
        self._ay, self._cy, self._py = (sums[columns] for sums in (self._ay, self._cy, self._py))
        self.names = {names[column]: place for place, column in enumerate(columns.tolist())}

    def same(self, other: Self) -> bool:
        """Return whether all sums are equal to the bit; labels may come in another order, and may have no rows."""
        if (self.unlabelled, self.held) != (other.unlabelled, other.held):
            return False
        if not all(np.array_equal(getattr(self, name), getattr(other, name)) for name in ("aa", "cc", "pp")):
            return False
        mine, theirs = self._by_label(), other._by_label()
        return mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)

    def _by_label(self) -> dict[Hashable, Doubles]:
        """Return the sums of each label that has any."""
        sums = np.concatenate([self.ay, self.cy, self.py], axis=1)
        return {name: sums[column] for name, column in self.names.items() if sums[column].any()}

    def decay(self, factor: float) -> None:
        for array in (self.aa, self.cc, self.pp, self.ay, self.cy, self.py):
            array *= factor
        self.unlabelled *= factor
        self.held *= factor

    def merge(self, other: Self) -> None:
        """Add the statistics of other rows over the same features and codes."""
        places = self._places(list(other.names))
        self.aa += other.aa
        self.cc += other.cc
        self.pp += other.pp
        self._ay[places] += other.ay
        self._cy[places] += other.cy
        self._py[places] += other.py
        self.unlabelled += other.unlabelled
        self.held += other.held

    @one_thread
    def similarity(self, ridge: float, label_weights: NDArray[np.float64] | None = None) -> Similarity | None:
        """Regress labels on both sides, y(q) and y(x~), and multiply: weights are V y(q), with M = U V^T.

        Intercepts are free, slopes are shrunk by `ridge` times the mean square of a row. None if there is
        nothing to learn: no rows, or all of them have the same labels.
        """
        code_side = self._code_side(ridge)
        if code_side is None:
            return None
        V = code_side.slopes if label_weights is None else label_weights * code_side.slopes
        labels = self.ay if len(self.names) <= LABEL_PROBES else label_probes(len(self.names)) @ self.ay
        bits = len(V)  # right-hand sides, in place of one for each label
        query_side = regress(self.aa, np.concatenate([V @ self.ay, labels]), ridge, skip=bits)
        M, m = (array[..., :bits].astype(np.float32, "C") for array in query_side[:2])
        return Similarity(M, m, query_side.reliability * code_side.reliability)

    @one_thread
    def sides(self, ridge: float) -> Sides | None:
        """Return the same regressions, before they are multiplied."""
        code_side = self._code_side(ridge)
        if code_side is None:
            return None
        query_side = regress(self.aa, self.ay, ridge)
        U, u, V, v = (array.astype(np.float32, "C") for array in (*query_side[:2], *code_side[:2]))
        return Sides(U, u, V, v, query_side.reliability * code_side.reliability, query_side.length)

    def _code_side(self, ridge: float) -> Regression | None:
        """Return the regression of labels on codes; None if labels carry no information.

        It is that of all stored rows: for those without labels stand the labelled rows, with their plain codes.
        """
        if self.rows <= 0.5:
            return None
        squares = self.cc + self.plain_share * (self.pp - self.cc)
        labels = self.cy + self.plain_share * (self.py - self.cy)
        regression = regress(squares, labels, ridge)
        return regression if np.abs(regression.slopes).max(initial=0.0) > 1e-9 else None

    def deviation(self, similarity: Similarity) -> float:
        """Return the standard deviation of the scores of all rows, as queries, with all codes."""
        M, m = similarity[:2]
        second = self.aa / self.rows
        mean = second[0, 1:] @ M + m
        weights = M.T @ (second[1:, 1:] - np.outer(second[0, 1:], second[0, 1:])) @ M + np.outer(mean, mean)
        codes = self.cc[1:, 1:] / self.rows - np.outer(self.cc[0, 1:], self.cc[0, 1:]) / self.rows**2
        return float(np.sqrt(max(0.0, np.einsum("ij,ij->", weights, codes))))

    def arrays(self) -> dict[str, Doubles]:
        """Return the arrays of saved state: of aa, which is symmetric, the lower triangle."""
        sums = {name: getattr(self, name) for name in ("cc", "pp", "ay", "cy", "py")}
        sums |= {"aa": self.aa[np.tri(len(self.aa), dtype=bool)], "unlabelled": np.array([self.unlabelled])}
        return sums if self.chunk_rows is None else sums | {"held": np.array([self.held])}

    @classmethod
    def from_arrays(
        cls,
        arrays: dict[str, NDArray[Any]],
        names: list[Hashable],
        dim: int,
        bits: int,
        *,
        double: bool = False,
        largest_level: int | None = None,
    ) -> Self:
        stats = cls(dim, bits, double=double, largest_level=largest_level)
        stats.names = {name: c for c, name in enumerate(names)}
        sizes = {"triangle": (dim + 1) * (dim + 2) // 2, "a": dim + 1, "c": bits + 1, "y": len(names), "one": 1}
        axes = {"aa": "triangle", "cc": "c c", "pp": "c c", "ay": "y a", "cy": "y c", "py": "y c", "unlabelled": "one"}
        if stats.chunk_rows is not None:
            axes["held"] = "one"
        check_arrays(arrays, {name: f"float64 {axis}" for name, axis in axes.items()}, sizes)
        at = np.tril_indices(dim + 1)
        stats.aa[at] = stats.aa[at[::-1]] = arrays["aa"]
        stats.cc, stats.pp = arrays["cc"].copy(), arrays["pp"].copy()
        stats._ay, stats._cy, stats._py = (arrays[name].copy() for name in ("ay", "cy", "py"))
        stats.unlabelled = float(arrays["unlabelled"][0])
        stats.held = float(arrays["held"][0]) if "held" in axes else 0.0
        return stats

    def _places(self, names: list[Hashable]) -> NDArray[np.int64]:
        for name in names:
            self.names.setdefault(name, len(self.names))
        if len(self.names) > len(self._ay):
            spare, sums = max(16, len(self.names)), (self._ay, self._cy, self._py)
            self._ay, self._cy, self._py = (np.concatenate([s, np.zeros((spare, s.shape[1]))]) for s in sums)
        return np.array([self.names[name] for name in names], np.int64)


def label_probes(labels: int) -> Doubles:
    """Return random directions (LABEL_PROBES, labels) in which label vectors have, on average, their own length."""
    return np.asarray(random_signs(labels, LABEL_PROBES).T / np.sqrt(LABEL_PROBES))


# Hash functions of rows from their rescoring codes, exactly: the same to the bit in any batch and on all machines.
#
# A rescoring code is about length * R x, so W^T x is about (R W)^T z / length. R W is rounded so finely, and so
# coarsely, that products with levels z are sums of multiples of one step which a float holds exactly, whatever the
# order.


class StoredProjection:
    """The hash functions W (D, b), t (b,) of the levels of rescoring codes."""

    def __init__(self, rescorer: Rescorer, W: Floats, t: Floats) -> None:
        largest = 2**rescorer.bits - 1
        precision = exact_precision(largest)[0]
        rotated = rescorer.rotate(np.ascontiguousarray(W.T)).T.astype(np.float64)  # (D, b)
        most = largest * np.maximum(np.abs(rotated).sum(axis=0), np.finfo(np.float32).tiny)  # of any sum
        step = np.exp2(np.ceil(np.log2(most / (EXACT[f"f{precision.itemsize}"] / 2))))  # (b,); half is for rounding
        self._W = np.ascontiguousarray(np.rint(rotated / step) * step, precision)
        self._t, self._length = t, np.float32(rescorer.length)

    @one_thread
    def values(self, levels: Floats) -> Floats:
        """Return the hash functions (n, b) of levels (n, D), before they are quantised."""
        products = np.asarray(levels.astype(self._W.dtype, copy=False) @ self._W, np.float32)
        return np.asarray(products / self._length + self._t)

    @staticmethod
    def without_labels(values: Floats, own: Floats, held: Mask, label_bits: int) -> Floats | None:
        """Return the codes without labels, as signs, of rows with these hash functions and codes; None: the same.

        held: which codes hold labels, in their first `label_bits`; the others are of features in any code.
        """
        if not held.any():
            return None
        plain = own.copy()
        plain[held, :label_bits] = np.where(values[held, :label_bits] >= 0, np.float32(1), np.float32(-1))
        return plain


# Codes of rows that are labelled when they are stored: the first bits hold the labels. docs/method.md derives it.


MIN_SIMILARITY_CODE = 128  # bits are enough for a code to spare some, by which near duplicates are found


def label_bits(bits: int) -> int:
    """Return how many bits of a code are for labels; the others are about features alone.

    Near duplicates can be found by 56 bits of features, which a code of 128 bits can spare: it has so many, and half of
    the bits beyond. Of shorter codes it is a sixteenth. docs/method.md has the measurements.
    """
    return bits - bits // 16 if bits < MIN_SIMILARITY_CODE else bits // 2 + 8


class LabelDirections(NamedTuple):
    """What the first k hash functions are for a row with labels y: y @ G + g."""

    names: dict[Hashable, int]  # the rows of G
    G: Floats  # (labels, k)
    g: Floats  # (k,)

    @classmethod
    def uncentred(cls, names: list[Hashable], G: Floats) -> "LabelDirections":
        """Return the directions G of these labels, with nothing added."""
        return cls({name: row for row, name in enumerate(names)}, G, np.zeros(G.shape[1], np.float32))

    def project(self, labels: Labels) -> Floats:
        """Return the hash functions (n, k) of rows by those of their labels that have a direction; zero without any.

        The order of rows and labels makes no difference.
        """
        Y, names = unit_labels(labels)
        columns = [c for c, name in enumerate(names) if name in self.names]
        known = Y[:, columns].astype(np.float64)
        by_labels = known @ self.G[[self.names[names[c]] for c in columns]]
        return np.asarray(by_labels + np.square(known).sum(axis=1, keepdims=True) * self.g, np.float32)
