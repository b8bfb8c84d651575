"""One paper, one class. METHODS is the only list of them."""

from __future__ import annotations

from stillhash.errors import BadState
from stillhash.hashers.base import Hasher, OnlineHasher, read_state
from stillhash.hashers.bsodh import BSODH
from stillhash.hashers.hmoh import HMOH
from stillhash.hashers.lego import LEGO
from stillhash.hashers.listwise import TallyListwise
from stillhash.hashers.mihash import MIHash
from stillhash.hashers.oasis import OASIS
from stillhash.hashers.ohsl import OHSL, OHSLSym
from stillhash.hashers.ohweu import OHWEU
from stillhash.hashers.okh import OKH
from stillhash.hashers.osh import OSH
from stillhash.hashers.osuph import OSupH
from stillhash.hashers.tally import Tally
from stillhash.hashers.tuned import Tuned
from stillhash.hashers.unsupervised import LSH, PCAITQ

METHODS: dict[str, type[Hasher]] = {
    method.name: method
    for method in (
        Tally,
        TallyListwise,
        Tuned,
        OHSL,
        OHSLSym,
        OHWEU,
        HMOH,
        BSODH,
        MIHash,
        OSupH,
        OKH,
        OSH,
        OASIS,
        LEGO,
        PCAITQ,
        LSH,
    )
}


DEFAULT_HASHER = Tally  # what everything built on the library uses unless told otherwise


def load(state: bytes) -> Hasher:
    """The hasher, of whichever method, that `state()` described."""
    method = read_state(state)[0]["method"]
    if method not in METHODS:
        raise BadState(f"state is of an unknown method {method!r}; known are {', '.join(METHODS)}")
    return METHODS[method].load(state)


__all__ = [
    "BSODH",
    "DEFAULT_HASHER",
    "HMOH",
    "LEGO",
    "LSH",
    "METHODS",
    "OASIS",
    "OHSL",
    "OHWEU",
    "OKH",
    "OSH",
    "PCAITQ",
    "Hasher",
    "MIHash",
    "OHSLSym",
    "OSupH",
    "OnlineHasher",
    "Tally",
    "TallyListwise",
    "Tuned",
    "load",
]
