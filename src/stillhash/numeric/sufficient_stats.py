"""Additive sufficient statistics of labelled rows, and the two ridge regressions that follow from them.

A label set A is a unit vector over labels, y_c = 1 / sqrt(|A|) for its members, so y . y' = |A n B| / sqrt(|A| |B|).
Four sums are all that linear least squares needs of the rows: a = (1, features), c = (1, signs of the code),

  aa = sum a a^T     ay = sum y a^T     cc = sum c c^T     cy = sum y c^T

They do not depend on the order of rows or on chunks, they add up across machines, and a row can be taken out again.
Labels are columns of y in order of arrival, so new ones only add rows to ay and cy.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.labels import Labels
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Doubles, Floats, check_arrays


class Similarity(NamedTuple):
    """The weights of a prepared query are q @ M + m."""

    M: Floats  # (D, b)
    m: Floats  # (b,)


class Sides(NamedTuple):
    """The two regressions: labels y(q) = q @ U + u of a prepared query; and what each label adds to the weights."""

    U: Floats  # (D, labels)
    u: Floats  # (labels,)
    V: Floats  # (labels, b)


def unit_labels(labels: Labels) -> tuple[Floats, list[Hashable]]:
    """Return rows of labels as unit vectors (n, labels in use), and the names of the columns."""
    used, columns = np.unique(labels.indices, return_inverse=True)
    sizes = np.diff(labels.indptr)
    Y = np.zeros((len(labels), len(used)), np.float32)
    Y[np.repeat(np.arange(len(labels)), sizes), columns] = np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes)
    return Y, [labels.names[c] for c in used]


class SufficientStats:
    """The four sums over the rows learnt so far."""

    def __init__(self, dim: int, bits: int) -> None:
        self.names: dict[Hashable, int] = {}
        self.aa, self.cc = np.zeros((dim + 1, dim + 1)), np.zeros((bits + 1, bits + 1))
        self._ay, self._cy = np.zeros((0, dim + 1)), np.zeros((0, bits + 1))  # with spare rows for new labels

    @property
    def rows(self) -> float:
        """Return how many rows the statistics hold; a row that has decayed counts for less."""
        return float(self.aa[0, 0])

    @property
    def ay(self) -> Doubles:
        return self._ay[: len(self.names)]

    @property
    def cy(self) -> Doubles:
        return self._cy[: len(self.names)]

    @one_thread
    def add(self, X: Floats, signs: Floats, labels: Labels, weights: Floats | None = None, *, sign: int = 1) -> None:
        """Add labelled rows, each counted `weights` times; the sign -1 takes them out."""
        Y, names = unit_labels(labels)
        a, c = (np.insert(side, 0, 1, axis=1) for side in (X, signs))
        if weights is not None:  # half on either side of a product, so that aa and cc stay symmetric to the bit
            Y, a, c = (np.sqrt(weights)[:, None] * side for side in (Y, a, c))
        places = self._places(names)
        merge = np.add if sign > 0 else np.subtract
        merge(self.aa, a.T @ a, out=self.aa)
        merge(self.cc, c.T @ c, out=self.cc)
        self._ay[places] = merge(self._ay[places], Y.T @ a)
        self._cy[places] = merge(self._cy[places], Y.T @ c)

    def decay(self, factor: float) -> None:
        for array in (self.aa, self.cc, self.ay, self.cy):
            array *= factor

    def merge(self, other: Self) -> None:
        """Add the statistics of other rows over the same features and codes."""
        places = self._places(list(other.names))
        self.aa += other.aa
        self.cc += other.cc
        self._ay[places] += other.ay
        self._cy[places] += other.cy

    @one_thread
    def similarity(self, ridge: float, label_weights: NDArray[np.float64] | None = None) -> Similarity | None:
        """Regress labels on both sides: y(q) = ybar + U^T (q - qbar), y(x~) = const + V^T x~; weights are V y(q).

        Intercepts are free, slopes are shrunk by `ridge` times the mean square of a row. None if there is
        nothing to learn: no rows, or all of them have the same labels.
        """
        V = self._code_side(ridge, label_weights)
        if V is None:
            return None
        M = _slopes(self.aa, V.T @ self.ay, ridge)  # (D, b): U V^T, with b right-hand sides in place of C
        qbar, ybar = self.aa[0, 1:] / self.rows, self.ay[:, 0] / self.rows
        return Similarity(M.astype(np.float32), (ybar @ V - qbar @ M).astype(np.float32))

    @one_thread
    def sides(self, ridge: float, label_weights: NDArray[np.float64] | None = None) -> Sides | None:
        """Return the same regressions, before they are multiplied."""
        V = self._code_side(ridge, label_weights)
        if V is None:
            return None
        U = _slopes(self.aa, self.ay, ridge)
        u = self.ay[:, 0] / self.rows - self.aa[0, 1:] / self.rows @ U
        return Sides(U.astype(np.float32), u.astype(np.float32), V.astype(np.float32))

    def _code_side(self, ridge: float, label_weights: NDArray[np.float64] | None) -> Doubles | None:
        """Return what each label adds to the weights (C, b); None if labels carry no information."""
        if self.rows <= 0.5:
            return None
        V = _slopes(self.cc, self.cy, ridge)  # (b, C)
        if not np.abs(V).max(initial=0.0) > 1e-9:
            return None
        return V.T if label_weights is None else label_weights[:, None] * V.T

    def deviation(self, similarity: Similarity) -> float:
        """Return the standard deviation of the scores of all rows, as queries, with all codes."""
        M, m = similarity
        second = self.aa / self.rows
        mean = second[0, 1:] @ M + m
        weights = M.T @ (second[1:, 1:] - np.outer(second[0, 1:], second[0, 1:])) @ M + np.outer(mean, mean)
        codes = self.cc[1:, 1:] / self.rows - np.outer(self.cc[0, 1:], self.cc[0, 1:]) / self.rows**2
        return float(np.sqrt(max(0.0, np.einsum("ij,ij->", weights, codes))))

    def arrays(self) -> dict[str, Doubles]:
        """Return the arrays of saved state: of aa, which is symmetric, the lower triangle."""
        return {"aa": self.aa[np.tril_indices(len(self.aa))], "cc": self.cc, "ay": self.ay, "cy": self.cy}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], names: list[Hashable], dim: int, bits: int) -> Self:
        stats = cls(dim, bits)
        stats.names = {name: c for c, name in enumerate(names)}
        sizes = {"triangle": (dim + 1) * (dim + 2) // 2, "a": dim + 1, "c": bits + 1, "y": len(names)}
        specs = {"aa": "float64 triangle", "cc": "float64 c c", "ay": "float64 y a", "cy": "float64 y c"}
        check_arrays(arrays, specs, sizes)
        at = np.tril_indices(dim + 1)
        stats.aa[at] = stats.aa[at[::-1]] = arrays["aa"]
        stats.cc, stats._ay, stats._cy = arrays["cc"].copy(), arrays["ay"].copy(), arrays["cy"].copy()
        return stats

    def _places(self, names: list[Hashable]) -> NDArray[np.int64]:
        for name in names:
            self.names.setdefault(name, len(self.names))
        if len(self.names) > len(self._ay):
            spare = max(16, len(self.names))
            self._ay, self._cy = (np.concatenate([s, np.zeros((spare, s.shape[1]))]) for s in (self._ay, self._cy))
        return np.array([self.names[name] for name in names], np.int64)


def _slopes(xx: Doubles, yx: Doubles, ridge: float) -> Doubles:
    """Return the slopes (D, C) of y on x with a free intercept, from the sums of (1, x)(1, x)^T and y (1, x)^T."""
    rows, mean = xx[0, 0], xx[0, 1:] / xx[0, 0]
    S = xx[1:, 1:] - rows * np.outer(mean, mean)  # sums about the mean
    scale = np.trace(xx[1:, 1:]) / rows  # the mean square of a row
    S[np.diag_indices_from(S)] += ridge * (scale if scale > 0 else 1.0)
    return np.linalg.solve(S, (yx[:, 1:] - np.outer(yx[:, 0], mean)).T)
