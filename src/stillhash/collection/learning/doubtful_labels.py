"""Find items whose labels are implausible, by what their features predict. docs/collection.md describes it.

Features are not stored, so labels are judged when their row is learnt, by the model before that step, which has not
seen them: the agreement is the cosine of predicted labels and own labels, both less the mean labels of the collection.
Rows with wrong labels agree like rows with labels at random, so where labels agree least nearly all are wrong: the
smallest ratio of the two histograms estimates the share of wrong labels, as in `numeric.labels`.
"""

import json
from collections.abc import Hashable
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.learning.prequential import Chunk
from stillhash.collection.storage.items import MAX_DOUBTFUL, NOT_JUDGED, DoubtfulRow, RowNumbers, histogram_bins
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.store import Store
from stillhash.collection.types import DoubtfulItem
from stillhash.hashers import Hasher, LinearHasher
from stillhash.numeric import kernels
from stillhash.numeric.labels import BINS, MIN_ROWS, Labels, agreement
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.validation import Floats, check_integer

SAMPLE_ITEMS = 256  # whose labels are the labels at random
MIN_SAMPLE = 20  # of them that the model knows
LABEL_RARITY = 0.45  # labels weigh by their frequency to the power of minus this, as in the model
NEVER_DOUBTED = 0.9  # labels that agree better than this share of labels at random
PREDICTED_LABELS = 3  # that are stored of a row at most
MIN_PREDICTION = 0.5  # of the best label's, that another one must have
SHARE_ERRORS = 2.0  # standard errors by which the share of wrong labels is taken too low, for the chance of an item


class LabelPredictor(NamedTuple):
    """What predicts labels of prepared features x, as x @ U + u: a model, before the rows that it judges are learnt."""

    functions: LinearHasher
    U: Floats  # (D, labels)
    u: Floats  # (labels,)
    names: list[Hashable]

    def predict(self, X: Floats) -> Floats:
        """Return the predicted labels of features, (n, labels)."""
        return kernels.project(self.functions.prepare(X), self.U) + self.u

    def label_vectors(self, labels: Labels) -> Floats:
        """Return rows of labels as unit vectors (n, labels); labels that are not learnt yet are left out."""
        columns = {name: column for column, name in enumerate(self.names)}
        places = np.array([columns.get(name, -1) for name in labels.names], np.int64)[labels.indices]
        Y, known = np.zeros((len(labels), len(columns)), np.float32), places >= 0
        Y[np.repeat(np.arange(len(labels)), np.diff(labels.indptr))[known], places[known]] = 1
        return unit_rows(Y, out=Y)


class LabelJudge:
    """Judge the labels of rows that are about to be learnt; `numbers` are their rows, or NOT_JUDGED."""

    def __init__(self, store: Store, connection: Connection, numbers: RowNumbers) -> None:
        self.table, self.connection, self.numbers = store.doubtful_labels, connection, numbers
        self._predictor: LabelPredictor | None = None
        self._rng = np.random.default_rng(get_meta(connection, "next_row"))
        self._sample: Labels | None = None  # of items
        if (numbers != NOT_JUDGED).any():
            self._sample = store.items.sample_labels(connection, SAMPLE_ITEMS, self._rng)

    def use(self, hasher: Hasher) -> None:
        """Judge by what this hasher has learnt."""
        self._predictor = None
        if self._sample is None:
            return
        model, space = hasher.model(), hasher.label_space()
        if model.U is not None and model.u is not None and space is not None:
            self._predictor = LabelPredictor(hasher.functions(), model.U, model.u, space.names)

    def judge(self, rows: Chunk, step: slice) -> None:
        """Measure how well the labels of these rows agree with their features, and store the least plausible."""
        numbers, predictor = self.numbers[step], self._predictor
        if predictor is None or self._sample is None:
            return
        random, own = (predictor.label_vectors(labels) for labels in (self._sample, rows.labels))
        random, judged = random[random.any(axis=1)], (numbers != NOT_JUDGED) & own.any(axis=1)
        if len(random) < MIN_SAMPLE or not judged.any():
            return
        numbers, own, predicted = numbers[judged], own[judged], predictor.predict(rows.features[judged])
        mean = random.mean(axis=0)
        weights = np.maximum(mean, 1 / len(random)) ** np.float32(-LABEL_RARITY / 2)
        centred = (predicted - mean) * weights
        others = random[self._rng.integers(len(random), size=len(own))]
        own_agreement, random_agreement = (agreement(centred, (labels - mean) * weights) for labels in (own, others))
        self.table.add_agreements(self.connection, own_agreement, random_agreement)
        low = self._doubtful(own_agreement)
        if len(low):
            texts = predicted_labels(predicted[low], predictor.names)
            columns = numbers[low].tolist(), own_agreement[low].tolist(), texts
            self.table.add(self.connection, map(DoubtfulRow, *columns))

    def _doubtful(self, agreements: Floats) -> NDArray[np.int64]:
        """Return the rows that belong into the table."""
        random = np.cumsum(self.table.histograms(self.connection)[1])
        highest_bin = np.searchsorted(random, NEVER_DOUBTED * random[-1])
        low = (agreements < self.table.highest(self.connection)) & (histogram_bins(agreements) <= highest_bin)
        return np.flatnonzero(low)


