"""HMOH: one averaged perceptron per bit, towards target codes from a Hadamard matrix."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stillhash.hashers.base import Hasher, one_of, parameter
from stillhash.numeric import kernels
from stillhash.numeric.codes import pack
from stillhash.numeric.labels import Labels
from stillhash.numeric.targets import MERGES, Merge, TargetCodes
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Doubles, Floats, check_integer

PERCEPTRON_ROWS = 64  # rows whose mistakes come from one Gram matrix
MAX_CAPACITY = 2**14


@dataclass(eq=False, repr=False, kw_only=True)
class HMOH(Hasher):
    """Hadamard Matrix Guided Online Hashing (Lin et al., IJCV 2020), ranked by Hamming distance.

    Bit k is a perceptron W_k that starts at zero and, where it errs on a row, moves by g_k x. The hash functions are
    the average of W over all rows so far, sgn(A^T x) with A the sum of W after each row: any positive factor gives
    the same code, so neither the number of rows nor the paper's learning rate matters, and there is none to choose.
    Nearly every chunk makes the stored codes stale, and only raw features can refresh them.

    Until a first labelled row A is zero and all codes are +1, so all scores tie.

    Departures: where labels collide the zeros of the target code are filled as the paper describes, not as its script
    does; labels past `capacity` get random signs; features are centred and scaled by default, which the
    authors did not do; there is no kernel.

    Parameters
    ----------
    bits : code length b, 8 to 512; the target codes have the same.
    merge : how several labels make one target code, "hmoh" (the paper's) or "sum_lsh" (one code per label set, for
        any number of labels).
    capacity : labels that get a row of the Hadamard matrix of their own, at most 16384; "hmoh" only. Where it is at
        most b, and b a power of two, the first bit is +1 for every label and carries no information.
    center, unit_norm : pre-processing of features and queries.
    random_state : seed of the target codes.
    """

    name = "hmoh"
    retired: ClassVar = {"kernel": None, "anchors": 300}
    saved_arrays: ClassVar = {"W": "float64 D b", "A": "float64 D b"}

    merge: Merge = parameter("hmoh", one_of(*MERGES))
    capacity: int = parameter(128, partial(check_integer, low=1, high=MAX_CAPACITY))

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        # float64, because a mistake is a jump: in float32 another chunking would now and then learn another W.
        self.W_: Doubles = np.zeros((X.shape[1], self.bits))  # (D, b)
        self.A_: Doubles = np.zeros_like(self.W_)  # (D, b), the sum of W after every row
        self.H_ = unit_columns(self.A_)  # (D, b), A with columns of unit norm

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        G = self.targets_(labels)  # (n, b) in {-1, +1}
        self.W_, self.A_ = perceptron(self.W_, self.A_, X, G)
        before, self.H_ = self.H_, unit_columns(self.A_)  # a new array, so that readers need no lock
        self.stale_ = not np.array_equal(self.H_, before)

    def _codes(self, X: Floats) -> Codes:
        return pack(kernels.project(X, self.H_))  # sgn(A^T x)

    @cached_property
    def targets_(self) -> TargetCodes:
        return TargetCodes(self.bits, merge=self.merge, seed=self.random_state, capacity=self.capacity)

    def _extra(self) -> dict[str, Any]:
        return {**super()._extra(), "targets": self.targets_.state()}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        self.targets_.load(extra["targets"])
        self.H_ = unit_columns(self.A_)


@one_thread
def perceptron(W: Doubles, A: Doubles, X: Floats, G: NDArray[np.int8]) -> tuple[Doubles, Doubles]:
    """Return W and A after rows X (n, D) in order, with targets G (n, b): W += g x where sgn(W^T x) != g, then A += W.

    While learning, a score of 0 counts as -1. The rows of a block see each other only through their inner products, so
    the Gram matrix and the scores at the block's start give all its mistakes; W and A then move by one product each.
    """
    W, A = W.copy(), A.copy()
    for s in range(0, len(X), PERCEPTRON_ROWS):
        x, g = X[s : s + PERCEPTRON_ROWS].astype(np.float64), G[s : s + PERCEPTRON_ROWS].astype(np.float64)
        P, K = x @ W, x @ x.T  # scores at the block's start (B, b); Gram matrix (B, B)
        E = np.zeros_like(P)  # g where a row errs
        for j in range(len(x)):
            E[j] = g[j] * ((P[j] + K[j, :j] @ E[:j] > 0) != (g[j] > 0))
        staying = np.arange(len(x), 0, -1)[:, None]  # row i is in the W of rows i, i + 1, ... of the block
        A += len(x) * W + x.T @ (staying * E)
        W += x.T @ E
    return W, A


def unit_columns(A: Doubles) -> Floats:
    """Return A with columns of norm 1, so that float32 can hold them for any stream; zero columns stay zero."""
    norms = np.linalg.norm(A, axis=0)
    return (A / np.where(norms > 0, norms, 1)).astype(np.float32)
