"""Tally: the codes stand still, and the similarity is read off sums."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import Conflict, InvalidInput
from stillhash.hashers.base import LabelSpace, LinearHasher, Model
from stillhash.numeric.codes import signs
from stillhash.numeric.hashing import label_itq, pca_itq
from stillhash.numeric.labels import Labels, canonical, from_json, parse_labels
from stillhash.numeric.sufficient_stats import Similarity, Sums, unit_labels
from stillhash.numeric.validation import Codes, Floats, check_choice, check_integer, check_number

MOST_LABELS = 1024  # that a model holds one by one
GONE = 1e-3  # of a row: labels of which less is left, after unlearning or fading, count no more
Init = Literal["labels", "pca-itq"]


class Tally(LinearHasher):
    """Fixed codes with a similarity from additive statistics; docs/method.md derives it.

    As in OHSL, `fit` fixes the hash functions and a query weighs the bits of codes that never change. The two
    projections are not learnt step by step: they are the ridge regressions of label vectors on features and on codes,
    y(q) and y(x~), solved from sums when weights are next asked for, and S(q, x) = g(y(q)) . y(x~), where g drops what
    is negative and sharpens the rest.

    So the model does not depend on the order of rows or on chunks; `merge` adds what another machine has learnt,
    `unlearn` takes rows out, `half_life` forgets.

    Parameters
    ----------
    bits : code length b, 8 to 512.
    ridge : how strongly slopes are held, in units of the mean square of a row.
    half_life : rows after which a row counts for half; None never forgets.
    label_weights : how much sharing a label counts, by label; 1 for those not named, 0 ignores a label.
    sharpness : labels are predicted of a query, negative ones dropped, and raised to this power, so that what is likely
        counts for more than it would by its share; a multiple of 0.5 from 1 to 4. With 1 nothing is dropped and all is
        linear, as it is with more than 1,024 labels, where a model would be too large.
    rarity : labels also weigh by their frequency to the power of -rarity, so that one on half of all rows does not
        drown those on a few; 0 counts them alike, 1 favours rare ones at the cost of the others.
    init : "labels" takes hash functions that predict the labels of the initial sample, where it has any; "pca-itq"
        does without labels, as the paper.
    share : with init="labels", the share of directions that are chosen by the labels.
    center, unit_norm : pre-processing of features and queries.
    random_state : seed of the hash functions.
    """

    name = "tally"
    fixed_codes = True
    tunable: ClassVar = {"ridge": (0.3, 1.0, 10.0), "rarity": (0.2, 0.45), "half_life": (None, 20_000)}

    def __init__(
        self,
        bits: int = 32,
        *,
        ridge: float = 1.0,
        half_life: float | None = None,
        label_weights: Mapping[Hashable, float] | None = None,
        sharpness: float = 1.5,
        rarity: float = 0.45,
        init: Init = "labels",
        share: float = 0.75,
        center: bool = True,
        unit_norm: bool = True,
        random_state: int = 0,
    ) -> None:
        super().__init__(bits, center=center, unit_norm=unit_norm, random_state=random_state)
        self.ridge = ridge
        self.half_life = half_life
        self.label_weights = label_weights
        self.sharpness = sharpness
        self.rarity = rarity
        self.init = init
        self.share = share

    def check_parameters(self) -> None:
        super().check_parameters()
        check_number(self.ridge, "ridge", above=0)
        if self.half_life is not None:
            check_number(self.half_life, "half_life", above=0)
        if check_number(self.rarity, "rarity") < 0:
            raise InvalidInput(f"rarity is {self.rarity}; it must be 0 or more")
        if not 1 <= check_number(self.sharpness, "sharpness") <= 4 or 2 * self.sharpness % 1:
            raise InvalidInput(f"sharpness is {self.sharpness}; a multiple of 0.5 from 1 to 4 is wanted")
        if not 0 <= check_number(self.share, "share") <= 1:
            raise InvalidInput(f"share is {self.share}; it must be from 0 to 1")
        check_choice(self.init, "init", ("labels", "pca-itq"))
        for label, weight in (self.label_weights or {}).items():
            canonical(label, "label_weights")
            if check_number(weight, f"label_weights[{label!r}]") < 0:
                raise InvalidInput(f"label_weights[{label!r}] is {weight}; it must be 0 or more")

    sums_: Sums
    _solved: Model  # what the sums say; made when it is asked for and they have changed
    _fresh: bool

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        told = labels.labelled
        if self.init == "labels" and len(unit_labels(labels)[1]) > 1 and told.sum() > 1:
            Y = unit_labels(labels.rows(told))[0]
            self._fix(label_itq(X[told], Y, self.bits, self.share, rng))
        else:
            self._fix(pca_itq(X, self.bits, rng))
        self.sums_ = Sums(X.shape[1], self.bits)
        self._fresh = False

    # ---- learning ----

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        if self.half_life is not None:
            self.sums_.decay(0.5 ** (len(X) / self.half_life))
        codes = self._codes(X) if codes is None else codes
        self.sums_.add(X, signs(codes, self.bits), labels, self._faded(np.arange(len(X))[::-1]))
        self._fresh = False

    def unlearn(self, X: Any, Y: Any, *, age: int | None = None) -> Self:
        """Takes rows out that were learnt with just these labels, as if they had never come.

        With a half-life, `age` says how many labelled rows were learnt after them, so that no more is taken out than is
        left.
        """
        X = self._checked(X)
        labels = parse_labels(Y, len(X))
        told = labels.labelled
        for name in (labels.names[c] for c in np.unique(labels.indices)):
            if name not in self.sums_.names:
                raise InvalidInput(f"Y holds the label {name!r}, which was never learnt; it cannot be unlearnt")
        if self.half_life is None and told.sum() > self.sums_.rows + 0.5:
            raise InvalidInput(f"Y has {told.sum()} labelled rows, but only {self.sums_.rows:.0f} are learnt")
        if self.half_life is None and age is not None:
            raise InvalidInput(f"age is {age}, but this {type(self).__name__} has no half_life and never forgets")
        if self.half_life is not None and age is None:
            raise InvalidInput("age is not given; with a half_life, unlearn must know how many rows came after")
        after = check_integer(age or 0, "age", 0)
        if told.any():
            X = self.prepare(X[told])
            weights = self._faded(np.arange(after, after + len(X))[::-1])
            self.sums_.add(X, signs(self._codes(X), self.bits), labels.rows(told), weights, sign=-1)
            self._fresh = False
        return self

    def merge(self, other: Self) -> Self:
        """Adds what another Tally with the same hash functions has learnt from other rows; that one stays as it is."""
        mine, theirs = ((part.mean_, part.W_, part.t_) for part in (self, other))
        if not all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True)):
            raise Conflict("other has other hash functions; merge wants both fitted on the same initial sample")
        self.sums_.merge(other.sums_)
        self._fresh = False
        return self

    def _faded(self, ages: NDArray[np.int64]) -> Floats | None:
        """What rows of these ages still count for; None if none ever fades."""
        return None if self.half_life is None else np.exp2(-ages / self.half_life).astype(np.float32)

    # ---- using ----

    def model(self) -> Model:
        if not self._fresh:
            self._solved, self._fresh = self._solve(), True
        return self._solved

    def _solve(self) -> Model:
        if self.sharpness > 1 and len(self.sums_.names) <= MOST_LABELS:
            sides = self.sums_.sides(self.ridge, self._by_label())
            return Model("hamming") if sides is None else Model("labels", sides.V, None, *sides[:2], self.sharpness)
        found = self._similarity()
        return Model("hamming") if found is None else Model("features", *found)

    def label_space(self) -> LabelSpace | None:
        model = self.model()
        if model.side != "labels" or model.M is None or model.U is None or model.u is None:
            return None
        V = (model.M / self._rareness()[:, None]).astype(np.float32)
        return LabelSpace(list(self.sums_.names), model.U, model.u, V)

    def _similarity(self) -> Similarity | None:
        """The linear one."""
        return self.sums_.similarity(self.ridge, self._by_label())

    def _by_label(self) -> NDArray[np.float64] | None:
        """How much each label counts; None if all count alike."""
        if not self.label_weights and not self.rarity:
            return None
        told = {canonical(label): weight for label, weight in (self.label_weights or {}).items()}
        weights = np.array([told.get(name, 1.0) for name in self.sums_.names], np.float64)
        return np.asarray(np.where(self.sums_.ay[:, 0] > GONE, weights * self._rareness(), 0.0))

    def _rareness(self) -> NDArray[np.float64]:
        """How much more a label counts because it is rare."""
        share: NDArray[np.float64] = np.maximum(self.sums_.ay[:, 0], GONE) / max(self.sums_.rows, GONE)
        return np.asarray(share ** -float(self.rarity), np.float64)

    # ---- state ----

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._arrays(), **self.sums_.arrays()}

    def _extra(self) -> dict[str, Any]:
        return {**super()._extra(), "labels": list(self.sums_.names)}

    def params_to_json(self) -> dict[str, Any]:
        weights = self.label_weights
        return {**super().params_to_json(), "label_weights": None if weights is None else list(weights.items())}

    @classmethod
    def params_from_json(cls, params: dict[str, Any]) -> dict[str, Any]:
        if not params.get("label_weights"):
            return params
        return {**params, "label_weights": {from_json(label): weight for label, weight in params["label_weights"]}}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        names = [from_json(name) for name in extra["labels"]]
        self.sums_ = Sums.restored(arrays, names, self.n_features_in_, self.bits)
        self._fresh = False
