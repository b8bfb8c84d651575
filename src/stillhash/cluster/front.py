"""Search a published collection without its store: the answers of the collection at the latest commit published.

A front reads manifests and catalogs from the storage, and asks the shards for everything else. It keeps nothing that
another one could not read as well, so any number of them can serve.
"""

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.catalog import Catalog, CatalogVersions, CatalogVotes
from stillhash.cluster.item_calls import records_from_array
from stillhash.cluster.manifest import ClusterManifest
from stillhash.cluster.publish_plan import PublishedSource
from stillhash.cluster.reader import ClusterReader, ClusterSnapshot
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.shard import StaleNumber
from stillhash.cluster.storage import Storage
from stillhash.collection.filters import Condition, compile_filter
from stillhash.collection.input_rows import input_rows
from stillhash.collection.prequential import load_history
from stillhash.collection.search_reader import SearchReader
from stillhash.collection.storage.item_contents import ItemContent, ItemRecord, read_contents
from stillhash.collection.storage.lexical import lexical_field
from stillhash.collection.storage.votes import SourceShares
from stillhash.collection.types import Filter, Id, IdLike, Item, ItemIds
from stillhash.collection.validation import check_ids
from stillhash.collection.values import is_single_id
from stillhash.errors import BadState, Conflict, InvalidInput, NotFound, Unreachable, Unsupported, report_shortages
from stillhash.hashers import LinearHasher, Model
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search.blocks import NO_IDS, IdArray

OPEN_CATALOGS = 4
ASK_WRITER = "Ask the server that writes the collection."

Verb = TypeVar("Verb", bound=Callable[..., Any])


def retry_stale(verb: Verb) -> Verb:
    """Let a verb of a front read a later commit where the shards have dropped the one it began with."""

    @functools.wraps(verb)
    def retrying(self: "FrontCollection", *args: Any, **kwargs: Any) -> Any:
        with self._view.until_deadline():
            while True:
                try:
                    return verb(self, *args, **kwargs)
                except StaleNumber:
                    self._view.move_on()

    return retrying  # type: ignore[return-value]


@dataclass(frozen=True)
class FrontSnapshot:
    """One published commit: its catalog, and the index on the shards (collection/search_view.py)."""

    catalog: Catalog
    connection: Connection
    index: ClusterSnapshot
    allowed: Condition | None  # which the shards evaluate

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

    def count_allowed(self) -> int:
        """Count the items that meet the condition."""
        return sum(reply.header["count"] for reply in self._ask("count").replies)

    def select_allowed(self, rows: IdArray) -> IdArray:
        """Return those of these rows that meet the condition, or all without one."""
        if self.allowed is None:
            return rows
        parts = [reply.arrays[0] for reply in self._ask("select", arrays=[np.asarray(rows, np.int64)]).replies]
        return rows[np.isin(rows, np.concatenate([NO_IDS, *parts]))]

    def repeats(self, digests: list[int]) -> list[IdArray]:
        """Return for each digest of features the allowed items that have it, ascending."""
        if self.catalog.settings["codes_only"]:  # whose items have none
            return [NO_IDS] * len(digests)
        repeats = [[NO_IDS] for _ in digests]
        for reply in self._ask("repeats", arrays=[np.array(digests, np.int64)]).replies:
            counts, rows = reply.arrays
            for own, part in zip(repeats, np.split(rows, np.cumsum(counts)[:-1]), strict=True):
                own.append(part)
        return [np.sort(np.concatenate(parts)) for parts in repeats]

    def contents(self, rows: Iterable[int], max_bytes: int | None = None) -> dict[int, ItemContent]:
        """Return id, labels and metadata of these rows; TooLarge if they take more bytes."""
        return read_contents(lambda distinct: [self._records(distinct, max_bytes)], rows, max_bytes)

    def _records(self, rows: list[int], max_bytes: int | None) -> list[ItemRecord]:
        if not rows:
            return []
        call = self.index.ask("get", {"max_bytes": max_bytes}, [np.array(rows, np.int64)])
        records = [record for reply in call.replies for record in records_from_array(reply.arrays[0])]
        if len(records) != len(rows):
            raise BadState(f"items: expected {len(rows)} from the shards, got {len(records)}")
        return records

    def rank_by_cosine(self, Q: Floats, k: int) -> tuple[list[tuple[NDArray[Any], ...]], str]:
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

    def list_ids(self, after: Id | None, limit: int) -> list[tuple[Id, int]]:
        """Return the first ids of allowed items past one, in order, with their rows."""
        listed: list[tuple[Id, int]] = []
        for reply in self._ask("list", {"after": after, "limit": limit}).replies:
            listed += zip(reply.header["ids"], reply.arrays[0].tolist(), strict=True)
        return sorted(listed, key=lambda pair: (isinstance(pair[0], str), pair[0]))[:limit]

    def _ask(self, kind: str, header: dict[str, Any] | None = None, arrays: Iterable[NDArray[Any]] = ()) -> Any:
        where = None if self.allowed is None else self.allowed.to_json()
        return self.index.ask(kind, {**(header or {}), "where": where}, list(arrays))


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
        """Let everything in the block end at one time."""
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
            raise Unreachable("commits: the shards moved on during every try until the deadline")

    @contextmanager
    def pinned(self, condition: Condition | None = None) -> Iterator[FrontSnapshot]:
        """Hold the latest commit, with the rows that meet a condition."""
        index = self.reader.snapshot(getattr(self._local, "until", None))
        catalog = self.catalog(index.manifest)
        with catalog.reading() as connection:
            yield FrontSnapshot(catalog, connection, index, condition)

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


