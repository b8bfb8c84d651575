"""Vector search: fixed binary codes, learned similarity.

>>> from stillhash import Scan, Tally
>>> hasher = Tally(bits=64).fit(first_rows, labels)    # fixes the hash functions
>>> index = Scan(bits=64)
>>> index.add(hasher.encode(rows))                     # codes that never change
>>> hasher.partial_fit(rows, labels)                   # the similarity learns
>>> scores, ids = index.search(hasher.weigh(queries), k=10)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # type checkers see plain imports, so that they notice names that do not exist
    from stillhash import codes, errors
    from stillhash.client import AsyncClient, Client
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
    from stillhash.search import MIWQ, Hits, Index, NamedHits, NamedIndex, Scan, Searcher

    __version__: str
else:
    SUBMODULES = ("codes", "collection", "errors", "files", "hashers", "io", "numeric", "search")
    LAZY_NAMES = {  # each is imported on first use: `stillhash --version` needs none of them
        "client": "AsyncClient Client",
        "collection": "Answer AuditEntry Collection DoubtfulItem Hit ImportProgress Item RepairReport UpgradeReport "
        "Vote acting_as import_export is_export open repair upgrade",
        "errors": "StillhashError",
        "hashers": "BSODH DEFAULT_HASHER HMOH LEGO LEMON LSH METHODS OASIS OESH OHSL OHWEU OKH OSH PCAITQ Hasher "
        "MIHash OHSLSym OnlineHasher OSupH Tally TallyListwise Tuned load",
        "search": "MIWQ Hits Index NamedHits NamedIndex Scan Searcher",
    }
    HOMES = {name: module for module, names in LAZY_NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        """Import a public name on first use."""
        if name == "__version__":
            from importlib.metadata import version

            value: object = version("stillhash")
        elif name in HOMES:
            value = getattr(import_module(f"stillhash.{HOMES[name]}"), name)
        elif name in SUBMODULES:
            value = import_module(f"stillhash.{name}")
        else:
            raise AttributeError(f"module 'stillhash' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *HOMES, *SUBMODULES, "__version__"})


def info() -> dict[str, Any]:
    """Return versions, the kernels in use, the kernels available and the cores."""
    import numpy as np

    import stillhash
    from stillhash.numeric import kernels
    from stillhash.numeric.threads import usable_cores

    return {
        "stillhash": stillhash.__version__,
        "numpy": np.__version__,
        "kernels": "native" if kernels.lanes() != "numpy" else "numpy reference",
        "lanes": kernels.lanes(),
        "available": list(kernels.available()),
        "extension": kernels.missing or "loaded",
        "cores": usable_cores(),
    }


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
