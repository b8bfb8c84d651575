"""Items whose labels are implausible, by what their features predict, and items whose labels would teach most.

Doubtful labels (docs/collection.md): labels are judged when their row is learnt, by the model before that step, which
has not seen them: the agreement is the cosine of predicted labels and own labels, both less the mean labels of the
collection. Rows with wrong labels agree like rows with labels at random, so where labels agree least nearly all are
wrong: the smallest ratio of the two histograms estimates the share of wrong labels, as in `numeric.labels`.

Suggestions (docs/active-learning.md): unlabelled items are chosen one after another, by their codes, so that together
with the labelled items they are near as many unlabelled items as possible; and those count more whose likely labels few
labelled items have. A random sample stands for all items, so time and memory do not grow with them.
"""

import heapq
import json
from collections.abc import Hashable
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.language import compile_filter
from stillhash.collection.learning.prequential import Chunk, LearningStep
from stillhash.collection.read_view import ReadView, Snapshot
from stillhash.collection.storage.bitmaps import count_bits, list_rows
from stillhash.collection.storage.items import MAX_DOUBTFUL, NOT_JUDGED, DoubtfulRow, histogram_bins
from stillhash.collection.storage.schema import RowNumbers, get_meta, parsing
from stillhash.collection.storage.store import Store
from stillhash.collection.types import DoubtfulItem, Id, LabelSuggestion, SuggestionReason
from stillhash.hashers import Hasher, LinearHasher
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.labels import BINS, MIN_ROWS, Labels, agreement
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Doubles, Floats, check_integer
from stillhash.search.blocks import Bitmap, clear

SAMPLE_ITEMS = 256  # items are drawn, and their labels are the labels at random
MIN_SAMPLE = 20  # of the drawn items must have a label that the model knows
LABEL_RARITY = 0.45  # labels weigh by their frequency to the power of minus this, as in the model
NEVER_DOUBTED = 0.9  # labels that agree better than this share of labels at random are never doubted
PREDICTED_LABELS = 3  # predicted labels at most are stored of a row
MIN_PREDICTION = 0.5  # a further label is stored if it is predicted this well, as a share of the best one
SHARE_ERRORS = 2.0  # the share of wrong labels is taken so many standard errors too low for an item's chance


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

    def __init__(self, store: Store, connection: Connection, numbers: RowNumbers, least_learnt: int) -> None:
        self.least_learnt = least_learnt  # rows that a model has learnt before others are judged by it
        self.table, self.connection, self.numbers = store.doubtful_labels, connection, numbers
        self._predictor: LabelPredictor | None = None
        self._rng = np.random.default_rng(get_meta(connection, "next_row"))
        self._sample: Labels | None = None  # of items
        if (numbers != NOT_JUDGED).any():
            self._sample = store.items.sample_labels(connection, SAMPLE_ITEMS, self._rng)

    def observe(self, step: LearningStep) -> None:
        """Judge the labels of a step by what was learnt before it; those of a remainder as the step before."""
        if not step.is_remainder and step.rows_learnt >= self.least_learnt:
            self._use(step.hasher)
        self._judge(step.chunk, step.rows)

    def _use(self, hasher: Hasher) -> None:
        """Judge by what this hasher has learnt."""
        self._predictor = None
        if self._sample is None:
            return
        model = hasher.model()
        if model.U is not None and model.u is not None and model.label_names is not None:
            self._predictor = LabelPredictor(hasher.functions(), model.U, model.u, model.label_names)

    def _judge(self, rows: Chunk, step: slice) -> None:
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


WITH_LABELS, WITHOUT_LABELS = (compile_filter({"labels": {"$exists": some}}) for some in (True, False))
MAX_SUGGESTIONS = 1000  # items at most are suggested by one call
CANDIDATE_ROWS = 4000  # unlabelled items are drawn at random; suggestions are chosen among them
REFERENCE_ROWS = 2000  # of the drawn items are those that suggestions should cover
LABELLED_ROWS = 2000  # labelled items are drawn at random; they cover already
SUGGESTED_LABELS = 5  # likely labels at most come with a suggested item
MIN_CHANCE = 0.05  # less likely labels do not come with it
SURE_CHANCE = 0.5  # an item whose best label is likelier than this is not "unsure"
CLOSE_CHANCES = 0.7  # on a "boundary" the second label has at least this share of the chance of the best one
LIKELY = 0.1  # labels with less of a chance do not count for what an item is worth
LEAST_WORTH = 0.001  # is what an item is worth whose likely labels many have; 1 is that of a label that no item has
NEAR_COSINE = 0.3  # an item is "new" if no labelled item is nearer than this


class ItemVectors(NamedTuple):
    """What items are compared by, (n, b) of unit norm, and the labels that are predicted of them."""

    rows: RowNumbers
    vectors: Floats
    chances: Floats  # (n, labels), 0 to 1


