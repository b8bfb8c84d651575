"""Vector search over compact binary codes whose similarity keeps learning.

>>> from stillhash import Scan, Tally
>>> hasher = Tally(bits=64).fit(first_rows, labels)    # fixes the hash functions
>>> index = Scan(bits=64)
>>> index.add(hasher.encode(rows))                     # codes that never change
>>> hasher.partial_fit(rows, labels)                   # the similarity learns
>>> scores, ids = index.search(hasher.weigh(queries), k=10)
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from stillhash import errors
from stillhash.collection import Answer, Collection, Hit, Item, Repaired, open, repair
from stillhash.errors import StillhashError
from stillhash.hashers import DEFAULT_HASHER, LSH, METHODS, OHSL, PCAITQ, OHSLSym, OnlineHasher, Tally, load
from stillhash.numeric import kernels
from stillhash.numeric.threads import usable_cores
from stillhash.search import MIWQ, Hits, Index, Scan, Searcher

if TYPE_CHECKING:
    from stillhash.client import Client

__version__ = version("stillhash")


def info() -> dict[str, Any]:
    """What serves here: versions, the kernels in use, and what else could be chosen."""
    return {
        "stillhash": __version__,
        "numpy": np.__version__,
        "kernels": "native" if kernels.lanes() != "numpy" else "numpy reference",
        "lanes": kernels.lanes(),
        "available": list(kernels.available()),
        "extension": kernels.missing or "loaded",
        "cores": usable_cores(),
    }


def __getattr__(name: str) -> Any:
    """The client wants urllib3, which is asked for only where somebody wants the client."""
    if name == "Client":
        from stillhash.client import Client

        return Client
    raise AttributeError(f"module 'stillhash' has no attribute {name!r}")


__all__ = [
    "DEFAULT_HASHER",
    "LSH",
    "METHODS",
    "MIWQ",
    "OHSL",
    "PCAITQ",
    "Answer",
    "Client",
    "Collection",
    "Hit",
    "Hits",
    "Index",
    "Item",
    "OHSLSym",
    "OnlineHasher",
    "Repaired",
    "Scan",
    "Searcher",
    "StillhashError",
    "Tally",
    "errors",
    "info",
    "load",
    "open",
    "repair",
]
