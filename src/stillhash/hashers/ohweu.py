"""OHWEU: refresh stored codes by projecting fixed codes, without the raw features."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillhash.hashers.base import POSITIVE, parameter
from stillhash.hashers.linear import LinearHasher
from stillhash.numeric import kernels
from stillhash.numeric.codes import pack, signs
from stillhash.numeric.hashing import lsh, pca_itq
from stillhash.numeric.labels import Labels
from stillhash.numeric.targets import TargetCodes
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Doubles, Floats, check_codes

GRAM_ROWS = 64  # rows whose steps come from one Gram matrix


@dataclass(eq=False, repr=False, kw_only=True)
class OHWEU(LinearHasher):
    """Online Hashing with Efficient Updating of Binary Codes (Weng & Zhu, AAAI 2020).

    The hash functions are fixed by `fit`, as in OHSL. Two projections learn towards target codes g of the labels: Vp
    of fixed codes, for items, and Qp of raw features, for queries. An item's code is sgn(Vp^T x~), a query's
    sgn(Qp^T q), and they are ranked by Hamming distance. Stored codes go stale whenever Vp learns, but `refresh`
    updates them from fixed codes alone: store `keep(X)` beside them, and raw features need never be read again.

    Vp and Qp start at random and apart, so until the first labelled rows the ranking is that of chance.

    Departures: the step is that of the published script, tau = min(C, 1 - g w.x / |x|^2), but never negative. Only the
    margin is divided by |x|^2, so on codes it aims at margin b; Passive-Aggressive proper aims at 1, which hardly
    moves Vp from where it starts. Fixed codes are never 0 at a tie; features are centred on the initial sample, not on
    all data; the random row of a label is drawn when the label first comes.

    Parameters
    ----------
    bits : code length b, 8 to 512, of fixed codes, projected codes and target codes alike.
    C : the largest step, coupled to the norm of the features.
    center, unit_norm : pre-processing of features and queries.
    random_state : seed of the hash functions, the first projections and the target codes.
    """

    name = "ohweu"
    retired: ClassVar = {"rule": "script_clamped"}
    saved_arrays: ClassVar = {"Vp": "float64 b b", "Qp": "float64 D b"}

    C: float = parameter(0.1, POSITIVE)

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._fix(pca_itq(X, self.bits, rng))
        # In float64: codes are signs of these, and how a stream is cut into chunks must not change one.
        self.Vp_: Doubles = lsh(signs(self._fixed(X), self.bits), self.bits, rng).W.astype(np.float64)  # (b, b)
        self.Qp_: Doubles = lsh(X, self.bits, rng).W.astype(np.float64)  # (D, b)

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        G = self.targets_(labels)  # (n, b) in {-1, +1}: sgn(y^T P)
        before = self.Vp_
        self.Qp_ = learn(self.Qp_, X, G, float(self.C))  # new arrays, so that readers need no lock
        self.Vp_ = learn(before, signs(self._fixed(X), self.bits), G, float(self.C))
        self.stale_ = not np.array_equal(self.Vp_, before)

    def keep(self, X: ArrayLike) -> Codes:
        """Return the codes x~ (n, ceil(bits / 8)) that never change: all that `refresh` needs."""
        return super()._encode_rows(self._checked(X), None)[0]

    def refresh(self, stored: Codes, features: Callable[[], ArrayLike]) -> Codes:
        """Return what encode() gives now for the rows whose fixed codes are stored; raw features are never read."""
        self._check_fitted()
        return self._in_batches(check_codes(stored, self.bits, "stored"), self._projected)

    def weigh(self, Q: ArrayLike) -> Floats:
        Q = self.prepare(self._checked(Q))
        return signs(pack(kernels.project(Q, self.Qp_.astype(np.float32))), self.bits)  # sgn(Qp^T q)

    def _encode_rows(self, X: Floats, threads: int | None) -> tuple[Codes, Floats]:
        fixed, norms = super()._encode_rows(X, threads)
        return self._in_batches(fixed, self._projected), norms

    def _codes(self, X: Floats) -> Codes:
        return self._projected(self._fixed(X))

    def _fixed(self, X: Floats) -> Codes:
        return super()._codes(X)

    def _projected(self, fixed: Codes) -> Codes:
        return pack(kernels.project(signs(fixed, self.bits), self.Vp_.astype(np.float32)))  # sgn(Vp^T x~)

    @cached_property
    def targets_(self) -> TargetCodes:  # a function of the seed alone
        return TargetCodes(self.bits, seed=self.random_state)


@one_thread
def learn(U: Doubles, X: Floats, G: NDArray[np.int8], C: float) -> Doubles:
    """Return the projection U (D, b) after u += tau g x for each row x of X (n, D) in order, with targets G (n, b).

    The rows of a block see each other only through their inner products, so the Gram matrix and the scores at the
    block's start give all its steps; U then moves by one product. A zero row changes nothing.
    """
    U = U.copy()
    for s in range(0, len(X), GRAM_ROWS):
        x, g = X[s : s + GRAM_ROWS].astype(np.float64), G[s : s + GRAM_ROWS].astype(np.float64)
        P, K = x @ U, x @ x.T  # scores at the block's start (B, b); Gram matrix (B, B)
        E = np.zeros_like(P)  # tau g of each row
        for j in np.flatnonzero(np.diagonal(K)):
            margin = g[j] * (P[j] + K[j, :j] @ E[:j])
            E[j] = g[j] * np.clip(1 - margin / K[j, j], 0, C)
        U += x.T @ E
    return U
