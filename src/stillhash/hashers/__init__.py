"""One paper, one class. METHODS is the only list of them."""

from __future__ import annotations

from stillhash.errors import BadState
from stillhash.hashers.base import Hasher, OnlineHasher, read_state
from stillhash.hashers.fixed import LSH, PCAITQ
from stillhash.hashers.ohsl import OHSL, OHSLSym

METHODS: dict[str, type[Hasher]] = {method.name: method for method in (OHSL, OHSLSym, PCAITQ, LSH)}


def load(state: bytes) -> Hasher:
    """The hasher, of whichever method, that `state()` described."""
    method = read_state(state)[0]["method"]
    if method not in METHODS:
        raise BadState(f"state is of an unknown method {method!r}; known are {', '.join(METHODS)}")
    return METHODS[method].load(state)


__all__ = ["LSH", "METHODS", "OHSL", "PCAITQ", "Hasher", "OHSLSym", "OnlineHasher", "load"]
