"""What a hasher has learnt, as small immutable arrays that weigh queries."""

from collections.abc import Hashable
from typing import Literal, NamedTuple

import numpy as np

from stillhash.numeric.validation import Floats


class Model(NamedTuple):
    """The learnt part of `weigh`: weights = side(q) @ M + m.

    side(q) is the features of a query, the signs of its code, or its predicted labels: max(q @ U + u, 0) to the power
    of `power`. "hamming" needs no M. N, if there is one, is a correction by the features: + q @ N.
    """

    side: Literal["hamming", "features", "code", "labels"]
    M: Floats | None = None
    m: Floats | None = None
    U: Floats | None = None  # (D, labels)
    u: Floats | None = None  # (labels,)
    power: float = 1.0
    N: Floats | None = None  # (D, b)

    @property
    def learnt(self) -> bool:
        return self.M is not None or self.N is not None


class LabelSpace(NamedTuple):
    """The labels of a model: of a prepared query q @ U + u; and what each adds to the weights, rare or not."""

    names: list[Hashable]
    U: Floats  # (D, labels)
    u: Floats  # (labels,)
    V: Floats  # (labels, b)


def half_power(Y: Floats, power: float) -> Floats:
    """Return max(Y, 0) to the power of a multiple of 0.5, by operations that round alike on every instruction set."""
    Y = np.maximum(Y, 0)
    whole, half = divmod(round(2 * power), 2)
    result = np.sqrt(Y) if half else np.ones_like(Y)
    for _ in range(whole):
        result *= Y
    return result
