"""OKH: learn from consecutive pairs of rows, in kernel space."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState
from stillhash.hashers.base import POSITIVE, Hasher, parameter
from stillhash.hashers.pair_sampling import LabelSet, fingerprints
from stillhash.numeric import kernels
from stillhash.numeric.codes import pack, sgn
from stillhash.numeric.hashing import check_variance, lsh, squared_distances
from stillhash.numeric.labels import Labels
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Floats, check_arrays, check_integer

Signs = NDArray[np.int8]


@dataclass(eq=False, repr=False, kw_only=True)
class OKH(Hasher):
    """Online Kernel Hashing (Huang, Yang & Zheng, IJCAI 2013; Online Hashing, TNNLS 2018).

    Rows z = [k(x, a_1) ... k(x, a_m), 1] of similarities to m anchors, the initial sample, are hashed by sgn(W^T z).
    Labelled rows 1 and 2, 3 and 4, ... make pairs. A similar pair should differ in at most Ts bits, a dissimilar one
    in at least Td; if it does not, the cheapest such bits are flipped, and W moves there by a
    Passive-Aggressive step. A row that is left over waits for the next chunk.

    Departures: the published drivers do not centre the kernel features, which are all positive and nearly constant, so
    that most bits stay constant too. Here their mean over the anchors is subtracted. One driver squares a width that is
    squared already; here k = exp(-d^2 / (2 width)), with the mean squared distance as width.

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    anchors : at most so many rows of the initial sample serve as anchors.
    C : the largest step.
    Ts, Td : bits that similar rows may and dissimilar rows must differ in; Td is ceil(b / 2) if None.
    random_state : seed of the first hash functions, and of the choice of anchors where the sample is larger.
    """

    name = "okh"
    retired: ClassVar = {"kernel": "rbf_centered"}
    saved_arrays: ClassVar = {"W": "float32 inputs b", "anchors": "float32 D m", "middle": "float32 m"}
    saved_values: ClassVar = {"width": POSITIVE}

    anchors: int = parameter(300, partial(check_integer, low=2))
    C: float = parameter(0.1, POSITIVE)
    Ts: int = 0
    Td: int | None = None

    def check_parameters(self) -> None:
        super().check_parameters()
        for name, threshold in zip(("Ts", "Td"), self._thresholds(), strict=True):
            check_integer(threshold, name, 0, self.bits)

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        chosen = X[np.sort(rng.permutation(len(X))[: self.anchors])]
        self.anchors_: Floats = np.ascontiguousarray(chosen.T)  # (D, m)
        self.width_ = float(squared_distances(chosen, self.anchors_).mean(dtype=np.float64))
        check_variance(self.width_)
        self.middle_: Floats = np.zeros(len(chosen), np.float32)  # (m,), what centring subtracts
        self.middle_ = self.kernel_features(chosen)[:, :-1].mean(axis=0)
        Z = self.kernel_features(chosen)
        self.W_: Floats = lsh(Z, self.bits, rng).W  # (m + 1, b)
        self.pending_: Floats = Z[:0]  # (0 or 1, m + 1), the row that has no partner yet
        self.pending_labels_: LabelSet = frozenset()

    @one_thread
    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        label_sets = [self.pending_labels_] * len(self.pending_) + fingerprints(labels)
        Z = np.concatenate([self.pending_, self.kernel_features(X)])
        W = self.W_.copy()  # a new array, so that readers need no lock
        for i in range(0, len(Z) - 1, 2):
            self._learn_pair(W, Z[i : i + 2], similar=not label_sets[i].isdisjoint(label_sets[i + 1]))
        odd = len(Z) % 2
        self.pending_, self.pending_labels_ = Z[len(Z) - odd :].copy(), label_sets[-1] if odd else frozenset()
        self.stale_ = not np.array_equal(W, self.W_)
        self.W_ = W

    def _learn_pair(self, W: Floats, Z: Floats, similar: bool) -> None:
        """Learn from one pair Z (2, m + 1), in place on W."""
        F = Z @ W  # (2, b)
        H = sgn(F)
        G = zero_loss_codes(F, H, similar, *self._thresholds())
        flips = G != H
        if flips.any():
            loss = 2 * np.abs(F[flips]).sum() + math.sqrt(flips.sum())  # (h - g).f of both rows, + sqrt(R)
            norm = 4 * (flips.sum(axis=1) @ np.einsum("ij,ij->i", Z, Z))  # |M|_F^2, M = Z^T (G - H)
            tau = min(self.C, loss / norm)
            W += Z.T @ (np.float32(tau) * (G - H))

    def _thresholds(self) -> tuple[int, int]:
        return self.Ts, -(-self.bits // 2) if self.Td is None else self.Td

    def _codes(self, X: Floats) -> Codes:
        return pack(kernels.project(self.kernel_features(X), self.W_))

    def kernel_features(self, X: Floats) -> Floats:
        """Return z of prepared rows, (n, m + 1)."""
        Z = np.ones((len(X), len(self.middle_) + 1), np.float32)
        Z[:, :-1] = np.exp(squared_distances(X, self.anchors_) * np.float32(-0.5 / self.width_)) - self.middle_
        return Z

    def _arrays(self) -> dict[str, NDArray[Any]]:
        labels = np.array(sorted(self.pending_labels_), np.uint64)
        return {**super()._arrays(), "waiting": self.pending_, "waiting_labels": labels}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        self.pending_, self.pending_labels_ = arrays["waiting"], frozenset(arrays["waiting_labels"].tolist())
        rows, m = len(self.pending_), self.anchors_.shape[1]
        if rows > 1 or not m:
            raise BadState(f"waiting, anchors: expected at most 1 row and some anchors, got {rows} and {m}")
        sizes = {"inputs": m + 1, "b": self.bits}
        check_arrays(arrays, {"W": "float32 inputs b", "waiting": "float32 rows inputs"}, sizes)


def zero_loss_codes(F: Floats, H: Signs, similar: bool, Ts: int, Td: int) -> Signs:
    """Return G (2, b): the codes without loss that cost least to reach from H = sgn(F), the codes of a pair."""
    differ = H[0] != H[1]
    D = int(differ.sum())
    R = max(0, D - Ts) if similar else max(0, Td - D)  # similarity loss: so many bits must flip
    G = H.copy()
    if R:
        cost = np.abs(F)  # (2, b); of each bit the row nearer to flipping it does
        candidates = np.flatnonzero(differ if similar else ~differ)
        cheapest = candidates[np.argsort(cost.min(axis=0)[candidates], kind="stable")[:R]]
        G[cost.argmin(axis=0)[cheapest], cheapest] *= -1
    return G
