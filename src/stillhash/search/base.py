"""The protocol of all indexes: weights and codes in, hits out. They all give the same answers."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillhash.numeric.validation import Codes


class Hits(NamedTuple):
    """Hits, best first: higher score, then smaller id. Missing ones are -inf and -1.

    From `search` both arrays are (m, k); from `range_search` there is one Hits per query with flat arrays.
    """

    scores: NDArray[np.float32]
    ids: NDArray[np.int64]

    @property
    def missing(self) -> float:
        """Return the share of rows that did not answer, where some are on other machines."""
        return 0.0


class Searcher(Protocol):
    """An index of codes."""

    bits: int

    def __len__(self) -> int: ...
    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> None: ...
    def remove(self, ids: ArrayLike) -> int: ...
    def search(self, weights: ArrayLike, k: int, *, allowed: Any = None) -> Hits: ...
    def range_search(self, weights: ArrayLike, threshold: ArrayLike, *, allowed: Any = None) -> list[Hits]: ...
    def codes(self, ids: ArrayLike) -> Codes: ...
