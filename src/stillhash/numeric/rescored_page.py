"""The first page by the rescoring codes of its candidates, and by the labels that they have now.

docs/method.md derives it. Candidates are the first hits by score and the first by similarity. Each gets

  page score = s * (labels of the query . labels of the item) + (1 - s) * cosine + votes

where the labels of an item are those predicted of its short code, averaged with those that are stored; the labels of
the query are those predicted of it, averaged with those that its nearest candidates have; and s says how much labels
count: less for a query whose labels are uncertain, or whose neighbours have fewer labels than items have in general.
The best of them, the finalists, are then scored again with labels that are predicted of their rescoring codes too.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import kernels
from stillhash.numeric.kernels import PageCandidates, PageLabels, PageQueries
from stillhash.numeric.labels import Labels
from stillhash.numeric.reference import label_vectors as vectors_of_columns
from stillhash.numeric.reference import labels_of_finalists
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.rescoring import RescoreQueries, Rescorer
from stillhash.numeric.validation import Codes, Floats

CANDIDATES = 300  # hits by score; other parameters are in reference.py
# By similarity: where many items are labelled, where few are, and at most, since bits that hold labels find less.
SIMILAR, SIMILAR_FEW_LABELS, MOST_SIMILAR = CANDIDATES, 2 * CANDIDATES, 3 * CANDIDATES

NONE = np.empty(0, np.float32)
NO_LABELS = PageLabels(NONE[:, None][:, :0], NONE, np.empty((0, 16, 0), np.float32), NONE, 1.0, NONE)


class StoredItems(Protocol):
    """What the first page reads of its candidates."""

    def rescoring_codes(self, ids: NDArray[np.int64]) -> Codes: ...
    def labels(self, ids: NDArray[np.int64]) -> Labels: ...


@dataclass(frozen=True, eq=False)
class LabelRegression:
    """What predicts the labels of an item from its codes, for one version of a model."""

    U: Floats  # (D, labels), of the levels of a rescoring code times its correction
    u: Floats  # (labels,)
    V: Floats  # (b, labels), of the signs of a short code
    v: Floats  # (labels,)
    power: float  # that predicted labels are raised to
    names: list[Hashable]
    weights: Floats | None = None  # (labels,): how much sharing a label counts; None: all alike

    def of_codes(self, codes: Codes) -> Floats:
        """Return the labels (n, labels) predicted of short codes, of unit norm."""
        return kernels.predict_labels(codes, self.V, self.v, self.power)

    def of_finalists(self, codes: Codes, rescoring_codes: Codes, rescorer: Rescorer) -> Floats:
        """Return the labels (n, labels) predicted of both codes of finalists."""
        levels, corrections = rescorer.levels(rescoring_codes), rescorer.corrections(rescoring_codes)
        by_levels = kernels.project(levels, self.U) * corrections[:, None] + self.u
        by_levels = unit_rows(np.maximum(by_levels, 0) ** np.float32(self.power))
        return labels_of_finalists(self.of_codes(codes), by_levels, rescorer.marked(rescoring_codes))

    @cached_property
    def arrays(self) -> PageLabels:
        """Return what the kernel of the first page takes."""
        weights = np.ones(len(self.u), np.float32) if self.weights is None else self.weights
        U, u, v, weights = (np.ascontiguousarray(part, np.float32) for part in (self.U, self.u, self.v, weights))
        return PageLabels(U, u, kernels.label_table(self.V), v, float(self.power), weights)

    def columns(self, names: list[Hashable]) -> NDArray[np.int64]:
        """Return the columns of these labels; those that it does not predict have other numbers, from `labels` on.

        Those of the last list are kept: a store adds names to one list, and never changes those it has.
        """
        last, columns = self._last[0]
        if last is not names or len(columns) < len(names):
            start = len(columns) if last is names else 0
            new = [self._places.get(name, len(self._places) + n) for n, name in enumerate(names[start:], start)]
            columns = np.concatenate([columns[:start], np.array(new, np.int64)])
            self._last[0] = names, columns
        return columns

    @cached_property
    def _places(self) -> dict[Hashable, int]:
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def _last(self) -> list[tuple[list[Hashable], NDArray[np.int64]]]:
        return [([], np.empty(0, np.int64))]


class RescoredPage(NamedTuple):
    """How the candidates of m queries are ordered on the first page."""

    rescorer: Rescorer
    queries: RescoreQueries
    labels: Floats | None = None  # (m, labels) predicted of each query, of unit norm; None if nothing is learnt
    strength: Floats | None = None  # (m,) how much labels count where neighbours are labelled like all items, 0 to 1
    regression: LabelRegression | None = None
    labelled_share: float = 1.0  # of the stored items, those that have labels now
    fixed: bool = False  # the strength is the caller's, so neighbours do not change it
    votes: Floats | None = None  # (m, b) weights of the bits that votes add
    similar: int = SIMILAR  # how many candidates there are by similarity

    def rows(self, some: Any) -> "RescoredPage":
        """Return the pages of some of the queries."""
        parts = {"labels": self.labels, "strength": self.strength, "votes": self.votes}
        chosen = {name: part[some] for name, part in parts.items() if part is not None}
        return self._replace(queries=self.queries.rows(some), **chosen)

    def counts_labels(self, q: int) -> bool:
        """Return whether labels count for a query."""
        return self.labels is not None and self.strength is not None and bool(self.strength[q] > 0)


class PageScores(NamedTuple):
    """The scores of candidates, and their parts; all arrays are (n,), or (m, n) of several queries."""

    scores: Floats
    cosines: Floats
    labels: Floats  # the cosine of the labels of query and item; 0 where labels do not count
    votes: Floats
    tiers: NDArray[np.int64]  # 0: near duplicates of the query, 1: finalists, 2: others
    strength: Floats  # () or (m,): how much labels count beside the cosine, 0 to 1

    def query(self, q: int, count: int) -> "PageScores":
        """Return the scores of one query, which has so many candidates."""
        some = np.s_[q, :count]
        scores, cosines, labels, votes = self.scores[some], self.cosines[some], self.labels[some], self.votes[some]
        return PageScores(scores, cosines, labels, votes, self.tiers[some], self.strength[q])

    def left_out(self) -> NDArray[np.bool_]:
        """Return which candidates of one query are neither finalists nor of the first by score."""
        left_out: NDArray[np.bool_] = self.tiers == 2
        left_out[:CANDIDATES] = False
        return left_out

    def order(self) -> NDArray[np.int64]:
        """Return the places of the candidates of one query, best first."""
        return np.lexsort((-np.where(self.tiers == 0, self.cosines, self.scores), self.tiers))


def page_scores(page: RescoredPage, q: int, codes: Codes, rescoring_codes: Codes, labels: Labels) -> PageScores:
    """Return the scores on the first page of query q of its candidates, which have these codes and labels.

    Candidates come in the order that equal scores leave them in.
    """
    count = len(codes)
    one = page.rows(slice(q, q + 1))
    return score_pages(one, codes[None], np.array([count]), rescoring_codes, labels).query(0, count)


def score_pages(
    page: RescoredPage, codes: Codes, counts: NDArray[np.int64], rescoring_codes: Codes, labels: Labels
) -> PageScores:
    """Return the scores on the first page of m queries of their candidates, with short codes (m, n, bytes).

    counts: (m,), how many of the n each has. rescoring_codes, labels: of those of the first query, then of the next.
    """
    m, none = len(counts), np.empty((len(counts), 0), np.float32)
    indices, model = labels.indices, NO_LABELS
    of_queries = none, np.zeros(m, np.float32)
    if page.labels is not None and page.strength is not None and page.regression is not None:
        indices, model = page.regression.columns(labels.names)[indices], page.regression.arrays
        of_queries = np.ascontiguousarray(page.labels), page.strength.astype(np.float32, copy=False)
    votes = none if page.votes is None else np.ascontiguousarray(page.votes)
    queries = PageQueries(*page.queries, votes, *of_queries, float(page.labelled_share), page.fixed)
    candidates = PageCandidates(codes, counts, rescoring_codes, labels.indptr, indices)
    (scores, cosines, agreement, by_votes), tiers, strength = kernels.rescored_page(
        candidates, queries, model, page.rescorer.bits
    )
    return PageScores(scores, cosines, agreement, by_votes, tiers, strength)


def label_vectors(labels: Labels, names: list[Hashable]) -> Floats:
    """Return rows of labels as unit vectors (n, labels): over these names first, then over others that rows have."""
    places = {name: place for place, name in enumerate(names)}
    columns = np.array([places.get(name, len(names) + n) for n, name in enumerate(labels.names)], np.int64)
    return vectors_of_columns(labels.indptr, columns[labels.indices], len(names))
