"""Group rows whose rescoring codes say that their features have at least some cosine.

Rotated rows are about Gaussian. Where two of them have the cosine c, the levels of both (rescoring.py) have a cosine of
their own, by the arcsine law (Van Vleck 1943), for levels whose cuts are at a, b and whose mean square is m:

    G(c) = 2 / (pi m) * sum over a, b of the integral from 0 to arcsin c of exp(-(a^2 - 2 a b sin t + b^2) / 2 cos^2 t)

G rises, and G(1) = 1. So rows have a cosine of at least c where their levels have one of at least G(c), without bias; a
product with the corrections of both codes would say 1.13 of two equal rows at 2 bits, since near rows err alike. Levels
of near rows differ in few dimensions, by one step: their cosine has a standard deviation of sqrt(2 (1 - G) / (m dim)).

Of few rows all pairs are compared. Of more, only those that agree in some bits of the highest bit plane, which are the
signs of coordinates: a pair of cosine c differs in each with the chance arccos(c) / pi. There are so many choices of
bits that a pair is missed with a chance of at most MISSED.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import TooLarge
from stillhash.numeric.codes import count_ones
from stillhash.numeric.near_groups import (
    COMPARED_ROWS,
    SORT_COST,
    Numbers,
    ShareProgress,
    SortedCodes,
    Words,
    compress,
    join,
    roots,
    sort_by,
)
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.rescoring import STEPS, Rescorer
from stillhash.numeric.validation import Codes, Floats

MIN_COSINE = 0.5
SCANNED_ROWS = 8192  # up to so many rows are compared all with all
BLOCK_ROWS, VERIFIED_PAIRS = 1024, 2048  # rows, and pairs, are compared at a time
ERRORS = 2.0  # the estimate may be so many standard deviations below the cosine
SIGN_BYTES = 64  # bytes of the sign plane are compared
MISSED, MAX_TABLES = 1e-3, 4000  # a pair of just this cosine is missed with this chance
SIGN_ERRORS = 4.0  # two rows may differ in so many standard deviations more signs than expected
PAIR_COST = 60.0  # nanoseconds, about, are what a pair costs that agrees in some bits
MAX_COMPARISONS = 1 << 36  # of such pairs are compared at most: more would take hours
GAUSS_NODES = 128

ReadRows = Callable[[Numbers], Codes]  # the rescoring codes of rows, by their places


def level_cosine(bits: int, cosine: float) -> float:
    """Return G: the cosine of the levels of two rows of this cosine."""
    return 1.0 if cosine >= 1 else _level_products(bits, cosine) / _level_products(bits, 1.0)


@functools.lru_cache(maxsize=64)
def _level_products(bits: int, cosine: float) -> float:
    half = 1 << (bits - 1)
    cuts = STEPS[bits] * np.arange(1 - half, half)
    a, b = cuts[:, None], cuts[None, :]
    nodes, shares = np.polynomial.legendre.leggauss(GAUSS_NODES)
    total, end = 0.0, math.asin(cosine)
    for node, share in zip(nodes.tolist(), shares.tolist(), strict=True):
        t = end * (node + 1) / 2
        total += share * float(np.exp((2 * a * b * math.sin(t) - a * a - b * b) / (2 * math.cos(t) ** 2)).sum())
    return total * end / math.pi


def level_threshold(rescorer: Rescorer, cosine: float) -> float:
    """Return which cosine the levels of two rows have at least, but for one in forty pairs of just this cosine."""
    expected = level_cosine(rescorer.bits, cosine)
    return expected - ERRORS * math.sqrt(2 * (1 - expected)) / rescorer.length - 1e-6


def cosine_groups(
    read: ReadRows, count: int, rescorer: Rescorer, cosine: float, progress: ShareProgress | None = None
) -> Numbers:
    """Return for each row (count,) the number of the first row of its group.

    Two rows are in the same group if a chain of rows leads from one to the other, each of at least this cosine to the
    next as the rescoring codes have it. Rows whose codes are lost are alone. TooLarge if that would take hours.
    """
    rows = _read_rows(read, count, rescorer)
    parent, threshold = np.arange(count), level_threshold(rescorer, cosine)
    _join_equal(parent, rows.digests)
    distinct = np.flatnonzero((parent == np.arange(count)) & ~rows.lost)

    def unit_levels(places: Numbers) -> Floats:
        return unit_rows(rescorer.levels(read(places)))

    if len(distinct) <= SCANNED_ROWS:
        _join_all(parent, distinct, unit_levels, threshold, progress)
    else:
        for left, right in _similar_pairs(distinct, rows, cosine, progress):
            apart = roots(parent, left) != roots(parent, right)
            _verify(parent, left[apart], right[apart], unit_levels, threshold)
    return _first_rows(parent, progress)


def feature_groups(X: Floats, cosine: float, progress: ShareProgress | None = None) -> Numbers:
    """Return what `cosine_groups` returns, of features (n, D) themselves."""
    units, parent = unit_rows(X), np.arange(len(X))
    _join_all(parent, np.arange(len(X)), lambda places: units[places], cosine - 1e-6, progress)
    return _first_rows(parent, progress)


def _first_rows(parent: Numbers, progress: ShareProgress | None) -> Numbers:
    compress(parent)
    if progress is not None:
        progress(1.0)
    return parent


class SignedRows(NamedTuple):
    """What is kept in memory of all rows."""

    digests: Words  # of their codes
    lost: NDArray[np.bool_]
    signs: Words  # (n, words): bits of the highest bit plane, padded with zeros
    sign_bits: int


def _read_rows(read: ReadRows, count: int, rescorer: Rescorer) -> SignedRows:
    plane = (rescorer.dim + 7) // 8
    start, width = (rescorer.bits - 1) * plane, min(plane, SIGN_BYTES)
    padded = np.zeros((count, -(-width // 8) * 8), np.uint8)
    digests, lost = np.zeros(count, np.uint64), np.zeros(count, bool)
    for first in range(0, count, BLOCK_ROWS):
        some = slice(first, min(first + BLOCK_ROWS, count))
        codes = read(np.arange(some.start, some.stop))
        padded[some, :width] = codes[:, start : start + width]
        lost[some] = (codes == 0xFF).all(axis=1)
        digests[some] = [hash(code.tobytes()) & 0xFFFFFFFFFFFFFFFF for code in codes]
    signs = padded.view("<u8").astype(np.uint64, copy=False)
    digests[lost] = np.arange(count)[lost]
    return SignedRows(digests, lost, signs, min(rescorer.dim, 8 * width))


def _join_equal(parent: Numbers, digests: Words) -> None:
    """Let rows of equal codes point to the first of them."""
    _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
    parent[:] = first[inverse]


def _join_all(
    parent: Numbers,
    rows: Numbers,
    units: Callable[[Numbers], Floats],
    threshold: float,
    progress: ShareProgress | None,
) -> None:
    """Join all pairs of rows whose unit vectors have at least this product."""
    blocks = [rows[start : start + BLOCK_ROWS] for start in range(0, len(rows), BLOCK_ROWS)]
    for number, block in enumerate(blocks):
        X = units(block)
        for other in blocks[number:]:
            left, right = np.nonzero((X if other is block else units(other)) @ X.T >= threshold)
            join(parent, other[left], block[right])
        if progress is not None:
            progress(1 - (1 - (number + 1) / len(blocks)) ** 2)


def _verify(
    parent: Numbers, left: Numbers, right: Numbers, units: Callable[[Numbers], Floats], threshold: float
) -> None:
    """Join those pairs whose unit vectors have at least this product."""
    for start in range(0, len(left), VERIFIED_PAIRS):
        some = slice(start, start + VERIFIED_PAIRS)
        products = np.einsum("ij,ij->i", units(left[some]), units(right[some]))
        near = products >= threshold
        join(parent, left[some][near], right[some][near])


class Tables(NamedTuple):
    """So many choices of bits that are equal, of so many bits each; and the sorted rows of the first choice."""

    number: int
    equal_bits: int
    first: SortedCodes


def _similar_pairs(
    rows: Numbers, signed: SignedRows, cosine: float, progress: ShareProgress | None
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield pairs of rows that agree in some bits, and differ in few."""
    words, bits, chance = signed.signs[rows], signed.sign_bits, math.acos(cosine) / math.pi
    most = math.ceil(bits * chance + SIGN_ERRORS * math.sqrt(bits * chance * (1 - chance)))
    tables = _choose_tables(words, bits, chance)
    compared = 0
    for number in range(tables.number):
        chosen = tables.first if number == 0 else sort_by(words, _some_bits(number, tables.equal_bits, words, bits))
        compared += chosen.pairs
        if compared * tables.number > MAX_COMPARISONS * (number + 1):
            pairs = f"expected at most {MAX_COMPARISONS:.0e} pairs of items to compare"
            raise TooLarge(f"cosine: {pairs}, got more. Use a higher cosine, or a filter.")
        for start in range(0, len(rows), COMPARED_ROWS):
            places, step = np.arange(start, min(start + COMPARED_ROWS, len(rows))), 0
            while len(places):
                step += 1
                places = places[places + step < chosen.ends[places]]
                left, right = chosen.order[places], chosen.order[places + step]
                near = count_ones(words[left] ^ words[right]).sum(axis=1, dtype=np.int64) <= most
                if near.any():
                    yield rows[left[near]], rows[right[near]]
        if progress is not None:
            progress((number + 1) / tables.number)


