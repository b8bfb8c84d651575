"""Tally: fixed binary codes; the similarity is a ridge regression from additive sufficient statistics."""

import copy
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import Conflict, InvalidInput
from stillhash.hashers.base import FLAG, NOT_NEGATIVE, POSITIVE, LabelSpace, Model, optional, parameter
from stillhash.hashers.labelled_codes import MIN_BELIEF, LabelledCodes
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.labels import MIN_ROWS, LabelBelief, Labels, agreement, canonical, from_json, parse_labels
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.rescoring import Rescorer
from stillhash.numeric.sufficient_stats import (
    LABEL_STEP,
    LabelDirections,
    Similarity,
    StoredProjection,
    SufficientStats,
    unit_labels,
)
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes, Doubles, Floats, Mask, check_codes, check_integer, check_number

MIN_LABEL_ROWS = 1e-3  # a label of which less is left, after unlearning or decay, no longer counts
MAX_MODEL_LABELS = 1024  # a model holds at most so many labels one by one
CLASS_POWER = 6.0  # a query's predicted labels are raised to it on the first page, where every row has one label
MIN_DIRECTION_ROWS = 10  # codes hold a label that came after the initial stage once so many rows of it are learnt


class SummedRows(NamedTuple):
    """What the sums are taken of."""

    features: Floats  # (n, D) prepared; or the levels of rescoring codes
    values: Floats  # (n, b) the hash functions
    own: Floats  # (n, b) the signs of their codes
    plain: Floats | None  # (n, b) of their codes without labels, where these are others

    def rows(self, keep: Mask) -> "SummedRows":
        """Return some of the rows."""
        return SummedRows(*(None if side is None else side[keep] for side in self))  # type: ignore[arg-type]


