"""Rank items that wait for hash functions, by the cosine of their features; votes on the very query count already."""

from sqlite3 import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.store import Store
from stillhash.collection.storage.votes import VotedRows
from stillhash.numeric.alignment import unit_rows
from stillhash.numeric.validation import Floats
from stillhash.search.blocks import IdArray
from stillhash.search.first_page import PLACED

LIKED, DISLIKED = PLACED.index("liked"), PLACED.index("disliked")


def rank_by_cosine(
    store: Store, connection: Connection, Q: Floats, k: int, allowed: NDArray[np.uint8] | None, voted: VotedRows
) -> tuple[list[tuple[NDArray[Any], ...]], str]:
    """Return scores, rows and places for each query, ties by row; and what ranks them."""
    rows, (X, _, _) = store.items.awaiting_codes(connection)
    if allowed is not None:
        matches = np.unpackbits(allowed, bitorder="little")[rows].astype(bool)
        rows, X = rows[matches], X[matches]
    scores: NDArray[np.float32] = unit_rows(Q) @ unit_rows(X).T
    scored: list[tuple[NDArray[Any], ...]] = []
    for some, liked, disliked in zip(scores, voted.liked, voted.disliked, strict=True):
        ends, placed = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint8)
        _move(ends, placed, rows, liked, np.arange(-len(liked), 0), LIKED)
        _move(ends, placed, rows, disliked, np.arange(1, len(disliked) + 1), DISLIKED)
        order = np.lexsort((-some, ends))[:k]
        scored.append((some[order], rows[order], placed[order]))
    return scored, f"cosine of raw features: hash functions are fitted at {store.settings['init_rows']} rows"


def _move(ends: IdArray, placed: NDArray[np.uint8], rows: IdArray, voted: IdArray, to: IdArray, place: int) -> None:
    """Move the rows that were voted on before or behind all others, which are at 0."""
    at = np.searchsorted(rows, voted)
    ends[at], placed[at] = to, place
