"""The codes and queries of the cluster benches: many ties, and the same rows wherever they are added."""

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.timing import CODE_BITS
from stillhash.numeric.validation import Codes, Floats

CODES_PER_ADD = 1_000_000
TIED_CODES = 1000  # codes that a tenth of the rows share, so that there are long ties


class Addable(Protocol):
    """An index, or one on a cluster."""

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> object: ...


def make_codes(start: int, rows: int, codes: int) -> Codes:
    """Make rows from `start`; the last tenth of all `codes` rows is made of a few codes, over and over."""
    rng = np.random.default_rng([7, start])
    chunk = rng.integers(0, 256, (rows, CODE_BITS // 8), dtype=np.uint8)
    few = np.random.default_rng(8).integers(0, 256, (TIED_CODES, CODE_BITS // 8), dtype=np.uint8)
    tied = np.arange(start, start + rows) >= codes - codes // 10
    chunk[tied] = few[rng.integers(0, TIED_CODES, int(tied.sum()))]
    return chunk


def make_weights(queries: int, *, ties: bool = True) -> Floats:
    """Make weights; with ties, every other query has -1, 0 and 1 only, so that most of its scores are equal."""
    rng = np.random.default_rng(9)
    weights = rng.standard_normal((queries, CODE_BITS)).astype(np.float32)
    if ties:
        weights[::2] = rng.integers(-1, 2, weights[::2].shape)
    return weights


def add_codes(index: Addable, codes: int, step: int = CODES_PER_ADD) -> None:
    """Add so many codes under the numbers from 0."""
    for start in range(0, codes, step):
        index.add(make_codes(start, min(step, codes - start), codes))
