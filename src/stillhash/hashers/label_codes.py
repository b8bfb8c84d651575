"""What LEMON and OESH share: codes of labelled rows from their labels, hash functions by ridge regression."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stillhash.hashers.linear import LinearHasher
from stillhash.hashers.parameters import COUNT
from stillhash.numeric.hashing import lsh
from stillhash.numeric.labels import Labels
from stillhash.numeric.validation import Doubles, Floats

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