def draw_rows(bitmap: Bitmap, count: int, rng: np.random.Generator) -> RowNumbers:
    """Draw so many rows of a bitmap without repeats, or all of them; rising."""
    total = count_bits(bitmap)
    places = np.arange(total) if total <= count else np.sort(rng.choice(total, count, replace=False))
    sample, start = [], 0
    for rows in list_rows(bitmap, 1 << 20):
        inside = places[(start <= places) & (places < start + len(rows))]
        sample.append(rows[inside - start])
        start += len(rows)
    return np.concatenate([*sample, np.empty(0, np.int64)])


class SuggestionSource:
    """The items of one commit: which have labels, what they are compared by, and the labels predicted of them."""

    def __init__(self, store: Store, snapshot: Snapshot, names: tuple[Hashable, ...]) -> None:
        self.store, self.snapshot = store, snapshot
        columns = 0 if snapshot.model.V is None else snapshot.model.V.shape[1]
        self.names = names[:columns]  # after a rollback more may be known than its model predicts
        self.waiting: tuple[RowNumbers, Floats] | None = None  # rows without codes, and their features
        if snapshot.functions is None:
            rows, (X, _, _) = store.items.awaiting_codes(snapshot.connection)
            self.waiting = rows, unit_rows(X - X.mean(axis=0)) if len(X) else X

    def vectors(self, rows: RowNumbers) -> ItemVectors:
        """Return what these items are compared by, and the labels predicted of them, where any are learnt."""
        if self.waiting is not None:
            places = np.searchsorted(self.waiting[0], rows)
            return ItemVectors(rows, self.waiting[1][places], np.zeros((len(rows), 0), np.float32))
        bits = self.store.settings["bits"]
        x = signs(self.snapshot.index.codes(rows), bits)
        return ItemVectors(rows, x / np.float32(np.sqrt(bits)), self._chances(x))

    def _chances(self, x: Floats) -> Floats:
        """Return the chance of each label (n, labels), by what the model predicts of codes.

        Predicted are unit vectors of labels, 1 / sqrt(s) for each label of an item with s; the mean of their sums is
        that of sqrt(s), by which a prediction is more likely than it is large.
        """
        V, v = self.snapshot.model.V, self.snapshot.model.v
        if V is None or v is None or len(self.names) != V.shape[1] or not len(x):
            return np.zeros((len(x), 0), np.float32)
        predicted = kernels.project(x, V) + v
        size = max(1.0, float(predicted.sum(axis=1).mean()))
        chances: Floats = np.clip(predicted * np.float32(size), 0, 1)
        return chances

    @parsing("labels")
    def label_counts(self, labelled: RowNumbers) -> Floats:
        """Return how many of these items have each of the labels that the model predicts."""
        columns = {name: column for column, name in enumerate(self.names)}
        counts = np.zeros(len(columns), np.float32)
        for _, labels, _ in self.store.items.contents(self.snapshot.connection, labelled.tolist()).values():
            for label in labels:
                if label in columns:
                    counts[columns[label]] += 1
        return counts


def suggest_labels(view: ReadView, count: int, skip: list[Id], rng: np.random.Generator) -> list[LabelSuggestion]:
    """Return suggestions for unlabelled items, the most useful first; none is near those of `skip`."""
    with view.pinned(WITH_LABELS) as snapshot:
        assert snapshot.allowed is not None
        labelled = draw_rows(snapshot.allowed, LABELLED_ROWS, rng)
    with view.pinned(WITHOUT_LABELS) as snapshot:
        items, connection = snapshot.store.items, snapshot.connection
        skipped = np.array(list(items.rows_of(connection, skip).values()), np.int64)
        existing = np.array(items.existing(connection, labelled.tolist()), np.int64)
        source = SuggestionSource(snapshot.store, snapshot, label_names(snapshot))
        return choose_items(source, np.setdiff1d(existing, skipped), skipped, count, rng)


def label_names(snapshot: Snapshot) -> tuple[Hashable, ...]:
    """Return the labels that a model predicts; those of an earlier release are in the files of its learner."""
    if snapshot.model.V is None:
        return ()
    if snapshot.model.label_names is not None:
        return tuple(snapshot.model.label_names)
    files = snapshot.store.versions.learners(snapshot.connection).get(snapshot.version)
    space = None if files is None else snapshot.store.learner_files.load(files).label_space()
    return () if space is None else tuple(space.names)


def choose_items(
    source: SuggestionSource, labelled: RowNumbers, skipped: RowNumbers, count: int, rng: np.random.Generator
) -> list[LabelSuggestion]:
    """Return suggestions for unlabelled items, the most useful first; skipped ones cover as labelled ones do."""
    assert source.snapshot.allowed is not None
    rows = draw_rows(without_rows(source.snapshot.allowed, skipped), max(CANDIDATE_ROWS, count), rng)
    if not len(rows):
        return []
    candidates, known = source.vectors(rows), source.vectors(np.concatenate([labelled, skipped]))
    some = np.sort(rng.permutation(len(rows))[:REFERENCE_ROWS])
    references, weights = candidates.vectors[some], label_worth(candidates.chances[some], source.label_counts(labelled))
    covered = similarity_to(references, known.vectors).max(axis=1, initial=0)
    chosen = cover_greedily(similarity_to(references, candidates.vectors), covered, weights, count)
    return describe(source, candidates, known, chosen)


