"""Choose the unlabelled items whose labels would teach most, and predict labels for them. docs/active-learning.md.

Only codes are stored, so both work from codes. Items are chosen one after another, so that together with the labelled
items they are near as many unlabelled items as possible; and those count more whose likely labels few labelled items
have. A random sample stands for all items, so time and memory do not grow with them.
"""

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from stillhash.collection.filters.language import compile_filter
from stillhash.collection.read_view import ReadView, Snapshot
from stillhash.collection.storage.bitmaps import count_bits, list_rows
from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.schema import parsing
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Id, LabelSuggestion, SuggestionReason
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.coverage import Coverage, cover_greedily, similarity_to
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.validation import Floats
from stillhash.search.blocks import Bitmap, clear

WITH_LABELS, WITHOUT_LABELS = (compile_filter({"labels": {"$exists": some}}) for some in (True, False))
MAX_SUGGESTIONS = 1000  # of one call
CANDIDATE_ROWS = 4000  # unlabelled items, drawn at random, of which some are chosen
REFERENCE_ROWS = 2000  # of them, the items that are to be covered
LABELLED_ROWS = 2000  # labelled items, drawn at random, that cover already
SUGGESTED_LABELS = 5  # of an item
MIN_CHANCE = 0.05  # of a label that is suggested
SURE_CHANCE = 0.5  # of the best label, above which an item is not "unsure"
CLOSE_CHANCES = 0.7  # of the best label's chance, that the second has on a "boundary"
LIKELY = 0.1  # chance of a label that counts for what an item is worth
LEAST_WORTH = 0.001  # of an item whose likely labels many have, beside 1 for a label that no item has
NEAR_COSINE = 0.3  # to a labelled item, below which an item is "new"


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
