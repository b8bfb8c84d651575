"""The compiled extension, or None where it was not built; and what the package runs on."""

import os
import warnings
from importlib import import_module
from typing import Any

from stillhash.version import __version__

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


def info() -> dict[str, Any]:
    """Return versions, the kernels in use, the kernels available and the cores."""
    import numpy as np

    from stillhash.numeric import kernels
    from stillhash.numeric.threads import usable_cores

    return {
        "stillhash": __version__,
        "numpy": np.__version__,
        "kernels": "native" if kernels.lanes() != "numpy" else "numpy reference",
        "lanes": kernels.lanes(),
        "available": list(kernels.available()),
        "extension": missing or "loaded",
        "cores": usable_cores(),
    }
