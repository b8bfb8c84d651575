"""Convert ready codes between the packings of other libraries and ours: bit i of byte j is bit 8 j + i of the code.

Other packings have the first bit of each eight in the highest place. All functions keep the order of the bits, so bit i
of a code is bit i of the embedding, or of the perceptual hash, that it came from.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillhash.errors import InvalidInput, WrongType
from stillhash.numeric.codes import count_ones, width
from stillhash.numeric.validation import Codes, check_bits, check_codes

REVERSED_BYTES = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)), bitorder="little")  # (256,)
SIGNED_OFFSET = 128  # of bytes that are saved as signed numbers


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
