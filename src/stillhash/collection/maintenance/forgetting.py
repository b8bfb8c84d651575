"""Forget items, or a source of votes: in the store, in what was learnt, and in every file of the collection."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

import numpy as np

from stillhash.collection.learning.trainer import Trainer
from stillhash.collection.maintenance.compaction import CompactionReport
from stillhash.collection.storage.learner import LearntRow, lineage_of
from stillhash.collection.storage.lexical import rebuild_lexical
from stillhash.collection.storage.row_arrays import round_to_half
from stillhash.collection.storage.schema import RowNumbers, get_meta, is_fitted, set_meta
from stillhash.collection.storage.segments import CodedRows
from stillhash.collection.storage.store import FORGOTTEN_KEY, SCRUB_KEY, Store
from stillhash.collection.types import ForgetReport, Id
from stillhash.errors import InvalidInput, StillhashError
from stillhash.hashers import Hasher, Tally
from stillhash.numeric.codes import NO_DIGEST, feature_digests, signs
from stillhash.numeric.validation import Codes, Floats

STATISTICS_REMAIN = "statistics: the sums of what was learnt still count these items, since their features are not kept"
METHOD_REMAINS = "statistics: what was learnt of these items stays, since the method {method} cannot take rows out"
FEATURES_LOST = "statistics: {count} rows still count, since their features are lost"


class Learnt(NamedTuple):
    """What is known of rows that were learnt."""

    rows: list[LearntRow]
    features: Floats
    codes: Codes


def forget(
    store: Store,
    trainer: Trainer,
    compact: Callable[[], CompactionReport],
    ids: list[Id],
    source: str | None,
    snapshots: Path | None,
) -> ForgetReport:
    """Forget these items and the votes of this source, and write all files again that may hold something of them."""
    elsewhere = {} if snapshots is None else _search_snapshots(store, snapshots, ids, source)
    remains: list[str] = []
    unlearnt = 0
    with store.change("forget", None) as change:
        connection = change.connection
        rows = np.array(sorted(store.items.rows_of(connection, ids).values()), np.int64)
        coded = store.codes.of_rows(connection, rows)
        votes, since = _delete_votes(store, connection, ids, source, coded)
        if store.summed_rows is None:
            learnt, first = _learnt_rows(store, connection, rows, coded, remains)
        else:
            learnt, first = _nothing_learnt(store), store.summed_rows.first_version(connection, rows.tolist())
            unlearnt = trainer.take_out(connection, rows.tolist())
            store.summed_rows.drop(connection, rows.tolist())
        versions = [number for number in (since, first) if number is not None]
        if is_fitted(connection):
            trainer.count_unlabelled(connection, -store.items.count_unlabelled(connection, rows.tolist()))
        store.items.delete(connection, ids)
        if len(rows):
            rebuild_lexical(connection)
        store.audit.redact(connection, ids, source)
        dropped: list[int] = []
        if versions and is_fitted(connection):
            current = trainer.forget(connection, partial(_unlearn, learnt))
            dropped = store.versions.drop_others(connection, current, min(versions))
        set_meta(connection, SCRUB_KEY, 1)
        set_meta(connection, FORGOTTEN_KEY, get_meta(connection, "seq") + 1)
        change.rows = len(rows) + votes
    remains += compact().remains
    return ForgetReport(len(rows), votes, unlearnt or len(learnt.rows), dropped, elsewhere, remains)


def _delete_votes(
    store: Store, connection: Connection, ids: Sequence[Id], source: str | None, coded: CodedRows
) -> tuple[int, int | None]:
    """Delete the votes on items, on queries that are the features of an item, and of a source.

    Return how many there were, and the first version that has learnt from one.
    """
    digests = set(coded.digests[coded.digests != NO_DIGEST].tolist())
    if store.settings["codes_only"]:
        digests = set(feature_digests(signs(coded.codes, store.settings["bits"])).tolist())
    elif not is_fitted(connection):
        waiting, (X, _, _) = store.items.awaiting_codes(connection)
        rows = list(store.items.rows_of(connection, list(ids)).values())
        digests = set(feature_digests(X[np.isin(waiting, rows)]).tolist())
    queries = []
    for key, query in store.votes.queries(connection) if digests else ():
        vector = np.frombuffer(query, np.float32)[None]
        own = {int(feature_digests(vector)[0])}
        if store.features is not None:
            own.add(int(feature_digests(round_to_half(vector))[0]))
        if own & digests:
            queries.append(key)
    deleted = [
        store.votes.delete(connection, "item", list(ids)),
        store.votes.delete(connection, "digest", queries),
        store.votes.delete(connection, "source", [] if source is None else [source]),
    ]
    first = [version for _, version in deleted if version is not None]
    return sum(count for count, _ in deleted), min(first, default=None)


def _learnt_rows(
    store: Store, connection: Connection, rows: RowNumbers, coded: CodedRows, remains: list[str]
) -> tuple[Learnt, int | None]:
    """Return what can be taken out of the statistics, and the first version that may have learnt these rows."""
    nothing = _nothing_learnt(store)
    if not len(rows):
        return nothing, None
    if store.learnt_rows is None:
        remains += [STATISTICS_REMAIN] if is_fitted(connection) else []
        return nothing, 0
    learnt = store.learnt_rows.of_rows(connection, rows.tolist(), lineage_of(connection))
    first = store.learnt_rows.delete(connection, rows.tolist())
    if learnt and store.settings["method"] != Tally.name:
        remains.append(METHOD_REMAINS.format(method=store.settings["method"]))
        return nothing, first
    numbers = np.array([entry.row for entry in learnt], np.int64)
    codes = coded.codes[np.searchsorted(coded.numbers, numbers)]
    if store.features is None:  # they are the signs of the codes
        return Learnt(learnt, signs(codes, store.settings["bits"]), codes), first
    features, known = store.features.read(connection, numbers)
    if not known.all():
        remains.append(FEATURES_LOST.format(count=int((~known).sum())))
    places = np.flatnonzero(known)
    return Learnt([learnt[place] for place in places.tolist()], features[places], codes[places]), first


def _nothing_learnt(store: Store) -> Learnt:
    return Learnt([], np.empty((0, store.items.dim), np.float32), np.empty((0, store.items.code_bytes), np.uint8))


def _unlearn(learnt: Learnt, hasher: Hasher) -> None:
    """Take rows out of the statistics of a hasher."""
    if not learnt.rows:
        return
    assert isinstance(hasher, Tally)
    labels: list[Any] = [json.loads(entry.labels) for entry in learnt.rows]
    if hasher.half_life is None:
        hasher.unlearn(learnt.features, labels, learnt.codes)
        return
    for place, entry in enumerate(learnt.rows):  # each has decayed by its own age
        part = slice(place, place + 1)
        hasher.unlearn(learnt.features[part], labels[part], learnt.codes[part], age=entry.age)


def _search_snapshots(store: Store, folder: Path, ids: list[Id], source: str | None) -> dict[str, int]:
    """Return which snapshots of this collection hold some of these items or votes, and how many."""
    if not folder.is_dir():
        raise InvalidInput(f"snapshots: expected a folder of snapshots, got {str(folder)!r}")
    held: dict[str, int] = {}
    for path in sorted(folder.iterdir()):
        if not (path / "store.db").is_file() or path == store.path:
            continue
        try:
            with closing(Store(path, writer=False)) as other, other.reading() as connection:
                if other.codes.collection == store.codes.collection:
                    count = len(other.items.rows_of(connection, ids))
                    count += 0 if source is None else other.votes.count(connection, source)
                    held |= {path.name: count} if count else {}
        except StillhashError as error:
            raise InvalidInput(f"snapshots: {path.name} cannot be read: {error}") from error
    return held
