"""A drift detector: raises an alarm when the mean of a signal has fallen."""

import math
from typing import Any, Self

from stillhash.errors import BadState
from stillhash.numeric.validation import MAX_MAGNITUDE, check_integer, check_number

PRIOR = 5  # how many values' worth of evidence `noise` is
MAX_NOISE_STEP = 4  # deviations between two values that count as noise at most: a fall must not hide itself


class PageHinkley:
    """Page's cumulative sum (Biometrika, 1954) against a running mean (Hinkley, Biometrika, 1971), for a fall.

    With the mean m and the deviation s of the values so far, each value x adds (m - x) / s - delta to a sum that never
    goes below zero; above `threshold` it is an alarm, and everything starts again. Counting in deviations makes the
    parameters independent of the signal. The deviation is that of successive differences, so that a slow rise,
    as of quality while something learns, does not count as noise.

    delta        deviations below the mean that are tolerated
    threshold    deviations that must add up beyond these
    min_samples  values after a start that only set what is usual
    alpha        how much of its weight a value keeps with each later one, so that the mean follows a signal that
                 rises; 1 forgets nothing
    noise        the deviation to expect at first; observed noise soon outweighs it, but never becomes zero
    """

    def __init__(
        self,
        delta: float = 0.5,
        threshold: float = 10.0,
        min_samples: int = 5,
        *,
        alpha: float = 0.92,
        noise: float = 0.01,
    ) -> None:
        self.delta = check_number(delta, "delta", low=0)
        self.threshold = check_number(threshold, "threshold", above=0)
        self.min_samples = check_integer(min_samples, "min_samples", 1)
        self.alpha = check_number(alpha, "alpha", above=0, high=1)
        self.noise = check_number(noise, "noise", above=0)
        self._start()

    def _start(self) -> None:
        self.count_ = 0  # values since the start
        self.last_ = 0.0
        self.mean_, self.weight_ = 0.0, 0.0  # of the values, and how much they weigh together
        self.variance_, self.pairs_ = 0.0, 0.0  # by pairs of neighbours, and how much these weigh
        self.sum_ = 0.0

    @property
    def deviation(self) -> float:
        return math.sqrt((PRIOR * self.noise**2 + self.pairs_ * self.variance_) / (PRIOR + self.pairs_))

    def update(self, value: float) -> bool:
        """Add the next value; return True for an alarm."""
        x = check_number(value, "value", low=-MAX_MAGNITUDE, high=MAX_MAGNITUDE)
        if self.count_ >= self.min_samples:  # against what was usual before x
            self.sum_ = max(0.0, self.sum_ + (self.mean_ - x) / self.deviation - self.delta)
            if self.sum_ > self.threshold:
                self._start()
                return True
        if self.count_:
            step = min(abs(x - self.last_), MAX_NOISE_STEP * self.deviation)
            self.pairs_ = self.alpha * self.pairs_ + 1
            self.variance_ += (step**2 / 2 - self.variance_) / self.pairs_
        self.weight_ = self.alpha * self.weight_ + 1
        self.mean_ += (x - self.mean_) / self.weight_
        self.last_ = x
        self.count_ += 1
        return False

    def state(self) -> dict[str, Any]:
        """Return all parameters and statistics, as plain numbers for JSON."""
        return dict(vars(self))

    @classmethod
    def load(cls, state: dict[str, Any]) -> Self:
        """Return the detector that `state()` saved."""
        try:
            detector = cls(**{name: value for name, value in state.items() if not name.endswith("_")})
            learnt = {name: check_number(state[name], name) for name in vars(detector) if name.endswith("_")}
            count = check_integer(state["count_"], "count_", 0)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadState(f"state: expected a saved PageHinkley, got {error!r}") from error
        if low := [name for name in learnt if name not in ("last_", "mean_") and learnt[name] < 0]:
            raise BadState(f"state: expected {low[0]} of at least 0, got {learnt[low[0]]:g}")
        vars(detector).update(learnt | {"count_": count})
        return detector
