"""BSODH: discrete codes of each new chunk are fitted to those of the items seen before, then W to the codes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stillhash.hashers.base import AT_LEAST_ONE, COUNT, NOT_NEGATIVE, POSITIVE, optional, parameter
from stillhash.hashers.linear import LinearHasher
from stillhash.numeric import kernels
from stillhash.numeric.codes import pack, signs, width
from stillhash.numeric.hashing import lsh
from stillhash.numeric.labels import Labels, concat_labels, drop_unused, share_label
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Doubles, Floats, Mask, check_integer

SIMILARITY_ITEMS = 4096  # stored items whose similarity to a chunk is in memory at a time


@dataclass(eq=False, repr=False, kw_only=True)
class BSODH(LinearHasher):
    """Balanced Similarity for Online Discrete Hashing (Lin et al., AAAI 2019), ranked by Hamming distance.

    With the codes Be of the N items stored so far and the n new rows X, a chunk lowers
    |Bs Be^T - b S|^2 + sigma |X W - Bs|^2 + lam |W|^2 over the codes Bs of the new rows, then Be, then W, each once;
    S is eta_s where two items share a label and -eta_d where they do not. The first chunk is only stored.

    W is fitted to the newest chunk alone, so chunks should be large (the paper has 2,000 rows): what it learns depends
    on how the stream is cut, and a chunk of a few rows leaves little of W. The two kinds of pairs balance if
    eta_s / eta_d is about the number of dissimilar pairs to a similar one. Where most pairs share a label, the stored
    codes grow alike, and quality falls along the stream.

    Departures: at most `memory` items are stored, a uniform sample of the stream, since the cost of a chunk grows
    with N and would be quadratic over the stream; a stored bit whose votes cancel keeps its value, as good a
    minimiser as +1 and one that does not erase items unlike the whole chunk when eta_d = 0. The published script
    multiplies S by b twice and drops sigma from the code step, so that step ignores X W; this one is the minimiser.

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    lam, sigma : weights of |W|^2 and of the error of quantisation. The defaults are the paper's for CIFAR-10.
    eta_s, eta_d : how strongly similar and dissimilar pairs count.
    memory : stored items at most; None keeps all, as published.
    random_state : seed of the first W and of the stored sample.
    """

    name = "bsodh"
    retired: ClassVar = {"scale": "corrected"}
    chunk_invariant = False
    saved_arrays: ClassVar = {"codes": "uint8 n bytes", "keys": "float64 n"}
    saved_values: ClassVar = {"seen": COUNT}
    saved_labels = "labels"

    lam: float = parameter(0.6, POSITIVE)
    sigma: float = parameter(0.5, POSITIVE)
    eta_s: float = parameter(1.2, POSITIVE)
    eta_d: float = parameter(0.2, NOT_NEGATIVE)  # 0 is the paper's choice for Places
    memory: int | None = parameter(20_000, optional(AT_LEAST_ONE))

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._fix(lsh(X, self.bits, rng)._replace(t=np.zeros(self.bits, np.float32)))  # no threshold
        self.codes_: Codes = np.empty((0, width(self.bits)), np.uint8)  # (N, bytes): Be, packed; labels_ are theirs
        self.keys_: Doubles = np.empty(0)  # (N,) uniform draws; the items of the smallest keys stay
        self.seen_ = 0  # labelled rows so far: the place in the stream of keys

    @one_thread
    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        N = len(self.codes_)
        both = concat_labels(self.labels_, labels)
        new = both.rows(np.arange(len(both)) >= N)
        stored, new_codes = self.codes_, self._codes(X)
        if N:
            Be = signs(self.codes_, self.bits)  # (N, b)
            Bs = self._new_codes(X, Be, new)  # (n, b)
            stored, new_codes = pack(self._stored_codes(Be, Bs, new)), pack(Bs)
            W = ridge(X, Bs, self.sigma, self.lam)
            self.stale_ = not np.array_equal(W, self.W_)
            self.W_ = W
        keys = np.random.default_rng([self.random_state, self.seen_ + 1]).random(len(X))  # not 0: that stream drew W
        self._store(np.concatenate([stored, new_codes]), both, np.concatenate([self.keys_, keys]))
        self.seen_ += len(X)

    def _new_codes(self, X: Floats, Be: Floats, new: Labels) -> Floats:
        """Do the Bs step, bit by bit, from the codes of the oldest similar items."""
        b = self.bits
        Z = kernels.project(X, self.W_)  # (n, b)
        sums = np.zeros_like(Z)  # of the codes of each row's similar items: whole numbers, exact in float32
        oldest = np.full(len(X), -1)
        for s, similar in self._similar(new):
            first = (oldest < 0) & similar.any(axis=1)
            oldest[first] = s + similar[first].argmax(axis=1)
            sums += similar.astype(np.float32) @ Be[s : s + SIMILARITY_ITEMS]
        SBe = self._balanced(sums, Be)  # S Be (n, b)
        P = b * SBe + self.sigma * Z
        Bs = np.where((oldest >= 0)[:, None], Be[oldest], np.where(Z >= 0, np.float32(1), np.float32(-1)))
        G = (Be.T @ Be).astype(np.float64)  # (b, b)
        for r in range(b):
            Bs[:, r] = best_bit(r, P, Bs, G)
        return Bs

    def _stored_codes(self, Be: Floats, Bs: Floats, new: Labels) -> Floats:
        """Do the Be step, sgn(S^T Bs), in closed form: the error counts by magnitude here, not squared."""
        after = np.empty_like(Be)
        for s, similar in self._similar(new):
            votes = self._balanced(similar.T.astype(np.float32) @ Bs, Bs)
            after[s : s + SIMILARITY_ITEMS] = np.where(votes, np.where(votes > 0, 1, -1), Be[s : s + SIMILARITY_ITEMS])
        return after

    def _balanced(self, sums: Floats, B: Floats) -> Doubles:
        """Return S B for the sums of B over similar items, as S = (eta_s + eta_d) [similar] - eta_d."""
        total = B.sum(axis=0, dtype=np.float64)
        return np.asarray((self.eta_s + self.eta_d) * sums.astype(np.float64) - self.eta_d * total)

    def _similar(self, new: Labels) -> Iterator[tuple[int, Mask]]:
        """Yield s and which new rows share a label with stored items s, s + 1, ...: (n, items), a block at a time."""
        places = np.arange(len(self.labels_))
        for s in range(0, len(places), SIMILARITY_ITEMS):
            yield s, share_label(new, self.labels_.rows((places >= s) & (places < s + SIMILARITY_ITEMS)))

    def _store(self, codes: Codes, labels: Labels, keys: Doubles) -> None:
        keep = np.ones(len(keys), bool)
        if self.memory is not None and len(keys) > self.memory:
            keep = keys <= np.partition(keys, self.memory - 1)[self.memory - 1]
        self.codes_, self.labels_, self.keys_ = codes[keep], drop_unused(labels.rows(keep)), keys[keep]

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        check_integer(self.seen_, "seen", len(self.codes_))


def best_bit(r: int, P: Doubles, B: Floats, G: Doubles) -> Floats:
    """Return bit r of all rows (n,) that minimises the objective while the other bits of B stay; G = Be^T Be."""
    others = G[:, r].copy()
    others[r] = 0
    return np.where(P[:, r] - B @ others >= 0, np.float32(1), np.float32(-1))


def ridge(X: Floats, B: Floats, sigma: float, lam: float) -> Floats:
    """Do the W step, sigma (sigma X^T X + lam I)^-1 X^T B (D, b), by the smaller of the two Gram matrices."""
    x = X.astype(np.float64)
    dual = len(X) < X.shape[1]
    K = sigma * (x @ x.T if dual else x.T @ x)
    # Features of huge norm would lose lam to rounding, and a singular K has no inverse.
    K.flat[:: len(K) + 1] += max(lam, len(K) * np.finfo(np.float64).eps * float(np.trace(K)))
    W = x.T @ np.linalg.solve(K, B) if dual else np.linalg.solve(K, x.T @ B)
    return (sigma * W).astype(np.float32)
