"""The read view: what searches see of the store, in memory, brought up to date commit by commit."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from sqlite3 import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.cosine_ranking import rank_by_cosine
from stillhash.collection.filters.columns import FilterColumns, MovedOn
from stillhash.collection.filters.language import Condition
from stillhash.collection.learning.stored_models import load_functions, load_model
from stillhash.collection.page_items import PageItems, RescoringCodes, SealedRows
from stillhash.collection.storage.bitmaps import count_bits
from stillhash.collection.storage.codes import SegmentRecord
from stillhash.collection.storage.item_contents import ItemContent
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.segments import Segment
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.votes import SourceShares, VotedRows
from stillhash.collection.stored_features import StoredFeatures
from stillhash.errors import StillhashError
from stillhash.hashers import LinearHasher, Model
from stillhash.hashers.linear import PageModel
from stillhash.numeric.validation import Floats
from stillhash.search import Index
from stillhash.search.blocks import NO_IDS, Bitmap, IdArray, is_set


@dataclass(frozen=True)
class Snapshot:
    """One commit: a read transaction, and the index, hash functions and model that belong to it."""

    store: Store
    connection: Connection
    index: Index
    functions: LinearHasher | None  # None while rows wait for them
    version: int
    model: Model
    source_shares: SourceShares  # of the votes up to this version; empty without any
    stored_features: StoredFeatures
    page_items: PageItems | None  # what the first page reads; None without rescoring codes
    current_page: PageModel | None  # that of the current model
    allowed: Bitmap | None  # rows that meet the condition of the search; None without one

    def weigh(self, Q: Floats, model: Model | None = None) -> Floats:
        """Return the weights of validated queries, by the current model or another one."""
        assert self.functions is not None
        return self.functions.weigh_by(model or self.model, Q)

    def page_model(self, model: Model) -> PageModel | None:
        """Return what orders the first page by a model; None without rescoring codes."""
        if model is self.model or self.store.rescorer is None or self.functions is None:
            return self.current_page
        return self.functions.page_model(model, self.store.rescorer)

    def count_allowed(self) -> int:
        """Count the rows that meet the condition of the search."""
        assert self.allowed is not None
        return count_bits(self.allowed)

    def select_allowed(self, rows: IdArray) -> IdArray:
        """Return those of these rows that meet the condition, or all without one."""
        return rows if self.allowed is None else rows[is_set(self.allowed, rows)]

    def repeats(self, digests: list[int]) -> list[IdArray]:
        """Return for each digest of features the allowed items that have it, ascending."""
        if not self.stored_features:
            return [NO_IDS] * len(digests)
        stored = (self.store.items.existing(self.connection, self.stored_features.rows(digest)) for digest in digests)
        return [self.select_allowed(np.array(rows, np.int64)) for rows in stored]

    def contents(self, rows: Iterable[int], max_bytes: int | None) -> dict[int, ItemContent]:
        """Return id, labels and metadata of these rows; TooLarge if they take more bytes."""
        return self.store.items.contents(self.connection, rows, max_bytes)

    def rank_by_cosine(self, Q: Floats, k: int, voted: VotedRows) -> tuple[list[tuple[NDArray[Any], ...]], str]:
        """Rank the allowed items while they wait for hash functions (cosine_ranking.py)."""
        return rank_by_cosine(self.store, self.connection, Q, k, self.allowed, voted)


class ReadView:
    """A search sees the latest commit, frozen, for as long as it takes; later ones do not wait for it."""

    def __init__(self, store: Store, searcher: Callable[[int], Any] = Index) -> None:
        self.store, self._searcher = store, searcher
        self.filter_columns = FilterColumns(store)
        self._lock = threading.Lock()
        self._seq = self._generation = self._last_row = -1
        self._index: Any = Index(store.settings["bits"])  # empty, until the first use
        self._functions: LinearHasher | None = None
        self._version, self._model = 0, Model("looks")
        self._source_shares: SourceShares = {}
        self._stored_features = StoredFeatures(store.codes)
        self._rescoring = None if store.rescorer is None else RescoringCodes(store.rescorer.width)
        self._page: PageModel | None = None  # of this model
        self._mapped: dict[SegmentRecord, Segment] = {}  # of this generation

    @contextmanager
    def pinned(self, condition: Condition | None = None) -> Iterator[Snapshot]:
        """Hold the latest commit, with the rows that meet a condition. Do not pin again within the block."""
        while True:
            failure: StillhashError | None = None
            with self.store.reading() as connection:
                seq = int(get_meta(connection, "seq"))
                try:
                    snapshot = self._snapshot(connection, seq)
                except StillhashError as error:
                    snapshot, failure = None, error
                if snapshot is not None:
                    try:
                        yield self._restrict(snapshot, condition)
                        return
                    except MovedOn:  # another filter has seen a later commit
                        continue
            if failure is not None:
                with self.store.reading() as connection:
                    if int(get_meta(connection, "seq")) == seq:  # else a later commit removed files of this one
                        raise failure

    def close(self) -> None:
        """Close the index, and unmap all files once no search uses them."""
        self.release()
        self._index.close()

    def release(self) -> None:
        """Unmap all files, except those that a search uses now; the next search maps those of the latest commit."""
        self.filter_columns.release()
        with self._lock:
            self._mapped = {}
            self._index.close()
            self._index = Index(self.store.settings["bits"])
            self._seq = self._generation = self._last_row = -1
            self._stored_features.use([])
            if self._rescoring is not None:
                self._rescoring.use([])

    def _restrict(self, snapshot: Snapshot, condition: Condition | None) -> Snapshot:
        if condition is None:
            return snapshot
        return replace(snapshot, allowed=self.filter_columns.matching(snapshot.connection, condition))

    def _snapshot(self, connection: Connection, seq: int) -> Snapshot | None:
        """Return the view at the commit of this transaction; None if it has moved past it."""
        with self._lock:
            if self._seq < seq:
                self._update(connection, seq)
            if self._seq > seq:
                return None
            index, stored = self._index.frozen(), self._stored_features.frozen(self._last_row)
            state = self._functions, self._version, self._model, self._source_shares
            items = None
            if self._rescoring is not None:
                items = PageItems(connection, self._rescoring.frozen(), self.filter_columns)
            return Snapshot(self.store, connection, index, *state, stored, items, self._page, None)

    def _update(self, connection: Connection, seq: int) -> None:
        """Bring the view to this commit."""
        since, self._seq = self._seq, -1
        try:
            self._apply_changes(connection, since)
        except BaseException:
            self._generation = self._last_row = -1  # incomplete; the next update starts over
            raise
        self._seq = seq

    def _apply_changes(self, connection: Connection, since: int) -> None:
        generation = get_meta(connection, "generation")
        if generation != self._generation:
            since = -1
            previous = self._index
            self._index, self._last_row = self._map_segments(connection)
            self._generation = generation
            previous.close()
        rows = self.store.codes.after(connection, self._last_row)
        if len(rows.numbers):
            self._index.add(rows.codes, rows.numbers)
            self._stored_features.add(connection, rows)
            self._add_rescoring_codes(connection, rows.numbers)
            self._last_row = int(rows.numbers[-1])
        deleted = self.store.codes.deleted_after(connection, since)
        if len(deleted):
            self._index.remove(deleted)
        self._functions = self._functions or load_functions(connection)
        version = get_meta(connection, "version")
        if version != self._version or not version:  # votes may come before the first version
            self._version, self._model = version, load_model(self.store, connection, version)
            self._source_shares = self.store.votes.source_shares(connection, version)
            self._page = None
        if self._page is None and self._functions is not None and self.store.rescorer is not None:
            self._page = self._functions.page_model(self._model, self.store.rescorer)

    def _add_rescoring_codes(self, connection: Connection, rows: IdArray) -> None:
        """Read the rescoring codes of new rows; those that are sealed by now are mapped, once many are in memory."""
        if self._rescoring is None or self.store.rescoring is None:
            return
        if self._rescoring.outgrown:
            self._rescoring.use(self._sealed_codes(connection))
            rows = self.store.codes.unsealed_rows(connection)
        self._rescoring.add(rows, self.store.rescoring.read(connection, rows)[0])

    def _sealed_codes(self, connection: Connection) -> Iterator[SealedRows]:
        """Yield the rescoring codes of each segment, mapped."""
        assert self.store.rescoring is not None
        records = self.store.codes.segment_records(connection)
        for record, codes in zip(records, self.store.rescoring.mapped(connection), strict=True):
            rows, first, last = record.shape()
            numbers = None if last - first == rows - 1 else self._mapped_segment(record).row_numbers()
            yield SealedRows(first, last, numbers, codes)

    def _mapped_segment(self, record: SegmentRecord) -> Segment:
        return self._mapped.get(record) or self.store.codes.read_segment(record, check=False)

    def _map_segments(self, connection: Connection) -> tuple[Any, int]:
        """Return an index over the sealed codes, without a copy, and their last row.

        Segments that an earlier generation had too are not mapped again, and so not verified again.
        """
        index, last = self._searcher(self.store.settings["bits"]), -1
        records, codes = self.store.codes.segment_records(connection), self.store.codes
        self._mapped = {record: self._mapped.get(record) or codes.read_segment(record) for record in records}
        for segment in self._mapped.values():
            index.add_tiles(segment.tiles, segment.rows, segment.row_numbers())
            last = segment.bounds()[1]
        self._stored_features.use(self._mapped.values())
        if self._rescoring is not None:
            self._rescoring.use(self._sealed_codes(connection))
        return index, last
