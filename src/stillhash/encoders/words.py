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
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from stillhash.encoders.base import TextOnly, check_texts, fingerprint
from stillhash.numeric.validation import Floats

WORDS_VERSION = 1  # changes whenever features change
WORDS_DIM = 256
PLACES = 8  # of a vector that are not 0; a byte of a 64-bit hash chooses each
MAX_WORD_CHARACTERS = 64  # longer runs of letters are cut
GRAM_SIZES, DENSE_GRAM_SIZES = (4, 5), (1, 2, 3)
WORD_PATTERN = re.compile(rf"\w{{1,{MAX_WORD_CHARACTERS}}}")
DENSE_SCRIPTS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]")
UNIT = 64  # 1 as an integer: weights are whole multiples of 1/64
SHORT_WORD_WEIGHTS = {1: UNIT // 4, 2: UNIT // 4, 3: UNIT // 2}  # by letters
PARTS_WEIGHT = 2  # of all parts together, if that of the word is 1
BLOCK_TEXTS, BLOCK_WORDS = 512, 4096  # at a time, so that memory stays flat

Integers = NDArray[np.int64]


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


def word_parts(word: str) -> list[str]:
    """Return the character n-grams of a word, its ends marked; shorter ones where there are no spaces between words."""
    marked = f"<{word}>"
    sizes = DENSE_GRAM_SIZES if is_dense(word) else GRAM_SIZES
    return [marked[at : at + size] for size in sizes for at in range(len(marked) - size + 1)]


def is_dense(word: str) -> bool:
    """Return whether a word has letters of a script without spaces between words, such as Chinese or Thai."""
    return DENSE_SCRIPTS.search(word) is not None


def word_weights(word: str, parts: int) -> list[int]:
    """Return the weights of a word and of each of its parts."""
    whole = UNIT if is_dense(word) else SHORT_WORD_WEIGHTS.get(len(word), UNIT)
    return [whole] + [max(1, round(PARTS_WEIGHT * whole / math.sqrt(max(1, parts))))] * parts


def _encode_block(texts: list[str]) -> Floats:
    column: dict[str, int] = {}  # of each word, in the order in which words are first seen
    texts_at, words_at, counts = [], [], []
    for at, text in enumerate(texts):
        count = count_words(text)
        texts_at += [at] * len(count)
        words_at += [column.setdefault(word, len(column)) for word in count]
        counts += list(count.values())
    order = np.argsort(words_at, kind="stable")
    row_of, column_of = np.array(texts_at, np.int64)[order], np.array(words_at, np.int64)[order]
    weight_of = np.array([math.isqrt(UNIT * UNIT * count) for count in counts], np.float64)[order]
    rows, words = np.zeros((len(texts), WORDS_DIM), np.int64), list(column)
    for start in range(0, len(words), BLOCK_WORDS):
        some = words[start : start + BLOCK_WORDS]
        entries = slice(*np.searchsorted(column_of, (start, start + len(some))))
        weights = np.zeros((len(texts), len(some)))
        weights[row_of[entries], column_of[entries] - start] = weight_of[entries]
        rows += (weights @ word_vectors(some)).astype(np.int64)  # integers below 2**53, so the sums are exact
    return _unit_length(rows)


def word_vectors(words: list[str]) -> NDArray[np.float64]:
    """Return the vectors (n, WORDS_DIM) of words, whole numbers."""
    hashes, weights, owners = [], [], []
    for at, word in enumerate(words):
        parts = word_parts(word)
        hashes += [crc32(f" {word}".encode()), *(crc32(part.encode()) for part in parts)]
        weights += word_weights(word, len(parts))
        owners += [at] * (1 + len(parts))
    places, signs = _places(np.array(hashes, np.uint64))
    cells = np.array(owners, np.int64)[:, None] * WORDS_DIM + places
    values = signs * np.array(weights, np.int64)[:, None]
    sums = np.bincount(cells.ravel(), values.ravel(), minlength=len(words) * WORDS_DIM)
    return np.asarray(sums.reshape(len(words), WORDS_DIM))


def _places(hashes: NDArray[np.uint64]) -> tuple[Integers, Integers]:
    """Return the places (n, PLACES) of each hash, and the signs at them."""
    shifts = np.arange(PLACES, dtype=np.uint64)
    places = (_mix(hashes)[:, None] >> (shifts * np.uint64(8))) & np.uint64(WORDS_DIM - 1)
    signs = (_mix(hashes ^ np.uint64(0xA5A5A5A5 << 32))[:, None] >> shifts) & np.uint64(1)
    return places.astype(np.int64), 2 * signs.astype(np.int64) - 1


def _mix(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Distribute the bits of hashes over 64 bits, as SplitMix64 does; products wrap around."""
    mixed = hashes + np.uint64(0x9E3779B97F4A7C15)
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
