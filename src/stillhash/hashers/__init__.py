"""One paper, one class. METHODS is the only list of them."""

from stillhash.errors import BadState, InvalidInput
from stillhash.hashers.base import Hasher, LabelSpace, Model
from stillhash.hashers.bsodh import BSODH
from stillhash.hashers.hmoh import HMOH
from stillhash.hashers.lego import LEGO
from stillhash.hashers.lemon import LEMON
from stillhash.hashers.linear import LSH, PCAITQ, LinearHasher
from stillhash.hashers.mihash import MIHash
from stillhash.hashers.oasis import OASIS
from stillhash.hashers.oesh import OESH
from stillhash.hashers.ohsl import OHSL, OHSLSym
from stillhash.hashers.ohweu import OHWEU
from stillhash.hashers.okh import OKH
from stillhash.hashers.osh import OSH
from stillhash.hashers.osuph import OSupH
from stillhash.hashers.state import State, read_state, state_bytes
from stillhash.hashers.tally import Tally

METHODS: dict[str, type[Hasher]] = {
    method.name: method
    for method in (
        *(Tally, OHSL, OHSLSym),  # fixed codes, learnt similarity
        *(OHWEU, HMOH, BSODH, MIHash, OSupH, OKH, OSH),  # learnt codes
        *(LEMON, OESH),  # codes of labels that stay, learnt hash functions for queries
        *(OASIS, LEGO),  # fixed codes, learnt square similarity
        *(PCAITQ, LSH),  # fixed codes, Hamming ranking
    )
}

FIXED_CODE_METHODS = tuple(name for name, method in METHODS.items() if method.fixed_codes)
DEFAULT_HASHER = Tally  # the default of everything built on the library


def load(state: State) -> Hasher:
    """Return the hasher, of any method: of the bytes of `state()`, or of the file at the path that `save` wrote."""
    data = state_bytes(state)
    method = read_state(data)[0]["method"]
    if not isinstance(method, str) or method not in METHODS:
        raise BadState(f"state: expected one of the methods {', '.join(METHODS)}, got {method!r}")
    return METHODS[method].load(data)


def check_fixed_codes(method: object, argument: str = "method") -> str:
    """Return the name of a method whose codes never change, or refuse it."""
    if not isinstance(method, str) or method not in FIXED_CODE_METHODS:
        expected = f"a method with fixed codes ({', '.join(FIXED_CODE_METHODS)})"
        raise InvalidInput(f"{argument}: expected {expected}, got {method!r}")
    return method


__all__ = [
    "BSODH",
    "DEFAULT_HASHER",
    "FIXED_CODE_METHODS",
    "HMOH",
    "LEGO",
    "LEMON",
    "LSH",
    "METHODS",
    "OASIS",
    "OESH",
    "OHSL",
    "OHWEU",
    "OKH",
    "OSH",
    "PCAITQ",
    "Hasher",
    "LabelSpace",
    "LinearHasher",
    "MIHash",
    "Model",
    "OHSLSym",
    "OSupH",
    "Tally",
    "check_fixed_codes",
    "load",
]
