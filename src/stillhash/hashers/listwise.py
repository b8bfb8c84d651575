"""Tally with listwise refinement: a correction to its similarity, by gradient steps on the ranking of recent codes.

For each query of a chunk the scores of the recent codes, as a softmax, are moved towards the uniform distribution over
the codes that share a label with it (the cross-entropy of ListNet, Cao et al., ICML 2007), with Adam's step sizes
(Kingma & Ba, ICLR 2015). Unlike the sufficient statistics below it, it depends on the order of the stream.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stillhash.hashers.parameters import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, parameter
from stillhash.hashers.tally import Tally
from stillhash.numeric.codes import signs, width
from stillhash.numeric.labels import Labels, concat_labels, drop_unused, share_label
from stillhash.numeric.sufficient_stats import Similarity
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Floats, Mask, check_arrays, check_integer

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's usual constants


class Correction:
    """A matrix added to M; step sizes suit weights that give scores a deviation of 1."""

    saved: ClassVar = dict.fromkeys(("value", "mean_step", "square_step"), "float32 D b")

    def __init__(self, dim: int, bits: int) -> None:
        self.steps = 0
        self.value, self.mean_step, self.square_step = (np.zeros((dim, bits), np.float32) for _ in range(3))

    def step(self, gradient: Floats, rate: float) -> None:
        self.steps += 1
        self.mean_step = self.mean_step + np.float32(1 - BETA1) * (gradient - self.mean_step)
        self.square_step = self.square_step + np.float32(1 - BETA2) * (gradient * gradient - self.square_step)
        size = np.sqrt(self.square_step / np.float32(1 - BETA2**self.steps)) + np.float32(EPSILON)
        self.value = self.value - np.float32(rate / (1 - BETA1**self.steps)) * self.mean_step / size


@dataclass(eq=False, repr=False, kw_only=True)
class TallyListwise(Tally):
    """Tally, and a correction to its similarity that is learnt chunk by chunk from the ranking of the latest codes.

    On our data it adds nothing (docs/method.md), and it costs Tally's exactness: the correction depends on the order
    and the chunks of the stream, is neither merged nor unlearnt, and stays when old rows decay.

    Parameters
    ----------
    steps, rate : Adam steps for each chunk, and their size.
    window : how many of the latest codes are ranked; they and their labels are stored.
    bits and all others : as for Tally, which is linear here and learns from features, without `rescore_bits`.
    """

    name = "tally-listwise"
    chunk_invariant = False
    tunable: ClassVar = {"rate": (1e-4, 3e-4, 1e-3), "steps": (1, 2)}
    saved_arrays: ClassVar = {"recent": "uint8 n bytes"}
    saved_labels = "recent"

    steps: int = parameter(2, AT_LEAST_ONE)
    rate: float = parameter(3e-4, POSITIVE)
    window: int = parameter(2000, AT_LEAST_ONE)
    ridge: float = parameter(10.0, POSITIVE)
    rarity: float = parameter(0.3, NOT_NEGATIVE)
    sharpness: float = field(default=1, init=False)  # linear
    rescore_bits: int = field(default=0, init=False)  # its correction is not a sum

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        super()._begin(X, labels, rng)
        self.correction_ = Correction(X.shape[1], self.bits)
        self.recent_: Codes = np.empty((0, width(self.bits)), np.uint8)  # (at most window, bytes); labels_ are theirs

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        both = concat_labels(self.labels_, labels)
        codes = self._codes(X) if codes is None else codes
        super()._learn(X, labels, codes)
        codes = np.concatenate([self.recent_, codes])
        place = np.arange(len(codes))
        latest = place >= len(codes) - self.window
        self.recent_, self.labels_ = codes[latest], drop_unused(both.rows(latest))
        shared = share_label(both.rows(place >= len(codes) - len(X)), both.rows(latest))
        B = signs(self.recent_, self.bits)
        for _ in range(self.steps):
            if (similarity := self._similarity()) is not None:
                self.correction_.step(gradient(X, similarity, B, shared), self.rate)
                self._solved = None

    def _similarity(self) -> Similarity | None:
        similarity = super()._similarity()
        if similarity is None:
            return None
        scale = np.float32(1 / max(self.stats_.deviation(similarity), 1e-12))
        return similarity._replace(M=scale * similarity.M + self.correction_.value, m=scale * similarity.m)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._arrays(), **{name: getattr(self.correction_, name) for name in self.correction_.saved}}

    def _extra(self) -> dict[str, Any]:
        return {**super()._extra(), "steps": self.correction_.steps}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        self.correction_ = Correction(self.n_features_in_, self.bits)
        self.correction_.steps = check_integer(extra["steps"], "steps", 0)
        check_arrays(arrays, self.correction_.saved, {"D": self.n_features_in_, "b": self.bits})
        vars(self.correction_).update({name: arrays[name] for name in self.correction_.saved})


@one_thread
def gradient(X: Floats, similarity: Similarity, signs: Floats, shared: Mask) -> Floats:
    """Return d(cross-entropy)/dM (D, b), for queries X (n, D) over codes as signs (m, b); shared (n, m)."""
    relevant = shared.any(axis=1)
    X, shared = X[relevant], shared[relevant]
    S = (X @ similarity.M + similarity.m) @ signs.T
    S -= S.max(axis=1, keepdims=True)
    np.exp(S, out=S)
    S /= S.sum(axis=1, keepdims=True)
    S -= shared / shared.sum(axis=1, keepdims=True, dtype=np.float32)
    return np.asarray((X.T @ (S @ signs)) / np.float32(max(1, len(X))), np.float32)
