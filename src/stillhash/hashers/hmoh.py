"""HMOH: one averaged perceptron per bit, towards target codes from a Hadamard matrix."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState
from stillhash.hashers.base import Hasher
from stillhash.hashers.parameters import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, one_of, parameter
from stillhash.numeric import kernels
from stillhash.numeric.codes import pack
from stillhash.numeric.hashing import check_variance, squared_distances
from stillhash.numeric.labels import Labels
from stillhash.numeric.targets import MERGES, Merge, TargetCodes
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Doubles, Floats, check_arrays, check_integer

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
    authors did not do; anchors and width of the kernel come from the initial sample.

    Parameters
    ----------
    bits : code length b, 8 to 512; the target codes have the same.
    merge : how several labels make one target code, "hmoh" (the paper's) or "sum_lsh" (one code per label set, for
        any number of labels).
    capacity : labels that get a row of the Hadamard matrix of their own, at most 16384; "hmoh" only. Where it is at
        most b, and b a power of two, the first bit is +1 for every label and carries no information.
    kernel : None learns from the features, "rbf" from exp(-|x - a|^2 / (2 eta)) for anchors a; eta is a sixth of the
        mean squared distance.
    anchors : how many, drawn from the initial sample: all of it where it is smaller.
    center, unit_norm : pre-processing of features and queries.
    random_state : seed of the target codes and the anchors.
    """

    name = "hmoh"
    saved_arrays: ClassVar = {"W": "float64 inputs b", "A": "float64 inputs b"}
    saved_values: ClassVar = {"eta": NOT_NEGATIVE}

    merge: Merge = parameter("hmoh", one_of(*MERGES))
    capacity: int = parameter(128, partial(check_integer, low=1, high=MAX_CAPACITY))
    kernel: Literal["rbf"] | None = parameter(None, one_of(None, "rbf"))
    anchors: int = parameter(300, AT_LEAST_ONE)

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self.anchors_, self.eta_ = X[:0].T, 0.0  # (features, anchors); no columns without a kernel
        if self.kernel == "rbf":
            self.anchors_, self.eta_ = sample_anchors(X, self.anchors, rng)
        # float64, because a mistake is a jump: in float32 another chunking would now and then learn another W. D is the
        # number of features, or of anchors.
        self.W_: Doubles = np.zeros((self._inputs(X[:1]).shape[1], self.bits))  # (D, b)
        self.A_: Doubles = np.zeros_like(self.W_)  # (D, b), the sum of W after every row
        self.H_ = unit_columns(self.A_)  # (D, b), A with columns of unit norm

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        G = self.targets_(labels)  # (n, b) in {-1, +1}
        self.W_, self.A_ = perceptron(self.W_, self.A_, self._inputs(X), G)
        before, self.H_ = self.H_, unit_columns(self.A_)  # a new array, so that readers need no lock
        self.stale_ = not np.array_equal(self.H_, before)

    def _codes(self, X: Floats) -> Codes:
        return pack(kernels.project(self._inputs(X), self.H_))  # sgn(A^T x)

    def _inputs(self, X: Floats) -> Floats:
        """Return the inputs of the perceptrons, of prepared rows."""
        return X if self.kernel is None else rbf(X, self.anchors_, self.eta_)

    @cached_property
    def targets_(self) -> TargetCodes:
        return TargetCodes(self.bits, merge=self.merge, seed=self.random_state, capacity=self.capacity)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return super()._arrays() | ({} if self.kernel is None else {"anchors": self.anchors_})

    def _extra(self) -> dict[str, Any]:
        return {**super()._extra(), "targets": self.targets_.state()}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        self.targets_.load(extra["targets"])
        D, inputs = self.n_features_in_, len(self.W_)
        self.anchors_ = np.empty((D, 0), np.float32)
        if self.kernel is not None:
            check_arrays(arrays, {"anchors": "float32 D inputs"}, {"D": D, "inputs": inputs})
            POSITIVE(self.eta_, "eta")
            self.anchors_ = arrays["anchors"]
        elif inputs != D:
            raise BadState(f"W: expected {D} rows, one for each feature, got {inputs}")
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


def sample_anchors(X: Floats, most: int, rng: np.random.Generator) -> tuple[Floats, float]:
    """Return sampled rows as anchors (D, m), and eta: a sixth of the mean squared distance from them to other rows."""
    count = min(most, len(X))
    anchors = np.ascontiguousarray(X[np.sort(rng.choice(len(X), count, replace=False))].T)
    eta = float(squared_distances(X, anchors).sum(dtype=np.float64)) / (count * (len(X) - 1)) / 6
    check_variance(eta)
    return anchors, eta


def rbf(X: Floats, anchors: Floats, eta: float) -> Floats:
    similar: Floats = np.exp(squared_distances(X, anchors) / np.float32(-2 * eta))
    return similar
