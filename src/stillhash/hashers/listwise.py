"""Tally with listwise refinement: gradient steps on the ranking of recent codes, after the statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stillhash.hashers.state import check_shape
from stillhash.hashers.tally import Tally
from stillhash.numeric.codes import signs, width
from stillhash.numeric.labels import Labels, concat_labels, drop_unused, share_label
from stillhash.numeric.listwise import Correction, gradient
from stillhash.numeric.sufficient_stats import Similarity
from stillhash.numeric.validation import Codes, Floats, check_codes, check_integer, check_number


@dataclass(eq=False, repr=False, kw_only=True)
class TallyListwise(Tally):
    """Tally, and a correction to its similarity that is learnt chunk by chunk from the ranking of the latest codes.

    On our data it adds nothing (docs/method.md), and it costs Tally's exactness: the correction depends on the order
    and the chunks of the stream, is neither merged nor unlearnt, and stays when old rows decay.

    Parameters
    ----------
    steps, rate : Adam steps for each chunk, and their size.
    window : how many of the latest codes are ranked; they and their labels are stored.
    bits and all others : as for Tally, which is linear here.
    """

    name = "tally-listwise"
    chunk_invariant = False
    tunable: ClassVar = {"rate": (1e-4, 3e-4, 1e-3), "steps": (1, 2)}

    steps: int = 2
    rate: float = 3e-4
    window: int = 2000
    ridge: float = 10.0
    rarity: float = 0.3
    sharpness: float = field(default=1, init=False)  # linear

    def check_parameters(self) -> None:
        super().check_parameters()
        check_integer(self.steps, "steps", 1)
        check_number(self.rate, "rate", above=0)
        check_integer(self.window, "window", 1)

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        super()._begin(X, labels, rng)
        self.correction_ = Correction(X.shape[1], self.bits)
        self.recent_: Codes = np.empty((0, width(self.bits)), np.uint8)  # (at most window, bytes)
        self.labels_ = Labels.empty()  # of the recent codes

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
        return Similarity(scale * similarity.M + self.correction_.value, scale * similarity.m)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        correction = {name: getattr(self.correction_, name) for name in ("value", "mean_step", "square_step")}
        return {**super()._arrays(), "recent": self.recent_, **self.labels_.arrays(), **correction}

    def _extra(self) -> dict[str, Any]:
        return {**super()._extra(), "steps": self.correction_.steps, "recent": self.labels_.names}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        self.recent_ = check_codes(arrays["recent"], self.bits, "recent")
        self.labels_ = Labels.from_arrays(arrays, extra["recent"], len(self.recent_))
        self.correction_ = Correction(self.n_features_in_, self.bits)
        self.correction_.steps = check_integer(extra["steps"], "steps", 0)
        for name in ("value", "mean_step", "square_step"):
            check_shape(arrays[name], (self.n_features_in_, self.bits), name)
            setattr(self.correction_, name, arrays[name])
