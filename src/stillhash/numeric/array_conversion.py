"""Convert arrays of other libraries to NumPy: tensors, tables, and rows of these.

None of these libraries is imported: what an object offers decides, `__array__` first, then DLPack.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, WrongType

SHORT_FLOATS = ("bfloat16", "float8")  # names of dtypes that NumPy has not, but can convert


def to_array(value: Any, name: str) -> NDArray[Any]:
    """Return an array of what this holds: an array, tensor, table, list, or a column or list of rows."""
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
