"""The compiled extension, or None where it was not built."""

import os
import warnings
from importlib import import_module
from typing import Any

try:
    native: Any = import_module("stillhash.numeric._native")
    missing = ""
except ImportError as error:  # no compiler at install time
    native, missing = None, str(error)
    if os.environ.get("STILLHASH_LANES") != "numpy":
        warnings.warn(
            f"stillhash runs without its compiled extension ({missing}): answers are the same, searches and learning "
            "are many times slower. Install a wheel, or a C++ compiler before stillhash; STILLHASH_LANES=numpy accepts "
            "NumPy without this notice",
            RuntimeWarning,
            stacklevel=2,
        )
