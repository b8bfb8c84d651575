"""The steps of an exact search on a card, whatever computes them: kernels of CUDA, or their twins in NumPy.

1. Some rows are scored. The k-th best of them is a threshold: no hit has a lower score.
2. One piece of the codes in 256 is scanned. What passes a bound in integers is scored, and raises the threshold.
3. One piece in 16 is scanned with the higher threshold, and then the others.
4. The candidates that are not below the last threshold are the result: all hits, and few others.

Where more candidates pass than there is memory for, the search starts again from the threshold that it had reached;
if that does not help, since too many rows have equal scores, the caller scans on the CPU.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import OutOfMemory
from stillhash.numeric.codes import TILE, Tiles
from stillhash.numeric.exact_scores import Grid
from stillhash.numeric.validation import Floats
from stillhash.search.blocks import Bitmap, Block

SCORE_BINS = 4096  # bins are in a histogram of scores; all as in layout.cu
PIECE_TILES = 32
SPLIT = 16
ALL_PIECES, FIRST_PIECES, MORE_PIECES, OTHER_PIECES = range(4)  # phases
NO_LIMIT = 2**62  # is more than there are rows: the threshold stays as it is


class Candidates(NamedTuple):
    """Rows that are not below the last threshold, in any order; `complete` is false if there was no memory for all."""

    queries: NDArray[np.int64]
    rows: NDArray[np.int64]
    scores: Floats
    complete: bool


@dataclass(frozen=True)
class CardLimits:
    """Sizes that decide when a search takes which steps. Tests make them small."""

    candidates: int = 1 << 22  # that there is memory for
    batch: int = 128  # queries at a time
    samples: int = 1 << 18  # rows scored for the first threshold, of one query
    batch_samples: int = 1 << 16
    unsampled: int = 1 << 17  # so few rows are all candidates
    phases: int = 1 << 22  # from so many rows on, they are scanned in phases
    few: int = 32  # with fewer than one row in so many allowed, only these are read
    chunk_bytes: int = 1 << 26  # of memory that is allocated at a time


@dataclass(frozen=True, eq=False)
class Mirror:
    """The codes of an index on a card, at one moment: tiles of words, in chunks of 2^shift tiles."""

    blocks: tuple[Block, ...]  # the same codes on the host
    starts: NDArray[np.int64]  # first row of each block on the card, a multiple of 256
    words: int  # of 32 bits, of a code
    shift: int
    chunks: tuple[Any, ...]  # (tiles, words, 256) uint32
    addresses: Any  # of the chunks
    live: Any  # uint32, one bit a row; rows past the end may have a bit
    tiles: int
    end: int  # rows from here on do not exist yet

    @property
    def rows(self) -> int:
        """Return the rows on the card, with those that fill up the last tile of a block."""
        return self.tiles * TILE


def full_card(needed: int, free: int, total: int, words: int) -> OutOfMemory:
    """Return the error of a card that has no memory for more codes, with how many still fit."""
    return OutOfMemory(
        f"codes: expected {needed:,} free bytes on the GPU, got {free:,} of {total:,}. "
        f"About {free // (4 * words):,} more codes of {32 * words} bits fit. Use shorter codes, another GPU, or several"
    )


class Card(ABC):
    """A device that holds codes and searches them."""

    limits: CardLimits
    arrays: Any  # the module of its arrays: cupy or numpy
    batches: bool  # whether it has tensor cores for many queries at a time

    def best(
        self, mirror: Mirror, grid: Grid, k: int, floors: Floats, live: Any = None, allowed: int | None = None
    ) -> Candidates:
        """Return all rows that may be among the k best of at least the floors, for up to `limits.batch` queries.

        live: the rows that are live and allowed, if these are not those of the mirror; allowed: how many they are.
        """
        few = allowed is not None and allowed * self.limits.few < mirror.rows and len(grid) == 1
        live = mirror.live if live is None else live
        with self.searching(mirror, grid, floors, live):
            rows = mirror.rows if allowed is None else allowed
            samples = self._samples(mirror.rows, len(grid), k) if rows * len(grid) > self.limits.unsampled else 0
            if samples:
                self.sample(samples)
            self.tighten(k, clear=True)
            phases = (FIRST_PIECES, MORE_PIECES, OTHER_PIECES) if mirror.rows >= self.limits.phases else (ALL_PIECES,)
            for phase in phases:
                self.scan(phase, few)
                self.tighten(k)
            return self.collect(k)

    def at_least(self, mirror: Mirror, grid: Grid, floors: Floats, live: Any = None) -> Candidates:
        """Return all rows whose score is at least the floor, for one query."""
        with self.searching(mirror, grid, floors, mirror.live if live is None else live):
            self.tighten(NO_LIMIT, clear=True)
            self.scan(ALL_PIECES, False)
            return self.collect(1)

    def batch_size(self, k: int) -> int:
        """Return how many queries can be searched at a time: all their candidates must find memory."""
        return max(1, min(self.limits.batch, self.limits.candidates // (4 * SPLIT * k))) if self.batches else 1

    def _samples(self, rows: int, queries: int, k: int) -> int:
        """Return how many rows to score for the first threshold, so that the first phase has memory for what passes."""
        first = rows // SPLIT**2 if rows >= self.limits.phases else rows
        least = 4 * k * first * queries // self.limits.candidates
        usual = self.limits.samples if queries == 1 else self.limits.batch_samples
        return min(rows, max(least, min(usual, rows // 16), 1))

    @abstractmethod
    def searching(self, mirror: Mirror, grid: Grid, floors: Floats, live: Any) -> AbstractContextManager[None]:
        """Begin a search: hold the card, and plan these queries."""

    @abstractmethod
    def sample(self, samples: int) -> None:
        """Score so many rows from all over the codes, and count the scores."""

    @abstractmethod
    def tighten(self, k: int, *, clear: bool = False) -> None:
        """Raise the thresholds to the k-th best score that was counted; clear: and count from zero again."""

    @abstractmethod
    def scan(self, phase: int, few: bool) -> None:
        """Score the rows of a phase that may be hits; few: only read live rows."""

    @abstractmethod
    def collect(self, k: int) -> Candidates:
        """Return the candidates that are not below the thresholds, about k for each query."""

    @abstractmethod
    def thresholds(self, queries: int) -> Floats:
        """Return the thresholds that the last search reached."""

    @abstractmethod
    def holding(self) -> AbstractContextManager[None]:
        """Hold the card, so that no other search comes between."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """Write codes within this block; at its end they are on the card."""

    @abstractmethod
    def allocate(self, tiles: int, words: int) -> Any:
        """Return memory for tiles."""

    @abstractmethod
    def address_all(self, chunks: tuple[Any, ...]) -> Any:
        """Return the addresses of chunks, as kernels read them."""

    @abstractmethod
    def write_tiles(self, chunk: Any, at: int, tiles: Tiles) -> None:
        """Write tiles of the host to a chunk, from tile `at` on."""

    @abstractmethod
    def read(self, mirror: Mirror) -> None:
        """Read all codes once, for comparison: no scan can be faster."""

    @abstractmethod
    def restrict(self, mirror: Mirror, allowed: Bitmap) -> tuple[Any, int]:
        """Return which rows are live and have an allowed id, and how many these are."""
