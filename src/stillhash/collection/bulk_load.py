"""A collection made at once, of segments that were written elsewhere: it appears with all its items, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from stillhash.collection.encoder_alignment import Origin
from stillhash.collection.storage.integrity import Connection
from stillhash.collection.storage.sealed_files import sync_folder
from stillhash.collection.storage.segments import Segment
from stillhash.collection.storage.store import Store
from stillhash.collection.trainer import Trainer
from stillhash.collection.types import Id
from stillhash.errors import Conflict, InvalidInput, StoreFailed
from stillhash.hashers import METHODS, Hasher

FOUNDED = "founded"  # in the table `meta`: what the collection was made of


class Batch(NamedTuple):
    """A segment, and the items that its rows are, in order."""

    segment: Segment
    ids: list[Id]
    labels: list[list[Any]]
    metadata: list[str | None]  # JSON
    pictures: list[bytes | None] | None


def founded(path: Path, of: str) -> bool:
    """Whether the collection there was made of this; Conflict if it is another one."""
    if not (path / "store.db").is_file():
        return False
    store = Store(path, writer=False)
    try:
        with store.reading() as connection:
            if store.meta(connection, FOUNDED) == of:
                return True
    finally:
        store.close()
    raise Conflict(f"path is {str(path)!r}, where there is another collection already; a new folder is wanted")


def found(
    path: Path,
    hasher: Hasher,
    batches: Iterable[Batch],
    *,
    of: str,
    learnt: int,
    encoder: Origin | None = None,
    settings: dict[str, Any],
) -> None:
    """Makes a collection whose codes are in these segments, of rising rows; `learnt` rows have taught the hasher.

    It is made in a folder beside, in one transaction, and gets its name when it is complete.
    """
    if hasher.name not in METHODS or not METHODS[hasher.name].fixed_codes:
        still = ", ".join(name for name, known in METHODS.items() if known.fixed_codes)
        raise InvalidInput(f"hasher is {hasher!r}; one that learns over codes that never change is wanted: {still}")
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)  # of an earlier attempt
        store = Store.create(unfinished, _told(hasher, encoder, settings))
        teacher = Trainer(store)
        try:
            with teacher.writing() as connection:
                _fill(store, connection, batches)
                store.set_meta(connection, FOUNDED, of)
                teacher.begin(connection, hasher, "learn" if learnt else "fit", learnt)
        finally:
            store.close()
        unfinished.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise StoreFailed(f"path is {str(path)!r}; a collection cannot be made there: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _fill(store: Store, connection: Connection, batches: Iterable[Batch]) -> None:
    number = 0
    for batch in batches:
        if not batch.segment.rows:
            continue
        number += 1
        file = f"{number:08d}.tiles"
        _link(batch.segment.path, store.path / "segments" / file)
        store.set_meta(connection, "next_row", batch.segment.first)
        rows = store.insert(connection, batch.ids, batch.labels, batch.metadata, None, None)
        if batch.pictures is not None:
            store.add_pictures(connection, rows, batch.pictures)
        about = number, file, len(rows), rows[0], rows[-1]
        connection.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", about)
    sync_folder(store.path / "segments")
    store.set_meta(connection, "seq", number)  # a later segment is numbered by its commit, past all of these


def _link(segment: Path, to: Path) -> None:
    """Sealed files never change, so that one may be in two places; where it cannot, it is copied."""
    try:
        os.link(segment, to)
    except OSError:
        shutil.copyfile(segment, to)
        with to.open("rb") as copied:
            os.fsync(copied.fileno())


def _told(hasher: Hasher, encoder: Origin | None, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, as a store holds them."""
    params = json.loads(json.dumps(hasher.params_to_json()))
    return {
        "dim": hasher.n_features_in_,
        "bits": params.pop("bits"),
        "method": hasher.name,
        "params": params,
        **settings,
        "encoder": None if encoder is None else encoder._asdict(),
    }
