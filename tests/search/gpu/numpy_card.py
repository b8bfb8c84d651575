"""The twin of `CudaCard` in NumPy: the same steps, one method for each kernel, to read and to test them without a GPU.

It is slow. Scores, thresholds and results are those of the kernels; the scale of a bound may differ in its last bits.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.codes import TILE, Tiles, count_ones
from stillhash.numeric.exact_scores import Grid
from stillhash.numeric.validation import Floats
from stillhash.search.blocks import Bitmap, allowed_rows
from stillhash.search.gpu.card import (
    ALL_PIECES,
    FIRST_PIECES,
    MORE_PIECES,
    OTHER_PIECES,
    PIECE_TILES,
    SCORE_BINS,
    SPLIT,
    Candidates,
    Card,
    CardLimits,
    Mirror,
    full_card,
)
from stillhash.search.gpu.mirror import LIVE_WORDS, WORD_BYTES

OUT_OF_REACH = 1 << 30  # more than any sum
SCALES = 1 + 0.25 * np.arange(8)  # of the bound, tried for each threshold
BISECTIONS = 16

CardRows = NDArray[np.int64]


class NumpyCard(Card):
    """A card that is no card."""

    arrays = np
    batches = True

    def __init__(self, limits: CardLimits | None = None, planes: int = 4, memory: int = 1 << 40) -> None:
        self.limits, self.planes, self.memory = limits or CardLimits(), planes, memory
        self._allocated = 0
        self._lock = threading.RLock()

    @contextmanager
    def holding(self) -> Iterator[None]:
        with self._lock:
            yield

    @contextmanager
    def searching(self, mirror: Mirror, grid: Grid, floors: Floats, live: Any) -> Iterator[None]:
        with self._lock:
            self._mirror, self._live = mirror, live
            self._weights = np.zeros((len(grid), mirror.words * 32))
            self._weights[:, : grid.shape[1]] = grid
            self._histograms = np.zeros((len(grid), SCORE_BINS), np.int64)
            self._candidates: list[tuple[CardRows, CardRows, Floats]] = []
            self._count = 0
            self._plans = [plan_query(w, floor) for w, floor in zip(self._weights, floors, strict=True)]
            yield

    def sample(self, samples: int) -> None:
        rows = self._mirror.rows
        stride = rows // samples
        i = np.arange(samples, dtype=np.uint64)
        mixed = (i * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)
        chosen = (i * np.uint64(stride) + ((mixed * np.uint64(stride)) >> np.uint64(32))).astype(np.int64)
        chosen = chosen[chosen < rows]
        chosen = chosen[self._is_live(chosen)]
        for q in range(len(self._plans)):
            self._count_scores(q, self._scores(q, chosen))

    def tighten(self, k: int, *, clear: bool = False) -> None:
        for plan, counts, weights in zip(self._plans, self._histograms, self._weights, strict=True):
            from_here = counts[::-1].cumsum()[::-1]
            bins = np.flatnonzero(from_here >= k)
            if len(bins) and bins[-1] > 0 and plan.inverse > 0:
                edge = bins[-1] / plan.inverse - plan.best - 1e-9 * plan.best
                tau = np.float32(edge)
                plan.tau = max(plan.tau, np.nextafter(tau, np.float32(-np.inf)) if tau > edge else tau)
            quantise(plan, weights, self.planes)
        if clear:
            self._histograms[:] = 0

    def scan(self, phase: int, few: bool) -> None:
        tiles = np.arange(self._mirror.tiles)
        tiles = tiles[phase_of(tiles // PIECE_TILES) == phase] if phase != ALL_PIECES else tiles
        rows = (tiles[:, None] * TILE + np.arange(TILE)).ravel()
        if few:
            rows = rows[self._is_live(rows)]
        codes = self._codes(rows)
        for q, plan in enumerate(self._plans):
            if few:
                passing = rows
            elif len(self._plans) == 1:
                passing = rows[quantised_loss(codes, plan) <= plan.limit]
            else:
                bits = np.unpackbits(codes.view(np.uint8), axis=1, bitorder="little")
                passing = rows[bits.astype(np.int64) @ plan.quantised >= plan.least]
            passing = passing[self._is_live(passing)]
            scores = self._scores(q, passing)
            hits = scores >= plan.tau
            space = max(0, self.limits.candidates - self._count)
            one = len(self._plans) == 1  # a batch counts only what it has memory for
            self._count_scores(q, scores[hits] if one else scores[hits][:space])
            self._count += int(hits.sum()) if one else len(passing)
            self._candidates.append((np.full(hits.sum(), q)[:space], passing[hits][:space], scores[hits][:space]))

    def collect(self, k: int) -> Candidates:
        queries, rows, scores = (np.concatenate(part) for part in zip(*self._candidates, strict=True))
        keep = scores >= np.array([plan.tau for plan in self._plans])[queries]
        return Candidates(queries[keep], rows[keep], scores[keep], self._count <= self.limits.candidates)

    def thresholds(self, queries: int) -> Floats:
        return np.array([plan.tau for plan in self._plans[:queries]], np.float32)

    @contextmanager
    def writing(self) -> Iterator[None]:
        yield

    def allocate(self, tiles: int, words: int) -> Any:
        size = tiles * words * WORD_BYTES
        if self._allocated + size > self.memory:
            raise full_card(size, self.memory - self._allocated, self.memory, words)
        self._allocated += size
        return np.zeros((tiles, words, TILE), np.uint32)

    def address_all(self, chunks: tuple[Any, ...]) -> Any:
        return None

    def write_tiles(self, chunk: Any, at: int, tiles: Tiles) -> None:
        bytes_of_words = np.zeros((len(tiles), chunk.shape[1] * 4, TILE), np.uint8)
        bytes_of_words[:, : tiles.shape[1]] = tiles
        words = bytes_of_words.reshape(len(tiles), -1, 4, TILE).transpose(0, 1, 3, 2)
        chunk[at : at + len(tiles)] = np.ascontiguousarray(words).view(np.uint32)[..., 0]

    def read(self, mirror: Mirror) -> None:
        for chunk in mirror.chunks:
            np.bitwise_xor.reduce(chunk, axis=None)

    def restrict(self, mirror: Mirror, allowed: Bitmap) -> tuple[Any, int]:
        live = np.zeros_like(mirror.live)
        for block, start in zip(mirror.blocks, mirror.starts.tolist(), strict=True):
            words = -(-block.rows // TILE) * LIVE_WORDS
            rows = allowed_rows(block.first, block.ids, None, words * 4, allowed)
            place = slice(start // 32, start // 32 + words)
            live[place] = rows.view(np.uint32) & mirror.live[place]
        return live, int(count_ones(live).sum(dtype=np.int64))

    def _codes(self, rows: CardRows) -> NDArray[np.uint32]:
        """Return the codes (n, words) of these rows."""
        tiles, mask = rows // TILE, (1 << self._mirror.shift) - 1
        codes = np.empty((len(rows), self._mirror.words), np.uint32)
        for i, chunk in enumerate(self._mirror.chunks):
            mine = tiles >> self._mirror.shift == i
            codes[mine] = chunk[tiles[mine] & mask, :, rows[mine] % TILE]
        return codes

    def _is_live(self, rows: CardRows) -> NDArray[np.bool_]:
        bits = self._live[rows // 32] >> (rows % 32).astype(np.uint32) & 1
        return np.asarray((rows < self._mirror.end) & (bits == 1))

    def _scores(self, q: int, rows: CardRows) -> Floats:
        bits = np.unpackbits(self._codes(rows).view(np.uint8), axis=1, bitorder="little")
        scores = np.zeros(len(rows))  # a sum of zeros of either sign is +0
        for weight, column in zip(self._weights[q], bits.T, strict=True):
            scores += np.where(column == 1, weight, -weight)
        return scores.astype(np.float32)

    def _count_scores(self, q: int, scores: Floats) -> None:
        plan = self._plans[q]
        bins = np.floor((scores.astype(np.float64) + plan.best) * plan.inverse).clip(0, SCORE_BINS - 1)
        self._histograms[q] += np.bincount(bins.astype(np.int64), minlength=SCORE_BINS)


def phase_of(pieces: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the phase in which each piece is scanned."""
    return np.where(pieces % SPLIT, OTHER_PIECES, np.where(pieces % SPLIT**2, MORE_PIECES, FIRST_PIECES))


