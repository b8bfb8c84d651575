"""Publish a collection to a cluster: bring its shards and fronts to the collection's latest commit, again and again.

A publication is one manifest, which says of which commit of the collection it is. So a publisher that dies leaves the
manifest before or the one after, and the next one goes on from there. Rows keep their numbers for as long as the
collection exists: a compaction of the collection changes no published segment.
"""

import logging
import tempfile
import threading
import time
import uuid
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Protocol, Self

import numpy as np

from stillhash.cluster.catalog import catalog_key, write_catalog
from stillhash.cluster.deletions import load_deletions, without_ids
from stillhash.cluster.garbage import collect_before
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.manifest import CLUSTER_SEGMENT_ROWS, ClusterManifest, SegmentEntry
from stillhash.cluster.partition import LivePartition, Patch
from stillhash.cluster.placement import cleared, place
from stillhash.cluster.publish_plan import MAX_PATCHES, PublishedSource, plan_rewrites
from stillhash.cluster.publish_rows import compare_items, rows_after, write_patch, write_rows
from stillhash.cluster.segment_files import LEAST_PIECE_ROWS
from stillhash.cluster.shard_items import open_partition, open_patch
from stillhash.collection.storage.items import labelled_share
from stillhash.collection.storage.schema import get_meta, is_fitted
from stillhash.collection.storage.segments import CodedRows
from stillhash.collection.storage.store import FORGOTTEN_KEY, Store
from stillhash.errors import BadState, Conflict, StillhashError
from stillhash.numeric.validation import check_number
from stillhash.search.blocks import NO_IDS, IdArray

log = logging.getLogger("stillhash.cluster")
PUBLISH_TRIES = 5  # while the collection's writer replaces files that are being read
REPUBLISH_SECONDS = 1.0  # after a failure
FORGET_SECONDS = 60.0  # from the publication of a `forget` to the end of earlier manifests, which readers may still use
FORGET_TRY_SECONDS = 5.0  # between two looks whether that time has passed


class PublishedCollection(Protocol):
    """A collection with a folder."""

    @property
    def path(self) -> Path: ...


