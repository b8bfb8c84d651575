"""Read scalars of NumPy and pandas: as Python's own, and which of them mean that there is no value."""

from typing import Any

import numpy as np

PANDAS_MISSING = frozenset(("NAType", "NaTType"))
EXACT_UNITS = frozenset(("generic", "Y", "M", "W", "D", "h", "m", "s", "ms", "us"))  # of time, that Python has too


def python_scalar(value: Any) -> Any:
    """Return the Python object that equals a NumPy scalar; the scalar itself if there is none."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        if np.isnat(value):
            return None
        kind = "datetime64" if isinstance(value, np.datetime64) else "timedelta64"
        rounded = value if np.datetime_data(value.dtype)[0] in EXACT_UNITS else value.astype(f"{kind}[us]")
        plain = rounded.item()
        return value if isinstance(plain, int) or rounded != value else plain  # an integer: out of Python's range
    return float(value) if isinstance(value, np.longdouble) else value.item()


def is_missing_marker(value: Any) -> bool:
    """Return whether this is NA or NaT of pandas, NaT of NumPy, or a masked entry: nothing but "no value"."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    kind = type(value)
    if kind.__module__.startswith("numpy.ma"):
        return kind.__name__ == "MaskedConstant"
    return kind.__name__ in PANDAS_MISSING and kind.__module__.startswith("pandas.")


def is_missing(value: Any) -> bool:
    """Return whether this stands for no value: None, NaN, or a missing marker."""
    return value is None or (isinstance(value, (float, np.floating)) and value != value) or is_missing_marker(value)
