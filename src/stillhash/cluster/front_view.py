"""What a front sees of a published collection: its catalog, and the index and items on the shards, of one commit."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from sqlite3 import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.calls import Call
from stillhash.cluster.catalog import Catalog, CatalogVersions, CatalogVotes
from stillhash.cluster.item_calls import records_from_array
from stillhash.cluster.manifest import ClusterManifest
from stillhash.cluster.page_index import PageIndex
from stillhash.cluster.publish_plan import PublishedSource
from stillhash.cluster.reader import ClusterReader, ClusterSnapshot
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.shard import StaleNumber
from stillhash.collection.filters.language import Condition
from stillhash.collection.storage.items import ItemContent, ItemRecord, read_contents
from stillhash.collection.storage.votes import SourceShares, VotedRows
from stillhash.collection.types import Id
from stillhash.errors import BadState, Conflict, InvalidInput, NotFound, Unreachable, Unsupported
from stillhash.hashers import LinearHasher, Model
from stillhash.hashers.linear import PageModel
from stillhash.numeric.validation import Codes, Floats
from stillhash.search.blocks import NO_IDS, IdArray

OPEN_CATALOGS = 4
ASK_WRITER = "Send the request to the server that writes the collection."


@dataclass(frozen=True)
class FrontSnapshot:
    """One published commit: its catalog, and the index on the shards (collection/search_view.py)."""

    catalog: Catalog
    connection: Connection
    index: PageIndex
    allowed: Condition | None  # which the shards evaluate
    labelled_share: float | None  # of the items; None where the manifest does not say

    @property
    def functions(self) -> LinearHasher | None:
        return self.catalog.functions

    @property
    def version(self) -> int:
        return self.catalog.version

    @property
    def model(self) -> Model:
        return self.catalog.model

    @property
    def source_shares(self) -> SourceShares:
        return self.catalog.source_shares

    def weigh(self, Q: Floats, model: Model | None = None) -> Floats:
        """Return the weights of validated queries, by the current model or another one."""
        assert self.functions is not None
        return self.functions.weigh_by(model or self.model, Q)

    @property
    def page_items(self) -> PageIndex | None:
        return None if self.catalog.rescorer is None else self.index

    def page_model(self, model: Model) -> PageModel | None:
        """Return what orders the first page by a model; None without rescoring codes."""
        page = self.catalog.page_model(model)
        if page is None:
            return None
        share = 1 - model.plain_share if self.labelled_share is None else self.labelled_share
        return page._replace(labelled_share=share)

    def count_allowed(self) -> int:
        """Count the items that meet the condition."""
        return sum(reply.header["count"] for reply in self._ask("count").replies)

    def select_allowed(self, rows: IdArray) -> IdArray:
        """Return those of these rows that meet the condition, or all without one."""
        if self.allowed is None:
            return rows
        call = self._ask("select", arrays=[np.asarray(rows, np.int64)], partial=self.index.partial)
        parts = [reply.arrays[0] for reply in call.replies]
        return rows[np.isin(rows, np.concatenate([NO_IDS, *parts]))]

    def repeats(self, digests: list[int]) -> Sequence[IdArray]:
        """Return for each digest of features the allowed items that have it, ascending; they are read when needed."""
        if self.catalog.settings["codes_only"] or not digests:  # codes that came ready have no digests
            return [NO_IDS] * len(digests)
        arrays, partial = [np.array(digests, np.int64)], self.index.partial
        return AwaitedRows(self.index, self.index.begin("repeats", {"where": self._where}, arrays, partial=partial))

    def contents(self, rows: Iterable[int], max_bytes: int | None = None) -> dict[int, ItemContent]:
        """Return id, labels and metadata of these rows; TooLarge if they take more bytes."""
        return read_contents(lambda distinct: [self._records(distinct, max_bytes)], rows, max_bytes)

    def _records(self, rows: list[int], max_bytes: int | None) -> list[ItemRecord]:
        if not rows:
            return []
        partial = self.index.partial  # the shards of these rows have replied to a search
        call = self.index.ask("get", {"max_bytes": max_bytes}, [np.array(rows, np.int64)], partial=partial)
        records = [record for reply in call.replies for record in records_from_array(reply.arrays[0])]
        if len(records) != len(rows) and call.waiting:
            raise Unreachable(f"shards: expected {len(rows)} items of those that replied, got {len(records)}")
        if len(records) != len(rows):
            raise BadState(f"items: expected {len(rows)} from the shards, got {len(records)}")
        return records

    def rank_by_cosine(self, Q: Floats, k: int, voted: VotedRows) -> tuple[list[tuple[NDArray[Any], ...]], str]:
        """Refuse to rank items that wait for hash functions: their features are not published."""
        raise self._not_published("search")

    def check_published(self, verb: str) -> LinearHasher:
        """Return the hash functions; Unsupported while items wait for them, since they are not published then."""
        if self.functions is None:
            raise self._not_published(verb)
        return self.functions

    def _not_published(self, verb: str) -> Unsupported:
        waiting = "items wait for hash functions, and are not published before those are fitted"
        return Unsupported(f"{verb}: {waiting}. {ASK_WRITER}")

    def rows_of(self, ids: list[Id]) -> dict[Id, int]:
        """Return the rows of those ids that exist."""
        rows: dict[Id, int] = {}
        for reply in self.index.ask("rows", {"ids": ids}, []).replies if ids else ():
            rows.update(zip(reply.header["ids"], reply.arrays[0].tolist(), strict=True))
        return rows

    def existing_rows(self, ids: list[Id]) -> IdArray:
        """Return the row of each id; all must exist."""
        rows = self.rows_of(ids)
        if absent := [name for name in ids if name not in rows]:
            raise InvalidInput(f"id: no item {absent[0]!r}")
        return np.array([rows[name] for name in ids], np.int64)

    def codes(self, ids: list[Id]) -> Codes:
        """Return the codes of these ids; all must exist."""
        return ClusterSnapshot.codes(self.index, self.existing_rows(ids))  # without what the first page reads

    def list_ids(self, after: Id | None, limit: int) -> list[tuple[Id, int]]:
        """Return the first ids of allowed items past one, in order, with their rows."""
        listed: list[tuple[Id, int]] = []
        for reply in self._ask("list", {"after": after, "limit": limit}).replies:
            listed += zip(reply.header["ids"], reply.arrays[0].tolist(), strict=True)
        return sorted(listed, key=lambda pair: (isinstance(pair[0], str), pair[0]))[:limit]

    def _ask(
        self,
        kind: str,
        header: dict[str, Any] | None = None,
        arrays: Iterable[NDArray[Any]] = (),
        partial: bool = False,
    ) -> Call:
        return self.index.ask(kind, {**(header or {}), "where": self._where}, list(arrays), partial=partial)

    @property
    def _where(self) -> list[Any] | None:
        return None if self.allowed is None else self.allowed.to_json()


class AwaitedRows(Sequence[IdArray]):
    """Rows requested from the shards while a search goes on; the first use waits for the replies."""

    def __init__(self, index: ClusterSnapshot, call: Call) -> None:
        self._index, self._call = index, call

    @cached_property
    def _rows(self) -> list[IdArray]:
        (digests,) = self._call.message.arrays
        parts: list[list[IdArray]] = [[NO_IDS] for _ in digests]
        for reply in self._index.finish(self._call).replies:
            counts, rows = reply.arrays
            for own, part in zip(parts, np.split(rows, np.cumsum(counts)[:-1]), strict=True):
                own.append(part)
        return [np.sort(np.concatenate(some)) for some in parts]

    def __len__(self) -> int:
        return len(self._call.message.arrays[0])

    def __getitem__(self, place: Any) -> Any:
        return self._rows[place]


def published_source(manifest: ClusterManifest) -> PublishedSource:
    """Return which commit of which collection a manifest is of."""
    source = PublishedSource.from_json(manifest.source)
    if source is None:
        raise NotFound(f"manifest {manifest.number}: expected one of a collection, got codes alone")
    return source


class FrontView:
    """The latest published commit, for one search at a time in each thread; and the catalogs that are open."""

    def __init__(self, reader: ClusterReader, cache: SegmentCache) -> None:
        self.reader, self._cache = reader, cache
        self._catalogs: OrderedDict[str, Catalog] = OrderedDict()
        self._lock, self._local = threading.Lock(), threading.local()
        first = self.catalog(reader.manifest)
        self.settings, self._collection = first.settings, first.collection
        self.versions = CatalogVersions(self.settings["keep_versions"])
        self.votes = CatalogVotes(self.settings["source_cap"])

    @contextmanager
    def until_deadline(self) -> Iterator[None]:
        """Give everything in the block one deadline."""
        if getattr(self._local, "until", None) is not None:
            yield
            return
        self._local.until = time.monotonic() + self.reader.deadline
        try:
            yield
        finally:
            self._local.until = None

    def move_on(self) -> None:
        """Look for a later commit, until the deadline."""
        self.reader.refresh()
        if time.monotonic() > self._local.until:
            raise Unreachable("commits: the shards dropped each one before the deadline")

    @contextmanager
    def pinned(self, condition: Condition | None = None) -> Iterator[FrontSnapshot]:
        """Hold the latest commit, with the rows that meet a condition."""
        until = getattr(self._local, "until", None) or time.monotonic() + self.reader.deadline
        manifest = self.reader.manifest
        catalog = self.catalog(manifest)
        index = PageIndex(self.reader, manifest, until, 0 if catalog.rescorer is None else catalog.rescorer.width)
        with catalog.reading() as connection:
            share = published_source(manifest).labelled_share
            yield FrontSnapshot(catalog, connection, index, condition, share)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read the tables of the latest catalog."""
        with self.catalog(self.reader.manifest).reading() as connection:
            yield connection

    def catalog(self, manifest: ClusterManifest) -> Catalog:
        """Return the catalog of a manifest, which is opened at its first use."""
        if not manifest.catalog:
            raise NotFound(f"{self.reader.storage.url}: no collection is published there yet")
        with self._lock:
            if (catalog := self._catalogs.get(manifest.catalog)) is None:
                try:
                    catalog = Catalog(self._cache.fetch(manifest.catalog, ""))
                except BadState:  # collected, since a later one is published
                    if manifest.number == self.reader.refresh().number:
                        raise
                    raise StaleNumber from None
                self._check_collection(catalog)
                self._catalogs[manifest.catalog] = catalog
            self._catalogs.move_to_end(manifest.catalog)
            while len(self._catalogs) > OPEN_CATALOGS:
                self._catalogs.popitem(last=False)[1].close()
            return catalog

    def _check_collection(self, catalog: Catalog) -> None:
        if hasattr(self, "_collection") and catalog.collection != self._collection:
            catalog.close()
            raise Conflict(f"{self.reader.storage.url}: another collection is published there now. Open it again.")

    def close(self) -> None:
        """Close all catalogs."""
        with self._lock:
            for catalog in self._catalogs.values():
                catalog.close()
            self._catalogs.clear()
