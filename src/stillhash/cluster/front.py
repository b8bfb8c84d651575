"""Search a published collection without its store: the answers of the collection at the latest commit published.

A front reads manifests and catalogs from the storage, and gets everything else from the shards. It has no state of its
own, so any number of them can serve.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from numpy.typing import NDArray

from stillhash.cluster.front_view import ASK_WRITER, FrontView, published_source
from stillhash.cluster.publish_plan import PublishedSource
from stillhash.cluster.reader import ClusterReader
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.shard import StaleNumber
from stillhash.cluster.storage import Storage
from stillhash.collection.filters.language import compile_filter
from stillhash.collection.learning.prequential import load_history
from stillhash.collection.searching import Searchable
from stillhash.collection.storage.lexical import lexical_field
from stillhash.collection.types import Filter, Id, Item, ItemIds
from stillhash.collection.validation import check_ids, input_rows
from stillhash.errors import Unsupported, report_shortages
from stillhash.numeric.validation import Codes, check_integer

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


@report_shortages
class FrontCollection(Searchable):
    """A published collection, to search from any process that reaches its storage and its shards.

    storage : the folder that all nodes see, or URL, which the collection is published to.
    deadline, partial : of every call to the shards, as for ClusterReader. Only searches may be partial.
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

    get = retry_stale(Searchable.get)
    search = retry_stale(Searchable.search)
    range_search = retry_stale(Searchable.range_search)
    weigh = retry_stale(Searchable.weigh)
    versions = retry_stale(Searchable.versions)
    quality = retry_stale(Searchable.quality)
    translate = retry_stale(Searchable.translate)
    alignments = retry_stale(Searchable.alignments)

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
        """Read the latest manifest at once, which otherwise happens twice a second; return its number."""
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

    def _read_items(self, names: list[Id], max_bytes: int | None) -> list[Item | None]:
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
            return snapshot.codes(names)

    @retry_stale
    def reconstruct(self, ids: ItemIds) -> NDArray[Any]:
        """Return features (n, D) that stand for these items, rebuilt from codes, as `Collection.reconstruct` does."""
        names = check_ids(ids, distinct=False)
        if self._view.settings.get("keep_features", False):
            raise Unsupported(f"reconstruct: the features of items are not published. {ASK_WRITER}")
        with self._view.pinned() as snapshot:
            functions, rescorer = snapshot.check_published("reconstruct"), snapshot.catalog.rescorer
            if rescorer is not None:
                return rescorer.decode(snapshot.index.rescoring_codes(snapshot.existing_rows(names))) + functions.mean_
            codes = snapshot.codes(names)
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