def predicted_labels(predicted: Floats, names: list[Hashable]) -> list[str]:
    """Return the labels that are predicted best of each row as JSON, best first."""
    best = np.argsort(-predicted, axis=1, kind="stable")[:, :PREDICTED_LABELS]
    values = np.take_along_axis(predicted, best, axis=1)
    likely = (values > 0) & (values >= MIN_PREDICTION * values[:, :1])
    rows = zip(best.tolist(), likely.tolist(), strict=True)
    return [json.dumps([names[c] for c, keep in zip(*row, strict=True) if keep]) for row in rows]


class WrongLabels(NamedTuple):
    """The estimated share of wrong labels, and the chance that they are wrong for each bin of agreement."""

    share: float
    chances: NDArray[np.float64]


def estimate_wrong_labels(histograms: NDArray[np.float64]) -> WrongLabels | None:
    """Estimate how many labels are wrong, by the histograms of agreement; None from too few rows.

    As `LabelBelief.estimate`, but of histograms, by isotonic regression, and with a chance however few are wrong: by
    a share that is SHARE_ERRORS lower than estimated, so that a few odd rows say little.
    """
    own, random = histograms
    if own.sum() < MIN_ROWS:
        return None
    middle = (np.cumsum(random) - random / 2) / random.sum()
    groups = np.minimum(middle * BINS, BINS - 1).astype(np.int64)  # of bins, with about as many random labels in each
    rows, expected = (np.bincount(groups, counts, BINS).astype(np.float64) for counts in (own, random))
    ratios, pooled = rising_ratios(rows, expected * (own.sum() / random.sum()))
    share = min(1.0, ratios[0])
    surely = share * max(0.0, 1 - SHARE_ERRORS / np.sqrt(max(pooled, 1e-12)))
    return WrongLabels(share, np.clip(surely / np.maximum(ratios, 1e-12), 0, 1)[groups])


def rising_ratios(rows: NDArray[np.float64], expected: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return rows / expected of groups that rise (isotonic regression), and how many rows the first of them is of."""
    above, below = (np.concatenate([[0.0], np.cumsum(counts)]) for counts in (rows, expected))
    count, total = (np.subtract.outer(sums[1:], sums[:-1]).T for sums in (above, below))  # of groups from i to j
    mean = np.where(total > 0, count / np.where(total > 0, total, 1), np.inf)
    ratios = np.array([mean[: g + 1, g:].min(axis=1).max() for g in range(len(rows))])
    first = np.flatnonzero(mean[0] <= ratios[0] * (1 + 1e-9))[-1]  # the last group that has the same ratio
    return ratios, float(above[1 + first])


def wrong_label_share(store: Store, connection: Connection) -> float | None:
    """Return the estimated share of rows with wrong labels; None if it cannot be estimated."""
    estimate = estimate_wrong_labels(store.doubtful_labels.histograms(connection))
    return None if estimate is None else estimate.share


def list_doubtful(store: Store, connection: Connection, count: int) -> list[DoubtfulItem]:
    """Return the items with the least plausible labels, the most doubtful first."""
    check_integer(count, "count", 1, MAX_DOUBTFUL)
    estimate = estimate_wrong_labels(store.doubtful_labels.histograms(connection))
    if estimate is None:
        return []
    rows = store.doubtful_labels.first(connection, count)
    chances = estimate.chances[histogram_bins(np.array([row.agreement for row in rows]))].tolist()
    items = store.items.get(connection, [row.row for row in rows])
    return [
        DoubtfulItem(item.id, item.labels, json.loads(row.predicted), chance)
        for row, chance in zip(rows, chances, strict=True)
        if (item := items.get(row.row)) is not None
    ]
