"""Find the items that exactly repeat a query, whatever their codes hold."""

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.read_view import Snapshot
from stillhash.collection.storage.features import round_to_half
from stillhash.collection.storage.store import Store
from stillhash.numeric.feature_digests import feature_digests
from stillhash.numeric.validation import Floats
from stillhash.search.blocks import NO_IDS, IdArray, is_set


def repeated_rows(store: Store, snapshot: Snapshot, Q: Floats, allowed: NDArray[np.uint8] | None) -> list[IdArray]:
    """Return for each query the rows that were stored with exactly its features, ascending."""
    if not snapshot.stored_features:
        return [NO_IDS] * len(Q)
    if store.features is not None:
        Q = round_to_half(Q)  # a query that float16 cannot hold repeats no item
    repeats = []
    for digest in feature_digests(Q).tolist():
        rows = snapshot.stored_features.rows(digest)
        numbers = np.array(store.items.existing(snapshot.connection, rows), np.int64)
        repeats.append(numbers if allowed is None else numbers[is_set(allowed, numbers)])
    return repeats
