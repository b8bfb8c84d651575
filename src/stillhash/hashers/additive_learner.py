"""Learn sums over labelled rows, of their features or of their rescoring codes, that can be added and taken out."""

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import Conflict, InvalidInput
from stillhash.hashers.labelled_codes import LabelledCodes
from stillhash.hashers.model import Model
from stillhash.hashers.parameters import FLAG, POSITIVE, optional, parameter
from stillhash.numeric.codes import signs
from stillhash.numeric.labels import Labels, from_json, parse_labels
from stillhash.numeric.rescoring import Rescorer
from stillhash.numeric.sufficient_stats import LABEL_STEP, StoredProjection, SufficientStats
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes, Floats, Mask, check_codes, check_integer

MIN_LABEL_ROWS = 1e-3  # labels of which less is left, after unlearning or decay, no longer count


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
class AdditiveLearner(LabelledCodes):
    """A method that learns sums over labelled rows, and so does not depend on their order.

    Parameters: see Tally.
    """

    half_life: float | None = parameter(None, optional(POSITIVE))
    double_sums: bool = parameter(False, FLAG)

    def check_parameters(self) -> None:
        super().check_parameters()
        if self.rescore_bits and not self.unit_norm:
            raise InvalidInput(f"rescore_bits: expected 0 without unit_norm, got {self.rescore_bits}")

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
