"""Tally: fixed binary codes; the similarity is a ridge regression from additive sufficient statistics."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from stillhash.errors import InvalidInput
from stillhash.hashers.additive_learner import MIN_LABEL_ROWS, AdditiveLearner
from stillhash.hashers.labelled_codes import MIN_BELIEF
from stillhash.hashers.model import LabelSpace, Model
from stillhash.hashers.parameters import NOT_NEGATIVE, POSITIVE, optional, parameter
from stillhash.numeric import kernels
from stillhash.numeric.labels import MIN_ROWS, LabelBelief, Labels, agreement, canonical, from_json
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.sufficient_stats import LabelDirections, Similarity, unit_labels
from stillhash.numeric.validation import Doubles, Floats, Mask, check_number

MAX_MODEL_LABELS = 1024  # that a model holds one by one
CLASS_POWER = 6.0  # of a query's predicted labels on the first page, where every row has one label
MIN_DIRECTION_ROWS = 10  # learnt of a label that came after the initial stage, before codes hold it


@dataclass(eq=False, repr=False, kw_only=True)
class Tally(AdditiveLearner):
    """Fixed codes with a similarity from additive sufficient statistics; docs/method.md derives it.

    As in OHSL, `fit` fixes the hash functions and a query weighs the bits of codes that never change. The two
    projections are not learnt step by step: they are the ridge regressions of label vectors on features and on codes,
    y(q) and y(x~), solved when weights are next needed, and S(q, x) = g(y(q)) . y(x~), where g drops what is negative
    and sharpens the rest.

    So the model does not depend on the order of rows or on chunks; `merge` adds what another machine has learnt,
    `unlearn` takes rows out, `half_life` forgets.

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    ridge : how strongly slopes are shrunk, in units of the mean square of a row.
    half_life : rows after which a row counts for half; None never forgets.
    label_weights : how much sharing a label counts, by label; 1 for those not named, 0 ignores a label.
    sharpness : labels are predicted of a query, negative ones dropped, and raised to this power, so that what is likely
        counts for more than it would by its share; a multiple of 0.5 from 1 to 4. With 1 nothing is dropped and all is
        linear, as it is with more than 1,024 labels, where a model would be too large.
    rarity : labels also weigh by their frequency to the power of -rarity, so that one on half of all rows does not
        drown those on a few; 0 counts them alike, 1 favours rare ones at the cost of the others.
    init : "labels" takes hash functions that predict the labels of the initial sample, where it has any; "pca-itq"
        ignores labels, as the paper does; "identity" takes features that are signs of ready codes, as many as bits.
    codes_see_labels : rows that are encoded with their labels, encode(X, Y), get codes that hold them. Pass these codes
        to `partial_fit`, and rows without labels too, so that the similarity suits all that is stored.
    share : the share of bits that are for labels, the others are for looks; None: by the length of the code.
    balance : how much the learnt similarity counts beside looks (the query, not quantised, against the codes), 0 to 1;
        None: its reliability, which follows from the residuals of the regressions and rises with the labels.
    rescore_bits : 1, 2, 4 or 8: rows are learnt by their rescoring codes of so many bits a dimension, in place of their
        features. Then sums are exact: `unlearn` leaves nothing behind, and sums over what is stored are equal to the
        bit, in any order. 0: by their features.
    double_sums : sums over rows are in double precision, so that `unlearn` leaves nothing behind, to about 1e-12; that
        takes about twice as long. Without, what it leaves is as small as the rounding of single precision.
    random_state : seed of the hash functions.
    """

    name = "tally"
    fixed_codes = True
    tunable: ClassVar = {"ridge": (0.3, 1.0, 10.0), "rarity": (0.2, 0.45), "half_life": (None, 20_000)}

    ridge: float = parameter(1.0, POSITIVE)
    label_weights: Mapping[Hashable, float] | None = None
    sharpness: float = 1.5
    rarity: float = parameter(0.45, NOT_NEGATIVE)
    balance: float | None = parameter(None, optional(partial(check_number, low=0, high=1)))

    def check_parameters(self) -> None:
        super().check_parameters()
        if not 1 <= check_number(self.sharpness, "sharpness") <= 4 or 2 * self.sharpness % 1:
            raise InvalidInput(f"sharpness: expected a multiple of 0.5 in [1, 4], got {self.sharpness}")
        for label, weight in (self.label_weights or {}).items():
            canonical(label, "label_weights")
            check_number(weight, f"label_weights[{label!r}]", low=0)

    def _later_directions(self, X: Floats, labels: Labels) -> LabelDirections:
        """Return directions of those labels of rows that came after the initial stage.

        The direction of a label is that of its regression on the features, seen by the hash functions: by what is
        learnt of it so far, and by these rows too if they show another label for the first time.
        """
        fixed, k, used = self.directions_, len(self.directions_.g), np.bincount(labels.indices)
        later = {labels.names[c]: used[c] for c in np.flatnonzero(used) if labels.names[c] not in fixed.names}
        learner = self
        if any(rows >= MIN_DIRECTION_ROWS > self.stats_.label_rows(name) for name, rows in later.items()):
            learner = self._copy_with(X, labels)
        names = [name for name in later if learner.stats_.label_rows(name) >= MIN_DIRECTION_ROWS]
        U = learner.model().U if names else None
        if U is None:
            return LabelDirections.uncentred([], np.zeros((0, k), np.float32))
        columns = np.ascontiguousarray(U[:, [learner.stats_.names[name] for name in names]].T)
        G = unit_rows(kernels.project(columns, np.ascontiguousarray(self.W_[:, :k])))
        length = float(np.linalg.norm(fixed.G, axis=1).mean()) if len(fixed.G) else 1.0
        return LabelDirections.uncentred(names, G * length)

    def _plausible(self, X: Floats, labels: Labels) -> Mask:
        U, rows = self.model().U, self.stats_.rows
        if U is None or min(len(X), rows) < MIN_ROWS:
            return np.ones(len(X), bool)
        weights = np.sqrt(self._label_weights()[1])
        Y, names = unit_labels(labels)
        known = [c for c, name in enumerate(names) if name in self.stats_.names]
        own = np.zeros((len(X), len(self.stats_.names)))
        own[:, [self.stats_.names[names[c]] for c in known]] = Y[:, known]
        mean = self.stats_.ay[:, 0] / rows
        predicted, own = (weights * (side - mean) for side in (kernels.project(X, U) + self.model().u, own))
        agreements = agreement(predicted, own)
        shuffled = agreement(predicted, own[np.random.default_rng(self.random_state).permutation(len(X))])
        return LabelBelief.estimate(agreements, shuffled).chance(agreements) > MIN_BELIEF

    def model(self) -> Model:
        if self._solved is None:
            self._solved = self._solve()
        return self._solved

    def initial_model(self) -> Model:
        """Return the ranking before any label: the query, not quantised, against the codes."""
        return Model("hamming" if self.init == "identity" else "looks")

    def _solve(self) -> Model:
        if self.rescorer_ is not None:  # so that the model does not depend on the order of rows either
            self.stats_.sort_labels()
        if self.sharpness == 1 or len(self.stats_.names) > MAX_MODEL_LABELS:
            similarity = self._similarity()
            if similarity is None:
                return self.initial_model()
            balance, label_bits = self._balance(similarity.reliability), self._label_bits()
            M = self._of_features(similarity.M)
            return Model("features", M, similarity.m, balance=balance, label_bits=label_bits)
        sides = self.stats_.sides(self.ridge)
        if sides is None:
            return self.initial_model()
        by_label, rare = self._label_weights()
        size = max(1.0, self.stats_.ay[:, 0].sum() / self.stats_.rows)  # the mean square root of the labels of a row
        item_power = min(self.sharpness, round(2 * size) / 2)
        page = (by_label ** (1 / item_power)).astype(np.float32)  # counts like by_label, once raised
        return Model(
            "labels",
            np.ascontiguousarray((sides.V * (by_label * rare)).T, np.float32),
            U=self._of_features(sides.U),
            u=sides.u,
            power=self.sharpness,
            balance=self._balance(sides.reliability),
            V=sides.V * page,
            v=sides.v * page,
            query_length=sides.query_length,
            query_power=max(self.sharpness, round(2 * CLASS_POWER / size**4) / 2),
            item_power=item_power,
            label_bits=self._label_bits(),
            plain_share=self.stats_.plain_share,
            held_share=self.stats_.held_share if self.rescore_bits else 0.0,
            label_names=list(self.stats_.names),
            label_weights=by_label.astype(np.float32) if self.label_weights else None,
        )

    def _of_features(self, slopes: Floats) -> Floats:
        """Return slopes (D, k) on what the statistics are of as slopes on prepared features."""
        if self.rescorer_ is None:
            return slopes
        turned = self.rescorer_.rotate_back(np.ascontiguousarray(slopes.T)) * np.float32(self.rescorer_.length)
        return np.ascontiguousarray(turned.T)

    def _label_bits(self) -> int:
        """Return how many bits hold labels in codes that were learnt."""
        return 0 if np.array_equal(self.stats_.cc, self.stats_.pp) else len(self.directions_.g)

    def _balance(self, reliability: float) -> float:
        return reliability if self.balance is None else float(self.balance)

    def label_space(self) -> LabelSpace | None:
        if self.model().U is None:
            return None
        squares = self.stats_.aa[1:, 1:]
        if self.rescorer_ is not None:
            half = self.rescorer_.rotate_back(squares.astype(np.float32)).T
            squares = self.rescorer_.rotate_back(half).astype(np.float64) / self.rescorer_.length**2
        return LabelSpace(list(self.stats_.names), self.stats_.rows, squares)

    def _similarity(self) -> Similarity | None:
        """Return the linear similarity; None if nothing is learnt."""
        return self.stats_.similarity(self.ridge, np.multiply(*self._label_weights()))

    def _label_weights(self) -> tuple[Doubles, Doubles]:
        """Return how much each label counts by `label_weights`, and how much more because it is rare."""
        rows, everything = self.stats_.ay[:, 0], max(self.stats_.rows, MIN_LABEL_ROWS)
        weights = {canonical(label): weight for label, weight in (self.label_weights or {}).items()}
        by_label = np.array([weights.get(name, 1.0) for name in self.stats_.names], np.float64)
        rare = (np.maximum(rows, MIN_LABEL_ROWS) / everything) ** -float(self.rarity)
        return np.where(rows > MIN_LABEL_ROWS, by_label, 0.0), rare

    def params_to_json(self) -> dict[str, Any]:
        weights = self.label_weights
        return {**super().params_to_json(), "label_weights": None if weights is None else list(weights.items())}

    @classmethod
    def params_from_json(cls, params: dict[str, Any]) -> dict[str, Any]:
        if not params.get("label_weights"):
            return params
        return {**params, "label_weights": {from_json(label): weight for label, weight in params["label_weights"]}}
