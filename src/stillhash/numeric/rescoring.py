"""Rescoring codes: a second, longer code of each item, by which the first hits are scored again.

The prepared features x of an item, of unit norm, are rotated by a fixed orthogonal transform R, so that each coordinate
is about Gaussian, and quantised to a few bits a dimension: z. With the correction 1 / <R x, z>, a float32, the estimate
<R q, z> * correction of <q, x> is without bias, as of RaBitQ (Gao and Long, SIGMOD 2024).

A code is `bits` bit planes of ceil(dim / 8) bytes, the least significant first, and the correction. Bit i of byte j of
a plane is of dimension 8 j + i; u, the value of the bits of a dimension, stands for the level 2 u - (2^bits - 1). The
sign of the correction is a mark: it is negative where the short code of the item holds labels, so that learning knows
which short codes follow from features alone.
Stored codes must stay readable: the transform depends on the dimension alone and never changes.
"""

import functools
import hashlib
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import kernels
from stillhash.numeric.validation import Codes, Floats, check_choice, check_integer

RESCORE_BITS = (1, 2, 4, 8)
STEPS = {1: 1.596, 2: 0.9957, 4: 0.3352, 8: 0.0308}  # between levels, best for a unit Gaussian (Max 1960)
ROUNDS = 4  # of the rotation
QUERY_LEVELS = 8191  # the largest level of a query: a sum of four fits 16 bits


class RescoreQueries(NamedTuple):
    """Rotated queries are about levels * scale: whole numbers, so that products with codes are exact."""

    levels: NDArray[np.int16]  # (m, dim), at most QUERY_LEVELS in magnitude
    scale: Floats  # (m,)

    def rows(self, some: NDArray[np.intp] | NDArray[np.bool_] | list[int] | slice) -> "RescoreQueries":
        """Return some of the queries."""
        return RescoreQueries(self.levels[some], self.scale[some])


class Rescorer:
    """The second code of items: their prepared features, rotated and quantised to a few bits a dimension."""

    def __init__(self, dim: int, bits: int) -> None:
        check_choice(bits, "bits", RESCORE_BITS)
        self.dim = check_integer(dim, "dim", 1)
        self.bits = bits
        self.width = bits * ((dim + 7) // 8) + 4  # bytes of a code
        self.length = math.sqrt(dim * _mean_square_level(bits))  # expected norm of the levels of a unit row
        self._steps = math.sqrt(dim) / STEPS[bits]  # in the norm of a row

    def rotate(self, X: Floats) -> Floats:
        """Return rows (n, dim) after the orthogonal transform."""
        return kernels.rotate(X, _signs(self.dim), back=False)

    def rotate_back(self, X: Floats) -> Floats:
        """Return rows (n, dim) after the inverse of `rotate`."""
        return kernels.rotate(X, _signs(self.dim), back=True)

    def encode(self, X: Floats, threads: int = 1) -> Codes:
        """Return the codes (n, width) of prepared rows (n, dim): of unit norm, or zero."""
        return kernels.rescore_encode(X, _signs(self.dim), self._steps, self.bits, threads)

    def levels(self, codes: Codes) -> Floats:
        """Return the levels (n, dim) of codes, odd numbers, in the rotated space; zeros of a zero or lost row."""
        return kernels.rescore_levels(codes, self.dim, self.bits)

    def decode(self, codes: Codes) -> Floats:
        """Return about the prepared rows (n, dim) of codes; zeros of a zero or lost row."""
        return self.rotate_back(self.levels(codes)) / np.float32(self.length)

    def corrections(self, codes: Codes) -> Floats:
        """Return the corrections (..., ) of codes (..., width): 0 of a zero row, and of a lost one (all bytes 0xFF)."""
        corrections = np.abs(np.ascontiguousarray(codes[..., -4:]).view("<f4")[..., 0])
        return np.where(np.isfinite(corrections), corrections, np.float32(0))

    def mark(self, codes: Codes, held: NDArray[np.bool_]) -> Codes:
        """Return codes (n, width), with the mark on the rows whose short codes hold labels."""
        marked = codes.copy()
        marked[held, -1] |= 0x80
        return marked

    def marked(self, codes: Codes) -> NDArray[np.bool_]:
        """Return which of these codes (n, width) have the mark."""
        return np.asarray(codes[:, -1] >= 0x80)

    def queries(self, X: Floats) -> RescoreQueries:
        """Return prepared queries (m, dim), rotated and rounded to integers."""
        R = self.rotate(X)
        scale = np.abs(R).max(axis=1) / np.float32(QUERY_LEVELS)
        scale[scale == 0] = 1
        levels = np.clip(np.rint(R / scale[:, None]), -QUERY_LEVELS, QUERY_LEVELS)
        return RescoreQueries(levels.astype(np.int16), scale)

    def cosines(self, queries: RescoreQueries, codes: Codes) -> Floats:
        """Return estimates (m, n) of the cosine of each query with its own items, whose codes are (m, n, width).

        The same to the last bit on all lanes and in any batch; 0 of a zero or lost row.
        """
        products = kernels.rescore_products(codes, queries.levels, self.bits).astype(np.float64)
        products *= queries.scale.astype(np.float64)[:, None]
        products *= self.corrections(codes).astype(np.float64)
        return products.astype(np.float32)


@functools.lru_cache(maxsize=16)
def _signs(dim: int) -> Floats:
    """Return the signs (ROUNDS, dim) that the rotation flips. They are hashes, since codes are stored for good."""
    width = (dim + 7) // 8
    stream = hashlib.shake_256(f"stillhash rescoring code of {dim} dimensions".encode()).digest(ROUNDS * width)
    ones = np.unpackbits(np.frombuffer(stream, np.uint8).reshape(ROUNDS, width), axis=1, count=dim, bitorder="little")
    signs = ones.astype(np.float32) * 2 - 1
    signs.flags.writeable = False
    return signs


def _mean_square_level(bits: int) -> float:
    """Return the mean square of the levels of a unit Gaussian."""
    half = 1 << (bits - 1)
    cuts = [-math.inf, *(STEPS[bits] * k for k in range(1 - half, half)), math.inf]
    below = [(1 + math.erf(cut / math.sqrt(2))) / 2 for cut in cuts]
    return sum((2 * u - (2 * half - 1)) ** 2 * (below[u + 1] - below[u]) for u in range(2 * half))
