"""OSupH: hash functions that learn random codewords of the labels."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from stillhash.hashers.linear import LinearHasher
from stillhash.hashers.parameters import POSITIVE, one_of, parameter
from stillhash.numeric.hashing import lsh
from stillhash.numeric.labels import Labels, stable_key
from stillhash.numeric.targets import TargetCodes
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Floats

UPDATE_ROWS = 64  # rows whose updates are computed together
MAX_EXPONENT = 10.0  # of a boosting weight, which features far from unit norm would make overflow


@dataclass(eq=False, repr=False, kw_only=True)
class OSupH(LinearHasher):
    """Online Supervised Hashing (Cakir, Bargal & Sclaroff, CVIU 2017): error-correcting output codes in a stream.

    Each label owns a random codeword of b bits, and the hash functions sgn(W^T x) are pushed towards the codeword of
    each label of an arriving row, one label after the other. The name clash: OHSL's paper says OSupH for this
    method and OSH for Online Sketching Hashing; other papers say OSH for this one and SketchHash for the other.

    Departures: the published pool of codewords is dealt out in order of arrival. Here a codeword is drawn from the seed
    and the label itself, so labels are known alike in any order and process and their number is open; two of n labels
    share a codeword with chance below n^2 / 2^(b+1). The labels of one row are taken in a fixed order of their names.
    Updates are computed a block of rows at a time, with the result of the loop over rows (up to rounding).

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    mode : "hinge", a step of eta on each bit with margin below 1; or "boosting", each bit weighted by how badly the
        bits before it did (exponential loss). The published code boosts but calls hinge the better one.
    eta : the step. It is coupled to the norm of the features: 0.1 suits unit norm.
    random_state : seed of the first hash functions and of the codewords.
    """

    name = "osuph"

    mode: Literal["hinge", "boosting"] = parameter("hinge", one_of("hinge", "boosting"))
    eta: float = parameter(0.1, POSITIVE)

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._fix(lsh(X, self.bits, rng)._replace(t=np.zeros(self.bits, np.float32)))  # no threshold

    @one_thread
    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        G, rows = self._by_row(labels)
        step = hinge_step if self.mode == "hinge" else boosting_step
        W = self.W_.copy()  # a new array, so that readers need no lock
        for s in range(0, len(X), UPDATE_ROWS):
            x = X[s : s + UPDATE_ROWS]
            # Inside a block W^T x_j differs from its value at the block's start only by sum_{i<j} a_i (x_i . x_j).
            P, K = x @ W, x @ x.T  # (B, b), (B, B)
            A = np.zeros_like(P)  # (B, b): what row j adds to W is x_j a_j^T
            for j, norm in enumerate(np.diagonal(K).tolist()):
                f = P[j] + K[j, :j] @ A[:j]  # W^T x_j as it is when its turn comes
                for label in rows[s + j]:
                    a = step(f, G[label], self.eta, norm)
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


def hinge_step(f: Floats, g: Floats, eta: float, norm: float) -> Floats:
    """Return the multiples a (b,) of x that w_1 ... w_b gain, from f = W^T x and the codeword g."""
    return eta * (g * (g * f < 1))


def boosting_step(f: Floats, g: Floats, eta: float, norm: float) -> Floats:
    """Return them for the exponential loss: bit k weighs exp(-sum_{j<k} g_j w_j.x), with the w_j already updated."""
    margins, signs = (g * f).tolist(), g.tolist()
    total, a = 0.0, []  # total: the margins of the bits so far
    for margin, sign in zip(margins, signs, strict=True):
        step = eta * math.exp(min(MAX_EXPONENT, -total - margin))
        a.append(step * sign)
        total += margin + step * norm
    return np.array(a, np.float32)
