"""Validate arguments once, where they come in: arrays come out C-contiguous and finite, and inputs are not changed.

A message names the argument, what was expected and what came.
"""

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState, InvalidInput, WrongType

MIN_BITS, MAX_BITS = 8, 512
MAX_MAGNITUDE = 1e15  # beyond it squared norms overflow float32

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]
Codes = NDArray[np.uint8]  # (n, ceil(bits / 8)), little-endian bit order
ScoredIds = tuple[NDArray[np.float32], NDArray[np.int64]]  # best first: higher score, then smaller id
TableHits = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]  # and the effort (m, 3)


def check_bits(value: Any, name: str = "bits") -> int:
    return check_integer(value, name, MIN_BITS, MAX_BITS)


MAX_HITS = 1 << 28  # hits are the most of one answer, 3 GiB; missing ones count


def check_integer(value: Any, name: str, low: int, high: int | None = None) -> int:
    expected = f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high}]"
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise WrongType(f"{name}: expected {expected}, got {value!r}") from None
    if number < low or (high is not None and number > high):
        raise InvalidInput(f"{name}: expected {expected}, got {number}")
    return number


def check_k(k: Any, queries: int) -> int:
    """Return how many hits of each query are wanted; so many that memory would not hold them are refused."""
    return check_integer(k, "k", 1, MAX_HITS // max(1, queries))


def check_number(value: Any, name: str, *, above: float = -np.inf, low: float = -np.inf, high: float = np.inf) -> float:
    """A finite number above `above`, from `low` to `high`."""
    if isinstance(value, (str, bytes)):  # float takes these too
        raise WrongType(f"{name}: expected a number, got {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise WrongType(f"{name}: expected a number, got {value!r}") from None
    except OverflowError:  # an integer beyond all doubles
        number = np.inf
    if not np.isfinite(number) or number <= above or not low <= number <= high:
        bounds = {"above": above, "at least": low, "at most": high}
        expected = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if np.isfinite(bound))
        raise InvalidInput(f"{name}: expected a finite number{expected and ' ' + expected}, got {number}")
    return number


def check_choice(value: Any, name: str, choices: tuple[Any, ...]) -> None:
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        raise InvalidInput(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")


def _numbers(value: Any, name: str) -> NDArray[Any]:
    """Return an array of real numbers, from any layout and dtype."""
    array = to_array(value, name)
    if array.dtype == object:
        if any(isinstance(entry, (str, bytes)) for entry in array.flat):  # float takes these too
            raise WrongType(f"{name}: expected numbers, got text")
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise WrongType(f"{name}: expected numbers, got something else: {error}") from None
    if np.iscomplexobj(array):
        raise InvalidInput(f"{name}: expected real numbers, got {array.dtype}. Complex data not supported")
    if array.dtype.kind not in "fiub":
        raise WrongType(f"{name}: expected real numbers, got dtype {array.dtype}")
    return array


def _finite_float32(array: NDArray[Any], name: str, limit: float) -> Floats:
    if array.size and not _surely_small(array, limit):
        top = max(float(array.max()), -float(array.min()))
        if not top <= limit:  # also when it is NaN
            if np.isfinite(top):
                raise InvalidInput(f"{name}: expected magnitudes up to {limit:g}, got {top:g}")
            raise InvalidInput(f"{name}: expected finite numbers, got {'NaN' if np.isnan(top) else 'infinity'}")
    return np.ascontiguousarray(array, dtype=np.float32)


def _surely_small(array: NDArray[Any], limit: float) -> bool:
    """Return whether the sum of squares shows that all is finite and within the limit: quick for most arrays."""
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        return False
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        return bool(np.dot(flat, flat) <= min(limit * limit, 1e38) / 4)  # false for NaN


def check_features(
    value: Any, name: str = "X", *, columns: int | None = None, whose: str = "", least: int = 0, finite: bool = True
) -> Floats:
    """Rows of features as float32 (n, D). A single row must come as (1, D).

    finite: False leaves it to the caller to refuse NaN, infinity and large magnitudes, where no conversion needs it.
    """
    array = _numbers(value, name)
    if array.ndim != 2:
        raise InvalidInput(
            f"{name}: Expected 2D array of features, got {array.ndim}-dimensional. "
            f"Reshape your data: {name}.reshape(1, -1) makes one row of one vector"
        )
    if array.shape[1] == 0:
        raise InvalidInput(f"{name}: got 0 feature(s) (shape={array.shape}) while a minimum of 1 is required.")
    if array.shape[0] < least:
        count = "1 sample" if array.shape[0] == 1 else f"{array.shape[0]} samples"
        raise InvalidInput(f"{name}: got {count} (shape={array.shape}) while a minimum of {least} is required.")
    if columns is not None and array.shape[1] != columns:
        got = array.shape[1]
        raise InvalidInput(f"{name} has {got} features, but {whose} is expecting {columns} features as input")
    if not finite and array.dtype == np.float32 and array.flags.c_contiguous:
        return array
    return _finite_float32(array, name, MAX_MAGNITUDE)


def check_codes(value: Any, bits: int, name: str = "codes") -> Codes:
    """Packed codes (n, ceil(bits / 8)) uint8; the bits past `bits` in the last byte must be zero."""
    array = np.asarray(value)
    width = (bits + 7) // 8
    if array.dtype != np.uint8:
        raise WrongType(f"{name}: expected packed codes of dtype uint8, got {array.dtype}")
    if array.ndim != 2 or array.shape[1] != width:
        raise InvalidInput(f"{name}: expected shape (n, {width}) for {bits} bits, got {array.shape}")
    if bits % 8 and array.size and int(array[:, -1].max()) >> (bits % 8):
        raise InvalidInput(f"{name}: expected zeros past bit {bits - 1}, got ones; was it packed for more bits?")
    return np.ascontiguousarray(array)


def check_arrays(arrays: dict[str, NDArray[Any]], specs: dict[str, str], sizes: dict[str, int]) -> None:
    """Refuse saved arrays that are not finite or not as specified: "float32 D b" is a dtype and the axes.

    `sizes` has the sizes of axes; one that is not in it yet is what the first array with this axis has, and added.
    Arrays of "uint8 n bytes" are packed codes of sizes["b"] bits.
    """
    for name, spec in specs.items():
        array, (dtype, *axes) = arrays[name], spec.split()
        for axis, size in zip(axes, array.shape, strict=False):
            sizes.setdefault(axis, size)
        shape = tuple(sizes.get(axis, 0) for axis in axes)
        if array.shape != shape or array.dtype != dtype:
            raise BadState(f"{name}: expected {dtype} {shape}, got {array.dtype} {array.shape}")
        if not np.isfinite(array).all():
            raise BadState(f"{name}: expected finite numbers, got NaN or infinity")
        if axes[-1] == "bytes":
            check_codes(array, sizes["b"], name)


def check_weights(value: Any, bits: int, name: str = "weights") -> Floats:
    """Query weights (m, bits) float32; a single query may come as (bits,)."""
    array = _numbers(value, name)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.shape[1] != bits:
        use = "Weigh queries first: hasher.weigh(X)" if array.ndim == 2 else "A single query may be flat"
        raise InvalidInput(f"{name}: expected (m, {bits}), one weight for each bit, got {array.shape}. {use}.")
    return _finite_float32(array, name, float(np.finfo(np.float32).max) / (2 * MAX_BITS))


def check_threshold(value: Any, queries: int, name: str = "threshold") -> NDArray[np.float64]:
    """Score thresholds (m,): one number for all queries, or one for each."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or array.shape not in ((), (queries,)) or np.isnan(array).any():
        raise InvalidInput(f"{name}: expected a number, or one for each of {queries} queries, got {value!r}")
    return np.broadcast_to(array.astype(np.float64), queries)


def check_repeated_ids(value: Any, name: str = "ids") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct ids among these, rising, and for each of these its number among them."""
    array = np.asarray(value)
    if array.ndim != 1:
        return check_ids(array, name), np.empty(0, np.int64)
    distinct, numbers = np.unique(array, return_inverse=True)
    return check_ids(distinct, name), numbers


def check_ids(value: Any, name: str = "ids", *, count: int | None = None) -> NDArray[np.int64]:
    """Distinct ids (n,) as int64, none of them negative: -1 marks "no hit" in answers."""
    array = np.asarray(value)
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        got = f"shape {array.shape} and dtype {array.dtype}"
        raise WrongType(f"{name}: expected a flat array of integers, got {got}")
    if count is not None and len(array) != count:
        raise InvalidInput(f"{name}: expected one for each of {count} codes, got {len(array)}")
    if array.size and (int(array.min()) < 0 or int(array.max()) > np.iinfo(np.int64).max):
        got = array.min() if array.min() < 0 else array.max()
        raise InvalidInput(f"{name}: expected 0 to 2**63 - 1, got {got}")
    ids = array.astype(np.int64)
    if ids.size > 1 and not (np.diff(ids) > 0).all() and len(np.unique(ids)) < len(ids):
        raise InvalidInput(f"{name}: expected distinct ids, got some more than once")
    return ids


SHORT_FLOATS = ("bfloat16", "float8")  # names of dtypes that NumPy has not, but can convert


def to_array(value: Any, name: str) -> NDArray[Any]:
    """Return an array of what this holds: an array, tensor, table, list, or a column or list of rows.

    No library is imported for it: what an object offers decides, `__array__` first, then DLPack.
    """
    if type(value) is np.ndarray and value.dtype != object:
        return value
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        raise WrongType(f"{name}: expected dense rows, got a sparse matrix; pass {name}.toarray()")
    if hasattr(value, "mask") and hasattr(value, "filled") and np.any(value.mask):
        raise InvalidInput(f"{name}: expected numbers, got masked entries")
    if isinstance(value, (list, tuple)) and any(map(_is_foreign, value)):
        value = [to_array(row, name) for row in value]
    try:
        array = _stacked(on_host(value), name)
    except (TypeError, RuntimeError, BufferError) as error:
        raise WrongType(f"{name}: expected an array, got {type(value).__name__}: {error}") from None
    if array.dtype == object and array.ndim == 1 and len(array) and all(map(_is_row, array)):
        array = _stacked([to_array(row, name) for row in array], name)
    return array.astype(np.float32) if array.dtype.name.startswith(SHORT_FLOATS) else array


def _stacked(rows: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(rows)
    except ValueError:
        raise InvalidInput(f"{name}: expected rows of one length, got several lengths") from None


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (hasattr(value, "__array__") and np.ndim(value) > 0)


def _is_foreign(row: Any) -> bool:
    return hasattr(row, "detach") or (hasattr(row, "__dlpack__") and not isinstance(row, np.ndarray))


def on_host(value: Any) -> Any:
    """Return a tensor without its gradient, in memory that NumPy can read, and of a type that it has."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        if str(value.dtype).endswith(SHORT_FLOATS) or "float8" in str(value.dtype):
            value = value.float()
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return value
