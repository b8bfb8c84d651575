"""Huge pages: memory that is read faster, since the processor finds its addresses in fewer steps."""

from stillhash.numeric.extension import native
from stillhash.numeric.reference import Array

HUGE_PAGE = 2 << 20  # bytes, on the processors that matter; fewer cannot be in one


def advise_huge_pages(tiles: Array) -> bool:
    """Ask the system to hold these tiles in huge pages, and return whether it takes the request. Never fails."""
    return native is not None and tiles.nbytes >= HUGE_PAGE and bool(native.advise_huge_pages(tiles))