# Greedy facility location: a chosen item covers every other one by their similarity, and an item is covered by the
# chosen one that is most similar to it. What a set covers is submodular, so to choose what adds most, again and again,
# covers at least 63 % of what the best set does (Nemhauser, Wolsey and Fisher 1978).


class Coverage(NamedTuple):
    """The rows that were chosen, in order, and what each adds to what is covered."""

    rows: NDArray[np.int64]
    gains: Doubles


@one_thread
def similarity_to(references: Floats, rows: Floats) -> Floats:
    """Return how far each row covers each reference, (references, rows), 0 to 1, from unit vectors.

    By the cosine itself a row covers the whole collection a little, and the best rows are those far from all others.
    Its sixth power counts near rows alone, and the best rows are those in the middle of many.
    """
    squares: Floats = np.square(np.maximum(references @ rows.T, np.float32(0)))
    return squares * squares * squares


def cover_greedily(similarity: Floats, covered: Floats, weights: Floats, count: int) -> Coverage:
    """Choose up to `count` columns of `similarity` (n, candidates), each the one that adds most to what is covered.

    covered: (n,) how far each reference is covered before. weights: (n,) what each reference counts. Among equals the
    first column is chosen. A gain only falls as more is covered, so one that was computed earlier is an upper bound,
    and most columns need not be looked at again (Minoux 1978).
    """
    so_far = covered.astype(np.float64)
    by_column = np.ascontiguousarray(similarity.T)
    bounds = [(-_gain(column, so_far, weights), place) for place, column in enumerate(by_column)]
    heapq.heapify(bounds)
    rows: list[int] = []
    gains: list[float] = []
    while bounds and len(rows) < count:
        _, place = bounds[0]
        gain = _gain(by_column[place], so_far, weights)
        heapq.heapreplace(bounds, (-gain, place))
        if bounds[0][1] == place:
            heapq.heappop(bounds)
            rows.append(place)
            gains.append(gain)
            so_far = np.maximum(so_far, by_column[place])
    return Coverage(np.array(rows, np.int64), np.array(gains, np.float64))


def _gain(column: Floats, covered: Doubles, weights: Floats) -> float:
    return float(np.dot(np.maximum(column - covered, 0), weights))


def label_worth(chances: Floats, counts: Floats) -> Floats:
    """Return what labels of items are worth (n,): the more, the fewer labelled items have its likely labels.

    A label of n labelled items is worth 1 / (n + 1), and an item the mean of its likely labels, by their chances.
    """
    if not chances.shape[1]:
        return np.ones(len(chances), np.float32)
    likely = np.where(chances >= LIKELY, chances, 0)
    worth = (likely @ (1 / (counts + 1)) + LEAST_WORTH) / (likely.sum(axis=1) + LIKELY)
    return np.asarray(worth, np.float32)


def describe(
    source: SuggestionSource, candidates: ItemVectors, known: ItemVectors, chosen: Coverage
) -> list[LabelSuggestion]:
    """Return the chosen items with their predicted labels and why they were chosen."""
    vectors, chances = candidates.vectors[chosen.rows], candidates.chances[chosen.rows]
    nearest = (vectors @ known.vectors.T).max(axis=1, initial=0).tolist()
    usefulness = (chosen.gains / max(chosen.gains.max(initial=0), 1e-30)).tolist()
    numbers = candidates.rows[chosen.rows].tolist()
    names = source.store.items.contents(source.snapshot.connection, numbers)
    return [
        LabelSuggestion(names[row][0], best_labels(chance, source.names), useful, reason_of(chance, near))
        for row, chance, useful, near in zip(numbers, chances, usefulness, nearest, strict=True)
    ]


def best_labels(chances: Floats, names: tuple[Hashable, ...]) -> list[tuple[Hashable, float]]:
    """Return the most likely labels of an item, best first, with their chances."""
    best = np.argsort(-chances, kind="stable")[:SUGGESTED_LABELS].tolist()
    return [(names[column], float(chances[column])) for column in best if chances[column] >= MIN_CHANCE]


def reason_of(chances: Floats, nearest: float) -> SuggestionReason:
    """Return why an item was chosen, in one word."""
    if not len(chances):
        return "typical"
    if nearest < NEAR_COSINE:
        return "new"
    second, best = np.sort(np.append(chances, [0, 0]))[-2:].tolist()
    if second >= CLOSE_CHANCES * best:
        return "boundary"
    return "unsure" if best < SURE_CHANCE else "typical"


def without_rows(bitmap: Bitmap, rows: RowNumbers) -> Bitmap:
    """Return a bitmap without these rows."""
    left = bitmap.copy()
    clear(left, rows[rows < 8 * len(left)])
    return left
