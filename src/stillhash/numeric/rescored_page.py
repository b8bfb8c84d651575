"""The first page by the rescoring codes of its candidates, and by the labels that they have now.

docs/method.md derives it. Candidates are the first hits by score and the first by similarity. Each gets

  page score = s * (labels of the query . labels of the item) + (1 - s) * cosine + votes

where the labels of an item are those predicted of its short code, averaged with those that are stored; the labels of
the query are those predicted of it, averaged with those that its nearest candidates have; and s says how much labels
count: less for a query whose labels are uncertain, or whose neighbours have fewer labels than items have in general.
The best of them, the finalists, are then scored again with labels that are predicted of their rescoring codes too.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import kernels
from stillhash.numeric.alignment import unit_rows
from stillhash.numeric.codes import signs
from stillhash.numeric.labels import Labels
from stillhash.numeric.rescoring import RescoreQueries, Rescorer
from stillhash.numeric.validation import Codes, Floats, Mask

CANDIDATES = 300  # hits by score, and as many by similarity
NEIGHBOURS = 30  # candidates of the highest cosine, whose labels a query is expected to have
NEIGHBOUR_POWER = 4  # a neighbour counts by its cosine to this power
FINALISTS = 64  # candidates that are scored again, by all that is known of them
NEAR_COSINE = 0.95  # items from this cosine on are near duplicates: .97, less what the estimate may be off


class StoredItems(Protocol):
    """What the first page reads of its candidates."""

    def rescoring_codes(self, ids: NDArray[np.int64]) -> Codes: ...
    def labels(self, ids: NDArray[np.int64]) -> Labels: ...


class LabelRegression(NamedTuple):
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

    def of_rescoring_codes(self, rescorer: Rescorer, codes: Codes) -> Floats:
        """Return the labels (n, labels) predicted of rescoring codes, of unit norm."""
        predicted = kernels.project(rescorer.levels(codes), self.U) * rescorer.corrections(codes)[:, None] + self.u
        return unit_rows(np.maximum(predicted, 0) ** np.float32(self.power))


class RescoredPage(NamedTuple):
    """How the candidates of m queries are ordered on the first page."""

    rescorer: Rescorer
    queries: RescoreQueries
    labels: Floats | None = None  # (m, labels) predicted of each query, of unit norm; None if nothing is learnt
    strength: Floats | None = None  # (m,) how much labels count where neighbours are labelled like all items, 0 to 1
    regression: LabelRegression | None = None
    labelled_share: float = 1.0  # of the items
    fixed: bool = False  # the strength is the caller's, so neighbours do not change it
    votes: Floats | None = None  # (m, b) weights of the bits that votes add

    def rows(self, some: Any) -> "RescoredPage":
        """Return the pages of some of the queries."""
        parts = {"labels": self.labels, "strength": self.strength, "votes": self.votes}
        chosen = {name: part[some] for name, part in parts.items() if part is not None}
        return self._replace(queries=self.queries.rows(some), **chosen)

    def counts_labels(self, q: int) -> bool:
        """Return whether labels count for a query."""
        return self.labels is not None and self.strength is not None and bool(self.strength[q] > 0)


class PageScores(NamedTuple):
    """The scores of a query's candidates, and their parts; all arrays are (n,)."""

    scores: Floats
    cosines: Floats
    labels: Floats  # the cosine of the labels of query and item; 0 where labels do not count
    votes: Floats
    tiers: NDArray[np.int64]  # 0: near duplicates of the query, 1: finalists, 2: others
    strength: float  # how much labels count beside the cosine, 0 to 1

    def order(self) -> NDArray[np.int64]:
        """Return the places of the candidates, best first."""
        return np.lexsort((-np.where(self.tiers == 0, self.cosines, self.scores), self.tiers))


