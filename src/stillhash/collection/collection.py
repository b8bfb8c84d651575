"""A collection: items stored durably, searched exactly, and ranked by a similarity that keeps learning.

One process writes; any number of others read the same folder and see what is committed. Within a process threads may
search while one writes.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from stillhash.collection.label_writer import LabelWriter
from stillhash.collection.learning.encoder_alignment import EncoderInfo, build_alignment
from stillhash.collection.learning.label_names import LabelNames
from stillhash.collection.learning.votes import check_feedback, check_source, check_votes, stored_votes
from stillhash.collection.maintenance.compaction import ReportRows, compact
from stillhash.collection.maintenance.forgetting import forget
from stillhash.collection.maintenance.repair import RepairReport, repair
from stillhash.collection.read_view import Snapshot
from stillhash.collection.storage.lexical import ReportShare, check_new_field, set_lexical_field
from stillhash.collection.storage.schema import get_meta, is_fitted
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.versions import MAX_VERSION
from stillhash.collection.types import ForgetReport, Id, ItemIds, Vector, Vote
from stillhash.collection.validation import ItemFilter, check_path, check_selection
from stillhash.errors import Conflict, InvalidInput, report_shortages
from stillhash.numeric.validation import check_integer


@report_shortages
class Collection(LabelWriter):
    """A durable, growing index, made by `stillhash.open`. All verbs may be called from any thread."""

    def fit(self, features: Any = None, labels: Any = None) -> None:
        """Fix the hash functions now, permanently: by a sample, or by the rows that wait for them."""
        if features is None and labels is not None:
            raise InvalidInput("labels: expected features with them; rows that wait have their own labels")
        sample = None if features is None else self._input.rows(features, labels, least=2)
        with self._write_lock:
            with self._store.change("fit") as change:
                if is_fitted(change.connection):
                    raise Conflict("fit: the hash functions are fitted already, and never change")
                waiting = int(get_meta(change.connection, "items"))
                change.rows = waiting if sample is None else len(sample.features)
                self._trainer.fit(change.connection, sample)
                self._trainer.flush(change.connection)
            if waiting:
                self._drop_features()

    def learn(self, features: Any, labels: Any) -> int:
        """Learn from labelled rows that are not stored as items, publish a version, and return its number."""
        rows = self._input.rows(features, labels)
        with self._learning("learn", len(rows.features)) as change:
            self._trainer.fit_early(change.connection)
            return self._trainer.learn(change.connection, rows)

    def feedback(
        self, query: Vector | NDArray[Any], id: Id | ItemIds, vote: Any, *, source: str = "", position: Any = None
    ) -> int:
        """Vote on an item, or on a list of items, as hits of a query (D,); publish a version, return its number.

        vote: "up" (or true), "down" (or false), or a number in [-1, 1]; 0 takes the source's vote back. position: the
        rank from 1 at which the hit was shown; a click further down counts for more. Lists give each item its own. The
        last vote of a source on a query and an item counts; votes of sources add up; a source counts for at most
        `source_cap` votes. For this very query, items voted up come first and items voted down last. Before there are
        hash functions a vote does that too, the version is 0, and votes teach once there are some.
        """
        return self._vote(check_feedback(query, self._input, id, vote, source, position))

    def feedback_many(self, votes: Iterable[Vote | dict[str, Any]]) -> int:
        """Store votes on any number of queries, publish one version, and return its number.

        votes: as `Vote`, or dictionaries with its fields. If one is invalid, nothing changes.
        """
        return self._vote(check_votes(votes, self._input))

    def _vote(self, votes: list[Vote]) -> int:
        """Store votes and publish what they teach; without any, return the current version."""
        with self._write_lock:
            self._store.db.check_writer()
            with self._view.pinned() as snapshot:
                stored = stored_votes(self._store, snapshot, votes, lambda *rows: self._row_features(*rows)[0])
            what = "feedback" if any(vote.vote for vote in stored) else "undo feedback"
            voted = list(dict.fromkeys(vote.item for vote in stored))
            with self._learning(what, len(stored) or None, voted) as change:
                if stored:
                    self._trainer.feedback(change.connection, stored)
                    self._trainer.fit_early(change.connection)
                return int(get_meta(change.connection, "version"))

    def forget(
        self,
        ids: ItemIds | None = None,
        *,
        where: ItemFilter | None = None,
        source: str | None = None,
        snapshots: str | Path | None = None,
    ) -> ForgetReport:
        """Remove items, or all votes of a source, so that no file of the collection holds anything of them.

        ids, where : the items, by their ids or by a condition, "all" for every item; with their metadata, pictures and
            votes, and what was learnt of them. With `keep_features` that is exact: the model is as if it had never
            seen them.
        source : the source of votes.
        snapshots : a folder of snapshots; the report says which of them hold something of this. Remove those yourself.

        Files that hold something of it are rewritten, as `compact` does. Versions of the model that had learnt from it
        are dropped.
        """
        if sum(argument is not None for argument in (ids, where, source)) != 1:
            raise InvalidInput("forget: expected one of ids, where and source, got none or several")
        source = None if source is None else check_source(source)
        selection = None if source is not None else check_selection(ids, where)
        folder = None if snapshots is None else check_path(snapshots)
        with self._compaction_lock, self._write_lock:
            self._store.db.check_writer()
            if selection is None:
                names = []
            elif isinstance(selection, list):
                names = selection
            else:
                names = self.ids(None if isinstance(where, str) else where, limit=MAX_VERSION)
            rewrite = partial(compact, self._store, self._view, self._write_lock)
            return forget(self._store, self._trainer, rewrite, names, source, folder)

    def _names_of_labels(self, snapshot: Snapshot) -> LabelNames:
        version, names = self._trainer.label_names
        return names if version == snapshot.version else super()._names_of_labels(snapshot)

    def flush(self) -> int:
        """Learn the pending rows, and what waits to be taken out, however few; return the current version."""
        with self._learning("flush", None) as change:
            waiting = self._trainer.count_waiting(change.connection)
            if waiting:
                self._trainer.fit_early(change.connection)
            if is_fitted(change.connection):
                change.rows = waiting or None
                self._trainer.flush(change.connection)
            return int(get_meta(change.connection, "version"))

    def tag(self, version: int, name: str) -> None:
        """Name a version, so that it is kept."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise InvalidInput(f"name: expected a printable string, got {name!r}")
        version = check_integer(version, "version", 1, MAX_VERSION)
        with self._write_lock, self._store.change(f"tag {version}") as change:
            self._store.versions.tag(change.connection, version, name)

    def rollback(self, version: int) -> int:
        """Restore an earlier version under a new number, which is returned; results are identical.

        Learning goes on from what that version had learnt where that is kept, as it is for the latest two versions and
        for those with a tag, and from the present otherwise. Votes that came after the version are dropped permanently.
        """
        with self._write_lock, self._store.change(f"rollback to {version}") as change:
            return self._trainer.rollback(change.connection, version)

    def align(self, encoder: EncoderInfo, theirs: Any, ours: Any) -> dict[str, Any]:
        """Accept features of another encoder: fit an alignment, by the same things encoded by it and by our own.

        A few hundred pairs are enough. Codes stay, and learning goes on. Returns the share of the variance of our
        features that it explains, on pairs it was not fitted on.
        """
        with self._write_lock, self._store.change("align") as change:
            alignment = build_alignment(self._store, change.connection, encoder, (theirs, ours))
            change.rows = alignment["pairs"]
            return alignment

    def set_lexical_field(self, field: str | None, *, progress: ReportShare | None = None) -> int:
        """Index the words of a field of the metadata, for `lexical_search`, in place of any other; None: of no field.

        Returns how many items have a text in it. All of it happens, or nothing. progress: called with the number of
        items so far, and of all. Searches go on in the meantime.
        """
        name = check_new_field(field)
        with self._write_lock, self._store.change(f"set_lexical_field {name}") as change:
            change.rows = set_lexical_field(change.connection, name, progress)
            return change.rows

    def seal(self) -> bool:
        """Move unsealed codes into segments now, of at most 131,072 rows each; return False if there are none."""
        with self._write_lock:
            return self._store.seal()

    def compact(self, *, progress: ReportRows | None = None) -> int:
        """Rewrite the segments that have deleted or changed rows, or are small; return how many deleted rows they had.

        This frees disk and memory. Searches and writes go on meanwhile; writes wait at the end, if store.db is written
        again. An interrupted compaction is continued by the next. progress: called with the rows so far, and of all.
        """
        with self._compaction_lock:
            self._store.db.check_writer()
            return compact(self._store, self._view, self._write_lock, progress).dropped

    def repair(self) -> RepairReport:
        """Repair the files, as `stillhash.repair` does, which also works where the collection cannot be opened.

        No other process may have the collection open.
        """
        with self._compaction_lock, self._write_lock:
            self._store.db.check_writer()
            self._store.close()
            self._view.close()
            try:
                return repair(self._store.path)
            finally:
                self._use(Store(self._store.path, writer=True))
