"""Change what is stored: add, replace, relabel and delete items, vote on them; each call in one transaction.

What changes of an item is learnt in the same transaction (learning/trainer.py), so a commit has both or neither.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import compress
from sqlite3 import Connection
from typing import Any

import numpy as np

from stillhash.collection.filters.language import Condition
from stillhash.collection.learning.trainer import Trainer
from stillhash.collection.learning.votes import stored_votes
from stillhash.collection.read_view import ReadView
from stillhash.collection.storage.audit import Change
from stillhash.collection.storage.bitmaps import list_rows
from stillhash.collection.storage.items import change_metadata, list_row_ids, set_metadata
from stillhash.collection.storage.row_arrays import add_built, new_rescore_bits, round_features
from stillhash.collection.storage.schema import get_meta, is_fitted
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Id, LabelsOfItems, Vote
from stillhash.collection.validation import (
    ItemRows,
    LabelledRows,
    MetadataChange,
    check_label_lists,
    check_labels,
    check_rows,
)
from stillhash.errors import InvalidInput, StillhashError
from stillhash.numeric.codes import feature_digests
from stillhash.numeric.rescoring import Rescorer

MAX_SELECTED = 16_384  # items that meet a condition are changed at a time
MAX_RELABELLED, MAX_RELABELLED_BYTES = 1 << 18, 1 << 28  # bound the items, and their features, learnt at a time


class Writer:
    """Changes a collection, one change at a time. All arguments are validated."""

    def __init__(self, store: Store, view: ReadView, trainer: Trainer) -> None:
        self.store, self.view, self.trainer = store, view, trainer
        self.lock = threading.RLock()  # one thread writes at a time
        self.compaction_lock = threading.RLock()  # one thread replaces segments at a time; taken before the other

    @contextmanager
    def change(self, what: str, rows: int | None = None, ids: Sequence[Id] = ()) -> Iterator[Change]:
        """Write in one transaction, as `Store.change`; the hash functions may be fitted in it."""
        with self.lock:
            with self.store.change(what, rows, ids) as change:
                waited = not is_fitted(change.connection) and bool(get_meta(change.connection, "items"))
                yield change
                fits = waited and is_fitted(change.connection)
            if fits:  # give back to the disk what features took that were stored before there were hash functions
                with suppress(StillhashError, OSError, MemoryError):
                    self.store.db.shrink()

    def add(self, new: ItemRows, rows: LabelledRows, learn: bool, *, replace: bool) -> int:
        """Add items, in place of those with the same ids if `replace`, and learn from the labelled ones."""
        if not new.ids:
            return 0
        if self.store.features is not None:
            rows = rows._replace(features=round_features(rows.features))
        with self.lock:
            with self.change("upsert" if replace else "add", len(new.ids), new.ids) as change:
                if replace:
                    self._delete(change.connection, new.ids)
                numbers = self._append(change.connection, new, rows, learn)
            if numbers.stop // self.store.seal_rows > numbers.start // self.store.seal_rows:
                with suppress(StillhashError, OSError, MemoryError):  # the rows are on disk; sealed later
                    self.store.seal()
        return len(new.ids)

    def _append(self, connection: Connection, new: ItemRows, rows: LabelledRows, learn: bool) -> range:
        """Encode and store items, and learn from them; fit the hash functions once there are enough rows."""
        items, waiting = self.store.items, 0
        codes = self.trainer.encode(connection, rows)
        fits = False
        if codes is None:
            waiting = get_meta(connection, "items")
            fits = waiting + len(new.ids) >= self.store.settings["init_rows"]
        if fits:
            codes = self.trainer.fit(connection, new=rows)
        if codes is None:
            numbers = items.append(connection, new, features=rows.features)
        else:
            digests = None if self.store.settings["codes_only"] else feature_digests(rows.features)
            numbers = items.append(connection, new, codes, digests=digests)
            if self.store.features is not None:
                self.store.features.add(connection, np.asarray(numbers), rows.features)
            if self.store.rescoring is not None:
                rescoring_codes = self.trainer.rescoring_codes(connection, rows, codes)
                self.store.rescoring.add(connection, np.asarray(numbers), rescoring_codes)
                if self.store.summed_rows is not None:  # which are sums over these
                    rows = rows._replace(features=rescoring_codes)
            elif (bits := new_rescore_bits(connection)) is not None:
                rescorer = Rescorer(self.store.settings["dim"], bits)
                add_built(connection, numbers, self.trainer.rescoring_codes(connection, rows, codes, rescorer))
        if learn:
            self.trainer.learn_items(connection, numbers, rows, codes)
        elif self.store.summed_rows is not None:
            labelled = compress(numbers, rows.labels.labelled.tolist())
            self.store.summed_rows.set_unlearnt(connection, labelled, unlearnt=True)
        if fits:
            self.trainer.flush(connection)
        return numbers

    def replace_parts(self, names: list[Id], labels: Any, metadata: list[str | None] | None, learn: bool) -> int:
        """Replace the labels, the metadata, or both, of items that all exist; None leaves what is stored."""
        with self.change("upsert", len(names) or None, names) as change:
            existing = self.store.items.rows_of(change.connection, names)
            if absent := [name for name in names if name not in existing]:
                raise InvalidInput(f"ids: {len(absent)} do not exist: {absent[0]!r}. Pass features to add them.")
            if labels is not None:
                self._relabel(change.connection, names, labels, learn)
            if metadata is not None:
                set_metadata(change.connection, [existing[name] for name in names], metadata)
            if labels is not None and learn:
                self.trainer.fit_early(change.connection)
        return len(names)

    def delete(self, selection: list[Id] | Condition) -> int:
        """Delete the items of a selection, and return how many there were."""
        with self.change("delete") as change:
            for names in self._select(change.connection, selection):
                change.count(self._delete(change.connection, names))
            if self.store.summed_rows is not None:
                self.trainer.learn_waiting(change.connection)
            return change.rows or 0

    def _delete(self, connection: Connection, names: list[Id]) -> list[Id]:
        """Delete items inside a transaction, and let the next step of learning take out what they gave."""
        items, summed = self.store.items, self.store.summed_rows
        if summed is not None:
            rows = sorted(items.rows_of(connection, names).values())
            self.trainer.take_out(connection, rows)
            self.trainer.count_unlabelled(connection, -items.count_unlabelled(connection, rows))
            summed.drop(connection, rows)
        return items.delete(connection, names)

    def update_metadata(self, selection: list[Id] | Condition, changes: list[MetadataChange]) -> int:
        """Change the metadata of the items of a selection: each by its own change, or all that match by the same."""
        with self.change("update_metadata") as change:
            for names in self._select(change.connection, selection):
                numbers = self.store.items.existing_rows(change.connection, names).tolist()
                each = changes if isinstance(selection, list) else changes * len(names)
                change_metadata(change.connection, numbers, each)
                change.count(names)
            return change.rows or 0

    def relabel(self, selection: list[Id] | Condition, labels: Any, learn: bool) -> int:
        """Replace the labels of the items of a selection; of those that meet a condition by the one list `labels`."""
        at_once = max(1, min(MAX_RELABELLED, MAX_RELABELLED_BYTES // (4 * self.store.settings["dim"])))
        with self.change("relabel") as change:
            for names in self._select(change.connection, selection, at_once):
                each = labels if isinstance(selection, list) else labels * len(names)
                self._relabel(change.connection, names, each, learn)
                change.count(names)
            if learn and change.rows:
                self.trainer.fit_early(change.connection)
            return change.rows or 0

    def change_labels(
        self, verb: str, names: list[Id], change_list: Callable[[list[Any]], list[Any]], learn: bool
    ) -> LabelsOfItems:
        """Replace the labels of each item by what `change_list` makes of them; return what changed items had."""
        with self.change(verb) as change:
            rows = self.store.items.existing_rows(change.connection, names).tolist()
            contents = self.store.items.contents(change.connection, rows)
            own = [contents[row][1] for row in rows]
            new = check_label_lists(list(map(change_list, own)), len(own))
            places = [place for place in range(len(names)) if new[place] != own[place]]
            changed = [names[place] for place in places]
            if changed:
                self._relabel(change.connection, changed, [new[place] for place in places], learn)
                change.count(changed)
                if learn:
                    self.trainer.fit_early(change.connection)
            return {names[place]: own[place] for place in places}

    def _relabel(self, connection: Connection, names: list[Id], labels: Any, learn: bool) -> None:
        """Replace the labels of items, and learn from them, inside a transaction."""
        items, summed = self.store.items, self.store.summed_rows
        numbers = items.existing_rows(connection, names).tolist()
        if not learn:
            items.drop_pending(connection, numbers)
        if summed is not None:
            summed.set_unlearnt(connection, numbers, unlearnt=not learn)
        if summed is not None and is_fitted(connection):
            self._relabel_summed(connection, numbers, labels, learn)
            return
        with self.view.pinned() as snapshot:
            rows_then = items.existing_rows(snapshot.connection, names)
            features, exact = snapshot.features(rows_then)
            codes = None if snapshot.functions is None else snapshot.index.codes(rows_then)
        rows = check_rows(features, labels, self.store.settings["dim"])
        without = items.relabel(connection, numbers, rows.label_texts)
        if learn:
            self.trainer.count_unlabelled(connection, -without)
            rows, own_features = items.remove_pending(connection, numbers, rows)
            own_features |= exact
            self.trainer.learn_items(connection, numbers, rows, codes, own_features)

    def _relabel_summed(self, connection: Connection, numbers: list[int], labels: Any, learn: bool) -> None:
        """Replace the labels of rows, and what they give to the sums."""
        items, rescoring = self.store.items, self.store.rescoring
        assert rescoring is not None
        parsed, texts = check_labels(labels, len(numbers))
        if learn:
            self.trainer.take_out(connection, numbers)
        without = items.relabel(connection, numbers, texts)
        if not learn:
            return
        self.trainer.count_unlabelled(connection, -without)
        rows = np.array(numbers, np.int64)
        rescoring_codes, known = rescoring.read(connection, rows)
        codes, coded = self.store.codes.codes_of(connection, rows)
        known &= coded
        stored = LabelledRows(rescoring_codes, parsed, texts).select(known)
        self.trainer.learn_items(connection, rows[known].tolist(), stored, codes[known])

    def vote(self, votes: list[Vote]) -> int:
        """Store votes and publish what they teach; without any, return the current version."""
        with self.lock:
            self.store.db.check_writer()
            with self.view.pinned() as snapshot:
                stored = stored_votes(snapshot, votes)
            what = "feedback" if any(vote.vote for vote in stored) else "undo feedback"
            voted = list(dict.fromkeys(vote.item for vote in stored))
            with self.change(what, len(stored) or None, voted) as change:
                if stored:
                    self.trainer.feedback(change.connection, stored)
                    self.trainer.fit_early(change.connection)
                return int(get_meta(change.connection, "version"))

    def _select(
        self, connection: Connection, selection: list[Id] | Condition, at_once: int = MAX_SELECTED
    ) -> Iterator[list[Id]]:
        """Yield the ids of a selection: all that were passed, or those that meet a condition, some at a time.

        The condition is compared at the last commit, before anything changes in this transaction.
        """
        if isinstance(selection, list):
            yield selection
            return
        with self.view.pinned(selection) as snapshot:
            allowed = snapshot.allowed
        assert allowed is not None
        for rows in list_rows(allowed, at_once):
            yield list_row_ids(connection, rows.tolist())
