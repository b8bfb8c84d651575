"""Binary codes: packed rows, their signs, and the tiles that the scan reads.

A code of `bits` bits is ceil(bits / 8) bytes; bit i of byte j is hash bit 8 j + i, and 1 means +1. A tile
holds 256 codes as byte planes, (planes, 256): plane j is byte j of each code, so that one SIMD register
holds the same byte of many codes. Rows past the end of the last tile are zero.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillhash.errors import InvalidInput, WrongType
from stillhash.numeric import kernels
from stillhash.numeric.kernels import HUGE_PAGE, advise_huge_pages
from stillhash.numeric.validation import Codes, Floats, check_bits, check_codes

TILE = 256  # codes per tile: small, so that the scan reads memory straight through (lanes.hpp)
CACHE_LINE = 64  # bytes
ONES_IN_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)  # (256,)

Tiles = NDArray[np.uint8]  # (tiles, planes, 256)


def width(bits: int) -> int:
    """Return the bytes of a packed code."""
    return (bits + 7) // 8


def pack(projections: Floats) -> Codes:
    """Return the codes of the signs of (n, bits) real projections; sgn(0) = +1."""
    return kernels.pack_signs(projections)


def signs(codes: Codes, bits: int) -> Floats:
    """Return codes as (n, bits) of -1 and +1."""
    ones = np.unpackbits(codes, axis=1, count=bits, bitorder="little")
    return ones.astype(np.float32) * 2 - 1


def sgn(values: NDArray[Any]) -> NDArray[np.int8]:
    """Return +1 where a value is >= 0, else -1; never 0."""
    return np.where(values >= 0, np.int8(1), np.int8(-1))


def count_ones(words: NDArray[Any]) -> NDArray[np.uint8]:
    """Return how many bits are 1 in each unsigned integer."""
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.asarray(np.bitwise_count(words), np.uint8)
    parts = ONES_IN_BYTE[np.ascontiguousarray(words).view(np.uint8)]
    return np.asarray(parts.reshape(*words.shape, words.itemsize).sum(axis=-1, dtype=np.uint8))


def empty_tiles(rows: int, bits: int) -> Tiles:
    """Return tiles for `rows` codes, all zero, that begin at a cache line; large ones in huge pages."""
    shape = (-(-rows // TILE), width(bits), TILE)
    size = math.prod(shape)
    step = CACHE_LINE if size < HUGE_PAGE else HUGE_PAGE
    memory = np.zeros(size + step, dtype=np.uint8)  # what is never written takes no memory
    start = -memory.ctypes.data % step
    tiles = memory[start : start + size].reshape(shape)
    advise_huge_pages(tiles)
    return tiles


def to_tiles(codes: Codes, bits: int) -> Tiles:
    """Return the codes as tiles."""
    tiles = empty_tiles(len(codes), bits)
    kernels.write_tiles(tiles, 0, codes)
    return tiles


def from_tiles(tiles: Tiles, rows: int) -> Codes:
    """Return the codes of the first rows of the tiles."""
    return kernels.read_tiles(tiles, np.arange(rows, dtype=np.int64))


# Convert ready codes between the packings of other libraries and ours: bit i of byte j is bit 8 j + i of the code.
#
# Other packings have the first bit of each eight in the highest place. All functions keep the order of the bits, so bit
# i of a code is bit i of the embedding, or of the perceptual hash, that it came from.


REVERSED_BYTES = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)), bitorder="little")  # (256,)
SIGNED_OFFSET = 128  # is added to bytes that are saved as signed numbers


def from_packbits(packed: ArrayLike, bits: int | None = None) -> Codes:
    """Return codes of bytes as `numpy.packbits` makes them, (n, bytes) or (bytes,) uint8.

    The embeddings "ubinary" of Cohere and of sentence-transformers are packed so. bits: if not all of the last byte.
    """
    array = np.asarray(packed)
    if array.dtype != np.uint8:
        raise WrongType(f"packed: expected bytes of dtype uint8, got {array.dtype}; `from_int8` takes signed ones")
    return _checked(REVERSED_BYTES[array], bits)


def to_packbits(codes: ArrayLike, bits: int | None = None) -> NDArray[np.uint8]:
    """Return codes as `numpy.packbits` would pack their bits: the opposite of `from_packbits`."""
    return REVERSED_BYTES[_checked(np.asarray(codes), bits)]


def from_int8(packed: ArrayLike, bits: int | None = None) -> Codes:
    """Return codes of signed bytes: those of `from_packbits`, less 128, as int8.

    The embeddings "binary" of sentence-transformers are packed so.
    """
    array = np.asarray(packed)
    if array.dtype != np.int8:
        raise WrongType(f"packed: expected signed bytes of dtype int8, got {array.dtype}")
    return from_packbits((array.astype(np.int16) + SIGNED_OFFSET).astype(np.uint8), bits)


def from_bits(values: ArrayLike) -> Codes:
    """Return codes (n, bytes) of rows of bits (n, bits), booleans or 0 and 1; or one code of one row."""
    array = np.asarray(values)
    if array.dtype != np.bool_ and not (array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all()):
        raise WrongType("values: expected booleans, or 0 and 1, got others")
    if array.ndim not in (1, 2):
        raise InvalidInput(f"values: expected bits (n, bits), or (bits,) of one code, got shape {array.shape}")
    check_bits(array.shape[-1])
    return np.packbits(array.astype(bool), axis=-1, bitorder="little")


def from_floats(embeddings: ArrayLike) -> Codes:
    """Return codes (n, bytes) of real embeddings (n, bits), or one code of one: a bit is 1 where a value is above 0."""
    array = np.asarray(embeddings)
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise WrongType(f"embeddings: expected finite real numbers, got dtype {array.dtype}, or NaN or infinity")
    return from_bits(array > 0)


def from_hex(texts: str | Sequence[str] | NDArray[Any], bits: int | None = None) -> Codes:
    """Return codes (n, bytes) of hexadecimal texts, or one code of one text.

    The first bit is the highest of the first digit, as `imagehash` writes perceptual hashes. bits: by default four for
    each digit; if fewer, the highest bits of the first digit are zeros that are no part of the code.
    """
    if isinstance(texts, str):
        return np.asarray(_from_hex([texts], bits)[0])
    if isinstance(texts, bytes) or not isinstance(texts, (Sequence, np.ndarray)):
        raise WrongType(f"texts: expected hexadecimal texts, got a value of type {type(texts).__name__}")
    return _from_hex(list(texts), bits)


def to_hex(codes: ArrayLike, bits: int | None = None) -> Any:
    """Return codes (n, bytes) as a list of hexadecimal texts, or one code as one: the opposite of `from_hex`."""
    array = _checked(np.asarray(codes), bits)
    size = 8 * array.shape[-1] if bits is None else bits
    digits = -(-size // 4)
    rows = np.unpackbits(np.atleast_2d(array), axis=1, count=size, bitorder="little")
    padded = np.zeros((len(rows), 8 * width(size)), np.uint8)
    padded[:, padded.shape[1] - size :] = rows
    texts = [row.tobytes().hex()[-digits:] for row in np.packbits(padded, axis=1)]
    return texts[0] if array.ndim == 1 else texts


def hamming(codes: ArrayLike, others: ArrayLike) -> NDArray[np.int64]:
    """Return the Hamming distances of packed codes, row by row; shapes broadcast: (n, bytes) and (bytes,) give (n,)."""
    first, second = np.asarray(codes), np.asarray(others)
    if first.dtype != np.uint8 or second.dtype != np.uint8 or first.shape[-1:] != second.shape[-1:]:
        raise WrongType(f"codes: expected two of dtype uint8 and equal length, got {first.shape} and {second.shape}")
    return np.asarray(count_ones(first ^ second).sum(axis=-1, dtype=np.int64))


def is_hex(value: Any) -> bool:
    """Return whether codes came as texts."""
    if isinstance(value, np.ndarray):
        texts = value.dtype.kind == "O" and value.size > 0 and all(isinstance(one, str) for one in value.flat)
        return bool(value.dtype.kind == "U" or texts)
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and any(isinstance(one, str) for one in value))


def _from_hex(texts: list[Any], bits: int | None) -> Codes:
    for text in texts:
        if not isinstance(text, str):
            raise WrongType(f"codes: expected hexadecimal texts, got a value of type {type(text).__name__}")
    if bits is None and not texts:
        raise InvalidInput("bits: expected the length of the codes, since there are none")
    size = check_bits(4 * len(texts[0]) if bits is None else bits)
    digits, pad = -(-size // 4), "0" * (-(-size // 4) % 2)
    for text in texts:
        if len(text) != digits or not text.isascii() or not text.isalnum():
            raise InvalidInput(f"codes: expected {digits} hexadecimal digits for {size} bits, got {text[:200]!r}")
    try:
        data = bytes.fromhex("".join(pad + text for text in texts))
    except ValueError:
        raise InvalidInput(f"codes: expected {digits} hexadecimal digits, got other characters") from None
    rows = np.unpackbits(np.frombuffer(data, np.uint8).reshape(len(texts), width(size)), axis=1)
    if rows[:, : rows.shape[1] - size].any():
        raise InvalidInput(f"codes: expected hexadecimal numbers below 2**{size}, got a larger one")
    return np.packbits(rows[:, rows.shape[1] - size :], axis=1, bitorder="little")


def _checked(array: NDArray[Any], bits: int | None) -> Codes:
    """Return codes (n, bytes), or one code (bytes,), once they have so many bits and no more."""
    if array.ndim not in (1, 2):
        raise InvalidInput(f"codes: expected (n, bytes), or (bytes,) of one code, got shape {array.shape}")
    size = check_bits(8 * array.shape[-1] if bits is None else bits)
    rows = check_codes(array if array.ndim == 2 else array[None], size)
    return rows if array.ndim == 2 else rows[0]


# Digests of feature vectors, by which exact repeats are recognised.


NO_DIGEST = 0  # stands for the digest of rows that have none
DIGESTED_ROWS = 32  # rows are hashed at a time, so that they stay in the cache


@lru_cache(maxsize=8)
def _multipliers(dim: int) -> NDArray[np.uint64]:
    """Return odd numbers (D,), the same on every machine."""
    return np.random.PCG64(0).random_raw(dim) | np.uint64(1)


def feature_digests(X: Floats) -> NDArray[np.int64]:
    """Return a digest (n,) of each row (n, D): a multilinear hash of its float32 bits, modulo 2**64.

    Of rows that differ, two have the same digest with a chance of about 2**-40, or less. -0.0 is the same as 0.0.
    """
    multipliers, sums = _multipliers(X.shape[1]), np.empty(len(X), np.uint64)
    for start in range(0, len(X), DIGESTED_ROWS):
        some = slice(start, start + DIGESTED_ROWS)
        words = (X[some] + np.float32(0)).view(np.uint32).astype(np.uint64)
        np.einsum("ij,j->i", words, multipliers, out=sums[some])
    return sums.view(np.int64)
