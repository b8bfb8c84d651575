"""The collection of an index: one handle to read, and one for the time of each change.

So the server of the App, and other sessions, can search and change it meanwhile.
"""

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from stillhash.collection import Collection
from stillhash.collection import open as open_collection
from stillhash.errors import NotFound

SETTINGS = ("bits", "init_rows", "learn_rows", "keep_features")


class IndexedIds(NamedTuple):
    """The ids of all items of an index, in the same order."""

    items: NDArray[Any]
    samples: NDArray[Any]


class StoredIndex:
    """The collection that a config names. Its items have their id and that of their sample in their metadata."""

    def __init__(self, config: Any, name: str | None) -> None:
        """Choose a folder for a new index: by its name, or a temporary one if it has none."""
        self.config = config
        self._reader: Collection | None = None
        self._ids: IndexedIds | None = None
        if config.collection is None and name is None:
            config.folder, config.collection = mkdtemp(prefix="stillhash-"), "index"
            finalize(self, shutil.rmtree, config.folder, ignore_errors=True)
        elif config.collection is None:
            config.collection = _new_name(Path(config.folder), str(name))

    @property
    def path(self) -> Path:
        return Path(self.config.folder, self.config.collection)

    def exists(self) -> bool:
        return (self.path / "store.db").is_file()

    def read(self) -> Collection:
        """Return the collection, to read it."""
        if self._reader is None:
            if not self.exists():
                raise NotFound(f"index: nothing is in it yet, or {self.path.name} was moved or deleted")
            self._reader = open_collection(self.path, read_only=True)
        return self._reader

    def write(self, dim: int | None = None) -> Collection:
        """Open the collection to change it. With the length of embeddings, create it if there is none."""
        self._ids = None
        if dim is None and not self.exists():
            raise NotFound("index: nothing is in it yet")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return open_collection(self.path, dim, **({} if self.exists() else self._settings()))

    def ids(self) -> IndexedIds:
        """Return the ids of all items, as of the last change or `reload` of this session."""
        if self._ids is None:
            items = list(self.read().items()) if self.exists() else []
            samples = [sample_of(item.metadata) for item in items]
            self._ids = IndexedIds(np.array([item.id for item in items], object), np.array(samples, object))
        return self._ids

    def reload(self) -> None:
        """Read the ids again, which another session may have changed."""
        self._ids = None

    def delete(self) -> None:
        """Delete the collection."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self._ids = None
        if self.exists():
            shutil.rmtree(self.path)

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self.config, name) for name in SETTINGS}


def item_metadata(item: str, sample: str) -> dict[str, str]:
    return {"item": item, "sample": sample}


def sample_of(metadata: dict[str, Any] | None) -> str:
    """Return the id of the sample of an item."""
    return str((metadata or {}).get("sample"))


def is_fitted(collection: Collection) -> bool:
    return bool(collection.stats()["fitted"])


def _new_name(folder: Path, name: str) -> str:
    """Return the name, with a number if there is such a folder."""
    number = 1
    while (folder / (numbered := name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return numbered
