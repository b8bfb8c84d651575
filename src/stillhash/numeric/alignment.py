"""A bridge from one feature space to another, from a few hundred things described in both.

Ridge regression of the one's directions on the other's: rows less their mean, at unit length, since only directions
count for codes. How strongly slopes are held is chosen by the error of leaving each pair out, which ridge regression
gives without fitting again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stillhash.numeric.validation import Floats

STRENGTHS = 10.0 ** np.arange(-5, 3.5, 0.5)  # of the ridge, in units of the mean eigenvalue


class Bridge(NamedTuple):
    """theirs -> ours: unit(x - mean) @ A + offset."""

    mean: Floats  # (D of theirs,)
    A: Floats  # (D of theirs, D of ours)
    offset: Floats  # (D of ours,)

    def cross(self, X: Floats) -> Floats:
        crossed: Floats = unit_rows(X - self.mean) @ self.A + self.offset
        return crossed


def build_bridge(theirs: Floats, ours: Floats) -> tuple[Bridge, float]:
    """The bridge by rows described in both spaces, and the share of our variance that it explains of new rows."""
    their_mean, our_mean = (X.mean(axis=0, dtype=np.float64).astype(np.float32) for X in (theirs, ours))
    Z, centred = unit_rows(theirs - their_mean), ours - our_mean
    length = np.float32(np.sqrt(np.einsum("ij,ij->i", centred, centred)).mean())
    T = unit_rows(centred).astype(np.float64)
    level = T.mean(axis=0)
    values, vectors = np.linalg.eigh((Z @ Z.T).astype(np.float64))
    values = np.maximum(values, 0)
    turned = vectors.T @ (T - level)
    variance = float(np.square(T - level).mean())

    def missed(ridge: float) -> float:
        """The squared error at each pair, of the bridge without it."""
        shrink = values / (values + ridge)
        own = np.square(vectors) @ shrink  # what a pair adds to its own prediction
        return float(np.square((T - level - vectors @ (shrink[:, None] * turned)) / (1 - own)[:, None]).mean())

    ridges = STRENGTHS * max(float(values.mean()), 1e-12)
    errors = [missed(ridge) for ridge in ridges]
    best = int(np.argmin(errors))
    A = Z.T @ (vectors @ (turned / (values + ridges[best])[:, None])).astype(np.float32)
    bridge = Bridge(their_mean, np.ascontiguousarray(A * length), our_mean + length * level.astype(np.float32))
    return bridge, 1 - errors[best] / variance if variance > 0 else 0.0


def unit_rows(X: Floats) -> Floats:
    """Rows at unit length; a zero row stays zero."""
    norms = np.sqrt(np.einsum("ij,ij->i", X, X))[:, None]
    return np.divide(X, np.where(norms > 0, norms, np.float32(1)))
