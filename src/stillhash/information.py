"""What the package runs on."""

from typing import Any

from stillhash.version import __version__


def info() -> dict[str, Any]:
    """Return versions, the kernels in use, the kernels available and the cores."""
    import numpy as np

    from stillhash.numeric import extension, kernels
    from stillhash.numeric.threads import usable_cores

    return {
        "stillhash": __version__,
        "numpy": np.__version__,
        "kernels": "native" if kernels.lanes() != "numpy" else "numpy reference",
        "lanes": kernels.lanes(),
        "available": list(kernels.available()),
        "extension": extension.missing or "loaded",
        "cores": usable_cores(),
    }
