"""Convert a store of format 1 to the format of this version: items, votes and versions; deleted rows are dropped."""

import json
import sqlite3
from contextlib import closing
from itertools import groupby
from pathlib import Path

import numpy as np

from stillhash.collection.bulk_load import SOURCE_KEY
from stillhash.collection.encoder_alignment import ALIGNMENT_PREFIX
from stillhash.collection.format_1_state import (
    convert_alignment,
    convert_functions,
    convert_hasher,
    convert_history,
    convert_notes,
)
from stillhash.collection.prequential import save_history
from stillhash.collection.storage.format_1 import Format1Item, Format1Store
from stillhash.collection.storage.schema import STORE_FORMAT, set_meta
from stillhash.collection.storage.segments import CodedRows
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.versions import NewVersion
from stillhash.collection.storage.votes import StoredVote
from stillhash.collection.stored_models import fingerprint
from stillhash.collection.validation import ItemRows, LabelledRows
from stillhash.errors import BadState, StillhashError
from stillhash.numeric.validation import Floats

COPIED_ROWS = 1000  # in one transaction


def convert(old: Format1Store, to: Path) -> list[str]:
    """Create a store with all that a store of format 1 has, in a new folder; return what was done, as sentences."""
    try:
        return _convert(old, to)
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, StillhashError):
            raise
        raise BadState(f"{old.path.name}: cannot be converted: {error}") from error


def _convert(old: Format1Store, to: Path) -> list[str]:
    settings = {**old.settings, "codes_see_labels": False, "filter_fields": None}
    with closing(Store.create(to, settings)) as store:
        for items in old.items(COPIED_ROWS):
            _append(store, items)
        with store.transaction() as connection:
            set_meta(connection, "next_row", int(old.meta("next_row")))
            _copy_pending(old, store, connection)
            _copy_votes(old, store, connection)
            if (source := old.meta("founded")) is not None:
                set_meta(connection, SOURCE_KEY, source)
            for encoder, data in old.alignments().items():
                set_meta(connection, ALIGNMENT_PREFIX + encoder, convert_alignment(data))
            without_learner = _copy_versions(old, store, connection)
        if len(old.numbers):
            store.write_segments(CodedRows.without_digests(old.numbers, old.codes))
    action = f"{old.meta('items')} items and {len(old.versions())} versions converted to format {STORE_FORMAT}"
    return [action, *without_learner]


def _append(store: Store, items: list[Format1Item]) -> None:
    """Insert items under their own row numbers: those that follow one another at once."""
    with store.transaction() as connection:
        for _, run in groupby(enumerate(items), lambda pair: pair[1].row - pair[0]):
            rows = [item for _, item in run]
            first, *columns = zip(*rows, strict=True)
            ids, labels, metadata, features, pictures = map(list, columns)
            set_meta(connection, "next_row", first[0])
            values = None if features[0] is None else _vectors(features, store.settings["dim"])
            store.items.append(connection, ItemRows(ids, labels, metadata, pictures), features=values)


def _vectors(blobs: list[bytes], dim: int) -> Floats:
    return np.frombuffer(b"".join(blobs), np.float32).reshape(len(blobs), dim)


def _copy_pending(old: Format1Store, store: Store, connection: sqlite3.Connection) -> None:
    """Copy the rows that are not learnt yet.

    Format 1 does not say which features were rebuilt from a code. So where there are codes, none count as the item's
    own, and their labels are learnt without being judged.
    """
    if not (pending := old.pending()):
        return
    numbers, blobs, texts = map(list, zip(*pending, strict=True))
    rows = LabelledRows.from_texts(_vectors(blobs, store.settings["dim"]), texts)
    codes = old.code_of(numbers) if old.fitted else None
    store.items.add_pending(connection, numbers, rows, codes, np.full(len(numbers), not old.fitted))


def _copy_votes(old: Format1Store, store: Store, connection: sqlite3.Connection) -> None:
    for version, votes in groupby(old.votes(), lambda vote: vote.version):
        stored = [
            StoredVote(
                vote.query, json.loads(vote.item), vote.source, vote.vote, None, vote.code, json.loads(vote.labels)
            )
            for vote in votes
        ]
        store.votes.add(connection, version, stored)


def _copy_versions(old: Format1Store, store: Store, connection: sqlite3.Connection) -> list[str]:
    """Copy the hash functions and all versions; return a sentence for each whose learner cannot be converted."""
    if not old.fitted:
        return []
    if fingerprint(state := old.meta("functions")) != old.meta("fingerprint"):
        raise BadState(f"{old.path.name}: damaged: the hash functions have another fingerprint than those of the items")
    functions = convert_functions(state).state()
    set_meta(connection, "functions", functions)
    set_meta(connection, "fingerprint", fingerprint(functions))
    versions, problems = old.versions(), []
    names = {version.learner for version in versions if version.learner is not None}
    learners = {name: _copy_learner(old, store, name, functions) for name in sorted(names)}
    for version in versions:
        files = None if version.learner is None else learners[version.learner]
        if files is None and version.learner is not None:
            problems.append(f"version {version.version} has no learner any more: its state cannot be converted")
        new = NewVersion(version.kind, version.rows, files or [], convert_notes(version.notes))
        store.versions.insert(connection, version.version, version.created, new, version.side, version.model)
        if files is None:
            store.versions.set_learner(connection, version.version, None)
        if version.tag is not None:
            store.versions.tag(connection, version.version, version.tag)
    set_meta(connection, "version", int(old.meta("version")))
    save_history(connection, convert_history(old.meta("quality"), versions))
    return problems


def _copy_learner(old: Format1Store, store: Store, file: str, functions: bytes) -> list[str] | None:
    """Convert the saved state of a learner, under the same name; return its files, None if that is not possible."""
    state = old.learner(file)
    try:
        hasher = convert_hasher(state)
    except BadState:
        return None
    if hasher.functions().state() != functions:
        raise BadState(f"learner/{file}: its hash functions are not those of the items")
    return store.learner_files.checkpoint(int(Path(file).stem), hasher)
