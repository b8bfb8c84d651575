"""Suggest which items to label next, and how."""

import numpy as np

from stillhash.collection.learning.label_names import LabelNames, stored_label_names
from stillhash.collection.learning.label_suggestions import (
    LABELLED_ROWS,
    MAX_SUGGESTIONS,
    WITH_LABELS,
    WITHOUT_LABELS,
    SuggestionSource,
    choose_items,
    draw_rows,
)
from stillhash.collection.lexical_reader import LexicalReader
from stillhash.collection.read_view import Snapshot
from stillhash.collection.types import ItemIds, LabelSuggestion
from stillhash.collection.validation import check_ids
from stillhash.errors import report_shortages
from stillhash.numeric.validation import check_integer

MAX_SEED = 2**63 - 1


@report_shortages
class SuggestionReader(LexicalReader):
    """The verb that suggests labels."""

    _label_names: tuple[int, LabelNames] = 0, ()  # of a version

    def suggest_labels(self, count: int = 20, *, skip: ItemIds = (), seed: int | None = None) -> list[LabelSuggestion]:
        """Return unlabelled items whose labels would teach most, the most useful first, with labels predicted of them.

        count: items, at most. skip: ids of items that are not suggested, and whose like are not suggested soon. seed:
        of what is drawn at random, where there are thousands of items. Pass what a person decides to `relabel`.
        """
        check_integer(count, "count", 1, MAX_SUGGESTIONS)
        names = check_ids(skip, distinct=False)
        rng = np.random.default_rng(None if seed is None else check_integer(seed, "seed", 0, MAX_SEED))
        with self._view.pinned(WITH_LABELS) as snapshot:
            assert snapshot.allowed is not None
            labelled = draw_rows(snapshot.allowed, LABELLED_ROWS, rng)
        with self._view.pinned(WITHOUT_LABELS) as snapshot:
            items, connection = self._store.items, snapshot.connection
            skipped = np.array(list(items.rows_of(connection, names).values()), np.int64)
            existing = np.array(items.existing(connection, labelled.tolist()), np.int64)
            source = SuggestionSource(self._store, snapshot, self._names_of_labels(snapshot))
            return choose_items(source, np.setdiff1d(existing, skipped), skipped, count, rng)

    def _names_of_labels(self, snapshot: Snapshot) -> LabelNames:
        """Return the labels that the model of a commit predicts."""
        if snapshot.model.V is None:
            return ()
        if snapshot.model.label_names is not None:
            return tuple(snapshot.model.label_names)
        version, names = self._label_names
        if version != snapshot.version:
            names = stored_label_names(self._store, snapshot)
            self._label_names = snapshot.version, names
        return names
