"""OSupH: hash functions that learn random codewords of the labels."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np

from stillhash.hashers.linear import LinearHasher
from stillhash.numeric.hashing import lsh
from stillhash.numeric.labels import Labels, stable_key
from stillhash.numeric.targets import TargetCodes
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Floats

UPDATE_ROWS = 64  # rows whose updates are computed together
STEP = np.float32(0.1)  # coupled to the norm of the features: it suits unit norm


@dataclass(eq=False, repr=False, kw_only=True)
class OSupH(LinearHasher):
    """Online Supervised Hashing (Cakir, Bargal & Sclaroff, CVIU 2017): error-correcting output codes in a stream.

    Each label owns a random codeword of b bits, and the hash functions sgn(W^T x) are pushed towards the codeword of
    each label of an arriving row, one label after the other. The name clash: OHSL's paper says OSupH for this
    method and OSH for Online Sketching Hashing; other papers say OSH for this one and SketchHash for the other.

    Departures: the published code boosts, by the exponential loss, but calls this better: one step for each bit whose
    margin is below 1. Its pool of codewords is dealt out in order of arrival. Here a codeword is drawn from the seed
    and the label itself, so labels are known alike in any order and process and their number is open; two of n labels
    share a codeword with chance below n^2 / 2^(b+1). The labels of one row are taken in a fixed order of their names.
    Updates are computed a block of rows at a time, with the result of the loop over rows (up to rounding).

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    random_state : seed of the first hash functions and of the codewords.
    """

    name = "osuph"
    retired: ClassVar = {"mode": "hinge", "eta": 0.1}

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._fix(lsh(X, self.bits, rng)._replace(t=np.zeros(self.bits, np.float32)))  # no threshold

    @one_thread
    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        G, rows = self._by_row(labels)
        W = self.W_.copy()  # a new array, so that readers need no lock
        for s in range(0, len(X), UPDATE_ROWS):
            x = X[s : s + UPDATE_ROWS]
            # Inside a block W^T x_j differs from its value at the block's start only by sum_{i<j} a_i (x_i . x_j).
            P, K = x @ W, x @ x.T  # (B, b), (B, B)
            A = np.zeros_like(P)  # (B, b): what row j adds to W is x_j a_j^T
            for j, norm in enumerate(np.diagonal(K).tolist()):
                f = P[j] + K[j, :j] @ A[:j]  # W^T x_j as it is when its turn comes
                for label in rows[s + j]:
                    g = G[label]
                    a = STEP * (g * (g * f < 1))
                    A[j] += a
                    f += norm * a
            W += x.T @ A
        self.stale_ = not np.array_equal(W, self.W_)
        self.W_ = W

    def _by_row(self, labels: Labels) -> tuple[Floats, list[list[int]]]:
        """Return codewords (labels, b) in the order of the labels' names, and for each row the places of its labels."""
        order = sorted(range(len(labels.names)), key=lambda i: stable_key(labels.names[i]))
        one_each = np.arange(len(order) + 1)
        G = self.codewords_(Labels(one_each, one_each[:-1], [labels.names[i] for i in order])).astype(np.float32)
        places = np.empty(len(order), np.int64)
        places[order] = one_each[:-1]
        by_label = places[labels.indices]
        return G, [sorted(by_label[a:b].tolist()) for a, b in pairwise(labels.indptr)]

    @cached_property
    def codewords_(self) -> TargetCodes:
        return TargetCodes(self.bits, seed=self.random_state)