def plan_query(weights: NDArray[np.float64], floor: float) -> SimpleNamespace:
    """Return the plan of a query: the highest score, bins of scores, weights of 8 bits, rounded up."""
    best, largest = float(np.abs(weights).sum()), float(np.abs(weights).max())
    with np.errstate(all="ignore"):
        scale = np.divide(63, largest) if largest > 0 else 0.0
        scale = float(scale) if scale < 1e300 else 0.0
        inverse = float(SCORE_BINS / np.float64(2 * best)) if best > 0 else 0.0
    quantised = np.ceil(2 * weights * scale).astype(np.int64)
    plan = SimpleNamespace(best=best, inverse=inverse, scale=scale, sum=float(weights.sum()), tau=np.float32(floor))
    plan.quantised, plan.sign = quantised, weights > 0
    return plan


def lowest_score(tau: np.float32) -> float:
    """Return the lowest sum in double precision of a row whose float32 score is at least tau."""
    return float(tau) - abs(float(tau)) * 1.2e-7 - 2e-45


def quantise(plan: SimpleNamespace, weights: NDArray[np.float64], planes: int) -> None:
    """Set the bounds for the threshold of the plan.

    A row loses 2 |w| for each bit that is not that of the best code. Losses are rounded down to multiples of a step,
    and large ones are capped; the step is the one that loses least on rows at the threshold.
    """
    low = (lowest_score(plan.tau) + plan.sum) * plan.scale - 1e-6
    plan.least = int(np.floor(low)) if plan.scale and abs(low) <= 1e9 else -OUT_OF_REACH
    if plan.tau == np.inf or low > 1e9:
        plan.least = OUT_OF_REACH
    loss, unit = 2 * np.abs(weights), plan.scale  # losses in this unit are at most 126
    top, allowance = (1 << planes) - 1, plan.best - lowest_score(plan.tau)
    with np.errstate(all="ignore"):
        each = loss * unit
        most, rate, high = float(each.max()), 0.0, 80 / max(float(each.max()), 1e-30)
        for _ in range(BISECTIONS):
            middle = (rate + high) / 2
            if float((each / (1 + np.exp(middle * each))).sum()) > allowance * unit:
                rate = middle
            else:
                high = middle
        scales = top * SCALES / most if most > 0 else np.zeros(len(SCALES))
        levels = np.minimum(np.floor(each * scales[:, None]), top)
        lost = ((each - levels / scales[:, None]) / (1 + np.exp(rate * each))).sum(axis=1)
        scale = float(np.float32(scales[int(np.argmin(np.nan_to_num(lost, nan=np.inf)))])) * unit
        scale = scale if scale < 1e300 else 0.0
        plan.levels = np.minimum(np.floor(loss * scale), top).astype(np.int64)
        limit = allowance * scale * (1 + 1e-9)
    plan.limit = OUT_OF_REACH if scale == 0 or not limit < 1e9 else int(np.floor(limit))


def quantised_loss(codes: NDArray[np.uint32], plan: SimpleNamespace) -> NDArray[np.int64]:
    """Return the quantised loss of each code."""
    bits = np.unpackbits(codes.view(np.uint8), axis=1, bitorder="little").astype(bool)
    return np.asarray((bits != plan.sign).astype(np.int64) @ plan.levels)
