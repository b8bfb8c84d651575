"""The encoder `words`: hashed words and parts of words, projected to 256 numbers. It needs no weights and no library.

A text is the sum of its words, each counted by the square root of how often it occurs; words of up to three letters
count for less, since most of them say little. A word is the sum of itself and of its character n-grams, so that forms
of one word are similar. Each of these has a fixed vector of a few +1 and -1 at places that a hash chooses: a sparse
random projection of all words there are.

All sums are of integers, so features are the same on every machine and bitwise independent of the batch.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stillhash.encoders.base import TextOnly, check_texts, fingerprint
from stillhash.numeric.validation import Floats

WORDS_VERSION = 1  # changes whenever features change
WORDS_DIM = 256
PLACES = 8  # places of a vector are not 0; a byte of a 64-bit hash chooses each
MAX_WORD_CHARACTERS = 64  # longer runs of letters are cut
GRAM_SIZES, DENSE_GRAM_SIZES = (4, 5), (1, 2, 3)
WORD_PATTERN = re.compile(rf"\w{{1,{MAX_WORD_CHARACTERS}}}")
DENSE_SCRIPTS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]")
UNIT = 64  # 1 as an integer: weights are whole multiples of 1/64
SHORT_WORD_WEIGHTS = np.array([0, UNIT // 4, UNIT // 4, UNIT // 2, UNIT])  # by letters, of which 4 are as many as more
PARTS_WEIGHT = 2  # is the weight of all parts together, if that of the word is 1
BLOCK_TEXTS, BLOCK_WORDS = 512, 8192  # texts, and words, are read at a time, so that memory stays flat

HASH_BASE = np.uint64(0x9E3779B97F4A7C15)
INVERSE_BASE = np.uint64(pow(int(HASH_BASE), -1, 1 << 64))

Integers = NDArray[np.int64]
Hashes = NDArray[np.uint64]


class WordHashing(TextOnly):
    """Encode by words and parts of words."""

    name = "words"
    dim = WORDS_DIM

    def __init__(self) -> None:
        sizes = [WORDS_DIM, PLACES, MAX_WORD_CHARACTERS, UNIT, PARTS_WEIGHT, *GRAM_SIZES, *DENSE_GRAM_SIZES]
        self.fingerprint = fingerprint({"encoder": "words", "version": WORDS_VERSION, "sizes": sizes})

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        checked = check_texts(texts)
        features = np.zeros((len(checked), WORDS_DIM), np.float32)
        for start in range(0, len(checked), BLOCK_TEXTS):
            features[start : start + BLOCK_TEXTS] = _encode_block(checked[start : start + BLOCK_TEXTS])
        return features


def count_words(text: str) -> Counter[str]:
    """Count the words of a text, without regard to case and to forms of letters."""
    return Counter(WORD_PATTERN.findall(unicodedata.normalize("NFKC", text).casefold()))


def _encode_block(texts: list[str]) -> Floats:
    column: dict[str, int] = {}  # of each word, in the order in which words are first seen
    columns, weights = [], []
    for text in texts:
        count = count_words(text)
        columns.append(np.array([column.setdefault(word, len(column)) for word in count], np.int64))
        weights.append(np.array([math.isqrt(UNIT * UNIT * times) for times in count.values()], np.float64))
    rows, words = np.zeros((len(texts), WORDS_DIM), np.int64), list(column)
    for start in range(0, len(words), BLOCK_WORDS):
        vectors = word_vectors(words[start : start + BLOCK_WORDS])
        for row, own, weight in zip(rows, columns, weights, strict=True):
            chosen = (own >= start) & (own < start + BLOCK_WORDS)
            row += (weight[chosen] @ vectors[own[chosen] - start]).astype(np.int64)  # below 2**53, so the sum is exact
    return _unit_length(rows)


def word_vectors(words: list[str]) -> NDArray[np.float64]:
    """Return the vectors (n, WORDS_DIM) of words, whole numbers."""
    hashes, weights, owners = _hash_parts(words)
    places, signs = _places(hashes)
    cells, values = owners[:, None] * WORDS_DIM + places, signs * weights[:, None]
    sums = np.bincount(cells.ravel(), values.ravel(), minlength=len(words) * WORDS_DIM)
    return np.asarray(sums.reshape(len(words), WORDS_DIM))


def _hash_parts(words: list[str]) -> tuple[Hashes, Integers, Integers]:
    """Return hash, weight and word of all words themselves, and after them of all their parts.

    The hash of characters c0 c1 c2 is c0 p^2 + c1 p + c2 in 64 bits. Parts have 4 or 5 characters of the word between
    < and >; 1 to 3 where the script has no spaces between words.
    """
    dense = np.array([DENSE_SCRIPTS.search(word) is not None for word in words])
    lengths = np.array([len(word) + 2 for word in words], np.int64)
    characters = np.frombuffer("".join(f"<{word}>" for word in words).encode("utf-32-le"), np.uint32).astype(np.uint64)
    owners = np.repeat(np.arange(len(words)), lengths)
    left = np.cumsum(lengths)[owners] - np.arange(len(characters))  # characters up to the end of the word
    powers = np.multiply.accumulate(np.full(MAX_WORD_CHARACTERS + 3, HASH_BASE)) * INVERSE_BASE  # p^0, p^1, ...
    whole = np.where(dense, UNIT, SHORT_WORD_WEIGHTS[np.minimum(lengths - 2, len(SHORT_WORD_WEIGHTS) - 1)])
    hashes = [np.add.reduceat(characters * powers[left - 1], np.cumsum(lengths) - lengths)]
    parts = []
    for size in (*GRAM_SIZES, *DENSE_GRAM_SIZES):
        at = np.flatnonzero((left >= size) & (dense[owners] == (size in DENSE_GRAM_SIZES)))
        terms = [characters[at + offset] * powers[size - 1 - offset] for offset in range(size)]
        hashes.append(np.sum(terms, axis=0) + (np.uint64(size) << np.uint64(56)))
        parts.append(owners[at])
    part_owners = np.concatenate(parts)
    counts = np.maximum(1, np.bincount(part_owners, minlength=len(words)))
    part_weights = np.maximum(1, np.rint(PARTS_WEIGHT * whole / np.sqrt(counts))).astype(np.int64)
    weights = np.concatenate([whole, part_weights[part_owners]])
    return np.concatenate(hashes), weights, np.concatenate([np.arange(len(words)), part_owners])


def _places(hashes: Hashes) -> tuple[Integers, Integers]:
    """Return the places (n, PLACES) of each hash, and the signs at them."""
    shifts = np.arange(PLACES, dtype=np.uint64)
    places = (_mix(hashes)[:, None] >> (shifts * np.uint64(8))) & np.uint64(WORDS_DIM - 1)
    signs = (_mix(hashes ^ np.uint64(0xA5A5A5A5 << 32))[:, None] >> shifts) & np.uint64(1)
    return places.astype(np.int64), 2 * signs.astype(np.int64) - 1


def _mix(hashes: Hashes) -> Hashes:
    """Distribute the bits of hashes over 64 bits, as SplitMix64 does; products wrap around."""
    mixed = hashes + HASH_BASE
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def _unit_length(rows: Integers) -> Floats:
    """Divide rows by their lengths, whose squares are exact; a row of zeros stays."""
    largest = int(np.abs(rows).max(initial=0))
    lengths = np.sqrt(np.maximum((rows * rows).sum(axis=1), 1).astype(np.float64))
    if largest >= 1 << 27:  # the squares would overflow: these rows by integers of any length
        squares = [sum(value * value for value in row) for row in rows.tolist()]
        lengths = np.array([math.sqrt(max(square, 1)) for square in squares])
    return np.asarray(rows / lengths[:, None], np.float32)
