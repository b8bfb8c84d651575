"""Methods whose code is the sign of linear functions; unsupervised ones, and the codes of OHSL."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from stillhash.hashers.base import COUNT, Hasher, Model
from stillhash.numeric import kernels
from stillhash.numeric.codes import pack, signs
from stillhash.numeric.hashing import HashFunctions, lsh, pca_itq
from stillhash.numeric.labels import Labels
from stillhash.numeric.ranking import (
    FEW_BITS_LOSSES,
    MANY_SIMILARITY_BITS,
    MIN_SIMILARITY_BITS,
    NEAR_LOSSES,
    Ranking,
    half_power,
)
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.rescored_page import MOST_SIMILAR, SIMILAR, SIMILAR_FEW_LABELS, LabelRegression, RescoredPage
from stillhash.numeric.rescoring import Rescorer
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import MAX_MAGNITUDE, Codes, Floats, Mask, check_integer, check_number

CERTAIN_LENGTH = 0.7  # predicted labels count in full from this length on, beside the root mean square of those learnt
MANY_LABELLED = 0.25  # of the items; while fewer are labelled, the labels predicted of a query are sharpened more
DECODE_STEPS = 200  # steps at most rebuild the features of a code
DECODE_ROWS = 256  # rows are rebuilt at a time, within the caches
DECODE_MARGIN = np.float32(0.02)  # is how far from the edge of a hash function rebuilt features should be


class PageModel(NamedTuple):
    """What orders the first page by rescoring codes: how they are read, and what predicts the labels of items."""

    rescorer: Rescorer
    regression: LabelRegression | None = None  # None before anything is learnt
    labelled_share: float = 1.0  # of the stored items, now


class LinearHasher(Hasher):
    """A method whose code is x~ = sgn(W^T x + t)."""

    name = "linear"
    saved_arrays: ClassVar = {"W": "float32 D b", "t": "float32 b"}
    saved_values: ClassVar = {"label_bits": COUNT}

    W_: Floats  # (D, b)
    t_: Floats  # (b,)
    label_bits_ = 0  # so many of the first bits hold the labels of rows that are encoded with them

    def _fix(self, functions: HashFunctions) -> None:
        self.W_, self.t_ = functions[:2]

    def functions(self) -> "LinearHasher":
        """Return the hash functions alone, which encode, and weigh by any model of the same fixed codes."""
        bare = LinearHasher(self.bits, center=self.center, unit_norm=self.unit_norm)
        bare.mean_, bare.W_, bare.t_, bare.label_bits_ = self.mean_, self.W_, self.t_, self.label_bits_
        bare.n_features_in_ = self.n_features_in_
        return bare

    def ranking_by(self, model: Model, Q: ArrayLike, *, balance: float | None = None) -> Ranking:
        """Return how queries rank codes by a model of these hash functions, of this or an earlier version."""
        return self.rank_checked(model, self._checked(Q), balance)

    def rank_checked(
        self, model: Model, Q: Floats, balance: float | None = None, page: PageModel | None = None
    ) -> Ranking:
        """Rank by queries that are validated already; `page` orders the first page by rescoring codes."""
        if balance is not None:
            balance = check_number(balance, "balance", low=0, high=1)
        share = model.resolve_balance(balance)
        if share is None:
            return Ranking(self.weigh_by(model, Q))
        X = self.prepare(Q)
        similarity = self.project(X)
        weights, predicted, by_votes = unit_rows(similarity), None, None
        if share:
            if model.U is None or model.M is None:
                learnt = self.weigh_by(model._replace(balance=None, N=None), Q)
            else:
                predicted = kernels.project(X, model.U) + model.u
                learnt = kernels.project(half_power(predicted, model.power), model.M)
            weights = np.float32(share) * unit_rows(learnt) + np.float32(1 - share) * weights
        if model.N is not None:
            by_votes = kernels.project(X, model.N)
            weights = weights + by_votes
        if page is not None:
            scored = Ranking(weights, similarity)
            return self._ranking_with_page(model, page, X, scored, predicted, (share, balance is not None), by_votes)
        label_bits, losses = model.label_bits, NEAR_LOSSES
        if model.side == "similarity" and self.bits - self.label_bits_ >= MIN_SIMILARITY_BITS:
            label_bits = self.label_bits_  # some codes may hold labels before anything is learnt
        page_similarity = None
        if label_bits and self.bits - label_bits >= MIN_SIMILARITY_BITS:
            page_similarity = similarity.copy()
            page_similarity[:, :label_bits] *= np.float32(model.plain_share)  # by the codes in which they are free
            similarity[:, :label_bits] = 0
        if label_bits and self.bits - label_bits < MANY_SIMILARITY_BITS:
            losses = FEW_BITS_LOSSES
        if model.V is None or predicted is None:
            return Ranking(weights, similarity, losses=losses)
        certainty = _certainty(predicted, model.query_length) if balance is None else np.ones(len(Q), np.float32)
        predicted /= np.maximum(predicted.max(axis=1, keepdims=True), np.float32(1e-30))
        labels = unit_rows(half_power(predicted, model.query_power))
        if share < 1:  # so that labels count share * certainty on the first page, and similarity the rest
            labels *= (certainty * np.float32(1 - share) / (1 - np.float32(share) * certainty))[:, None]
        return Ranking(weights, similarity, labels, model.V, model.v, model.item_power, share, losses, page_similarity)

    def _ranking_with_page(
        self,
        model: Model,
        page: PageModel,
        X: Floats,
        scored: Ranking,
        predicted: Floats | None,
        balance: tuple[float, bool],
        by_votes: Floats | None,
    ) -> Ranking:
        """Return how prepared queries rank codes by this score, with a first page by rescoring codes."""
        (share, fixed), similarity = balance, scored.similarity
        assert similarity is not None
        many_labelled = page.regression is not None and page.labelled_share >= MANY_LABELLED
        similar = SIMILAR if many_labelled else SIMILAR_FEW_LABELS
        if 0 < model.label_bits < self.bits:  # bits of labels say less of features, in all codes together
            similarity = similarity.copy()
            similarity[:, : model.label_bits] *= np.float32(1 - model.held_share)
            without_labels = 1 - model.label_bits * model.held_share / self.bits
            similar = round(min(MOST_SIMILAR, similar / without_labels))  # since fewer bits find less
        queries = page.rescorer.queries(unit_rows(X))
        rescored = RescoredPage(page.rescorer, queries, votes=by_votes, similar=similar)
        if page.regression is not None:
            certainty = np.ones(len(X), np.float32)
            if predicted is None:  # by neighbours alone, where a model has no labels one by one
                predicted = np.zeros((len(X), 0), np.float32)
            elif not fixed:
                certainty = _certainty(predicted, model.query_length)
            strength = np.float32(share) * certainty
            power = model.power if many_labelled else model.power + 0.5
            rescored = rescored._replace(
                labels=unit_rows(half_power(predicted, power)),
                strength=strength if fixed else strength**2,
                regression=page.regression,
                labelled_share=page.labelled_share,
                fixed=fixed,
            )
        return scored._replace(similarity=unit_rows(similarity), page=rescored)

    def rescoring_codes(
        self, rescorer: Rescorer, X: Floats, codes: Codes, labelled: Mask, threads: int | None = None
    ) -> Codes:
        """Return the rescoring codes of validated rows; they have a mark where a code (n, bytes) holds labels.

        labelled: which of the codes may hold some.
        """
        cores = usable_cores() if threads is None else threads
        rescoring_codes = self._in_batches(X, lambda some: rescorer.encode(self.prepare(some), cores))
        if not labelled.any():
            return rescoring_codes
        held = labelled.copy()
        held[labelled] = (codes[labelled] != self.encode_checked(X[labelled], None, threads)).any(axis=1)
        return rescorer.mark(rescoring_codes, held)

    def page_model(self, model: Model, rescorer: Rescorer, labelled_share: float = 1.0) -> PageModel:
        """Return what orders the first page by rescoring codes, for a model of these hash functions.

        labelled_share: of the stored items, those that have labels now.
        """
        if not model.learnt or model.balance is None or model.M is None:
            return PageModel(rescorer, labelled_share=labelled_share)
        U, u, V, v, names = model.U, model.u, model.V, model.v, model.label_names
        if U is None or u is None or V is None or v is None or names is None:  # labels of neighbours are all there is
            none: Floats = np.zeros(0, np.float32)
            U, V = (none.reshape(n, 0) for n in (self.n_features_in_, self.bits))
            u, v, names = none, none, []
        U = np.ascontiguousarray(rescorer.rotate(np.ascontiguousarray(U.T)).T)
        power, weights = model.item_power, model.label_weights
        if weights is not None:  # which V has too
            scale = np.where(weights > 0, weights, np.float32(1)) ** np.float32(-1 / power)
            V, v = np.asarray(V * scale, np.float32), np.asarray(v * scale, np.float32)
        return PageModel(rescorer, LabelRegression(U, u, V, v, power, names, weights), labelled_share)

    def predict_labels(self, model: Model, Q: Floats) -> Floats | None:
        """Return the labels (m, labels) that a model predicts of validated queries; None if it predicts none."""
        if model.U is None or model.u is None:
            return None
        return kernels.project(self.prepare(Q), model.U) + model.u

    def vote_weights(self, model: Model, Q: Floats) -> Floats | None:
        """Return what votes add to the weights (m, b) of validated queries by their features; None if nothing."""
        return None if model.N is None else kernels.project(self.prepare(Q), model.N)

    def project(self, X: Floats) -> Floats:
        """Return the hash functions (n, b) of prepared rows, before they are quantised."""
        return kernels.project(X, self.W_) + self.t_

    def _codes(self, X: Floats) -> Codes:
        return pack(self.project(X))  # Eq. 7

    def encode(self, X: ArrayLike, Y: Any = None, *, threads: int | None = None) -> Codes:
        """Encode rows of features as every method does, and check within the same pass that they are finite."""
        if Y is not None:
            return super().encode(X, Y, threads=threads)
        X = self._checked(X, finite=False)
        codes, norms = self._encode_rows(X, threads)
        if not norms.max(initial=0) + np.abs(self.mean_).max() <= MAX_MAGNITUDE / 2:  # also where a norm is NaN
            self._checked(X)
        return codes

    def _encode_features(self, X: Floats, threads: int | None) -> Codes:
        return self._encode_rows(X, threads)[0]

    def _encode_rows(self, X: Floats, threads: int | None) -> tuple[Codes, Floats]:
        """Return `_codes` of rows as they come, in one pass, and the norms of the rows once they are centred."""
        mean = self.mean_ if self.center else np.zeros_like(self.mean_)
        count = usable_cores() if threads is None else check_integer(threads, "threads", 1)
        return kernels.encode_rows(X, mean, self.unit_norm, self.W_, self.t_, count)

    def decode(self, codes: Codes) -> Floats:
        """Return features (n, D) that have these codes, or nearly so; they are of no other use.

        A code is a side of every hash function. Features start from the mean direction of its sides and step, as a
        perceptron does, until they lie on all of them, a little away from the edge. Each row is independent of the
        batch, to the bit. Hash functions that are the features themselves are undone exactly.
        """
        if not self.t_.any() and np.array_equal(self.W_, np.eye(*self.W_.shape, dtype=np.float32)):
            return signs(codes, self.bits) + self.mean_
        step = 1.8 / float(np.linalg.norm(self.W_, 2)) ** 2  # with less than 2 it converges
        back = np.ascontiguousarray(self.W_.T * np.float32(step))
        at_once = DECODE_ROWS if kernels.lanes() != "numpy" else 1  # BLAS rounds a row as its batch is long
        parts = (self._decode(signs(codes[s : s + at_once], self.bits), back) for s in range(0, len(codes), at_once))
        return np.concatenate([np.empty((0, self.n_features_in_), np.float32), *parts])

    def _decode(self, sides: Floats, back: Floats) -> Floats:
        """Return features of these sides of the hash functions (n, b); `back` is a step towards them (b, D)."""
        X, active = self._scaled(kernels.project(sides, back)), np.arange(len(sides))
        for _ in range(DECODE_STEPS):
            side, x = sides[active], X[active]
            gap = np.maximum(DECODE_MARGIN - side * (kernels.project(x, self.W_) + self.t_), 0)
            short = gap.any(axis=1)
            if not short.any():
                break
            active = active[short]
            X[active] = self._scaled(x[short] + kernels.project(side[short] * gap[short], back))
        return X + self.mean_

    def _scaled(self, x: Floats) -> Floats:
        return unit_rows(x) if self.unit_norm else x


def _certainty(predicted: Floats, length: float) -> Floats:
    """Return how sure the labels predicted of each query are (m,), 0 to 1, beside those of rows that were learnt.

    A query unlike all labelled rows, of a topic without labels say, has short predictions whatever their direction.
    """
    if length <= 0:
        return np.ones(len(predicted), np.float32)
    squares = np.einsum("ij,ij->i", predicted, predicted)
    certainty: Floats = np.minimum(squares / np.float32((CERTAIN_LENGTH * length) ** 2), np.float32(1))
    return certainty


class PCAITQ(LinearHasher):
    """Iterative quantisation of principal components (Gong et al., TPAMI 2013), ranked by Hamming distance."""

    name = "pca-itq"
    fixed_codes = True

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._fix(pca_itq(X, self.bits, rng))


class LSH(LinearHasher):
    """Sign random projections (Charikar, STOC 2002), ranked by Hamming distance."""

    name = "lsh"
    fixed_codes = True

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._fix(lsh(X, self.bits, rng))
