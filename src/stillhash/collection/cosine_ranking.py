"""Rank items that wait for hash functions, by the cosine of their features."""

from sqlite3 import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.store import Store
from stillhash.numeric.alignment import unit_rows
from stillhash.numeric.validation import Floats


def rank_by_cosine(
    store: Store, connection: Connection, Q: Floats, k: int, allowed: NDArray[np.uint8] | None
) -> tuple[list[tuple[NDArray[Any], ...]], str]:
    """Return scores, rows and places for each query, ties by row; and what ranks them."""
    rows, (X, _, _) = store.items.awaiting_codes(connection)
    if allowed is not None:
        matches = np.unpackbits(allowed, bitorder="little")[rows].astype(bool)
        rows, X = rows[matches], X[matches]
    scores: NDArray[np.float32] = unit_rows(Q) @ unit_rows(X).T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    ranking = f"cosine of raw features: hash functions are fitted at {store.settings['init_rows']} rows"
    return [(some[at], rows[at], np.zeros(len(at), np.uint8)) for some, at in zip(scores, order, strict=True)], ranking
