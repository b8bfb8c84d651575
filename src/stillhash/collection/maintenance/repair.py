"""Repair a collection: compute again what follows from the rest, drop what is lost, and report both.

Checksums, columns, the lexical index and sums of the learner are computed again. A damaged segment costs its items, a
damaged log the commits after the damage. Damaged pages of store.db cannot be repaired: a snapshot has them. No other
process may have the collection open.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stillhash.collection.learning.models import disagreeing_rows, repair_sums
from stillhash.collection.learning.trainer import Trainer
from stillhash.collection.storage.columns import columns_file
from stillhash.collection.storage.database import (
    acknowledge,
    acknowledged_commit,
    check_files,
    committed_seq,
    connect,
    damaged_pages,
    find_damage,
    lacks_acknowledgement,
    read_page_checksums,
    stored_format,
)
from stillhash.collection.storage.items import count_labelled
from stillhash.collection.storage.lexical import lexical_problems, rebuild_lexical
from stillhash.collection.storage.schema import (
    LABELLED_KEY,
    READABLE_FORMATS,
    STORE_FORMAT,
    check_counters,
    count_rows,
    get_meta,
    set_meta,
)
from stillhash.collection.storage.segments import read_segment
from stillhash.collection.storage.store import SCRUB_KEY, STORE_FOLDERS, Store, check_folders
from stillhash.collection.transfer.snapshot import ShareMeter
from stillhash.collection.types import Id
from stillhash.collection.validation import check_path
from stillhash.errors import BadState, InvalidInput
from stillhash.files import check_sealed, file_size, locked_folder, pack_file_checksums, stored_file, write_durably

ReadBytes = Callable[[int], object]  # called with bytes that are read


def verify_store(store: Store, meter: ShareMeter | None = None) -> list[str]:
    """Check everything that is stored, except what the models are; return one sentence for each problem."""
    meter = meter or ShareMeter(None)
    database = file_size(store.path / "store.db")
    sealed = sum(file_size(file) for folder in STORE_FOLDERS for file in (store.path / folder).glob("*"))
    meter.expect(2 * database + sealed)  # pages of the database are read here, and once more by SQLite
    if problems := find_damage(store.path, check_counters, meter.add):
        return problems
    with store.reading() as connection:
        before = store.codes.segment_files(connection), store.versions.learner_files(connection)
        with meter.reporting(connection):
            lines = connection.execute("PRAGMA integrity_check").fetchall()
        meter.add(database)
        problems = [f"store.db: {line}" for (line,) in lines if line != "ok"]
        problems += _damaged_files(store, connection, meter.add)
        problems += _contradictions(store, connection, meter)
        if not problems:
            problems = _mismatches(store, connection)
    if not problems:
        return []
    with store.reading() as connection:  # another process may have compacted, or removed learner files, meanwhile
        now = store.codes.segment_files(connection), store.versions.learner_files(connection)
    return problems if now == before else verify_store(store, meter)


def _damaged_files(store: Store, connection: sqlite3.Connection, on_bytes: ReadBytes) -> list[str]:
    """Compare all sealed files with their checksums."""
    checks: list[Callable[..., object]]
    checks = [partial(store.codes.read_segment, record) for record in store.codes.segment_records(connection)]
    checks += [partial(check_sealed, store.path / "segments" / file) for file in store.column_files(connection)]
    learner_files = store.versions.learner_files(connection)
    checks += [partial(check_sealed, stored_file(store.path / "learner", file)) for file in learner_files]
    problems = []
    for check in checks:
        try:
            check(on_bytes=on_bytes)
        except BadState as error:
            problems.append(str(error))
    return problems + [line for table in store.row_arrays for line in table.problems(connection, on_bytes)]


def _contradictions(store: Store, connection: sqlite3.Connection, meter: ShareMeter) -> list[str]:
    """Compare what the tables say of each other."""
    problems = []
    expected, actual = get_meta(connection, "items"), count_rows(connection, "items")
    if expected != actual:
        problems.append(f"store.db: expected {expected} items, got {actual}")
    expected, actual = count_labelled(connection), count_labelled(connection, again=True)
    if expected != actual:
        problems.append(f"store.db: expected {expected} items with labels, got {actual}")
    with meter.reporting(connection):
        problems += lexical_problems(connection)
    if get_meta(connection, SCRUB_KEY) is not None:
        problems.append("store.db: forgetting was interrupted. Run compact to remove what files still hold.")
    for one, other in pairwise(store.codes.segment_records(connection)):
        if one.last >= other.first:
            problems.append(f"segments: expected rows of {other.file} past {one.last}, got {other.first}")
    if stray_labels := store.doubtful_labels.count_stray(connection):
        problems.append(f"store.db: {stray_labels} rows of doubtful_labels have no item")
    return problems


def _mismatches(store: Store, connection: sqlite3.Connection) -> list[str]:
    """Compare the rows of items with the rows of codes."""
    problems, (missing, stray) = [], store.codes.mismatches(connection)
    if len(missing):
        problems.append(f"{len(missing)} items have no code, the first in row {missing[0]}")
    if len(stray):
        problems.append(f"{len(stray)} codes have no item, the first in row {stray[0]}")
    return problems


class RepairReport(NamedTuple):
    """What was done, as sentences, and the ids of lost items."""

    actions: list[str]
    lost_ids: list[Id]


def repair(path: str | Path) -> RepairReport:
    """Repair the collection in this folder, which no process has open; BadState if only a snapshot can restore it."""
    path = check_path(path)
    if not (path / "store.db").is_file():
        raise InvalidInput(f"path: expected the folder of a collection, got {str(path)!r}")
    check_files(path)
    check_folders(path)
    if (version := stored_format(path)) not in (None, *READABLE_FORMATS):
        raise BadState(f"{path.name}: expected store format {STORE_FORMAT}, got {version}, which repair does not know")
    report = RepairReport([], [])
    with locked_folder(path):
        _repair_database(path, report.actions)
    with closing(Store(path, writer=True)) as store:
        _drop_segments(store, report)
        with store.reading() as connection:
            for table in store.row_arrays:
                table.repair(connection, report.actions)
        incomplete = _drop_learners(store, report.actions)
        _repair_lexical(store, report.actions)
        repair_sums(store, report.actions, incomplete=incomplete)
        _relearn_labels(store, report.actions)
        _rebuild_columns(store, report.actions)
        if report.actions or report.lost_ids:
            with store.change("repair", len(report.lost_ids), report.lost_ids):
                pass
        if damage := verify_store(store):
            raise BadState(f"{path.name}: damaged beyond repair: {damage[0]}. Restore a snapshot.")
    return report


def _repair_database(path: Path, actions: list[str]) -> None:
    """Restore store.sums and `acked`, and accept the loss of commits from a damaged log."""
    try:
        read_page_checksums(path)
    except BadState as error:
        if _readable_seq(path, check=True) is None:
            raise BadState(f"{error}, and SQLite reports damage of store.db. Restore a snapshot.") from error
        write_durably(path / "store.sums", [pack_file_checksums(path / "store.db")])
        actions.append("store.sums: computed again, since SQLite reports no damage of store.db")
    if pages := damaged_pages(path):
        raise BadState(f"{path.name}: damaged beyond repair: page {pages[0]} of store.db. Restore a snapshot.")
    if (seq := _readable_seq(path)) is None:
        return
    with closing(connect(path, "ro")) as connection:
        missing = lacks_acknowledgement(connection, path)
    acknowledged = acknowledged_commit(path) or 0
    if missing:
        actions.append(f"acked: written again; commits after number {seq} are lost, if there were any")
    elif seq < acknowledged:
        actions.append(f"store.db-wal: the last {acknowledged - seq} of {acknowledged} commits are lost")
    if missing or seq < acknowledged:
        acknowledge(path, seq, durably=True)


def _readable_seq(path: Path, *, check: bool = False) -> int | None:
    """Return the number of the last commit; None if it cannot be read, or a check by SQLite fails."""
    try:
        with closing(connect(path, "ro")) as connection:
            sound = not check or connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            return committed_seq(connection) if sound else None
    except (BadState, sqlite3.DatabaseError, TypeError, ValueError):
        return None


def _drop_segments(store: Store, report: RepairReport) -> None:
    """Drop damaged segments and their items, which have lost their codes; and codes without an item."""
    with store.reading() as connection:
        damaged = []
        for record in store.codes.segment_records(connection):
            try:
                store.codes.read_segment(record)
            except BadState as error:
                damaged.append(record)
                report.actions.append(f"{error}; its items are lost")
    if damaged:
        with store.transaction() as connection:
            store.codes.remove_segments(connection, damaged)
            store.codes.start_over(connection)
    with store.reading() as connection:
        rows, stray = store.codes.mismatches(connection)
        lost = [item.id for item in store.items.get(connection, rows.tolist()).values()]
    if len(rows) or len(stray):
        with store.transaction() as connection:
            store.items.delete(connection, lost)
            store.items.add_tombstones(connection, stray.tolist())
    report.lost_ids.extend(lost)


def _drop_learners(store: Store, actions: list[str]) -> bool:
    """Let the current version continue from the learner of another one if its own is damaged.

    Return whether something that it had learnt is lost.
    """
    with store.reading() as connection:
        learners = store.versions.learners(connection)
        files = store.versions.learner_files(connection)
        current = get_meta(connection, "version")
    lost_files = {file for file in files if _is_lost(store.path / "learner" / file, actions)}
    sound = {version: files for version, files in learners.items() if not lost_files.intersection(files)}
    lost = [version for version in learners if version not in sound]
    if not lost:
        return False
    with store.transaction() as connection:
        for version in lost:
            store.versions.set_learner(connection, version, None)
        if current in lost and sound:
            store.versions.set_learner(connection, current, sound[max(sound)])
            actions.append(f"learner: learning continues from version {max(sound)}")
    if current in lost and not sound:
        actions.append("learner: none is left to continue from; searches are as before")
    return current in lost


def _is_lost(file: Path, actions: list[str]) -> bool:
    try:
        check_sealed(file)
        return False
    except BadState as error:
        actions.append(f"{error}; it is lost")
        return True


def _repair_lexical(store: Store, actions: list[str]) -> None:
    """Build the lexical index again if it has other words than the items."""
    with store.reading() as connection:
        if not lexical_problems(connection):
            return
    with store.transaction() as connection:
        rebuild_lexical(connection)
    actions.append("store.db: the lexical index was built again")


def _relearn_labels(store: Store, actions: list[str]) -> None:
    """Count the items with labels again, and let the next step learn those of items that were learnt with others."""
    with store.reading() as connection:
        rows = np.empty(0, np.int64) if store.summed_rows is None else disagreeing_rows(store, connection)
        miscounted = count_labelled(connection) != count_labelled(connection, again=True)
    if not len(rows) and not miscounted:
        return
    with store.transaction() as connection:
        if miscounted:
            set_meta(connection, LABELLED_KEY, count_labelled(connection, again=True))
            actions.append("store.db: the items with labels were counted again")
        if len(rows):
            Trainer(store).wait_again(connection, rows)
            actions.append(f"learner: the next step learns the labels of {len(rows)} rows that were learnt with others")


def _rebuild_columns(store: Store, actions: list[str]) -> None:
    """Build the columns of segments again if anything was damaged: they may hold what is lost in store.db."""
    with store.reading() as connection:
        files = store.codes.segment_files(connection)
    repaired = bool(actions)
    for file in files:
        columns = store.path / "segments" / columns_file(file)
        try:
            check_sealed(columns)
            if not repaired:
                continue
        except BadState:
            actions.append(f"segments/{columns.name}: built again")
        segment = read_segment(store.path / "segments" / file, store.settings["bits"], check=False)
        store.write_columns(file, segment.row_numbers())
