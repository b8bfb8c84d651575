"""Count the labels and values that items have, and suggest them for what somebody types."""

from collections.abc import Iterable

from stillhash.collection.filters.columns import MovedOn
from stillhash.collection.filters.facet_counts import MAX_COUNTED_LABELS
from stillhash.collection.filters.facets import FacetCache, Facets, build_facets, check_fields, count_values
from stillhash.collection.filters.language import compile_filter
from stillhash.collection.filters.suggestions import (
    MAX_SUGGESTED,
    KnownValues,
    Suggestion,
    check_typed,
    known_values,
    suggest,
)
from stillhash.collection.item_reader import ItemReader
from stillhash.collection.storage.lexical import lexical_field
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Filter
from stillhash.errors import report_shortages
from stillhash.numeric.validation import check_integer


@report_shortages
class FacetReader(ItemReader):
    """The verbs that count and suggest labels and values."""

    def _use(self, store: Store) -> None:
        super()._use(store)
        self._facet_cache = FacetCache()
        self._known = KnownValues(-1, [], {})

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
        check_integer(limit, "limit", 1, MAX_COUNTED_LABELS)
        key = None if condition is None else condition.key, names, limit
        while True:
            with self._store.reading() as connection:
                seq = int(get_meta(connection, "seq"))
                facets = self._facet_cache.get(seq, key)
                try:
                    if facets is None:
                        counted = count_values(connection, self._view.filter_columns, condition, names)
                        facets = build_facets(connection, *counted, limit)
                except MovedOn:  # another filter has seen a later commit
                    continue
                self._facet_cache.put(seq, key, facets)
                return facets

    def suggest(self, text: str, limit: int = 10) -> list[Suggestion]:
        """Return labels, values of fields and ids for what somebody types, at most `limit`.

        First what is the same, then what begins so, then what has a word that begins so; frequent ones first. Case does
        not count; ids begin as typed, in lower or in upper case. Values are those of `facets`, up to 80 characters,
        without those of the `lexical_field`. Where nothing begins so, labels and ids that are nearly the same come
        back, as `near`.
        """
        typed = check_typed(text)
        check_integer(limit, "limit", 1, MAX_SUGGESTED)
        while True:
            with self._store.reading() as connection:
                seq, known = int(get_meta(connection, "seq")), self._known
                try:
                    if known.seq != seq:
                        _, counts = count_values(connection, self._view.filter_columns, None, None)
                        counts.pop(lexical_field(connection) or "", None)  # its words are searched, not its values
                        known = self._known = known_values(seq, counts)
                except MovedOn:  # another filter has seen a later commit
                    continue
                return suggest(connection, known, typed, limit)
