"""MIHash: codes whose distances have the most mutual information with similarity; updated only if it rises."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stillhash.hashers.base import AT_LEAST_ONE, COUNT, POSITIVE, parameter
from stillhash.hashers.linear import LinearHasher
from stillhash.numeric import kernels
from stillhash.numeric.hashing import lsh
from stillhash.numeric.labels import Labels, concat_labels, drop_unused, share_label
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Doubles, Floats, Mask, check_integer, check_number

ASCENT_ROWS = 100  # samples whose projections are prepared together
KEYS_PER_SEED = 1024  # reservoir keys that one generator draws
MIN_CHANGE = 1e-6  # the least |W - Ws|_1 at which the trigger evaluates at all


@dataclass(eq=False, repr=False, kw_only=True)
class MIHash(LinearHasher):
    """Online hashing by mutual information (Cakir et al., ICCV 2017) with its trigger, ranked by Hamming distance.

    Each labelled sample takes one step of gradient ascent on the mutual information between its soft Hamming distance
    to the items of a reservoir and whether they share a label with it. W learns all the time; `encode` and `weigh`
    use a snapshot of it, which is replaced every `interval` samples if, on the reservoir, the codes of W have more
    mutual information than the snapshot's. Only then do stored codes become stale. Between two runs of the trigger
    W is not visible, so rows wait until a block of them is full: blocks end at fixed places of the stream, and the
    result is the same to the bit for any chunks.

    Departures: the reservoir starts empty and fills from the stream (the published code puts a tenth of it in
    beforehand), so it is a uniform sample of the stream from the first row on; a sample enters it after it is learnt.
    The factor phi(x_r) of the gradient is in [-1, 1], as the objective says, where the published code has [0, 1]. The
    trigger counts distances 0 to b in b + 1 bins; the published histogram merges the last two.

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    reservoir : labelled items that a sample is compared with, R.
    bins : intervals K of the soft histogram of distances; it has K + 1 triangular bins.
    A : slope of the logistic function that makes codes soft.
    lr : the step of the ascent. 1 is the paper's; it can be too large for hard data.
    interval : samples from one run of the trigger to the next, counted over all chunks.
    theta : by how much mutual information must rise for a new snapshot.
    random_state : seed of the first W and of the reservoir.
    """

    name = "mihash"
    saved_arrays: ClassVar = {"Wt": "float32 D b", "X": "float32 n D", "keys": "float64 n"}
    saved_values: ClassVar = {"seen": COUNT}
    saved_labels = "labels"

    reservoir: int = parameter(200, AT_LEAST_ONE)
    bins: int = parameter(16, AT_LEAST_ONE)
    A: float = parameter(10.0, POSITIVE)
    lr: float = parameter(1.0, POSITIVE)
    interval: int = parameter(100, AT_LEAST_ONE)
    theta: float = parameter(0.0, check_number)

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._fix(lsh(X, self.bits, rng)._replace(t=np.zeros(self.bits, np.float32)))  # no threshold
        self.Wt_ = self.W_  # (D, b), W as it learns; W_ is the snapshot Ws
        # (n + m, D) prepared rows: the reservoir, n <= R, in order of arrival; then m pending rows; labels_ are theirs
        self.X_: Floats = np.empty((0, X.shape[1]), np.float32)
        self.keys_: Doubles = np.empty(0)  # (n + m,) uniform draws; the R smallest of the stream make the reservoir
        self.pending_ = self.seen_ = 0  # m; labelled rows so far

    @one_thread
    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        concat_labels(self.labels_, labels)  # a label without a stable key is refused here, before anything has changed
        places, s = np.arange(len(X)), 0
        while s < len(X):
            count = min(ASCENT_ROWS - self.pending_, self.interval - self.seen_ % self.interval)
            block = X[s : s + count]
            new = labels.rows((places >= s) & (places < s + count))
            self.X_, self.labels_ = np.concatenate([self.X_, block]), concat_labels(self.labels_, new)
            self.keys_ = np.concatenate([self.keys_, self.reservoir_keys(len(block))])
            self.pending_, self.seen_ = self.pending_ + len(block), self.seen_ + len(block)
            s += count
            if s <= len(X):  # the block is full
                self._ascend()
            if self.seen_ % self.interval == 0:
                self._trigger()

    def _ascend(self) -> None:
        """Learn from the pending rows, in order.

        A step adds a multiple of x_i to each column of W, so projections move by x_i's Gram column times those
        multiples. The reservoir and the block itself are projected once, and no step has to look at D features again.
        """
        m, n = self.pending_, len(self.X_) - self.pending_
        similar = share_label(self.labels_, self.labels_.rows(np.arange(n + m) >= n))  # (n + m, m)
        K = self.X_ @ self.X_[n:].T  # (n + m, m), Gram columns
        Z = self.X_ @ self.Wt_  # (n + m, b), projections by the W of the moment
        S = np.zeros((m, self.bits), np.float32)  # the multiples
        sample = np.arange(n)  # rows in the reservoir
        for i in range(m):
            if len(sample):
                S[i] = self.lr * ascent(Z[n + i], Z[sample], similar[sample, i], self.bins, self.A)
                Z += np.multiply.outer(K[:, i], S[i])
            sample = self._sampled(sample, n + i)
        self.Wt_ = self.Wt_ + self.X_[n:].T @ S
        keep = np.isin(np.arange(n + m), sample)
        self.X_, self.keys_, self.labels_ = self.X_[keep], self.keys_[keep], drop_unused(self.labels_.rows(keep))
        self.pending_ = 0

    def _sampled(self, sample: NDArray[np.int64], new: int) -> NDArray[np.int64]:
        """Return the reservoir after one more row: the R smallest keys, a uniform sample of the stream."""
        if len(sample) < self.reservoir:
            return np.append(sample, new)
        worst = int(self.keys_[sample].argmax())
        if self.keys_[new] < self.keys_[sample[worst]]:
            sample[worst] = new
        return sample

    def reservoir_keys(self, count: int) -> Doubles:
        """Return the keys of the next rows of the stream, which depend on the seed and their places alone."""
        first, last = self.seen_ // KEYS_PER_SEED, (self.seen_ + count - 1) // KEYS_PER_SEED
        blocks = range(first + 1, last + 2)  # not 0: that stream drew W
        draws = [np.random.default_rng([self.random_state, d]).random(KEYS_PER_SEED) for d in blocks]
        return np.concatenate(draws)[self.seen_ - first * KEYS_PER_SEED :][:count]

    def _trigger(self) -> None:
        """Take a new snapshot if its codes of the reservoir have more mutual information than those of the old one."""
        W = self.Wt_
        if np.abs(W - self.W_).sum() <= MIN_CHANGE:
            return
        similar = share_label(self.labels_, self.labels_)
        after, before = (table_information(kernels.project(self.X_, part) >= 0, similar) for part in (W, self.W_))
        if after - before > self.theta:
            self.W_, self.stale_ = W, True

    def _extra(self) -> dict[str, Any]:
        return {**super()._extra(), "waiting": self.pending_}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        check_integer(self.seen_, "seen", len(self.X_))
        self.pending_ = check_integer(extra["waiting"], "waiting", 0, min(len(self.X_), ASCENT_ROWS - 1))


def information(J: Doubles) -> tuple[Doubles, Doubles]:
    """Return mutual information in bits of joint mass J (..., 2, bins), and its terms log2 P(bin | row) - log2 P(bin).

    Where a mass is 0 the term is 0: such a bin adds nothing to the information, nor to its gradient.
    """
    independent = J.sum(axis=-1, keepdims=True) * J.sum(axis=-2, keepdims=True)
    terms = np.log2(np.divide(J, independent, out=np.ones_like(J), where=J > 0))
    return (J * terms).sum(axis=(-2, -1)), terms


def soft_information(distances: NDArray[Any], similar: Mask, bits: int, bins: int) -> tuple[float, Doubles]:
    """Return mutual information of soft distances (n,) in [0, bits] and similarity, and its gradient by distance (n,).

    A distance lies between two centres of the triangular bins, width d apart, and shares its mass among the two.
    """
    n, d = len(distances), bits / bins
    j = np.minimum((distances / d).astype(np.int64), bins - 1)  # the centre on its left
    right = distances / d - j
    at = j + np.where(similar, 0, bins + 1)  # bins of similar items, then those of dissimilar ones
    J = np.bincount(at, 1 - right, 2 * bins + 2) + np.bincount(at + 1, right, 2 * bins + 2)
    value, terms = information(J.reshape(2, bins + 1) / n)
    slopes = terms.ravel()
    return float(value), (slopes[at + 1] - slopes[at]) / (n * d)


def ascent(z: NDArray[Any], Z: NDArray[Any], similar: Mask, bins: int, A: float) -> NDArray[Any]:
    """Return dMI/dw_k of a sample x, in units of x (b,), from its projections z (b,) and the reservoir's Z (n, b).

    Soft codes are phi = 2 s(A z) - 1 = tanh(A z / 2), and distances (b - phi . phi_r) / 2; the phi_r are constants.
    """
    phi, Phi = np.tanh(A / 2 * z), np.tanh(A / 2 * Z)
    _, slopes = soft_information((len(z) - Phi @ phi) / 2, similar, len(z), bins)
    return np.asarray((slopes.astype(Phi.dtype) @ Phi) * (-A / 4) * (1 - phi * phi))


def table_information(ones: Mask, similar: Mask) -> float:
    """Return the mean over items of the mutual information of Hamming distance and similarity; ones (n, b)."""
    n, b = ones.shape
    B = ones.astype(np.float32) * 2 - 1
    distances = ((b - B @ B.T) / 2).astype(np.int64)  # (n, n)
    at = distances + (b + 1) * (2 * np.arange(n)[:, None] + ~similar)
    J = np.bincount(at.ravel(), minlength=2 * n * (b + 1)).reshape(n, 2, b + 1) / n
    return float(information(J)[0].mean())