@dataclass(eq=False, repr=False, kw_only=True)
class Tally(LabelledCodes):
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
    share : the share of bits that are for labels, the others are for similarity; None: by the length of the code.
    balance : how much what is learnt counts beside plain similarity (the query, not quantised, against the codes), 0 to
        1; None: its reliability, which follows from the residuals of the regressions and rises with the labels.
    rescore_bits : 1, 2, 4 or 8: rows are learnt by their rescoring codes of so many bits a dimension, in place of their
        features. Then sums are exact: `unlearn` leaves nothing behind, and sums over what is stored are equal to the
        bit, in any order. 0: by their features.
    double_sums : sums over rows are in double precision, so that `unlearn` leaves nothing behind, to about 1e-12; that
        takes about twice as long. Without, what it leaves is as small as the rounding of single precision.
    random_state : seed of the hash functions.
    """

    name = "tally"
    fixed_codes = True

    ridge: float = parameter(1.0, POSITIVE)
    half_life: float | None = parameter(None, optional(POSITIVE))
    double_sums: bool = parameter(False, FLAG)
    label_weights: Mapping[Hashable, float] | None = None
    sharpness: float = 1.5
    rarity: float = parameter(0.45, NOT_NEGATIVE)
    balance: float | None = parameter(None, optional(partial(check_number, low=0, high=1)))

    def check_parameters(self) -> None:
        super().check_parameters()
        if self.rescore_bits and not self.unit_norm:
            raise InvalidInput(f"rescore_bits: expected 0 without unit_norm, got {self.rescore_bits}")
        if not 1 <= check_number(self.sharpness, "sharpness") <= 4 or 2 * self.sharpness % 1:
            raise InvalidInput(f"sharpness: expected a multiple of 0.5 in [1, 4], got {self.sharpness}")
        for label, weight in (self.label_weights or {}).items():
            canonical(label, "label_weights")
            check_number(weight, f"label_weights[{label!r}]", low=0)

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        super()._begin(X, labels, rng)
        self._derive()
        self.stats_ = self._empty()

    def _derive(self) -> None:
        """Derive what follows from the parameters and the hash functions."""
        self.rescorer_: Rescorer | None = None  # what makes rescoring codes of prepared rows
        self._stored: StoredProjection | None = None  # the hash functions of rescoring codes
        if self.rescore_bits:
            self.rescorer_ = Rescorer(self.n_features_in_, self.rescore_bits)
            self._stored = StoredProjection(self.rescorer_, self.W_, self.t_)
        self._solved: Model | None = None  # the model of the statistics, once it is needed

    def without_rows(self) -> Self:
        """Return a hasher with the same hash functions that has learnt nothing."""
        learner = copy.copy(self)
        learner.stats_, learner._solved = self._empty(), None
        return learner

    def with_rescore_bits(self, bits: int) -> Self:
        """Return a hasher with the same hash functions that learns from rescoring codes, and has learnt nothing."""
        learner = copy.copy(self)
        learner.rescore_bits = bits
        learner._derive()
        learner.stats_ = learner._empty()
        return learner

    def _empty(self) -> SufficientStats:
        return SufficientStats(self.n_features_in_, self.bits, **self._sums())

    def _sums(self) -> dict[str, Any]:
        """Return how sums are computed."""
        return {"double": self.double_sums, "largest_level": 2**self.rescore_bits - 1 if self.rescore_bits else None}

    def learn_rows(self, X: Floats, labels: Labels, codes: Codes | None = None) -> None:
        super().learn_rows(X, labels, codes)
        self.count_unlabelled(int((~labels.labelled).sum()))

    def learn_stored(
        self,
        rescoring_codes: Codes,
        labels: Labels,
        codes: Codes | None = None,
        *,
        ages: NDArray[np.int64] | None = None,
    ) -> None:
        """Learn from stored rows by their rescoring codes, as `learn_rows` does from their features.

        codes: those that are stored of these rows; None: those of their rescoring codes, without labels. ages: with a
        half-life, how many labelled rows were learnt after each, where these are not the latest.
        """
        labelled = labels.labelled
        if labelled.any():
            rows = self._rows_of_stored(rescoring_codes[labelled], None if codes is None else codes[labelled])
            if ages is None:
                self._learn_rows(rows, labels.rows(labelled))
            else:
                self._add(rows, labels.rows(labelled), self._decayed(ages[labelled]))
        self.count_unlabelled(int((~labelled).sum()))

    def count_unlabelled(self, rows: int) -> None:
        self.stats_.unlabelled = max(0.0, self.stats_.unlabelled + rows)
        if rows:
            self._solved = None

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        self._learn_rows(self._rows(X, codes), labels)

    def _learn_rows(self, rows: SummedRows, labels: Labels) -> None:
        if self.half_life is not None:
            self.stats_.decay(0.5 ** (len(labels) / self.half_life))
        self._add(rows, labels, self._decayed(np.arange(len(labels))[::-1]))

    def _rows(self, X: Floats, codes: Codes | None) -> SummedRows:
        """Return what is learnt of prepared rows with these codes, or with those without labels."""
        if self.rescorer_ is not None:
            rescoring_codes = self.rescorer_.encode(X, usable_cores())
            of_features = self._codes(X)
            if codes is not None:
                rescoring_codes = self.rescorer_.mark(rescoring_codes, (codes != of_features).any(axis=1))
            return self._rows_of_stored(rescoring_codes, of_features if codes is None else codes)
        values = self.project(X)
        plain = np.where(values >= 0, np.float32(1), np.float32(-1))  # (n, b)
        if codes is None:
            return SummedRows(X, values, plain, None)
        return SummedRows(X, values, signs(codes, self.bits), plain)

    def _rows_of_stored(self, rescoring_codes: Codes, codes: Codes | None) -> SummedRows:
        """Return what is learnt of stored rows: a function of their rescoring codes and codes alone, to the bit."""
        rescorer, projection = self._exact()
        levels = rescorer.levels(rescoring_codes)
        values = projection.values(levels)
        if codes is None:
            return SummedRows(levels, values, np.where(values >= 0, np.float32(1), np.float32(-1)), None)
        own = signs(codes, self.bits)
        held = rescorer.marked(rescoring_codes)
        return SummedRows(levels, values, own, projection.without_labels(values, own, held, self.label_bits_))

    def _exact(self) -> tuple[Rescorer, StoredProjection]:
        if self.rescorer_ is None or self._stored is None:
            raise InvalidInput("rescore_bits: expected 1, 2, 4 or 8 to learn from rescoring codes, got 0")
        return self.rescorer_, self._stored

    def _add(self, rows: SummedRows, labels: Labels, weights: Floats | None, sign: int = 1) -> None:
        """Add rows to the statistics, or take them out.

        Rows whose labels are not believed count as rows without labels.
        """
        believed = self._believed(rows.values, labels)
        if not believed.all():
            self.stats_.unlabelled += sign * int((~believed).sum())
            rows, labels = rows.rows(believed), labels.rows(believed)
            weights = None if weights is None else weights[believed]
        self.stats_.add(rows.features, rows.own, labels, weights, plain=rows.plain, sign=sign)
        self._solved = None

    def _copy_with(self, X: Floats, labels: Labels) -> Self:
        """Return a copy that has learnt these prepared rows too."""
        learner = copy.copy(self)
        learner.stats_ = copy.deepcopy(self.stats_)
        learner._add(self._rows(X, None), labels, None)
        return learner

    def unlearn(self, X: Any, Y: Any, codes: Codes | None = None, *, age: int | None = None) -> Self:
        """Take out rows that were learnt with exactly these labels and codes, as if they had never come.

        With a half-life, `age` is how many labelled rows were learnt after them, so that only what is left of them is
        taken out.
        """
        X = self._checked(X)
        labels = parse_labels(Y, len(X))
        after, labelled = self._check_age(age), labels.labelled
        if labelled.any():
            codes = None if codes is None else check_codes(codes, self.bits)[labelled]
            self._take_out(self._rows(self.prepare(X[labelled]), codes), labels.rows(labelled), after)
        return self

    def unlearn_stored(
        self, rescoring_codes: Codes, labels: Labels, codes: Codes | None = None, *, age: int | None = None
    ) -> Self:
        """Take out stored rows that were learnt with exactly these labels and codes, as `unlearn` does."""
        after, labelled = self._check_age(age), labels.labelled
        if labelled.any():
            codes = None if codes is None else codes[labelled]
            self._take_out(self._rows_of_stored(rescoring_codes[labelled], codes), labels.rows(labelled), after)
        return self

    def relabel_stored(self, rescoring_codes: Codes, before: Labels, after: Labels, codes: Codes | None = None) -> Self:
        """Do what `unlearn_stored` with the labels `before` and `learn_stored` with `after` do, in less time.

        All rows have labels before and after. Their features and codes leave the sums and come back, so only sums with
        labels change, except where labels are not believed. With a half-life they would not come back as they were.
        """
        if self.half_life is not None:
            raise InvalidInput(f"half_life: expected None to change labels of rows, got {self.half_life}")
        rows = self._rows_of_stored(rescoring_codes, codes)
        both = self._believed(rows.values, before) & self._believed(rows.values, after)
        if not both.all():
            self._take_out(rows.rows(~both), before.rows(~both), 0)
            self._add(rows.rows(~both), after.rows(~both), None)
            rows, before, after = rows.rows(both), before.rows(both), after.rows(both)
        self._check_learnt(before)
        self.stats_.relabel(rows.features, rows.own, before, after, plain=rows.plain)
        self._drop_labels()
        return self

    def _check_age(self, age: int | None) -> int:
        if (self.half_life is None) != (age is None):
            raise InvalidInput(f"age: expected with a half_life, and only then, got {age} for {self.half_life}")
        return check_integer(age or 0, "age", 0)

    def _take_out(self, rows: SummedRows, labels: Labels, after: int) -> None:
        """Take out rows, after which so many others were learnt."""
        believed = self._believed(rows.values, labels)
        self._check_learnt(labels.rows(believed))
        if self.half_life is None and believed.sum() > self.stats_.rows + 0.5:
            raise InvalidInput(f"Y: expected at most {self.stats_.rows:.0f} learnt rows, got {believed.sum()}")
        self._add(rows, labels, self._decayed(np.arange(after, after + len(labels))[::-1]), sign=-1)
        if self.half_life is None:
            self._drop_labels()

    def _check_learnt(self, labels: Labels) -> None:
        for name in (labels.names[c] for c in np.unique(labels.indices)):
            if name not in self.stats_.names:
                raise InvalidInput(f"Y: expected labels that were learnt, got {name!r}")

    def _drop_labels(self) -> None:
        """Drop the labels that no row has any more."""
        self.stats_.drop_labels(MIN_LABEL_ROWS if self.rescorer_ is None else LABEL_STEP / 2)
        self._solved = None

    def merge(self, other: Self) -> Self:
        """Add what another Tally with the same hash functions has learnt from other rows; that one stays as it is."""
        mine, theirs = ((part.mean_, part.W_, part.t_) for part in (self, other))
        if not all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True)):
            raise Conflict("other: expected the same hash functions, got others. Fit both on the same initial sample.")
        if self.rescore_bits != other.rescore_bits:
            got = f"{other.rescore_bits} in other and {self.rescore_bits} here"
            raise Conflict(f"rescore_bits: expected the same in both, got {got}")
        self.stats_.merge(other.stats_)
        self._solved = None
        return self

    def _decayed(self, ages: NDArray[np.int64]) -> Floats | None:
        """Return what rows of these ages still count for; None without a half-life."""
        return None if self.half_life is None else np.exp2(-ages / self.half_life).astype(np.float32)

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
        return Model("hamming" if self.init == "identity" else "similarity")

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

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._arrays(), **self.stats_.arrays()}

    def _extra(self) -> dict[str, Any]:
        if self.rescorer_ is not None:  # of equal sums, equal bytes
            self.stats_.sort_labels()
        return {**super()._extra(), "labels": list(self.stats_.names)}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        names = [from_json(name) for name in extra["labels"]]
        shape = self.n_features_in_, self.bits
        self._derive()
        self.stats_ = SufficientStats.from_arrays(arrays, names, *shape, **self._sums())

    def params_to_json(self) -> dict[str, Any]:
        weights = self.label_weights
        return {**super().params_to_json(), "label_weights": None if weights is None else list(weights.items())}

    @classmethod
    def params_from_json(cls, params: dict[str, Any]) -> dict[str, Any]:
        if not params.get("label_weights"):
            return params
        return {**params, "label_weights": {from_json(label): weight for label, weight in params["label_weights"]}}
