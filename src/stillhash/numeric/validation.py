"""The door: every array from outside passes one of these, once, and comes out C-contiguous and finite.

None of them changes its input. A message names the argument, what was found and what is wanted.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, WrongType

MIN_BITS, MAX_BITS = 8, 512
MAX_MAGNITUDE = 1e15  # beyond it squared norms overflow float32

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]  # (n, ceil(bits / 8)), little-endian bit order


def check_bits(bits: Any) -> int:
    return check_integer(bits, "bits", MIN_BITS, MAX_BITS)


def check_integer(value: Any, name: str, low: int, high: int | None = None) -> int:
    wanted = f"{name} must be an integer of at least {low}" + ("" if high is None else f" and at most {high}")
    if isinstance(value, (bool, np.bool_)):
        raise WrongType(f"{name} is {value!r}; {wanted}")
    try:
        number = operator.index(value)
    except TypeError:
        raise WrongType(f"{name} is {value!r}; {wanted}") from None
    if number < low or (high is not None and number > high):
        raise InvalidInput(f"{name} is {number}; {wanted}")
    return number


def check_number(value: Any, name: str, *, above: float = -np.inf) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise WrongType(f"{name} is {value!r}; it must be a number") from None
    if not np.isfinite(number) or number <= above:
        bound = "" if above == -np.inf else f" above {above:g}"
        raise InvalidInput(f"{name} is {number}; it must be a finite number{bound}")
    return number


def check_choice(value: Any, name: str, choices: tuple[Any, ...]) -> None:
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")


def _numbers(value: Any, name: str) -> NDArray[Any]:
    """As an array of real numbers, whatever the order and dtype it came in."""
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        raise WrongType(f"{name} is a sparse matrix; dense rows are wanted: pass {name}.toarray()")
    try:
        array = np.asarray(value)
    except ValueError:
        raise InvalidInput(f"{name} has rows of several lengths; rows of one length are wanted") from None
    if array.dtype == object:
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise WrongType(f"{name} holds something that is not a number: {error}") from None
    if np.iscomplexobj(array):
        raise InvalidInput(f"Complex data not supported: {name} has dtype {array.dtype}, real numbers are wanted")
    if array.dtype.kind not in "fiub":
        raise WrongType(f"{name} has dtype {array.dtype}; real numbers are wanted")
    return array


def _finite_float32(array: NDArray[Any], name: str, limit: float) -> Floats:
    if array.size and not _surely_small(array, limit):
        top = max(float(array.max()), -float(array.min()))
        if not top <= limit:  # also when it is NaN
            if np.isfinite(top):
                raise InvalidInput(f"{name} holds {top:g}; magnitudes up to {limit:g} are wanted")
            kind = "NaN" if np.isnan(top) else "infinity"
            raise InvalidInput(f"{name} contains {kind}; finite numbers are wanted")
    return np.ascontiguousarray(array, dtype=np.float32)


def _surely_small(array: NDArray[Any], limit: float) -> bool:
    """Whether a sum of squares already shows that all is finite and within the limit: one quick look at most arrays."""
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        return False
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        return bool(np.dot(flat, flat) <= min(limit * limit, 1e38) / 4)  # false for NaN


def check_features(
    value: Any, name: str = "X", *, columns: int | None = None, whose: str = "", least: int = 0
) -> Floats:
    """Rows of features as float32 (n, D). A single row must come as (1, D)."""
    array = _numbers(value, name)
    if array.ndim != 2:
        raise InvalidInput(
            f"{name} is {array.ndim}-dimensional (Expected 2D array); rows of features are wanted. "
            f"Reshape your data: {name}.reshape(1, -1) makes one row of one vector"
        )
    if array.shape[1] == 0:
        raise InvalidInput(f"{name} has 0 feature(s) (shape={array.shape}) while a minimum of 1 is required.")
    if array.shape[0] < least:
        found = "1 sample" if array.shape[0] == 1 else f"{array.shape[0]} samples"
        raise InvalidInput(f"{name} has {found} (shape={array.shape}) while a minimum of {least} is required.")
    if columns is not None and array.shape[1] != columns:
        raise InvalidInput(
            f"{name} has {array.shape[1]} features, but {whose} is expecting {columns} features as input"
        )
    return _finite_float32(array, name, MAX_MAGNITUDE)


def check_codes(value: Any, bits: int, name: str = "codes") -> Codes:
    """Packed codes (n, ceil(bits / 8)) uint8; the bits past `bits` in the last byte must be zero."""
    array = np.asarray(value)
    width = (bits + 7) // 8
    if array.dtype != np.uint8:
        raise WrongType(f"{name} has dtype {array.dtype}; packed codes of dtype uint8 are wanted")
    if array.ndim != 2 or array.shape[1] != width:
        raise InvalidInput(f"{name} has shape {array.shape}; {bits} bits want shape (n, {width})")
    if bits % 8 and array.size and int(array[:, -1].max()) >> (bits % 8):
        raise InvalidInput(f"{name} has bits set past bit {bits - 1}; was it packed for another number of bits?")
    return np.ascontiguousarray(array)


def check_weights(value: Any, bits: int, name: str = "weights") -> Floats:
    """Query weights (m, bits) float32; a single query may come as (bits,)."""
    array = _numbers(value, name)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.shape[1] != bits:
        raise InvalidInput(f"{name} has shape {np.shape(value)}; {bits} bits want shape (m, {bits})")
    return _finite_float32(array, name, float(np.finfo(np.float32).max) / (2 * MAX_BITS))


def check_threshold(value: Any, queries: int, name: str = "threshold") -> NDArray[np.float64]:
    """Score thresholds (m,): one number for all queries, or one for each."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or array.shape not in ((), (queries,)) or np.isnan(array).any():
        raise InvalidInput(f"{name}: expected a number, or one for each of {queries} queries, got {value!r}")
    return np.broadcast_to(array.astype(np.float64), queries)


def check_ids(value: Any, name: str = "ids", *, count: int | None = None) -> NDArray[np.int64]:
    """Distinct ids (n,) as int64, none of them negative: -1 marks "no hit" in answers."""
    array = np.asarray(value)
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise WrongType(f"{name} has shape {array.shape} and dtype {array.dtype}; a flat array of integers is wanted")
    if count is not None and len(array) != count:
        raise InvalidInput(f"{name} has {len(array)} entries for {count} codes; one each is wanted")
    if array.size and (int(array.min()) < 0 or int(array.max()) > np.iinfo(np.int64).max):
        raise InvalidInput(f"{name} holds {array.min() if array.min() < 0 else array.max()}; 0 to 2**63 - 1 is wanted")
    ids = array.astype(np.int64)
    if ids.size > 1 and not (np.diff(ids) > 0).all() and len(np.unique(ids)) < len(ids):
        raise InvalidInput(f"{name} holds an id more than once")
    return ids
