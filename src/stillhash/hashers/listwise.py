"""Tally with listwise refinement: sums first, then gradient steps on the ranking of recent codes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stillhash.hashers.base import check_shape
from stillhash.hashers.tally import Init, Tally
from stillhash.numeric.codes import signs, width
from stillhash.numeric.kept import in_use, joined, restored, sharing
from stillhash.numeric.labels import Labels
from stillhash.numeric.listwise import Correction, gradient
from stillhash.numeric.sufficient_stats import Similarity
from stillhash.numeric.validation import Codes, Floats, check_codes, check_integer, check_number


class TallyListwise(Tally):
    """Tally, and a correction to its similarity that is learnt chunk by chunk from the ranking of the latest codes.

    On our data it adds nothing (docs/method.md), and it costs Tally's exactness: the correction depends on the order
    and the chunks of the stream, is neither merged nor unlearnt, and stays when old rows fade.

    Parameters
    ----------
    steps, rate : Adam steps for each chunk, and their size.
    window : how many of the latest codes are ranked; they and their labels are kept.
    bits and all others : as for Tally, which is linear here.
    """

    name = "tally-listwise"
    chunk_invariant = False
    tunable: ClassVar = {"rate": (1e-4, 3e-4, 1e-3), "steps": (1, 2)}

    def __init__(
        self,
        bits: int = 32,
        *,
        steps: int = 2,
        rate: float = 3e-4,
        window: int = 2000,
        ridge: float = 10.0,
        half_life: float | None = None,
        label_weights: Any = None,
        rarity: float = 0.3,
        init: Init = "labels",
        share: float = 0.75,
        center: bool = True,
        unit_norm: bool = True,
        random_state: int = 0,
    ) -> None:
        super().__init__(
            bits,
            ridge=ridge,
            half_life=half_life,
            label_weights=label_weights,
            sharpness=1,
            rarity=rarity,
            init=init,
            share=share,
            center=center,
            unit_norm=unit_norm,
            random_state=random_state,
        )
        self.steps = steps
        self.rate = rate
        self.window = window

    def check_parameters(self) -> None:
        super().check_parameters()
        check_integer(self.steps, "steps", 1)
        check_number(self.rate, "rate", above=0)
        check_integer(self.window, "window", 1)

    correction_: Correction
    recent_: Codes  # (at most window, bytes)
    labels_: Labels  # of the recent codes

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        super()._begin(X, labels, rng)
        self.correction_ = Correction(X.shape[1], self.bits)
        self.recent_ = np.empty((0, width(self.bits)), np.uint8)
        self.labels_ = Labels(np.zeros(1, np.int64), np.empty(0, np.int64), [])

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        both = joined(self.labels_, labels)
        codes = self._codes(X) if codes is None else codes
        super()._learn(X, labels, codes)
        codes = np.concatenate([self.recent_, codes])
        place = np.arange(len(codes))
        latest = place >= len(codes) - self.window
        self.recent_, self.labels_ = codes[latest], in_use(both.rows(latest))
        shared = sharing(both.rows(place >= len(codes) - len(X)), both.rows(latest))
        B = signs(self.recent_, self.bits)
        for _ in range(self.steps):
            if (found := self._similarity()) is not None:
                self.correction_.step(gradient(X, found, B, shared), self.rate)
                self._fresh = False

    def _similarity(self) -> Similarity | None:
        found = super()._similarity()
        if found is None:
            return None
        scale = np.float32(1 / max(self.sums_.deviation(found), 1e-12))
        return Similarity(scale * found.M + self.correction_.value, scale * found.m)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        kept = {"recent": self.recent_, "indptr": self.labels_.indptr, "indices": self.labels_.indices}
        correction = {name: getattr(self.correction_, name) for name in ("value", "mean_step", "square_step")}
        return {**super()._arrays(), **kept, **correction}

    def _extra(self) -> dict[str, Any]:
        return {**super()._extra(), "steps": self.correction_.steps, "recent": self.labels_.names}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        self.recent_ = check_codes(arrays["recent"], self.bits, "recent")
        self.labels_ = restored(arrays, extra["recent"], len(self.recent_))
        self.correction_ = Correction(self.n_features_in_, self.bits)
        self.correction_.steps = check_integer(extra["steps"], "steps", 0)
        for name in ("value", "mean_step", "square_step"):
            check_shape(arrays[name], (self.n_features_in_, self.bits), name)
            setattr(self.correction_, name, arrays[name])
