"""Vector search: fixed binary codes, learned similarity.

>>> from stillhash import Scan, Tally
>>> hasher = Tally(bits=64).fit(first_rows, labels)    # fixes the hash functions
>>> index = Scan(bits=64)
>>> index.add(hasher.encode(rows))                     # codes that never change
>>> hasher.partial_fit(rows, labels)                   # the similarity learns
>>> scores, ids = index.search(hasher.weigh(queries), k=10)
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from stillhash import codes, errors
from stillhash.collection import (
    Answer,
    AuditEntry,
    Collection,
    DoubtfulItem,
    Hit,
    ImportProgress,
    Item,
    RepairReport,
    UpgradeReport,
    Vote,
    acting_as,
    import_export,
    is_export,
    open,
    repair,
    upgrade,
)
from stillhash.errors import StillhashError
from stillhash.hashers import (
    BSODH,
    DEFAULT_HASHER,
    HMOH,
    LEGO,
    LEMON,
    LSH,
    METHODS,
    OASIS,
    OESH,
    OHSL,
    OHWEU,
    OKH,
    OSH,
    PCAITQ,
    Hasher,
    MIHash,
    OHSLSym,
    OnlineHasher,
    OSupH,
    Tally,
    TallyListwise,
    Tuned,
    load,
)
from stillhash.numeric import kernels
from stillhash.numeric.threads import usable_cores
from stillhash.search import MIWQ, Hits, Index, NamedHits, NamedIndex, Scan, Searcher
from stillhash.version import __version__


def info() -> dict[str, Any]:
    """Return versions, the kernels in use, the kernels available and the cores."""
    return {
        "stillhash": __version__,
        "numpy": np.__version__,
        "kernels": "native" if kernels.lanes() != "numpy" else "numpy reference",
        "lanes": kernels.lanes(),
        "available": list(kernels.available()),
        "extension": kernels.missing or "loaded",
        "cores": usable_cores(),
    }


if TYPE_CHECKING:  # type checkers see a plain import, so that they notice names that do not exist
    from stillhash.client import AsyncClient, Client
else:

    def __getattr__(name: str) -> object:
        """Import a client on first use: each needs a library of its own, which is optional."""
        if name in ("AsyncClient", "Client"):
            from stillhash import client

            return getattr(client, name)
        raise AttributeError(f"module 'stillhash' has no attribute {name!r}")


__all__ = [
    "BSODH",
    "DEFAULT_HASHER",
    "HMOH",
    "LEGO",
    "LEMON",
    "LSH",
    "METHODS",
    "MIWQ",
    "OASIS",
    "OESH",
    "OHSL",
    "OHWEU",
    "OKH",
    "OSH",
    "PCAITQ",
    "Answer",
    "AsyncClient",
    "AuditEntry",
    "Client",
    "Collection",
    "DoubtfulItem",
    "Hasher",
    "Hit",
    "Hits",
    "ImportProgress",
    "Index",
    "Item",
    "MIHash",
    "NamedHits",
    "NamedIndex",
    "OHSLSym",
    "OSupH",
    "OnlineHasher",
    "RepairReport",
    "Scan",
    "Searcher",
    "StillhashError",
    "Tally",
    "TallyListwise",
    "Tuned",
    "UpgradeReport",
    "Vote",
    "__version__",
    "acting_as",
    "codes",
    "errors",
    "import_export",
    "info",
    "is_export",
    "load",
    "open",
    "repair",
    "upgrade",
]
