"""LEGO: a Mahalanobis metric of codes, learnt from pairs."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stillhash.hashers.base import POSITIVE, parameter
from stillhash.hashers.pair_sampling import RESERVOIR, SquareHasher
from stillhash.numeric.labels import Labels
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Doubles, Floats, check_number

PERCENTILES = 5, 95  # of distances in the initial sample: the bounds of similar and of dissimilar pairs


@dataclass(eq=False, repr=False, kw_only=True)
class LEGO(SquareHasher):
    """LogDet Exact Gradient Online metric learning (Jain, Kulis, Dhillon & Grauman, NIPS 2008), on PCA-ITQ codes.

    As in OHSL's Figure 8 it sees codes only. It learns M, the paper's A, of the squared distance z^T M z, z = x~ - y~.
    A similar pair should be at most u apart, a dissimilar pair at least v. M stays positive definite.

    Ranking is by the bilinear form q~^T M x~: OHSL's paper speaks of a square bilinear similarity. The distance itself
    would add -1/2 x~^T M x~, which is not linear in the bits of x~ and so is no score of this library.

    Departures: OHSL's paper does not say how pairs come from a stream. Here each arriving labelled row makes one, by
    turns with a similar and with a dissimilar row of a uniform sample of 1,000 earlier rows (not of its own chunk, so
    that it does not matter how the stream is cut); a row without such a partner is ignored. u and v are
    the 5th and 95th percentile of distances in the initial sample, as is usual in metric learning, and a pair
    within its bound is left alone.

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    eta : weight of a pair against staying where M is; 0.001 to 0.1 behave alike.
    random_state : seed of the hash functions and of the partners.
    """

    name = "lego"
    saved_values: ClassVar = {"u": check_number, "v": check_number}

    eta: float = parameter(0.01, POSITIVE)

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        super()._begin(X, labels, rng)
        # The largest distance that a similar pair should have, and the smallest of a dissimilar pair.
        self.u_, self.v_ = self._bounds(X[rng.permutation(len(X))[:RESERVOIR]])

    @one_thread
    def _bounds(self, X: Floats) -> tuple[float, float]:
        S = self._signs(X)
        distances = 2 * (self.bits - S @ S.T)  # |x~ - y~|^2, four times the Hamming distance
        u, v = np.percentile(distances[np.triu_indices(len(S), 1)], PERCENTILES)
        return float(u), float(v)

    def _learn_row(self, M: Doubles, x: Doubles, similar: Doubles | None, dissimilar: Doubles | None) -> None:
        even = self.partners_.seen % 2 == 0
        partner = similar if even else dissimilar
        if partner is None:
            return
        z = x - partner
        distance = z @ M @ z
        if distance > self.u_ if even else distance < self.v_:
            pair_step(M, z, self.u_ if even else self.v_, self.eta)


def pair_step(M: Doubles, z: Doubles, y: float, eta: float) -> None:
    """Take one step, in place on M (b, b), towards z^T M z = y.

    The new distance yb solves eta yh yb^2 + (1 - eta y yh) yb - yh = 0, with yh the old one, and the published factor
    eta (yb - y) / (1 + eta (yb - y) yh) is eta (yb - y) yb / yh. M stays symmetric to the bit, and positive definite.
    """
    Mz = M @ z
    yh = float(z @ Mz)
    if yh > 0:  # codes may be equal
        c = eta * y * yh - 1
        root = math.sqrt(c * c + 4 * eta * yh * yh)
        yb = (root + c) / (2 * eta * yh) if c > 0 else 2 * yh / (root - c)  # the same; neither form cancels
        M -= eta * (yb - y) * yb / yh * np.outer(Mz, Mz)
