"""Count the labels and values of a collection's items, and suggest them, each as of one commit."""

from stillhash.collection.filters.columns import FilterColumns, MovedOn
from stillhash.collection.filters.facets import FacetCache, Facets, build_facets, count_values
from stillhash.collection.filters.language import Condition
from stillhash.collection.filters.suggestions import KnownValues, Suggestion, known_values, suggest
from stillhash.collection.storage.lexical import lexical_field
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.store import Store


class ValueCounts:
    """Counts by the columns of filters; what was counted of the latest commit is kept."""

    def __init__(self, store: Store, columns: FilterColumns) -> None:
        self.store, self.columns = store, columns
        self._facets = FacetCache()
        self._known = KnownValues(-1, [], {})

    def facets(self, condition: Condition | None, fields: tuple[str, ...] | None, limit: int) -> Facets:
        """Return how many items have each label, and each value of fields, of those that meet a condition."""
        key = None if condition is None else condition.key, fields, limit
        while True:
            with self.store.reading() as connection:
                seq = int(get_meta(connection, "seq"))
                facets = self._facets.get(seq, key)
                try:
                    if facets is None:
                        facets = build_facets(
                            connection, *count_values(connection, self.columns, condition, fields), limit
                        )
                except MovedOn:  # another filter has seen a later commit
                    continue
                self._facets.put(seq, key, facets)
                return facets

    def suggest(self, text: str, limit: int) -> list[Suggestion]:
        """Return labels, values and ids for what somebody types."""
        while True:
            with self.store.reading() as connection:
                seq, known = int(get_meta(connection, "seq")), self._known
                try:
                    if known.seq != seq:
                        _, counts = count_values(connection, self.columns, None, None)
                        counts.pop(lexical_field(connection) or "", None)  # its words are searched, not its values
                        known = self._known = known_values(seq, counts)
                except MovedOn:  # another filter has seen a later commit
                    continue
                return suggest(connection, known, text, limit)
