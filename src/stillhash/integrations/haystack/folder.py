"""The folder of a document store: two collections, and a journal for changes of both.

    embedded/      documents with an embedding: an ordinary collection
    unembedded/    documents without one: a collection of codes only, whose codes mean nothing
    journal        a change of several steps that was begun; it is removed when all of them are done

A step is one transaction of one collection. A change of several steps is written to the journal before the first of
them, and is finished when the folder is opened again after a crash: all of it happens, or nothing.
"""

import json
import shutil
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import stillhash.collection
from stillhash.collection import Collection
from stillhash.collection.storage.row_arrays import round_features
from stillhash.collection.types import Filter, Item
from stillhash.collection.validation import check_ids, check_items, check_labels, check_metadata, check_path
from stillhash.collection.values import json_text
from stillhash.errors import BadState, Conflict
from stillhash.files import read_sealed, write_sealed

EMBEDDED, UNEMBEDDED, JOURNAL = "embedded", "unembedded", "journal"
UNUSED_CODE_BITS = 8  # of documents without an embedding
MAX_LISTED = 2**62  # ids at once: all


@dataclass(frozen=True)
class Step:
    """A change of one collection: "delete" items, "write" them, or "update" labels and metadata of existing ones."""

    collection: str
    verb: str
    ids: list[str]
    features: list[list[float]] | None = None
    labels: list[Any] | None = None
    metadata: list[dict[str, Any]] | None = None


class DocumentFolder:
    """The collections of one folder. All stores of a process that use the folder share it."""

    def __init__(self, path: Path, dim: int, settings: dict[str, Any], read_only: bool) -> None:
        self.path, self.read_only = path, read_only
        self.lock = threading.RLock()  # held by writes, and by reads of both collections
        self.users = 0
        self._dim, self._settings, self._last_order = dim, settings, 0
        self._open()

    def _open(self) -> None:
        options = {"read_only": True} if self.read_only else self._settings
        self.embedded = stillhash.collection.open(self.path / EMBEDDED, self._dim, **options)
        try:
            if self.read_only:
                self.unembedded = stillhash.collection.open(self.path / UNEMBEDDED, read_only=True)
            else:
                self.unembedded = stillhash.collection.open(
                    self.path / UNEMBEDDED, bits=UNUSED_CODE_BITS, codes_only=True
                )
                self._finish_journal()
        except BaseException:
            self.embedded.close()
            raise
        self.keeps_embeddings = bool(self.embedded.stats()["keep_features"])
        for collection in (self.embedded, self.unembedded):
            collection.warn_unknown_fields(False)

    def close(self) -> None:
        """Close both collections."""
        self.embedded.close()
        self.unembedded.close()

    def recreate(self) -> None:
        """Remove both collections, with the hash functions and all that was learnt, and create empty ones."""
        with self.lock:
            self.close()
            for name in (EMBEDDED, UNEMBEDDED):
                shutil.rmtree(self.path / name)
            self._open()

    def collections(self) -> Iterator[tuple[str, Collection]]:
        """Iterate over the names and the collections."""
        yield EMBEDDED, self.embedded
        yield UNEMBEDDED, self.unembedded

    def existing(self, ids: list[str]) -> tuple[set[str], set[str]]:
        """Return which of these ids have an embedding, and which are stored without one."""
        with_embedding, without = (
            {str(item.id) for item in collection.get(ids) if item is not None} for _, collection in self.collections()
        )
        return with_embedding, without

    def items(self, conditions: tuple[Filter | None, Filter | None]) -> tuple[list[Item], list[Item]]:
        """Return the items of each collection that meet its condition."""
        with self.lock:
            return list(self.embedded.items(conditions[0])), list(self.unembedded.items(conditions[1]))

    def matching_ids(self, conditions: tuple[Filter | None, Filter | None]) -> list[list[str]]:
        """Return the ids of the items of each collection that meet its condition."""
        pairs = zip(self.collections(), conditions, strict=True)
        return [[str(name) for name in each.ids(where, limit=MAX_LISTED)] for (_, each), where in pairs]

    def next_orders(self, count: int) -> range:
        """Return the next numbers by which documents are listed."""
        first = max(time.time_ns(), self._last_order + 1)
        self._last_order = first + count - 1
        return range(first, first + count)

    def apply(self, steps: Iterable[Step]) -> None:
        """Do all steps that change something, or none; the lock is held by the caller."""
        self._finish_journal()
        steps = [step for step in steps if step.ids]
        if len(steps) > 1:
            for step in steps:
                self._check(step)
            content = json_text([asdict(step) for step in steps])
            write_sealed(self.path / JOURNAL, [content.encode("utf-8")])
        for number, step in enumerate(steps):
            try:
                self._do(step)
            except Exception:
                if number == 0:  # nothing has changed; later, the next write finishes what has begun
                    (self.path / JOURNAL).unlink(missing_ok=True)
                raise
        (self.path / JOURNAL).unlink(missing_ok=True)

    def _check(self, step: Step) -> None:
        """Validate a step as its collection will, so that no later step of a change is refused."""
        if step.features is None:
            check_metadata(step.metadata, len(check_ids(step.ids)))
            check_labels(step.labels, len(step.ids))
            return
        _, rows = check_items(step.ids, step.features, step.labels, step.metadata, None, self._dim)
        if self.keeps_embeddings:
            round_features(rows.features)

    def _do(self, step: Step) -> None:
        collection = dict(self.collections())[step.collection]
        if step.verb == "delete":
            collection.delete(step.ids)
        elif step.verb == "update" or step.collection == EMBEDDED:
            collection.upsert(step.ids, step.features, step.labels, step.metadata)
        else:
            codes = np.zeros((len(step.ids), UNUSED_CODE_BITS // 8), np.uint8)
            collection.upsert(step.ids, codes, metadata=step.metadata)

    def _finish_journal(self) -> None:
        """Do what is left of a change that was interrupted; rows that are there already are not learnt twice."""
        path = self.path / JOURNAL
        if not path.exists():
            return
        try:
            steps = [Step(**step) for step in json.loads(read_sealed(path))]
        except (TypeError, ValueError) as error:
            raise BadState(f"{JOURNAL}: expected steps of a change, got something else: {error}") from error
        for step in steps:
            stored = dict(self.collections())[step.collection].get(step.ids)
            done = [None if item is None else item.metadata for item in stored]
            if step.verb == "delete" or done != step.metadata:
                self._do(step)
        path.unlink()


_open_folders: weakref.WeakValueDictionary[tuple[Path, bool], DocumentFolder] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def use_folder(path: Any, dim: int, settings: dict[str, Any], read_only: bool) -> DocumentFolder:
    """Open a folder, or share the one that this process has open."""
    place = check_path(path).resolve()
    with _opening:
        folder = _open_folders.get((place, read_only))
        if folder is None:
            folder = _open_folders[place, read_only] = DocumentFolder(place, dim, settings, read_only)
        elif folder.embedded.dim != dim:
            raise Conflict(f"embedding_dim: expected {folder.embedded.dim}, as {place.name} has, got {dim}")
        folder.users += 1
        return folder


def leave_folder(folder: DocumentFolder) -> None:
    """Close a folder when its last user leaves it."""
    with _opening:
        folder.users -= 1
        if not folder.users:
            _open_folders.pop((folder.path, folder.read_only), None)
            folder.close()