def page_scores(page: RescoredPage, q: int, codes: Codes, rescoring_codes: Codes, labels: Labels) -> PageScores:
    """Return the scores on the first page of query q of its candidates, which have these codes and labels.

    Candidates come in the order that equal scores leave them in.
    """
    cosines = page.rescorer.cosines(page.queries.rows(slice(q, q + 1)), rescoring_codes[None])[0]
    tiers = np.where(cosines >= np.float32(NEAR_COSINE), 0, 1)
    votes = np.zeros_like(cosines)
    if page.votes is not None:
        bits = page.votes.shape[1]
        votes = (signs(codes, bits).astype(np.float64) @ page.votes[q] / np.sqrt(bits)).astype(np.float32)
    if not page.counts_labels(q) or not len(codes):
        return PageScores(cosines + votes, cosines, np.zeros_like(cosines), votes, tiers, 0.0)
    assert page.labels is not None and page.strength is not None and page.regression is not None
    regression, count = page.regression, len(page.regression.names)
    stored = label_vectors(labels, regression.names)  # (n, labels of the model, then others)
    expected, coverage = neighbour_labels(cosines, stored, labels.labelled, page.labelled_share)
    trust = np.float32(page.labelled_share**0.5)
    of_query = trust * expected
    of_query[:count] += page.labels[q]
    of_query /= max(float(np.sqrt(of_query @ of_query)), 1e-30)
    strength = page.strength[q] if page.fixed else page.strength[q] * (1 - trust + trust * coverage)

    def score(predicted: Floats, of_items: Floats, some: Any) -> tuple[Floats, Floats]:
        of_items[:, :count] += predicted
        norms = np.sqrt(np.maximum(np.einsum("ij,ij->i", of_items, of_items), np.float32(1e-30)))
        if regression.weights is not None:
            of_items[:, :count] *= regression.weights
        agreement = (of_items @ of_query) / norms
        scores = strength * agreement + (np.float32(1) - strength) * cosines[some] + votes[some]
        return agreement, scores.astype(np.float32)

    predicted = regression.of_codes(codes)
    agreement, scores = score(predicted, stored.copy(), slice(None))
    finalists = np.lexsort((-scores, tiers))[:FINALISTS]
    tiers[tiers > 0] = 2
    finalists = finalists[tiers[finalists] > 0]
    tiers[finalists] = 1
    by_both = unit_rows(predicted[finalists] + regression.of_rescoring_codes(page.rescorer, rescoring_codes[finalists]))
    agreement[finalists], scores[finalists] = score(by_both, stored[finalists], finalists)
    return PageScores(scores, cosines, agreement, votes, tiers, float(strength))


def neighbour_labels(cosines: Floats, stored: Floats, labelled: Mask, share: float) -> tuple[Floats, np.float32]:
    """Return the labels (labels,) that the nearest candidates have, and how many have some beside all items."""
    nearest = np.argsort(-cosines, kind="stable")[:NEIGHBOURS]
    weights = np.maximum(cosines[nearest], 0) ** NEIGHBOUR_POWER
    total = max(float(weights.sum()), 1e-9)
    covered = float(weights[labelled[nearest]].sum()) / total
    return unit_rows(weights[None] @ stored[nearest])[0], np.float32(min(1.0, covered / max(share, 1e-9)))


def label_vectors(labels: Labels, names: list[Hashable]) -> Floats:
    """Return rows of labels as unit vectors (n, labels): over these names first, then over others that rows have.

    The others are in an order of their own, so that the vectors do not depend on what else was read with them.
    """
    places = {name: place for place, name in enumerate(names)}
    used = {labels.names[index] for index in np.unique(labels.indices).tolist()}
    for name in sorted(used - places.keys(), key=lambda name: (isinstance(name, str), repr(name))):
        places[name] = len(places)
    of_name = np.array([places.get(name, -1) for name in labels.names], np.int64)
    vectors = np.zeros((len(labels), len(places)), np.float32)
    vectors[np.repeat(np.arange(len(labels)), np.diff(labels.indptr)), of_name[labels.indices]] = 1
    return unit_rows(vectors, out=vectors)
