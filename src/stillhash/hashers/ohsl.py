"""OHSL: fixed binary codes, learnt similarity."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState
from stillhash.hashers.base import AT_LEAST_ONE, POSITIVE, Model, parameter
from stillhash.hashers.linear import LinearHasher
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.hashing import pca_itq
from stillhash.numeric.labels import Labels
from stillhash.numeric.targets import TargetCodes
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Floats


@dataclass(eq=False, repr=False, kw_only=True)
class OHSL(LinearHasher):
    """Online Hashing with Similarity Learning (Weng & Zhu, AAAI 2021), Algorithm 1.

    The hash functions are fixed by `fit` on the first few hundred points. `partial_fit` learns, towards target codes
    of the labels, one projection U of raw features and one projection V of codes; the similarity is
    S(q, x) = (U q) . (V x~) = q^T M x~ (Eq. 3), so a query weighs the bits of codes that never change.

    Until a first labelled row M is zero and all scores would tie; the weights are then those of Hamming ranking
    (note 3).

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    C : the largest step of a Passive-Aggressive update. It is coupled to the norm of the features: 0.01 suits the
        unit norm that pre-processing gives.
    target_factor : l / b, the length of the target codes in units of the code length.
    random_state : seed of the hash functions and the target codes.
    """

    name = "ohsl"
    fixed_codes = True
    retired: ClassVar = {"norm_power": 2, "init": "pca-itq", "merge": "sum_lsh"}
    saved_arrays: ClassVar = {"U": "float32 l D", "V": "float32 l b"}

    C: float = parameter(0.01, POSITIVE)
    target_factor: int = parameter(3, AT_LEAST_ONE)

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._fix(pca_itq(X, self.bits, rng))
        length, columns = self.targets_.length, self._query_view(X[:1]).shape[1]
        self.U_: Floats = np.zeros((length, columns), np.float32, order="F")  # (l, D)
        self.V_: Floats = np.zeros((length, self.bits), np.float32, order="F")  # (l, b)
        self.M_: Floats | None = None  # (D, b), once there is something to learn from

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        G = self.targets_(labels)  # (n, l) in {-1, +1}
        S = signs(self._codes(X) if codes is None else codes, self.bits)  # (n, b) in {-1, +1}
        kernels.passive_aggressive(self.U_, self._query_view(X), G, self.C)  # Eqs. 16-17, note 1
        kernels.passive_aggressive(self.V_, S, G, self.C)  # Eqs. 20-21
        self.M_ = self._similarity()  # Eq. 8; a new array, so that readers need no lock

    def model(self) -> Model:
        return Model("features", self.M_)  # Eq. 4

    def _query_view(self, X: Floats) -> Floats:
        """Return what the similarity multiplies of a query: here, its features."""
        return X

    @one_thread
    def _similarity(self) -> Floats:
        return np.ascontiguousarray(self.U_.T @ self.V_)  # once a chunk and not once a sample: note 2

    @cached_property
    def targets_(self) -> TargetCodes:
        return TargetCodes(self.target_factor * self.bits, seed=self.random_state)

    def _extra(self) -> dict[str, Any]:
        return {**super()._extra(), "learnt": self.M_ is not None}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        if len(self.U_) != self.targets_.length:
            raise BadState(f"U: expected {self.targets_.length} rows, got {len(self.U_)}")
        self.U_, self.V_ = np.asfortranarray(self.U_), np.asfortranarray(self.V_)
        self.M_ = self._similarity() if extra["learnt"] else None


class OHSLSym(OHSL):
    """OHSL with the square similarity of Eq. 2: both sides are codes, S(q, x) = (V q~) . (V x~).

    The ablation of the paper's Figure 8. U learns from codes too, so it equals V (note 4).
    """

    name = "ohsl-sym"
    saved_arrays: ClassVar = {"U": "float32 l b"}

    def model(self) -> Model:
        return Model("code", self.M_)

    def _query_view(self, X: Floats) -> Floats:
        return signs(self._codes(X), self.bits)
