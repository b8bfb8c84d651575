"""Read a collection: what any process may do while one writes.

An answer is of one commit: its hits, their metadata and the model's version belong together.
"""

from typing import Any

from stillhash.collection.actor import check_actor
from stillhash.collection.learning.doubtful_labels import list_doubtful, wrong_label_share
from stillhash.collection.learning.prequential import load_history
from stillhash.collection.search_reader import SearchReader
from stillhash.collection.storage.audit import MAX_ENTRIES, MAX_NUMBER
from stillhash.collection.storage.lexical import lexical_field
from stillhash.collection.types import (
    AuditEntry,
    DoubtfulItem,
)
from stillhash.collection.vote_listing import VoteReader
from stillhash.errors import report_shortages
from stillhash.numeric.validation import check_integer


@report_shortages
class Reader(VoteReader, SearchReader):  # type: ignore[misc]  # attributes of narrower types, which it sets itself
    """The verbs of a collection that change nothing."""

    def doubtful_labels(self, count: int = 100) -> list[DoubtfulItem]:
        """Return the items whose labels are least plausible, the most doubtful first, at most `count`.

        Labels are judged when they are learnt; none are before enough is learnt, or by methods that predict no labels.
        """
        with self._store.reading() as connection:
            return list_doubtful(self._store, connection, count)

    def audit(self, after: int | None = None, limit: int = 100, *, who: str | None = None) -> list[AuditEntry]:
        """Return the entries of the audit log, the latest last: who changed what, and when; at most `limit`.

        after: the first entries past this number, 0 for the oldest; the last number leads to the next page. Without it,
        the latest entries. who: only the changes of this name. Up to 100,000 are kept.
        """
        check_integer(limit, "limit", 1, MAX_ENTRIES)
        first = None if after is None else check_integer(after, "after", 0, MAX_NUMBER)
        name = None if who is None else check_actor(who, "who")
        with self._store.reading() as connection:
            return self._store.audit.entries(connection, first, limit, name)

    def stats(self) -> dict[str, Any]:
        """Return settings, counts, disk and memory use.

        `quality` is of the last rows before they were learnt, `drift_alarms` are versions; an estimate may be None.
        """
        with self._view.pinned() as snapshot:
            history = load_history(snapshot.connection)
            return {
                **self._store.settings,
                "lexical_field": lexical_field(snapshot.connection),
                "fitted": snapshot.functions is not None,
                "version": snapshot.version,
                **self._store.counts(snapshot.connection),
                "index_bytes": snapshot.index.nbytes,
                "plan": snapshot.index.plan,
                "filter_columns": self._view.filter_columns.stats(),
                "quality": history["quality"],
                "drift_alarms": history["alarms"],
                "wrong_label_share": wrong_label_share(self._store, snapshot.connection),
            }
