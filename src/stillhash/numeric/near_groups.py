"""Group codes that are near each other: connected by steps of at most some Hamming distance. Exact, for millions.

Cut the bits into d + r parts. Two codes that differ in at most d bits differ in at most d parts, so they are equal in r
parts, or more. For each choice of r parts the codes are sorted by those bits, and only codes that are equal there are
compared. The more parts must be equal, the fewer codes are compared, but the more often all are sorted; r is chosen by
what a first sort of these codes shows. Equal codes are compared once.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import TooLarge
from stillhash.numeric.codes import count_ones, signs
from stillhash.numeric.validation import Codes

Words = NDArray[np.uint64]  # (n, words): codes, padded with zeros
Numbers = NDArray[np.int64]
ShareProgress = Callable[[float], object]  # called with the share that is done

MAX_EQUAL_PARTS = 6  # is the largest r
SORT_COST, PAIR_COST = 150.0, 20.0  # nanoseconds of a code in a sort, and of a pair that is compared, about
COMPARED_ROWS = 1 << 20  # codes compared with their neighbours at a time
MAX_COMPARISONS = 1 << 38  # pairs: more would take hours
SAMPLE_ROWS = 100_000  # codes by which the bits are shared out
MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)  # odd numbers, of which all bits of a product depend
SHIFT = np.uint64(32)


class SortedCodes(NamedTuple):
    """Codes sorted by some bits: `order`, and for each place where its run of equal ones ends."""

    order: Numbers
    ends: Numbers

    @property
    def pairs(self) -> int:
        """Return how many pairs are equal in these bits."""
        return int((self.ends - np.arange(1, len(self.ends) + 1)).sum())


def near_groups(codes: Codes, bits: int, distance: int, progress: ShareProgress | None = None) -> Numbers:
    """Return for each code (n,) the number of the first code of its group.

    Two codes are in the same group if a chain of codes leads from one to the other, each within `distance` of the next.
    TooLarge if that would take hours.
    """
    words, first, inverse = distinct_words(codes)
    parent = np.arange(len(words))
    if len(words) > 1 and 0 < distance < bits:
        masks = _balanced_parts(codes[first[:: max(1, len(first) // SAMPLE_ROWS)]], bits)
        _join_near(words, distance, bits, masks, parent, progress)
    elif distance:
        parent[:] = 0
    if progress is not None:
        progress(1.0)
    compress(parent)
    earliest = np.full(len(words), len(codes), np.int64)
    np.minimum.at(earliest, parent, first)
    return np.asarray(earliest[parent][inverse])


def distinct_words(codes: Codes) -> tuple[Words, Numbers, Numbers]:
    """Return the distinct codes as words, the first place of each, and for each code which of them it is."""
    padded = np.zeros((len(codes), -(-codes.shape[1] // 8) * 8), np.uint8)
    padded[:, : codes.shape[1]] = codes
    words = padded.view("<u8").astype(np.uint64, copy=False)
    order = np.lexsort(words.T) if words.shape[1] > 1 else np.argsort(words[:, 0], kind="stable")
    in_order = words[order]
    new = np.ones(len(words), bool)
    new[1:] = (in_order[1:] != in_order[:-1]).any(axis=1)
    inverse = np.empty(len(words), np.int64)
    inverse[order] = np.cumsum(new) - 1
    return in_order[new], order[new], inverse


def _balanced_parts(sample: Codes, bits: int) -> Callable[[int], Words]:
    """Return a function that cuts the bits into parts, masks (parts, words), each of which tells codes apart as well.

    Bits that are nearly the same in all codes say little; so parts get equal sums of entropy, not of bits.
    """
    share = (signs(sample, bits).mean(axis=0, dtype=np.float64) + 1) / 2
    share = np.clip(share, 1e-9, 1 - 1e-9)
    entropy = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    falling = np.argsort(-entropy, kind="stable")

    def masks(parts: int) -> Words:
        sums, bit_of = np.zeros(parts), np.zeros((parts, -(-bits // 64) * 64), np.uint8)
        for bit in falling:
            part = int(sums.argmin())
            bit_of[part, bit] = 1
            sums[part] += entropy[bit] + 1e-6
        return np.packbits(bit_of, axis=1, bitorder="little").view("<u8").astype(np.uint64, copy=False)

    return masks


def _join_near(
    words: Words,
    distance: int,
    bits: int,
    masks: Callable[[int], Words],
    parent: Numbers,
    progress: ShareProgress | None,
) -> None:
    """Join all pairs of distinct codes within the distance."""
    equal_parts, first = _choose_parts(words, distance, bits, masks)
    choices = list(combinations(masks(distance + equal_parts), equal_parts))
    compared = 0
    for number, chosen in enumerate(choices):
        table = first if number == 0 else sort_by(words, _union_mask(chosen, words))
        compared += table.pairs
        if compared * len(choices) > MAX_COMPARISONS * (number + 1):
            most = f"expected at most {MAX_COMPARISONS:.0e} pairs of codes to compare"
            raise TooLarge(f"distance: {most}, got more. Use a smaller distance, or a filter.")
        for share, pairs in near_pairs(words, table, distance):
            join(parent, *pairs)
            if progress is not None:
                progress((number + share) / len(choices))


def _choose_parts(words: Words, distance: int, bits: int, masks: Callable[[int], Words]) -> tuple[int, SortedCodes]:
    """Return how many parts shall be equal, by what takes least, and the table of the first choice of parts."""
    best, best_cost, chosen = 0, np.inf, None
    for equal in range(min(MAX_EQUAL_PARTS, bits - distance) + 1):
        tables = comb(distance + equal, equal)
        if tables * len(words) * SORT_COST >= best_cost:
            break
        table = sort_by(words, _union_mask(tuple(masks(distance + equal)[:equal]), words))
        cost = tables * (len(words) * SORT_COST + table.pairs * PAIR_COST)
        if cost < best_cost:
            best, best_cost, chosen = equal, cost, table
    assert chosen is not None
    return best, chosen


def _union_mask(parts: tuple[Words, ...], words: Words) -> Words:
    mask = np.zeros(words.shape[1], np.uint64)
    for part in parts:
        mask |= part
    return mask


def sort_by(words: Words, mask: Words) -> SortedCodes:
    """Sort codes by the bits of a mask, as a number that mixes them: rarely are others equal too, which is no harm."""
    keys = np.zeros(len(words), np.uint64)
    for column, bits in zip(words.T, mask, strict=True):
        keys = (keys ^ (column & bits)) * MIX[0]
        keys ^= keys >> SHIFT
        keys *= MIX[1]
        keys ^= keys >> SHIFT
    order = np.argsort(keys)
    keys = keys[order]
    last = np.flatnonzero(np.append(keys[1:] != keys[:-1], True)) if len(keys) else np.empty(0, np.int64)
    return SortedCodes(order, np.repeat(last + 1, np.diff(last, prepend=-1)))


def near_pairs(words: Words, table: SortedCodes, distance: int) -> Iterator[tuple[float, tuple[Numbers, Numbers]]]:
    """Yield pairs of codes within the distance among those that are equal in a table, and the share that is done."""
    for start in range(0, len(words), COMPARED_ROWS):
        places = np.arange(start, min(start + COMPARED_ROWS, len(words)))
        step = 0
        while len(places):
            step += 1
            places = places[places + step < table.ends[places]]
            left, right = table.order[places], table.order[places + step]
            near = count_ones(words[left] ^ words[right]).sum(axis=1, dtype=np.int64) <= distance
            if near.any():
                yield start / len(words), (left[near], right[near])
    yield 1.0, (np.empty(0, np.int64), np.empty(0, np.int64))


def join(parent: Numbers, left: Numbers, right: Numbers) -> None:
    """Put the codes of each pair into the same tree; a root is the smallest number of its tree."""
    while len(left):
        left, right = roots(parent, left), roots(parent, right)
        apart = left != right
        low, high = np.minimum(left, right)[apart], np.maximum(left, right)[apart]
        np.minimum.at(parent, high, low)  # of several, one is taken now, and the others next time
        left, right = low, high


def roots(parent: Numbers, numbers: Numbers) -> Numbers:
    roots = parent[numbers]
    while (higher := parent[roots]).tobytes() != roots.tobytes():
        roots = higher
    parent[numbers] = roots
    return roots


def compress(parent: Numbers) -> None:
    """Let every code point to its root."""
    while not np.array_equal(higher := parent[parent], parent):
        parent[:] = higher
