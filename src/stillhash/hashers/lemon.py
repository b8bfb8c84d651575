"""LEMON: codes of each new chunk from its labels and from sums over earlier chunks."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState
from stillhash.hashers.base import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, parameter
from stillhash.hashers.labelled_codes import LabelCodeHasher, balanced_orthogonal, regularised
from stillhash.numeric import kernels
from stillhash.numeric.codes import pack, sgn, signs
from stillhash.numeric.labels import Labels, stable_key
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Doubles, Floats


class LemonSums(NamedTuple):
    """Sums over the rows of earlier chunks: l the labels of a row as 0 and 1, g = l / |l|, b its code, v near to b."""

    VV: Doubles  # (b, b) of v v^T
    LV: Doubles  # (labels, b) of l v^T
    GB: Doubles  # (labels, b) of g b^T
    GV: Doubles  # (labels, b) of g v^T
    BV: Doubles  # (b, b) of b v^T


class LemonTurn(NamedTuple):
    """What the steps of one turn give, in their order."""

    P: Doubles  # (b, labels)
    V: Doubles  # (n, b)
    R: Doubles  # (b, b)
    B: Doubles  # (n, b) in {-1, +1}


@dataclass(eq=False, repr=False, kw_only=True)
class LEMON(LabelCodeHasher):
    """Label Embedding Online Hashing (Wang, Luo & Xu, ACM Multimedia 2020), ranked by Hamming distance.

    With the labels L of all rows as 0 and 1, G the same with rows of unit norm, and S = 2 G G^T - 1, a chunk lowers

        |B - V R|^2 + beta (|L - V P|^2 + gamma |P|^2) + alpha |b S - V B^T|^2

    over P, a rotation R, and V and B of the new rows, by turns; those of earlier rows stay. B are codes in {-1, +1}; V
    is real, with orthogonal columns of sum 0 in each chunk, so that what earlier rows contribute are sums. Queries, and
    rows without labels, are encoded by sgn(W^T x), where W is the ridge regression of all codes so far on the features.

    A labelled row's code is sgn(g^T sum g' v'^T), the sum over all rows so far, its own chunk included. So it is a
    function of its labels and of when it came: `encode(X, Y)` directly after `partial_fit(X, Y)` gives the codes that
    were learnt; later it gives those that new rows would get. A row of unknown labels is encoded by W.

    Chunks should be large (the authors have 2,000 rows): of a chunk with n <= b rows V has rank n - 1, and one with
    a single label set adds nothing to the sum.

    Departures: one kind of features in place of image and text; V R, which the published code adds to the sum above in
    the last step too, is left out there: it counts 1 / (2 alpha b) of what the labels do, and depends on random draws
    for each row; the random directions that fill up V are orthogonal to the others, which the published code leaves to
    chance; features are scaled by default, but not centred, as published. docs/paper-notes.md has more.

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    alpha : weight of the similarity of labels between pairs of rows.
    beta : weight of the regression of labels on V.
    gamma : ridge of that regression.
    xi : ridge of the hash functions.
    iterations : turns for each chunk.
    random_state : seed of the first hash functions and of where each chunk starts.
    """

    name = "lemon"
    saved_arrays: ClassVar = {
        "LV": "float64 labels b",
        "GB": "float64 labels b",
        "GV": "float64 labels b",
        "BV": "float64 b b",
    }

    alpha: float = parameter(10_000.0, POSITIVE)
    beta: float = parameter(10_000.0, NOT_NEGATIVE)
    gamma: float = parameter(0.1, POSITIVE)
    xi: float = parameter(1.0, POSITIVE)
    iterations: int = parameter(5, AT_LEAST_ONE)

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        super()._begin(X, labels, rng)
        self.columns_: dict[str, int] = {}  # the columns of L, by the stable keys of labels
        self.LV_, self.GB_, self.GV_ = (np.zeros((0, self.bits)) for _ in range(3))
        self.BV_: Doubles = np.zeros((self.bits, self.bits))

    @one_thread
    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        columns = dict(self.columns_)
        for i in np.unique(labels.indices):
            columns.setdefault(label_key(labels.names[i]), len(columns))
        L = indicator(labels, columns)  # (n, labels)
        G = unit_rows(L).astype(np.float64)
        more = len(columns) - len(self.columns_)
        LV, GB, GV = (np.pad(each, ((0, more), (0, 0))) for each in (self.LV_, self.GB_, self.GV_))
        sums = LemonSums(self.VV_, LV, GB, GV, self.BV_)
        *_, (_, V, _, _) = lemon_turns(sums, L.astype(np.float64), G, self, self._draws())
        GV = GV + G.T @ V
        B, x = signs(codes_of_labels(L, GV), self.bits).astype(np.float64), X.astype(np.float64)
        XX, XB = self.XX_ + x.T @ x, self.XB_ + x.T @ B
        self.W_ = np.linalg.solve(regularised(XX, self.xi), XB).astype(np.float32)  # new arrays: readers need no lock
        self.XX_, self.XB_, self.VV_, self.BV_ = XX, XB, self.VV_ + V.T @ V, self.BV_ + B.T @ V
        self.LV_, self.GB_, self.GV_, self.columns_ = LV + L.T @ V, GB + G.T @ B, GV, columns
        self.seen_ += len(X)

    def _labelled_codes(self, X: Floats, labels: Labels) -> Codes:
        L = indicator(labels, self.columns_)
        known = L.any(axis=1)
        codes = self._codes(X)
        codes[known] = codes_of_labels(L[known], self.GV_)
        return codes

    def _extra(self) -> dict[str, Any]:
        return {**super()._extra(), "labels": list(self.columns_)}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        self.columns_ = {str(key): column for column, key in enumerate(extra["labels"])}
        if len(self.columns_) != len(self.GV_):
            raise BadState(f"labels: expected {len(self.GV_)}, each once, got {len(self.columns_)}")


def lemon_turns(
    sums: LemonSums, L: Doubles, G: Doubles, hasher: LEMON, rng: np.random.Generator
) -> Iterator[LemonTurn]:
    """Yield what a chunk has after each turn. None of the four steps raises the objective.

    What S = 2 G G^T - 1 has beside G G^T drops out of all steps, as the columns of V have sum 0.
    """
    n, b = len(L), hasher.bits
    weight = 2 * float(hasher.alpha) * b
    B, V = rng.choice([-1.0, 1.0], (n, b)), rng.standard_normal((n, b))
    R: Doubles = np.linalg.qr(rng.standard_normal((b, b)))[0]
    for _ in range(hasher.iterations):
        K, LV = regularised(sums.VV + V.T @ V, hasher.gamma), sums.LV + L.T @ V
        P = np.linalg.solve(K, LV.T).astype(np.float64)
        Z = B @ R.T + hasher.beta * (L @ P.T) + weight * (G @ (sums.GB + G.T @ B))
        V = balanced_orthogonal(Z, rng)
        left, _, right = np.linalg.svd(sums.BV + B.T @ V)
        R = (left @ right).T
        B = sgn(weight * (G @ (sums.GV + G.T @ V)) + V @ R).astype(np.float64)
        yield LemonTurn(P, V, R, B)


def codes_of_labels(L: Floats, GV: Doubles) -> Codes:
    """Return the codes of rows of labels L (n, labels) as 0 and 1; the norm of a row does not matter."""
    return pack(kernels.project(L, GV.astype(np.float32)))


def label_key(name: Hashable) -> str:
    """Return text that stands for a label of any kind."""
    return stable_key(name).decode("latin-1")


def indicator(labels: Labels, columns: dict[str, int]) -> Floats:
    """Return the labels as 0 and 1 (n, columns); those that have no column are left out."""
    used, indices = np.unique(labels.indices, return_inverse=True)
    places = np.array([columns.get(label_key(labels.names[i]), len(columns)) for i in used], np.int64)
    L = np.zeros((len(labels), len(columns) + 1), np.float32)
    L[np.repeat(np.arange(len(labels)), np.diff(labels.indptr)), places[indices]] = 1
    return np.ascontiguousarray(L[:, :-1])