@report_shortages
class FrontCollection(SearchReader):
    """A published collection, to search from any process that reaches its storage and its shards.

    storage : the folder that all nodes see, or URL, which the collection is published to.
    deadline, partial : of everything that is asked of shards, as for ClusterReader. Only searches may be partial.
    cache : folder for copies of catalogs, if the storage is a URL.
    """

    _view: FrontView

    def __init__(
        self,
        storage: str | Path | Storage,
        *,
        deadline: float = 10.0,
        partial: bool = False,
        cache: str | Path | None = None,
    ) -> None:
        self._reader = ClusterReader(storage, deadline=deadline, partial=partial)
        try:
            view = FrontView(self._reader, SegmentCache(self._reader.storage, cache))
        except BaseException:
            self._reader.close()
            raise
        self._view, self._store = view, view
        self.dim: int = view.settings["dim"]
        self.bits: int = view.settings["bits"]
        self.codes_only: bool = view.settings["codes_only"]
        self._input = input_rows(view.settings)

    search = retry_stale(SearchReader.search)
    range_search = retry_stale(SearchReader.range_search)
    weigh = retry_stale(SearchReader.weigh)
    versions = retry_stale(SearchReader.versions)
    quality = retry_stale(SearchReader.quality)
    translate = retry_stale(SearchReader.translate)
    alignments = retry_stale(SearchReader.alignments)

    def __repr__(self) -> str:
        return f"FrontCollection({self._reader.storage.url!r}, dim={self.dim}, bits={self.bits}, rows={self.count()})"

    def __len__(self) -> int:
        return self.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The shards go on."""
        self._reader.close()
        self._view.close()

    def refresh(self) -> int:
        """Look for the latest commit now, not within half a second; return the number of its manifest."""
        return self._reader.refresh().number

    def readiness(self) -> dict[str, Any]:
        """Return whether every shard with items has a replica that is connected, and which have none."""
        return self._reader.readiness()

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Wait until every shard with items has a replica that is connected."""
        self._reader.wait_ready(seconds)

    @property
    def version(self) -> int:
        """The current version of the model."""
        return self._view.catalog(self._reader.manifest).version

    @property
    def source(self) -> PublishedSource:
        """Which commit of which collection is served, and who writes it."""
        return published_source(self._reader.manifest)

    @overload
    def get(self, ids: IdLike, *, max_bytes: int | None = None) -> Item | None: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, ids: ItemIds, *, max_bytes: int | None = None) -> list[Item | None]: ...
    @retry_stale
    def get(self, ids: IdLike | ItemIds, *, max_bytes: int | None = None) -> Item | list[Item | None] | None:
        """Return the item with this id, or for a list of ids a list of items, as `Collection.get` does."""
        if is_single_id(ids):
            return self.get([ids], max_bytes=max_bytes)[0]
        names = check_ids(ids, distinct=False)
        with self._view.pinned() as snapshot:
            snapshot.check_published("get")
            rows = snapshot.rows_of(list(dict.fromkeys(names)))
            contents = snapshot.contents([rows[name] for name in names if name in rows], max_bytes)
            return [Item(*contents[rows[name]]) if name in rows else None for name in names]

    @retry_stale
    def codes(self, ids: ItemIds) -> Codes:
        """Return the packed codes (n, ceil(bits / 8)) of these items."""
        names = check_ids(ids, distinct=False)
        with self._view.pinned() as snapshot:
            snapshot.check_published("codes")
            return snapshot.index.codes(snapshot.existing_rows(names))

    @retry_stale
    def reconstruct(self, ids: ItemIds) -> NDArray[Any]:
        """Return features (n, D) that stand for these items, rebuilt from codes, as `Collection.reconstruct` does."""
        names = check_ids(ids, distinct=False)
        if self._view.settings.get("keep_features", False):
            raise Unsupported(f"reconstruct: the features of items are not published. {ASK_WRITER}")
        with self._view.pinned() as snapshot:
            functions = snapshot.check_published("reconstruct")
            codes = snapshot.index.codes(snapshot.existing_rows(names))
            return codes if self.codes_only else functions.decode(codes)

    @retry_stale
    def count(self, where: Filter | None = None) -> int:
        """Return how many items there are, or how many meet a condition (filters.py)."""
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            if condition is None:
                return published_source(snapshot.index.manifest).items
            snapshot.check_published("count")
            return snapshot.count_allowed()

    @retry_stale
    def ids(self, where: Filter | None = None, *, after: Id | None = None, limit: int = 1000) -> list[Id]:
        """Return the ids of items, integers first and then texts, each in order, as `Collection.ids` does."""
        return [name for name, _ in self._list(where, after, limit)]

    def _list(self, where: Filter | None, after: Id | None, limit: int) -> list[tuple[Id, int]]:
        check_integer(limit, "limit", 1)
        last = None if after is None else check_ids([after])[0]
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            snapshot.check_published("ids")
            return snapshot.list_ids(last, limit)

    @retry_stale
    def stats(self) -> dict[str, Any]:
        """Return settings and counts of the published commit; what only the store knows is left out."""
        with self._view.pinned() as snapshot:
            history, manifest = load_history(snapshot.connection), snapshot.index.manifest
            return {
                **self._view.settings,
                "lexical_field": lexical_field(snapshot.connection),
                "fitted": snapshot.functions is not None,
                "version": snapshot.version,
                "items": published_source(manifest).items,
                "segments": len(manifest.segments),
                "deleted": sum(entry.deleted for entry in manifest.segments),
                "quality": history["quality"],
                "drift_alarms": history["alarms"],
                "manifest": manifest.number,
                "shards_missing": len(self.readiness()["missing"]),
                "commit": published_source(manifest).seq,
            }
