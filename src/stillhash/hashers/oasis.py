"""OASIS: a bilinear similarity of codes, learnt from triplets."""

from dataclasses import dataclass

import numpy as np

from stillhash.hashers.base import POSITIVE, parameter
from stillhash.hashers.pair_sampling import SquareHasher
from stillhash.numeric.validation import Doubles


@dataclass(eq=False, repr=False, kw_only=True)
class OASIS(SquareHasher):
    """Online Algorithm for Scalable Image Similarity (Chechik et al., JMLR 2010), on fixed PCA-ITQ codes.

    As in OHSL's Figure 8 it sees codes only: S(q, x) = q~^T M x~, where M is the paper's W. A row p that shares a label
    with p+ and none with p- should be more similar to p+ by a margin of 1; Passive-Aggressive steps of at most C do
    that. M is neither symmetric nor positive.

    Departures: the paper draws triplets from a set that it holds, and OHSL's paper does not say how to draw them from a
    stream. Here each arriving labelled row makes one, with partners from a uniform sample of 1,000 earlier rows (not
    of its own chunk, so that it does not matter how the stream is cut). A row without both partners is ignored.

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    C : the largest step. Codes have the norm sqrt(b): 0.001 to 0.01 does well.
    random_state : seed of the hash functions and of the partners.
    """

    name = "oasis"

    C: float = parameter(1e-3, POSITIVE)

    def _learn_row(self, M: Doubles, x: Doubles, similar: Doubles | None, dissimilar: Doubles | None) -> None:
        if similar is not None and dissimilar is not None:
            triplet_step(M, x, similar, dissimilar, self.C)


def triplet_step(M: Doubles, p: Doubles, similar: Doubles, dissimilar: Doubles, C: float) -> None:
    """Take one Passive-Aggressive step, in place on M (b, b): M += tau p (p+ - p-)^T."""
    d = similar - dissimilar
    loss = 1 - float(p @ M @ d)
    norm = float((p @ p) * (d @ d))  # |p d^T|_F^2; zero where p+ and p- have the same code
    if loss > 0 and norm > 0:
        M += np.outer(min(C, loss / norm) * p, d)
