"""The read view: what searches see of the store, in memory, brought up to date commit by commit."""

import copy
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from sqlite3 import Connection
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.columns import FilterColumns, MovedOn, NotInColumns
from stillhash.collection.filters.language import Condition
from stillhash.collection.learning.models import load_functions, load_model
from stillhash.collection.storage.bitmaps import count_bits
from stillhash.collection.storage.items import ItemContent, labelled_share
from stillhash.collection.storage.row_arrays import find_lost, round_to_half
from stillhash.collection.storage.schema import RESCORING_FORMAT, RowNumbers, batches, get_meta, parsing
from stillhash.collection.storage.segments import CodedRows, CodeTable, Segment, SegmentRecord
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.votes import SourceShares, VotedRows
from stillhash.errors import BadState, StillhashError
from stillhash.hashers import LinearHasher, Model
from stillhash.hashers.linear import PageModel
from stillhash.numeric import kernels
from stillhash.numeric.codes import NO_DIGEST, feature_digests
from stillhash.numeric.labels import Labels, from_json
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.validation import Codes, Floats, Mask
from stillhash.search import Index
from stillhash.search.blocks import NO_IDS, Bitmap, IdArray, is_set
from stillhash.search.first_page import PLACED

NO_ROW_LIMIT = 2**63 - 1
MAX_UNSEALED_DIGESTS = 1 << 18  # digests are in memory before those that are sealed by now are dropped


class StoredFeatures:
    """Rows by the digest of their features: mapped, where they are sealed, and in memory, where they are not."""

    def __init__(self, codes: CodeTable) -> None:
        self._codes = codes
        self._last_row = NO_ROW_LIMIT
        self.use([])

    def use(self, segments: Iterable[Segment]) -> None:
        """Start again with these segments and no other rows."""
        self._segments = [segment for segment in segments if len(segment.digests)]
        self._unsealed: dict[int, list[int]] = {}
        self._most = MAX_UNSEALED_DIGESTS

    def add(self, connection: Connection, rows: CodedRows) -> None:
        """Add rows that came later; if they are many, map the segments that hold them by now."""
        if len(self._unsealed) + np.count_nonzero(rows.digests != NO_DIGEST) > self._most:
            records = self._codes.segment_records(connection)
            self.use(self._codes.read_segment(record, check=False) for record in records)
            rows = self._codes.unsealed(connection)
            self._most += len(rows.numbers)
        known = rows.digests != NO_DIGEST
        for digest, row in zip(rows.digests[known].tolist(), rows.numbers[known].tolist(), strict=True):
            self._unsealed.setdefault(digest, []).append(row)

    def __bool__(self) -> bool:
        return bool(self._segments or self._unsealed)

    def rows(self, digest: int) -> list[int]:
        """Return the rows with this digest, deleted ones perhaps among them, ascending."""
        sealed = [row for segment in self._segments for row in segment.rows_with(digest)]
        return [row for row in sealed + self._unsealed.get(digest, []) if row <= self._last_row]

    def frozen(self, last_row: int) -> Self:
        """Return what is known at this moment, of the rows up to this one: later rows do not reach it."""
        frozen = copy.copy(self)
        frozen._last_row = last_row
        return frozen


MAX_UNSEALED_BYTES = 1 << 26  # of codes are in memory before those that are sealed by now are mapped instead


class SealedRows(NamedTuple):
    """The rescoring codes of a segment, mapped."""

    first: int
    last: int
    numbers: NDArray[np.int64] | None  # None: all rows from the first to the last
    codes: Codes


