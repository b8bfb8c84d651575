"""Ways to choose which items to label next, for comparison with `Collection.suggest_labels`.

Each takes what is known and returns so many unlabelled items. A random sample of the items stands for all of them, as
in the library. docs/active-learning.md compares them.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.label_suggestions import CANDIDATE_ROWS, REFERENCE_ROWS
from stillhash.hashers import Hasher
from stillhash.numeric.coverage import cover_greedily
from stillhash.numeric.validation import Floats

PoolRows = NDArray[np.int64]


class LabelPool(NamedTuple):
    """The items of a collection, and which of them have labels."""

    signs: Floats  # (n, bits) of -1 and +1
    labelled: PoolRows
    hasher: Hasher  # what has learnt from them
    rng: np.random.Generator

    def candidates(self) -> PoolRows:
        """Draw unlabelled items."""
        left = np.setdiff1d(np.arange(len(self.signs)), self.labelled)
        return np.sort(self.rng.permutation(left)[:CANDIDATE_ROWS])

    def vectors(self, rows: PoolRows) -> Floats:
        """Return codes of unit norm."""
        return np.asarray(self.signs[rows] / np.sqrt(self.signs.shape[1]), np.float32)

    def predicted(self, rows: PoolRows) -> Floats:
        """Return the labels predicted of items (n, labels), two at least; 0 before anything is learnt."""
        model = self.hasher.model()
        if model.V is None or model.v is None or model.V.shape[1] < 2:
            return np.zeros((len(rows), 2), np.float32)
        return np.asarray(np.clip(self.signs[rows] @ model.V + model.v, 0, 1), np.float32)


LabelChoice = Callable[[LabelPool, int], PoolRows]


def at_random(pool: LabelPool, count: int) -> PoolRows:
    """Choose any items."""
    return pool.rng.permutation(np.setdiff1d(np.arange(len(pool.signs)), pool.labelled))[:count]


def by_margin(pool: LabelPool, count: int) -> PoolRows:
    """Choose items whose two most likely labels are the closest: on the boundary between them."""
    rows = pool.candidates()
    second, best = np.sort(pool.predicted(rows), axis=1)[:, -2:].T
    return rows[np.argsort(best - second, kind="stable")[:count]]


def by_entropy(pool: LabelPool, count: int) -> PoolRows:
    """Choose items whose labels are the least certain, all labels together."""
    rows = pool.candidates()
    p = np.clip(pool.predicted(rows), 1e-6, 1 - 1e-6)
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).sum(axis=1)
    return rows[np.argsort(-entropy, kind="stable")[:count]]


def by_distance(pool: LabelPool, count: int) -> PoolRows:
    """Choose the item that is furthest from all labelled ones, again and again: greedy k-centre."""
    rows = pool.candidates()
    x = pool.vectors(rows)
    nearest = (x @ pool.vectors(pool.labelled).T).max(axis=1, initial=-1)
    chosen: list[int] = []
    while len(chosen) < min(count, len(rows)):
        chosen.append(int(nearest.argmin()))
        nearest = np.maximum(nearest, x @ x[chosen[-1]])
        nearest[chosen] = 2
    return rows[chosen]


def by_coverage(pool: LabelPool, count: int, power: float = 1, weights: Floats | None = None) -> PoolRows:
    """Choose items that are like many that no labelled item is like; with a power, very much like fewer."""
    rows = pool.candidates()
    some = np.sort(pool.rng.permutation(len(rows))[:REFERENCE_ROWS])
    x, y = pool.vectors(rows), pool.vectors(pool.labelled)
    covered = np.maximum(x[some] @ y.T, 0).max(axis=1, initial=0) ** power
    counts = np.ones(len(some), np.float32) if weights is None else weights[rows[some]]
    return rows[cover_greedily(np.maximum(x[some] @ x.T, 0) ** power, covered, counts, count).rows]


def by_typicality(pool: LabelPool, count: int) -> PoolRows:
    """Choose items that are typical of the densest places without a label."""
    return by_coverage(pool, count, power=6)


def by_unsure_typicality(pool: LabelPool, count: int) -> PoolRows:
    """Choose as `by_typicality`; the items that it covers count by how close their two likeliest labels are."""
    second, best = np.sort(pool.predicted(np.arange(len(pool.signs))), axis=1)[:, -2:].T
    return by_coverage(pool, count, power=6, weights=np.asarray((1 - (best - second)) ** 4, np.float32))


def by_rare_labels(pool: LabelPool, count: int) -> PoolRows:
    """Choose items that are likely to have labels of which few are known."""
    rows = pool.candidates()
    p = pool.predicted(rows)
    known = pool.predicted(pool.labelled).sum(axis=0)
    return rows[np.argsort(-(p / np.sqrt(known + 1)).sum(axis=1), kind="stable")[:count]]


LABEL_CHOICES: dict[str, LabelChoice] = {
    "random": at_random,
    "margin": by_margin,
    "entropy": by_entropy,
    "k-centre": by_distance,
    "coverage": by_coverage,
    "typical": by_typicality,
    "typical, unsure": by_unsure_typicality,
    "rare labels": by_rare_labels,
}