def _choose_tables(words: Words, bits: int, chance: float) -> Tables:
    """Return how many bits shall be equal, and in how many choices, by what takes least."""
    best, best_cost = None, np.inf
    for equal in range(4, min(64, bits) + 1, 2):
        count = count_tables(bits, chance, equal)
        if count > MAX_TABLES or count * len(words) * SORT_COST >= best_cost:
            break
        table = sort_by(words, _some_bits(0, equal, words, bits))
        cost = count * (len(words) * SORT_COST + table.pairs * PAIR_COST)
        if cost < best_cost:
            best, best_cost = Tables(count, equal, table), cost
    assert best is not None
    return best


def count_tables(bits: int, chance: float, equal: int) -> int:
    """Return how many choices of equal bits it takes, so that few pairs are missed that differ in a bit by chance."""
    differing = np.arange(bits + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, bits + 1)))])
    chosen = logs[bits] - logs - logs[::-1] + differing * math.log(max(chance, 1e-300))
    shares = np.exp(chosen + (bits - differing) * math.log1p(-chance))
    agree = np.prod([np.maximum(bits - differing - one, 0) / (bits - one) for one in range(equal)], axis=0)
    count = 1
    while count <= MAX_TABLES and float(shares @ (1 - agree) ** count) > MISSED:
        count = math.ceil(1.1 * count)
    return count


def _some_bits(number: int, equal: int, words: Words, bits: int) -> Words:
    """Return the mask (words,) of a choice of bits; each number has its own."""
    chosen = np.zeros(64 * words.shape[1], np.uint8)
    chosen[np.random.default_rng([number, equal]).permutation(bits)[:equal]] = 1
    return np.packbits(chosen, bitorder="little").view("<u8").astype(np.uint64, copy=False)
