"""Vector search: fixed binary codes, learned similarity.

>>> from stillhash import Scan, Tally
>>> hasher = Tally(bits=64).fit(first_rows, labels)    # fixes the hash functions
>>> index = Scan(bits=64)
>>> index.add(hasher.encode(rows))                     # codes that never change
>>> hasher.partial_fit(rows, labels)                   # the similarity learns
>>> scores, ids = index.search(hasher.weigh(queries), k=10)
"""

from importlib import import_module

from stillhash.version import __version__

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all else here
if TYPE_CHECKING:  # type checkers and editors see plain imports, so that they notice names that do not exist
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
        LabelSuggestion,
        RepairReport,
        Vote,
        VoteEntry,
        acting_as,
        open,
        repair,
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
        OSupH,
        Tally,
        load,
    )
    from stillhash.numeric.extension import info
    from stillhash.search import MIWQ, GpuScan, Hits, Index, NamedHits, NamedIndex, Scan, Searcher, index_for

# Where each name is from. They are imported on first use: most programs need few of them, the command line often none.
_NAMES = {
    "client": "AsyncClient Client",
    "collection": "Answer AuditEntry Collection DoubtfulItem Hit ImportProgress Item LabelSuggestion "
    "RepairReport Vote VoteEntry acting_as open repair",
    "errors": "StillhashError",
    "hashers": "BSODH DEFAULT_HASHER HMOH LEGO LEMON LSH METHODS OASIS OESH OHSL OHWEU OKH OSH PCAITQ Hasher MIHash "
    "OHSLSym OSupH Tally load",
    "numeric.extension": "info",
    "search": "MIWQ GpuScan Hits Index NamedHits NamedIndex Scan Searcher index_for",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        value = getattr(import_module(f"stillhash.{_MODULE_OF[name]}"), name)
    elif name in ("codes", "errors"):
        return import_module(f"stillhash.{name}")  # which sets the attribute
    else:
        raise AttributeError(f"module 'stillhash' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
    "GpuScan",
    "Hasher",
    "Hit",
    "Hits",
    "ImportProgress",
    "Index",
    "Item",
    "LabelSuggestion",
    "MIHash",
    "NamedHits",
    "NamedIndex",
    "OHSLSym",
    "OSupH",
    "RepairReport",
    "Scan",
    "Searcher",
    "StillhashError",
    "Tally",
    "Vote",
    "VoteEntry",
    "__version__",
    "acting_as",
    "codes",
    "errors",
    "index_for",
    "info",
    "load",
    "open",
    "repair",
]
