"""Change the items of a collection: add, replace, update, relabel and delete them, each call in one transaction."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from sqlite3 import Connection
from typing import Any

import numpy as np

from stillhash.collection.filters.language import Condition
from stillhash.collection.input_rows import learn_codes
from stillhash.collection.learning.trainer import Trainer
from stillhash.collection.storage.audit import Change
from stillhash.collection.storage.bitmaps import list_rows
from stillhash.collection.storage.item_changes import change_metadata, list_row_ids, set_metadata
from stillhash.collection.storage.row_arrays import round_features
from stillhash.collection.storage.schema import get_meta, is_fitted
from stillhash.collection.storage.store import Store
from stillhash.collection.suggestion_reader import SuggestionReader
from stillhash.collection.types import Id, ItemIds
from stillhash.collection.validation import (
    ItemFilter,
    ItemRows,
    LabelledRows,
    check_ids,
    check_labels,
    check_metadata,
    check_metadata_changes,
    check_rows,
    check_selection,
    check_shared_labels,
)
from stillhash.errors import InvalidInput, StillhashError, report_shortages
from stillhash.numeric.feature_digests import feature_digests
from stillhash.search import Index

MAX_SELECTED = 16_384  # items that meet a condition, changed at a time
MAX_RELABELLED, MAX_RELABELLED_BYTES = 1 << 18, 1 << 28  # items, and their features, that are learnt at a time


@report_shortages
class ItemWriter(SuggestionReader):
    """The verbs that change items."""

    def __init__(self, store: Store, searcher: Callable[[int], Any] = Index) -> None:
        self._write_lock = threading.RLock()  # one thread writes at a time
        self._compaction_lock = threading.RLock()  # one thread replaces segments at a time; taken before the other
        super().__init__(store, searcher)

    def _use(self, store: Store) -> None:
        super()._use(store)
        self._trainer = Trainer(store)

    def close(self) -> None:
        """Close the store and release the write lock."""
        with self._write_lock:
            super().close()

    def add(
        self,
        ids: ItemIds,
        features: Any,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """Add items and return how many. When it returns they are on disk.

        ids: strings or integers that do not exist yet. labels: as for `partial_fit`; strings and numbers. metadata: a
        dictionary, or None, for each. features: packed codes, or hexadecimal texts, where the collection has
        `codes_only`. pictures: the bytes of a small image (PNG, JPEG, WebP, GIF), or None, for each.
        Labelled items are learnt from, once there are `learn_rows` of them, unless `learn` is false.
        """
        return self._add(*self._input.items(ids, features, labels, metadata, pictures), learn, replace=False)

    def upsert(
        self,
        ids: ItemIds,
        features: Any = None,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """Add items, replacing those whose ids exist; otherwise as `add`.

        Without features, replace the labels, the metadata, or both, of items that all exist, and nothing else of them.
        """
        if features is None:
            return self._change_items(ids, labels, metadata, pictures, learn)
        return self._add(*self._input.items(ids, features, labels, metadata, pictures), learn, replace=True)

    def _change_items(self, ids: ItemIds, labels: Any, metadata: Any, pictures: Any, learn: bool) -> int:
        """Replace labels and metadata of items."""
        if pictures is not None or (labels is None and metadata is None):
            raise InvalidInput("features: expected features, or only labels or metadata to replace, got None")
        names = check_ids(ids)
        texts = None if metadata is None else check_metadata(metadata, len(names))
        with self._learning("upsert", len(names) or None, names) as change:
            existing = self._store.items.rows_of(change.connection, names)
            if absent := [name for name in names if name not in existing]:
                raise InvalidInput(f"ids: {len(absent)} do not exist: {absent[0]!r}. Pass features to add them.")
            if labels is not None:
                self._relabel(change.connection, names, labels, learn)
            if texts is not None:
                set_metadata(change.connection, [existing[name] for name in names], texts)
            if labels is not None and learn:
                self._trainer.fit_early(change.connection)
        return len(names)

    def _add(self, new: ItemRows, rows: LabelledRows, learn: bool, *, replace: bool) -> int:
        if not new.ids:
            return 0
        items = self._store.items
        if self._store.features is not None:
            rows = rows._replace(features=round_features(rows.features))
        with self._write_lock:
            with self._store.change("upsert" if replace else "add", len(new.ids), new.ids) as change:
                connection = change.connection
                if replace:
                    self._delete(connection, new.ids)
                codes = self._trainer.encode(connection, rows) if new.codes is None else new.codes
                waiting = get_meta(connection, "items") if codes is None else 0
                fits = codes is None and waiting + len(new.ids) >= self._store.settings["init_rows"]
                if fits:
                    codes = self._trainer.fit(connection, new=rows)
                if codes is None:
                    numbers = items.append(connection, new, features=rows.features)
                else:
                    digests = feature_digests(rows.features) if new.codes is None else None
                    numbers = items.append(connection, new, codes, digests=digests)
                    if self._store.features is not None:
                        self._store.features.add(connection, np.asarray(numbers), rows.features)
                    if self._store.rescoring is not None:
                        rescoring_codes = self._trainer.rescoring_codes(connection, rows, codes)
                        self._store.rescoring.add(connection, np.asarray(numbers), rescoring_codes)
                        if self._store.summed_rows is not None:  # which are sums over these
                            rows = rows._replace(features=rescoring_codes)
                if learn and new.codes is not None:
                    learn_codes(self._trainer, connection, numbers, rows, new.codes)
                elif learn:
                    self._trainer.learn_items(connection, numbers, rows, codes)
                if fits:
                    self._trainer.flush(connection)
            if fits and waiting:
                self._drop_features()
            if numbers.stop // self._store.seal_rows > numbers.start // self._store.seal_rows:
                with suppress(StillhashError, OSError, MemoryError):  # the rows are on disk; sealed later
                    self._store.seal()
        return len(new.ids)

    @contextmanager
    def _learning(self, what: str, rows: int | None, ids: Sequence[Id] = ()) -> Iterator[Change]:
        """Write in one transaction, as `Store.change`, in which the hash functions may be fitted."""
        with self._write_lock:
            with self._store.change(what, rows, ids) as change:
                waited = not is_fitted(change.connection)
                yield change
                fits = waited and is_fitted(change.connection)
            if fits:
                self._drop_features()

    def _drop_features(self) -> None:
        """Give back to the disk what features took that were stored before there were hash functions."""
        with suppress(StillhashError, OSError, MemoryError):  # it only takes less disk
            self._store.db.shrink()

    def delete(self, ids: ItemIds | None = None, *, where: ItemFilter | None = None) -> int:
        """Delete these items, or those that meet a condition, and return how many there were.

        where: a condition (filters.py), or "all" for every item; an empty condition is refused.
        """
        selection = check_selection(ids, where)
        with self._write_lock, self._store.change("delete", None) as change:
            for names in self._select(change.connection, selection):
                change.count(self._delete(change.connection, names))
            return change.rows or 0

    def _delete(self, connection: Connection, names: list[Id]) -> list[Id]:
        """Delete items inside a transaction, and let the next step of learning take out what they gave."""
        items, summed = self._store.items, self._store.summed_rows
        if summed is not None:
            rows = sorted(items.rows_of(connection, names).values())
            self._trainer.take_out(connection, rows)
            self._trainer.count_unlabelled(connection, -items.count_unlabelled(connection, rows))
            summed.drop(connection, rows)
        return items.delete(connection, names)

    def update_metadata(
        self,
        ids: ItemIds | None = None,
        metadata: Any = None,
        *,
        where: ItemFilter | None = None,
        replace: bool = False,
    ) -> int:
        """Merge fields into the metadata of these items, or of those that meet a condition; return how many.

        metadata: a dictionary for all of them, or with ids a list with one for each. A field with None is removed. An
        object in a field replaces the one before, and is not merged with it. replace: replace all fields, not only
        these; None then removes the metadata. where: as in `delete`. Ids that do not exist are refused.
        """
        selection = check_selection(ids, where)
        rows = len(selection) if isinstance(selection, list) else None
        changes, items = check_metadata_changes(metadata, rows, replace), self._store.items
        with self._write_lock, self._store.change("update_metadata", None) as change:
            for names in self._select(change.connection, selection):
                numbers = items.existing_rows(change.connection, names).tolist()
                change_metadata(change.connection, numbers, changes if rows is not None else changes * len(names))
                change.count(names)
            return change.rows or 0

    def relabel(
        self,
        ids: ItemIds | None = None,
        labels: Any = None,
        *,
        where: ItemFilter | None = None,
        learn: bool = True,
    ) -> int:
        """Replace the labels of items, learn from them unless `learn` is false, and return how many.

        where: in place of ids, as in `delete`; then `labels` is one list, for all that match. Items are learnt by their
        rescoring codes, and what was learnt from their earlier labels is taken out, by the default method; others learn
        from what `reconstruct` returns, and what they learnt before stays.
        """
        selection = check_selection(ids, where)
        shared = None if isinstance(selection, list) else check_shared_labels(labels)
        at_once = max(1, min(MAX_RELABELLED, MAX_RELABELLED_BYTES // (4 * self.dim)))
        with self._learning("relabel", None) as change:
            for names in self._select(change.connection, selection, at_once):
                self._relabel(change.connection, names, labels if shared is None else shared * len(names), learn)
                change.count(names)
            if learn and change.rows:
                self._trainer.fit_early(change.connection)
            return change.rows or 0

    def _relabel(self, connection: Connection, names: list[Id], labels: Any, learn: bool) -> None:
        """Replace the labels of items, and learn from them, inside a transaction."""
        items = self._store.items
        numbers = items.existing_rows(connection, names).tolist()
        if self._store.summed_rows is not None and is_fitted(connection):
            self._relabel_summed(connection, numbers, labels, learn)
            return
        features, exact = self._features(names)
        rows, codes = check_rows(features, labels, self.dim), self.codes(names)
        without = items.relabel(connection, numbers, rows.label_texts)
        if learn:
            self._trainer.count_unlabelled(connection, -without)
            rows, own_features = items.remove_pending(connection, numbers, rows)
            own_features |= exact
            self._trainer.learn_items(connection, numbers, rows, codes, own_features)

    def _relabel_summed(self, connection: Connection, numbers: list[int], labels: Any, learn: bool) -> None:
        """Replace the labels of rows, and what they give to the sums."""
        items, rescoring = self._store.items, self._store.rescoring
        assert rescoring is not None
        parsed, texts = check_labels(labels, len(numbers))
        if learn:
            self._trainer.take_out(connection, numbers)
        without = items.relabel(connection, numbers, texts)
        if not learn:
            return
        self._trainer.count_unlabelled(connection, -without)
        rows = np.array(numbers, np.int64)
        rescoring_codes, known = rescoring.read(connection, rows)
        codes, coded = self._store.codes.codes_of(connection, rows)
        known &= coded
        stored = LabelledRows(rescoring_codes, parsed, texts).select(known)
        self._trainer.learn_items(connection, rows[known].tolist(), stored, codes[known])

    def _select(
        self, connection: Connection, selection: list[Id] | Condition, at_once: int = MAX_SELECTED
    ) -> Iterator[list[Id]]:
        """Yield the ids of a selection: all that were passed, or those that meet a condition, some at a time.

        The condition is compared at the last commit, before anything changes in this transaction.
        """
        if isinstance(selection, list):
            yield selection
            return
        with self._view.pinned(selection) as snapshot:
            allowed = snapshot.allowed
        assert allowed is not None
        for rows in list_rows(allowed, at_once):
            yield list_row_ids(connection, rows.tolist())