class Publisher:
    """Publishes a collection, in a thread from `start` on, or whenever `publish` is called.

    collection : read from its folder, also while another process writes to it.
    interval : seconds between a look for a new commit and the next.
    writer : the URL of the server that writes the collection, for fronts.
    """

    def __init__(
        self, collection: PublishedCollection, cluster: ClusterIndex, *, interval: float = 0.5, writer: str = ""
    ) -> None:
        self.interval = check_number(interval, "interval", above=0)
        self._store, self._cluster, self._writer = Store(Path(collection.path), writer=False), cluster, writer
        if cluster.bits != self._store.settings["bits"]:
            self._store.close()
            raise Conflict(f"bits: expected {self._store.settings['bits']}, as the collection has, got {cluster.bits}")
        self._patches: dict[str, Patch] = {}  # that are open, by name
        self._collected, self._next_look = 0, 0.0  # manifests before this one are deleted; when to look for others
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: StillhashError | None = None  # of the last try in the thread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Publish every new commit from now on, in a thread."""
        self._thread = threading.Thread(target=self._run, name="stillhash-publisher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop publishing. What is published stays."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        for patch in self._patches.values():
            patch.close()
        self._store.close()

    def status(self) -> dict[str, Any]:
        """Return the commit of the collection, the one that is published, and what failed last."""
        with self._store.reading() as connection:
            seq = int(get_meta(connection, "seq"))
        source = PublishedSource.from_json(self._cluster.manifest.source)
        published = None if source is None else source.seq
        failure = None if self.failure is None else f"{type(self.failure).__name__}: {self.failure}"
        return {"seq": seq, "published": published, "number": self._cluster.manifest.number, "failure": failure}

    def publish(self) -> ClusterManifest:
        """Bring the cluster to the latest commit of the collection, and return the manifest of it.

        What was forgotten more than FORGET_SECONDS ago is deleted from the storage.
        """
        manifest = self._publish_latest()
        source = PublishedSource.from_json(manifest.source)
        if source is not None and source.clean_from > self._collected and time.monotonic() >= self._next_look:
            if collect_before(self._cluster.storage, source.clean_from, FORGET_SECONDS):
                self._collected = source.clean_from
            else:
                self._next_look = time.monotonic() + min(FORGET_SECONDS, FORGET_TRY_SECONDS)
        return manifest

    def _publish_latest(self) -> ClusterManifest:
        with self._cluster.writing() as manifest:
            for left in reversed(range(PUBLISH_TRIES)):
                try:
                    with self._store.reading() as connection:
                        seq = int(get_meta(connection, "seq"))
                        return self._publish(manifest, connection)
                except BadState:
                    with self._store.reading() as connection:
                        if not left or int(get_meta(connection, "seq")) == seq:
                            raise  # else a later commit removed files of this one
        raise AssertionError("unreachable")

    def _publish(self, manifest: ClusterManifest, connection: Connection) -> ClusterManifest:
        """Commit what this commit of the collection has more than the manifest."""
        seq, generation = (int(get_meta(connection, key)) for key in ("seq", "generation"))
        source = self._check_source(manifest)
        if source is not None and (source.seq, source.writer) == (seq, self._writer):
            return manifest
        clean_from = 0 if source is None else source.clean_from
        forgetting = source is not None and int(get_meta(connection, FORGOTTEN_KEY) or 0) > source.seq
        if forgetting:
            clean_from = manifest.number + 1
        built = self._store.rescoring is not None and not all(one.rescoring_checksum for one in manifest.segments)
        if source is not None and (source.seq > seq or built):
            # Restored from a copy, whose rows may be others; or with rescoring codes, which segments lack that were
            # published before these were built.
            manifest, source = cleared(manifest)._replace(patches=()), None
        if source is not None and source.seq < seq:
            manifest = self._change_rows(manifest, connection, source, generation, forgetting)
        last = -1 if source is None else source.last_row
        manifest, last = self._add_rows(manifest, connection, last)
        key = catalog_key(connection)
        if source is None or source.catalog_key != key or not manifest.catalog or forgetting:
            manifest = manifest._replace(catalog=self._write_catalog(connection))
        items, name = int(get_meta(connection, "items")), self._store.codes.collection.hex()
        share = labelled_share(connection)
        now = PublishedSource(name, seq, generation, last, key, items, self._writer, clean_from, share)
        return self._cluster.commit(manifest._replace(source=now.to_json()))

    def _check_source(self, manifest: ClusterManifest) -> PublishedSource | None:
        """Return what is published; Conflict if it is not of this collection."""
        source = PublishedSource.from_json(manifest.source)
        if source is None and manifest.segments:
            raise Conflict(f"{self._cluster.storage.url}: expected no rows, or those of a collection, got codes alone")
        if source is not None and source.collection != self._store.codes.collection.hex():
            raise Conflict(f"{self._cluster.storage.url}: another collection is published there")
        return source

    def _add_rows(self, manifest: ClusterManifest, connection: Connection, last: int) -> tuple[ClusterManifest, int]:
        """Return the manifest with the rows past this one, and the last row."""
        if not is_fitted(connection):
            return manifest, last
        count = int(connection.execute("SELECT count(*) FROM items WHERE row > ?", [last]).fetchone()[0])
        most = max(
            LEAST_PIECE_ROWS, min(CLUSTER_SEGMENT_ROWS, -(-count // len(manifest.shards)))
        )  # so all shards get some
        for rows in rows_after(self._store, connection, last, most):
            entry = write_rows(self._cluster.storage, self._store, connection, rows)
            manifest = place(manifest, [entry])
        last = max(last, int(get_meta(connection, "next_row")) - 1)
        return manifest._replace(next_id=max(manifest.next_id, last + 1)), last

    def _change_rows(
        self,
        manifest: ClusterManifest,
        connection: Connection,
        source: PublishedSource,
        generation: int,
        forgetting: bool,
    ) -> ClusterManifest:
        """Return the manifest with what was deleted or changed since, and with some segments written again.

        forgetting: write all segments and patches again that have something deleted or outdated.
        """
        patches = self._open_patches(manifest)
        if generation == source.generation:
            deleted = self._store.codes.deleted_after(connection, source.seq)
            sql = "SELECT row FROM changed_rows WHERE seq > ? AND row <= ? ORDER BY row"
            rows = connection.execute(sql, [source.seq, source.last_row]).fetchall()
            changed = np.array(rows, np.int64).reshape(-1)
        else:  # a compaction, which has cleared these tables
            deleted, changed = self._compare(manifest, connection, patches)
        if len(deleted):
            manifest, _ = without_ids(self._cluster.cache, manifest, np.sort(deleted))
        patched = np.unique(np.concatenate([changed, *(patch.numbers for patch in patches)]))
        counts = {entry.name: len(self._held(entry, patched)) for entry in manifest.segments} if len(patched) else {}
        groups = plan_rewrites(manifest, counts, forgetting)
        for group in groups:
            patched = np.setdiff1d(patched, np.concatenate([self._held(entry, patched) for entry in group]))
            manifest = self._rewrite(manifest, connection, group)
        empty = {entry.name for entry in manifest.segments if not entry.live}
        manifest = manifest._replace(segments=tuple(one for one in manifest.segments if one.name not in empty))
        together = forgetting or bool(groups and patches) or len(patches) >= MAX_PATCHES
        return self._patch(manifest, connection, patched if together else np.intersect1d(changed, patched), together)

    def _patch(
        self, manifest: ClusterManifest, connection: Connection, rows: IdArray, together: bool
    ) -> ClusterManifest:
        """Return the manifest with a patch of these rows, beside or, if it has all, in place of the others."""
        live = np.concatenate([NO_IDS, *(self._held(entry, rows) for entry in manifest.segments)])
        new = [write_patch(self._cluster.storage, self._store, connection, np.sort(live).tolist())] if len(live) else []
        return manifest._replace(patches=(*new,) if together else (*manifest.patches, *new))

    def _held(self, entry: SegmentEntry, rows: IdArray) -> IdArray:
        """Return those of these ascending rows that a segment holds and that are not deleted."""
        start, end = np.searchsorted(rows, [entry.first, entry.last + 1])
        if start == end:
            return NO_IDS
        numbers = self._cluster.cache.row_numbers(entry, self._cluster.bits)
        if entry.deleted:
            deleted = np.unpackbits(load_deletions(self._cluster.storage, entry), count=entry.rows, bitorder="little")
            numbers = numbers[deleted == 0]
        return np.intersect1d(rows[start:end], numbers, assume_unique=True)

    def _rewrite(self, manifest: ClusterManifest, connection: Connection, group: list[SegmentEntry]) -> ClusterManifest:
        """Return the manifest with one segment in place of some of a shard."""
        bits, parts = self._cluster.bits, []
        for entry in group:
            rows = self._cluster.cache.open(entry, bits).coded_rows()
            deleted = np.unpackbits(load_deletions(self._cluster.storage, entry), count=entry.rows, bitorder="little")
            parts.append(rows.select(deleted == 0))
        rows = CodedRows.join(parts, bits)
        names = {entry.name for entry in group}
        others = tuple(entry for entry in manifest.segments if entry.name not in names)
        if not len(rows.numbers):
            return manifest._replace(segments=others)
        ascending = rows.select(np.argsort(rows.numbers))
        entry = write_rows(self._cluster.storage, self._store, connection, ascending, group[0].shard)
        return manifest._replace(segments=(*others, entry))

    def _compare(
        self, manifest: ClusterManifest, connection: Connection, patches: list[Patch]
    ) -> tuple[IdArray, IdArray]:
        """Return the rows that are deleted and those that have changed, found by reading all published items."""
        parts = [(NO_IDS, NO_IDS)]
        for entry in manifest.segments:
            partition = open_partition(self._cluster.cache, entry, self._cluster.cache.open(entry, self._cluster.bits))
            try:
                deleted = load_deletions(self._cluster.storage, entry) if entry.deleted else None
                parts.append(compare_items(connection, LivePartition(partition, deleted), patches))
            finally:
                partition.close()
        deleted_rows, changed = (np.sort(np.concatenate(some)) for some in zip(*parts, strict=True))
        return deleted_rows, changed

    def _open_patches(self, manifest: ClusterManifest) -> list[Patch]:
        """Return the patches of a manifest, and close others."""
        names = {entry.name for entry in manifest.patches}
        for name in self._patches.keys() - names:
            self._patches.pop(name).close()
        for entry in manifest.patches:
            if entry.name not in self._patches:
                self._patches[entry.name] = open_patch(self._cluster.cache, entry)
        return [self._patches[entry.name] for entry in manifest.patches]

    def _write_catalog(self, connection: Connection) -> str:
        name = f"catalogs/{uuid.uuid4().hex}.db"
        with tempfile.TemporaryDirectory(prefix="stillhash-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "catalog"
            write_catalog(self._store, connection, path)
            self._cluster.storage.put_file(path, name)
        return name

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.publish()
                self.failure = None
            except StillhashError as error:
                self.failure = error
                log.warning("publisher: %s: %s", type(error).__name__, error)
                self._stopped.wait(REPUBLISH_SECONDS)
            self._stopped.wait(self.interval)
