"""Fixed codes that hold the labels of rows that are stored with them. docs/method.md derives them."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState
from stillhash.hashers.base import COUNT, one_of, optional, parameter
from stillhash.hashers.linear import LinearHasher
from stillhash.numeric.codes import pack
from stillhash.numeric.hashing import identity, label_itq, lsh, pca_itq
from stillhash.numeric.labels import MIN_ROWS, LabelBelief, Labels, agreement, from_json
from stillhash.numeric.rescoring import RESCORE_BITS
from stillhash.numeric.sufficient_stats import LabelDirections, label_bits, unit_labels
from stillhash.numeric.validation import Codes, Doubles, Floats, Mask, check_arrays, check_number

PLAIN_SHARE = 0.75  # of the hash functions predict labels where codes hold none
MAX_RESCORED_SHARE = 0.75  # of a code at most is for labels beside a rescoring code: similarity needs some too
MIN_BELIEF = 0.5  # a row whose labels are believed less counts as a row without


@dataclass(eq=False, repr=False, kw_only=True)
class LabelledCodes(LinearHasher):
    """A method whose first hash functions predict labels; of a row that is stored with labels they are these instead.

    Parameters: see Tally.
    """

    fixed_codes = True

    init: Literal["labels", "pca-itq", "identity"] = parameter("labels", one_of("labels", "pca-itq", "identity"))
    codes_see_labels: bool = True
    share: float | None = parameter(None, optional(partial(check_number, low=0, high=1)))
    rescore_bits: int = parameter(0, one_of(0, *RESCORE_BITS))

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        labelled = labels.labelled
        by_length = label_bits(self.bits) / self.bits if self.codes_see_labels else PLAIN_SHARE
        if self.rescore_bits:
            by_length = min(by_length, MAX_RESCORED_SHARE)
        share = by_length if self.share is None else self.share
        self.directions_ = LabelDirections.uncentred([], np.zeros((0, round(share * self.bits)), np.float32))
        if self.init == "identity":
            functions = identity(X, self.bits)
        elif self.init == "labels" and len(unit_labels(labels)[1]) > 1 and _enough(labelled):
            Y, names = unit_labels(labels.rows(labelled))
            functions = label_itq(X[labelled], Y, self.bits, share, rng)
            if functions.G is not None and functions.g is not None:
                self.directions_ = LabelDirections.uncentred(names, functions.G)._replace(g=functions.g)
        else:
            functions = pca_itq(X, self.bits, rng)
        self._fix(functions)
        self.belief_ = functions.belief
        self.label_bits_ = len(self.directions_.g) if self.codes_see_labels else 0

    def _labelled_codes(self, X: Floats, labels: Labels) -> Codes:
        values = self.project(X)
        by_labels = self.directions_.project(labels) + self._later_directions(X, labels).project(labels)
        known = by_labels.any(axis=1)
        known &= self._believed(values, labels) if self.directions_.names else self._plausible(X, labels)
        values[known, : by_labels.shape[1]] = by_labels[known]
        return pack(values)

    def _believed(self, values: Floats, labels: Labels) -> Mask:
        """Return which rows have labels that are rather right than wrong, by their hash functions with and without."""
        if not len(self.belief_.edges):
            return np.ones(len(values), bool)
        by_labels = self.directions_.project(labels)
        agreements = agreement(values[:, : by_labels.shape[1]], by_labels)
        return (self.belief_.chance(agreements) > MIN_BELIEF) | ~by_labels.any(axis=1)

    def _plausible(self, X: Floats, labels: Labels) -> Mask:
        """Return which rows have labels that are rather right than wrong, by what is learnt before these rows."""
        raise NotImplementedError

    def _later_directions(self, X: Floats, labels: Labels) -> LabelDirections:
        """Return directions of those labels of rows that came after the initial stage."""
        raise NotImplementedError

    def _arrays(self) -> dict[str, NDArray[Any]]:
        directions = {"G": self.directions_.G, "g": self.directions_.g}
        belief = {"edges": self.belief_.edges, "right": self.belief_.right}
        return {**super()._arrays(), **directions, **belief}

    def _extra(self) -> dict[str, Any]:
        directions = {"direction_labels": list(self.directions_.names), "wrong_share": self.belief_.wrong_share}
        return {**super()._extra(), **directions}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        rows = {from_json(name): row for row, name in enumerate(extra["direction_labels"])}
        check_arrays(arrays, {"G": "float32 labels k", "g": "float32 k"}, {"labels": len(rows)})
        self.directions_ = LabelDirections(rows, arrays["G"], arrays["g"])
        check_arrays(arrays, {"edges": "float32 edges", "right": "float32 bins"}, {"bins": len(arrays["edges"]) + 1})
        wrong_share = check_number(extra["wrong_share"], "wrong_share", low=0, high=1)
        self.belief_ = LabelBelief(wrong_share, arrays["edges"], arrays["right"])
        if len(arrays["g"]) > self.bits or self.label_bits_ not in (0, len(arrays["g"])):
            raise BadState(f"g: expected {self.label_bits_} numbers, at most {self.bits}, got {len(arrays['g'])}")


def _enough(labelled: Mask) -> bool:
    """Return whether labelled rows of an initial sample are enough for hash functions that predict labels.

    These see labelled rows alone. Where few of many rows are labelled, all rows say more of what the others look like.
    """
    count = int(labelled.sum())
    return count > 1 and (count >= MIN_ROWS or 2 * count >= len(labelled))


# What LEMON and OESH share: codes of labelled rows from their labels, hash functions by ridge regression.


RANK_TOLERANCE = 1e-13  # singular values below this share of the norm of a matrix count as 0


@dataclass(eq=False, repr=False, kw_only=True)
class LabelCodeHasher(LinearHasher):
    """Base of methods whose labelled rows get a code from their labels when they are stored, and never another.

    Pass labels to `encode(X, Y)` directly after `partial_fit(X, Y)`: then these are the codes that were learnt. The
    hash functions sgn(W^T x), of queries and of rows without labels, change with every chunk, but stored codes are not
    to be encoded again, so `stale_` stays False. Only sums over earlier rows are stored.
    """

    chunk_invariant = False
    codes_see_labels = True
    saved_arrays: ClassVar = {"XX": "float64 D D", "XB": "float64 D b", "VV": "float64 b b"}
    saved_values: ClassVar = {"seen": COUNT}

    center: bool = False  # as published: W has no intercept, and features that are not centred have one of their own

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._fix(lsh(X, self.bits, rng)._replace(t=np.zeros(self.bits, np.float32)))  # no threshold
        D, b = X.shape[1], self.bits
        self.XX_: Doubles = np.zeros((D, D))  # sum of x x^T over labelled rows
        self.XB_: Doubles = np.zeros((D, b))  # sum of x b^T, b the code
        self.VV_: Doubles = np.zeros((b, b))  # sum of v v^T, v the real vector that the code is near to
        self.seen_ = 0  # labelled rows so far

    def _draws(self) -> np.random.Generator:
        """Return the source of what the next chunk draws; `_begin` has the stream of the seed alone."""
        return np.random.default_rng([self.random_state, self.seen_ + 1])


def regularised(K: Doubles, ridge: float) -> Doubles:
    """Return K + ridge I; a ridge that rounding would lose beside a huge K is raised, so that it has an inverse."""
    K = K.copy()
    K.flat[:: len(K) + 1] += max(ridge, len(K) * np.finfo(np.float64).eps * float(np.trace(K)))
    return K


def balanced_orthogonal(Z: Doubles, rng: np.random.Generator) -> Doubles:
    """Return the V (n, b) with V^T V = n I and columns of sum 0 that has the largest tr(V^T Z).

    With Z less its mean row = P S Q^T it is sqrt(n) P Q^T. Where Z has a lower rank, random directions fill up, so
    orthogonal to the others and of sum 0. Of n <= b rows only n - 1 such directions exist, and V has that rank.
    """
    n, b = Z.shape
    P, S, Qt = np.linalg.svd(Z - Z.mean(axis=0), full_matrices=False)
    columns = min(n - 1, b)
    lowest = RANK_TOLERANCE * float(np.linalg.norm(Z))
    rank = min(columns, np.count_nonzero(lowest < S))
    if rank < columns:
        some = np.column_stack([np.ones(n), P[:, :rank], rng.standard_normal((n, columns - rank))])
        P[:, rank:columns] = np.linalg.qr(some)[0][:, rank + 1 :]
    V: Doubles = np.sqrt(n) * P[:, :columns] @ Qt[:columns]
    return V
