"""Weights and codes in, hits out. Every index is a Searcher, and they all give the same answers."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.validation import Codes


class Hits(NamedTuple):
    """Answers, best first: higher score, then smaller id. Missing ones are -inf and -1.

    From `search` both arrays are (m, k); from `range_search` there is one Hits per query with flat arrays.
    """

    scores: NDArray[np.float32]
    ids: NDArray[np.int64]

    @property
    def missing(self) -> float:
        """The share of rows that did not answer, where some are on other machines."""
        return 0.0


class Searcher(Protocol):
    """The protocol of all indexes."""

    bits: int

    def __len__(self) -> int: ...
    def add(self, codes: Any, ids: Any = None) -> None: ...
    def remove(self, ids: Any) -> int: ...
    def search(self, weights: Any, k: int, *, allowed: Any = None) -> Hits: ...
    def range_search(self, weights: Any, threshold: Any, *, allowed: Any = None) -> list[Hits]: ...
    def codes(self, ids: Any) -> Codes: ...
