"""Unsupervised hash functions, fixed by the initial stage: two baselines, and the codes of OHSL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from stillhash.hashers.linear import LinearHasher
from stillhash.numeric.hashing import HashFunctions, lsh, pca_itq
from stillhash.numeric.labels import Labels
from stillhash.numeric.validation import Floats

InitialCodes = Literal["pca-itq", "lsh"]
HASH_FUNCTIONS: dict[InitialCodes, Callable[[Floats, int, np.random.Generator], HashFunctions]] = {
    "pca-itq": pca_itq,
    "lsh": lsh,
}


class PCAITQ(LinearHasher):
    """Iterative quantisation of principal components (Gong et al., TPAMI 2013), ranked by Hamming distance."""

    name = "pca-itq"
    fixed_codes = True

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._fix(pca_itq(X, self.bits, rng))


class LSH(LinearHasher):
    """Sign random projections (Charikar, STOC 2002), ranked by Hamming distance."""

    name = "lsh"
    fixed_codes = True

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._fix(lsh(X, self.bits, rng))