class RescoringCodes:
    """The rescoring codes of all rows: of sealed rows in files, of later ones in memory."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.use([])

    def use(self, sealed: Iterable[SealedRows]) -> None:
        """Start again with these segments, in order of their rows, and no other rows."""
        self._sealed: list[tuple[Any, ...]] = [(*segment[:3], None, segment.codes) for segment in sealed]
        self._parts = self._sealed
        self._count = 0
        self._numbers, self._codes = np.empty(0, np.int64), np.empty((0, self.width), np.uint8)

    def add(self, numbers: NDArray[np.int64], codes: Codes) -> None:
        """Add rows that came later, ascending."""
        count = self._count + len(numbers)
        if count > len(self._numbers):  # a new array: snapshots keep the one before
            spare = max(count, 2 * len(self._numbers)) - self._count
            self._numbers = np.concatenate([self._numbers[: self._count], np.zeros(spare, np.int64)])
            self._codes = np.concatenate([self._codes[: self._count], np.zeros((spare, self.width), np.uint8)])
        self._numbers[self._count : count], self._codes[self._count : count] = numbers, codes
        self._count = count
        if count:
            later = self._numbers[:count]
            self._parts = [*self._sealed, (int(later[0]), int(later[-1]), later, None, self._codes[:count])]

    @property
    def outgrown(self) -> bool:
        """Return whether so many codes are in memory that those which are sealed by now should be mapped."""
        return self._count * self.width > MAX_UNSEALED_BYTES

    def frozen(self) -> Self:
        """Return what is known at this moment: later rows do not reach it."""
        return copy.copy(self)

    def of_rows(self, rows: IdArray) -> Codes:
        """Return the codes (n, width) of these rows; all bytes 0xFF where they are lost."""
        return kernels.read_arrays(self._parts, rows, self.width)


class PageItems:
    """The candidates of one commit (numeric/rescored_page.py, StoredItems)."""

    def __init__(self, connection: Connection, codes: RescoringCodes, columns: FilterColumns) -> None:
        self._connection, self._codes, self._columns = connection, codes, columns

    def rescoring_codes(self, ids: IdArray) -> Codes:
        return self._codes.of_rows(ids)

    def labels(self, ids: IdArray) -> Labels:
        try:
            return self._columns.labels_of(self._connection, ids)
        except (MovedOn, NotInColumns, BadState, OSError):  # SQLite has it all
            return read_labels(self._connection, ids)


@parsing("labels")
def read_labels(connection: Connection, rows: IdArray) -> Labels:
    """Return the labels of these rows from SQLite."""
    texts: dict[int, str] = {}
    for marks, batch in batches(rows.tolist()):
        texts.update(connection.execute(f"SELECT row, labels FROM items WHERE row IN ({marks})", batch).fetchall())
    names: dict[Any, int] = {}
    lists = [
        [names.setdefault(from_json(label), len(names)) for label in json.loads(texts[row])] for row in rows.tolist()
    ]
    indptr = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return Labels(indptr, np.array([place for some in lists for place in some], np.int64), list(names))


LIKED, DISLIKED = PLACED.index("liked"), PLACED.index("disliked")


def rank_by_cosine(
    store: Store, connection: Connection, Q: Floats, k: int, allowed: NDArray[np.uint8] | None, voted: VotedRows
) -> tuple[list[tuple[NDArray[Any], ...]], str]:
    """Return scores, rows and places for each query, ties by row; and what ranks them."""
    rows, (X, _, _) = store.items.awaiting_codes(connection)
    if allowed is not None:
        matches = np.unpackbits(allowed, bitorder="little")[rows].astype(bool)
        rows, X = rows[matches], X[matches]
    scores: NDArray[np.float32] = unit_rows(Q) @ unit_rows(X).T
    scored: list[tuple[NDArray[Any], ...]] = []
    for some, liked, disliked in zip(scores, voted.liked, voted.disliked, strict=True):
        ends, placed = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint8)
        _move(ends, placed, rows, liked, np.arange(-len(liked), 0), LIKED)
        _move(ends, placed, rows, disliked, np.arange(1, len(disliked) + 1), DISLIKED)
        order = np.lexsort((-some, ends))[:k]
        scored.append((some[order], rows[order], placed[order]))
    return scored, f"cosine of raw features: hash functions are fitted at {store.settings['init_rows']} rows"


def _move(ends: IdArray, placed: NDArray[np.uint8], rows: IdArray, voted: IdArray, to: IdArray, place: int) -> None:
    """Move the rows that were voted on before or behind all others, which are at 0."""
    at = np.searchsorted(rows, voted)
    ends[at], placed[at] = to, place


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
        if model is self.model or self.current_page is None or self.functions is None:
            return self.current_page
        return self.functions.page_model(model, self.current_page.rescorer, self.current_page.labelled_share)

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

    def features(self, rows: RowNumbers) -> tuple[Floats, Mask]:
        """Return features of these rows, and which of them are the items' own, not rebuilt from codes."""
        if self.functions is None:
            waiting, (X, _, _) = self.store.items.awaiting_codes(self.connection)
            return X[np.searchsorted(waiting, rows)], np.ones(len(rows), bool)
        if self.store.features is None:
            return self._reconstructed(rows), np.full(len(rows), self.store.settings["codes_only"])
        X, exact = self.store.features.read(self.connection, rows)
        if not exact.all():
            X[~exact] = self._reconstructed(rows[~exact])
        return X, exact

    def _reconstructed(self, rows: RowNumbers) -> Floats:
        """Return about the features of rows, from their rescoring codes, or else from their codes."""
        assert self.functions is not None
        if self.page_items is None or self.store.rescorer is None:
            return self.functions.decode(self.index.codes(rows))
        rescoring_codes = self.page_items.rescoring_codes(rows)
        X = self.store.rescorer.decode(rescoring_codes) + self.functions.mean_
        if (lost := find_lost(rescoring_codes)).any():
            X[lost] = self.functions.decode(self.index.codes(rows[lost]))
        return X

    def rank_by_cosine(self, Q: Floats, k: int, voted: VotedRows) -> tuple[list[tuple[NDArray[Any], ...]], str]:
        """Rank the allowed items while they wait for hash functions."""
        return rank_by_cosine(self.store, self.connection, Q, k, self.allowed, voted)


def query_digests(settings: dict[str, Any], Q: Floats) -> list[int]:
    """Return digests of queries, by which `Snapshot.repeats` finds the items that were stored with these features."""
    if settings.get("keep_features", False):
        Q = round_to_half(Q)  # a query that float16 cannot hold repeats no item
    digests: list[int] = feature_digests(Q).tolist()
    return digests


class ReadView:
    """A search sees the latest commit, frozen, for as long as it takes; later ones do not wait for it."""

    def __init__(self, store: Store, searcher: Callable[[int], Any] = Index) -> None:
        self.store, self._searcher = store, searcher
        self.filter_columns = FilterColumns(store)
        self._lock = threading.Lock()
        self._seq = self._generation = self._last_row = -1
        self._index: Any = Index(store.settings["bits"])  # empty, until the first use
        self._functions: LinearHasher | None = None
        self._version, self._model = 0, Model("similarity")
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
            rescorer = self.store.rescorer if get_meta(connection, "format") == RESCORING_FORMAT else None
            if self._rescoring is None and rescorer is not None:  # they were built by now
                self._rescoring = RescoringCodes(rescorer.width)
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
        if self._functions is not None and self._rescoring is not None:
            assert self.store.rescorer is not None
            page = self._page or self._functions.page_model(self._model, self.store.rescorer)
            self._page = page._replace(labelled_share=labelled_share(connection))

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
