"""The two principal components of rows of numbers, for a map: the plane in which rows differ most."""

from collections.abc import Iterable

import numpy as np

from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Doubles, Floats


class PlaneSums:
    """Sums over rows x (n, p), some rows at a time: what the covariance follows from.

    Rows of whole numbers, such as signs, have exact sums: they do not depend on how rows are cut into batches.
    """

    def __init__(self, columns: int) -> None:
        self.rows = 0
        self.sum: Doubles = np.zeros(columns)
        self.squares: Doubles = np.zeros((columns, columns))

    @one_thread
    def add(self, x: Floats) -> None:
        """Add rows (n, p)."""
        self.rows += len(x)
        self.sum += x.sum(axis=0, dtype=np.float64)
        self.squares += x.T @ x

    def covariance(self) -> Doubles:
        """Return the covariance (p, p) of the rows so far; zeros without any."""
        count = max(1, self.rows)
        mean = self.sum / count
        covariance: Doubles = self.squares / count - np.outer(mean, mean)
        return covariance


@one_thread
def principal_axes(covariance: Doubles) -> Doubles:
    """Return the axes (p, 2) along which rows differ most, of unit norm; zeros for one that there is not."""
    axes = np.zeros((len(covariance), 2))
    if len(covariance):
        values, vectors = np.linalg.eigh(covariance)
        best = vectors[:, ::-1][:, :2]
        axes[:, : best.shape[1]] = best * (values[::-1][:2] > 1e-9 * max(values[-1], 1e-30))
    return axes


def place_rows(batches: Iterable[Floats], mean: Doubles, axes: Doubles) -> Floats:
    """Return the coordinates (n, 2) of rows along two axes, both divided by the largest, so that they are within 1.

    The sign of an axis is free; here the sum of the cubes of coordinates is positive.
    """
    parts = [(x - mean) @ axes for x in batches]
    places = np.concatenate([np.empty((0, 2)), *parts])
    places *= np.where((places**3).sum(axis=0) < 0, -1, 1)
    coordinates: Floats = (places / max(np.abs(places).max(initial=0), 1e-30)).astype(np.float32)
    return coordinates
