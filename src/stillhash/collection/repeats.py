"""Find the items that exactly repeat a query, whatever their codes hold."""

from collections.abc import Sequence

from stillhash.collection.search_view import ModelStore, SearchSnapshot
from stillhash.collection.storage.row_arrays import round_to_half
from stillhash.numeric.feature_digests import feature_digests
from stillhash.numeric.validation import Floats
from stillhash.search.blocks import IdArray


def repeated_rows(store: ModelStore, snapshot: SearchSnapshot, Q: Floats) -> Sequence[IdArray]:
    """Return for each query the allowed rows that were stored with exactly its features, ascending."""
    if store.settings.get("keep_features", False):
        Q = round_to_half(Q)  # a query that float16 cannot hold repeats no item
    return snapshot.repeats(feature_digests(Q).tolist())
