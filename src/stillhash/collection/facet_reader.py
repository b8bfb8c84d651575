"""Count what the items of a collection have: labels, and values of fields of the metadata."""

from collections.abc import Iterable

from stillhash.collection.facet_counts import MAX_FACET_VALUES
from stillhash.collection.facets import FacetCache, Facets, check_fields, count_facets
from stillhash.collection.filter_columns import MovedOn
from stillhash.collection.filters import compile_filter
from stillhash.collection.item_reader import ItemReader
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Filter
from stillhash.errors import report_shortages
from stillhash.numeric.validation import check_integer


@report_shortages
class FacetReader(ItemReader):
    """The verbs that count labels and values."""

    def _use(self, store: Store) -> None:
        super()._use(store)
        self._facet_cache = FacetCache()

    def facets(self, where: Filter | None = None, *, fields: Iterable[str] | None = None, limit: int = 20) -> Facets:
        """Return how many items have each label, and each value of fields of the metadata, with an item for each.

        where: only items that meet this condition (filters.py). fields: these; None for all that filters answer from
        memory, of which there are up to 64. limit: values of each, the most frequent first; equally frequent ones in
        order. Counts are exact. Of a field that only has numbers, more than `limit` of them, only the least and the
        largest number come back; of a field with more than 4,096 values, or of more than 32,768 labels, none. Lists and
        objects have no values.
        """
        condition = None if where is None else compile_filter(where)
        names = check_fields(fields)
        check_integer(limit, "limit", 1, MAX_FACET_VALUES)
        key = None if condition is None else condition.key, names, limit
        while True:
            with self._store.reading() as connection:
                seq = int(get_meta(connection, "seq"))
                facets = self._facet_cache.get(seq, key)
                try:
                    if facets is None:
                        facets = count_facets(connection, self._view.filter_columns, condition, names, limit)
                except MovedOn:  # another filter has seen a later commit
                    continue
                self._facet_cache.put(seq, key, facets)
                return facets
