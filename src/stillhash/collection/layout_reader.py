"""Lay out items in two dimensions."""

from stillhash.collection.layout import MAX_LAYOUT_ITEMS, ItemLayout, LayoutSide, lay_out
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.suggestion_reader import MAX_SEED, SuggestionReader
from stillhash.errors import report_shortages
from stillhash.numeric.validation import check_choice, check_integer


@report_shortages
class LayoutReader(SuggestionReader):
    """The verb that makes a map."""

    def layout(self, items: int = 20_000, *, by: LayoutSide = "features", seed: int = 0) -> ItemLayout:
        """Return where items are on a map of two dimensions, and the main label of each.

        items: so many at most, drawn at random by the seed; the same ones every time, but for those that are added or
        deleted. by: "features", as far as codes tell them, so that items that look alike are near each other; or
        "labels", those that are predicted, so that items about the same are. Both are principal components. The main
        label is the one of an item's own labels that is predicted best, or the best of all for an item without labels.
        """
        check_integer(items, "items", 1, MAX_LAYOUT_ITEMS)
        check_choice(by, "by", choices=("features", "labels"))
        check_integer(seed, "seed", 0, MAX_SEED)
        with self._view.pinned() as snapshot:
            names, count = self._names_of_labels(snapshot), int(get_meta(snapshot.connection, "items"))
            return lay_out(self._store, snapshot, names, items, by, seed, count)
