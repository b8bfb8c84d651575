"""A linear alignment of one feature space with another, from a few hundred items encoded in both.

Ridge regression of our directions on theirs: rows less their mean, at unit length, since only directions count for
codes. The ridge is chosen by the leave-one-out error, which ridge regression gives without fitting again.
"""

from typing import NamedTuple

import numpy as np

from stillhash.numeric.validation import Floats

RIDGES = 10.0 ** np.arange(-5, 3.5, 0.5)  # in units of the mean eigenvalue


class Alignment(NamedTuple):
    """theirs -> ours: unit(x - mean) @ A + offset."""

    mean: Floats  # (D of theirs,)
    A: Floats  # (D of theirs, D of ours)
    offset: Floats  # (D of ours,)

    def apply(self, X: Floats) -> Floats:
        """Return their features X as ours."""
        return np.asarray(unit_rows(X - self.mean) @ self.A + self.offset)


def fit_alignment(theirs: Floats, ours: Floats) -> tuple[Alignment, float]:
    """Return the alignment by rows in both spaces, and the share of our variance that it explains on new rows."""
    their_mean, our_mean = (X.mean(axis=0, dtype=np.float64).astype(np.float32) for X in (theirs, ours))
    Z, centred = unit_rows(theirs - their_mean), ours - our_mean
    length = np.float32(np.sqrt(np.einsum("ij,ij->i", centred, centred)).mean())
    T = unit_rows(centred).astype(np.float64)
    level = T.mean(axis=0)
    values, vectors = np.linalg.eigh((Z @ Z.T).astype(np.float64))
    values = np.maximum(values, 0)
    rotated = vectors.T @ (T - level)
    variance = float(np.square(T - level).mean())

    ridges = RIDGES * max(float(values.mean()), 1e-12)
    errors = []  # the squared error at each pair, of the alignment without it
    for ridge in ridges:
        shrink = values / (values + ridge)
        own = np.square(vectors) @ shrink  # what a pair adds to its own prediction
        residuals = (T - level - vectors @ (shrink[:, None] * rotated)) / (1 - own)[:, None]
        errors.append(float(np.square(residuals).mean()))
    best = int(np.argmin(errors))
    A = Z.T @ (vectors @ (rotated / (values + ridges[best])[:, None])).astype(np.float32)
    alignment = Alignment(their_mean, np.ascontiguousarray(A * length), our_mean + length * level.astype(np.float32))
    return alignment, 1 - errors[best] / variance if variance > 0 else 0.0


def unit_rows(X: Floats, out: Floats | None = None) -> Floats:
    """Return the rows at unit length, in `out` if there is one; a zero row stays zero."""
    norms = np.sqrt(np.einsum("ij,ij->i", X, X))[:, None]
    return np.divide(X, np.where(norms > 0, norms, np.float32(1)), out=out)
