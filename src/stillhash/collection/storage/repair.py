"""Repair a collection: restore what is not damaged, and report what was done and what is lost.

A single flipped bit of a page, a block or a frame is flipped back. What is damaged beyond that is left out: rows that
SQLite cannot reach, codes of damaged tiles. No other process may have the collection open.

A damaged store.db is read by salvage.py; a sound one through Store.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stillhash.collection.storage.column_files import columns_file
from stillhash.collection.storage.connections import check_files, connect, stored_format
from stillhash.collection.storage.integrity import (
    acknowledge,
    acknowledged_commit,
    committed_seq,
    lacks_acknowledgement,
    read_page_checksums,
)
from stillhash.collection.storage.lexical import lexical_problems, rebuild_lexical
from stillhash.collection.storage.new_database import install_database
from stillhash.collection.storage.salvage import salvage
from stillhash.collection.storage.schema import READABLE_FORMATS, STORE_FORMAT, get_meta
from stillhash.collection.storage.segments import CodedRows, read_segment, read_surviving
from stillhash.collection.storage.store import Store, check_folders
from stillhash.collection.storage.verification import verify_store
from stillhash.collection.storage.verify_pages import PAGE_SIZE
from stillhash.collection.storage.wal import read_wal, repair_wal
from stillhash.collection.stored_sums import repair_sums
from stillhash.collection.types import Id
from stillhash.collection.validation import check_path
from stillhash.errors import BadState, InvalidInput, StillhashError
from stillhash.files import checksums as sums
from stillhash.files.sealed_files import (
    check_kind,
    check_sealed,
    locked_folder,
    open_regular,
    repair_sealed,
    write_durably,
)
from stillhash.platform import SYSTEM


class RepairReport(NamedTuple):
    """What was done, as sentences, and the ids of lost items, as far as they are known."""

    actions: list[str]
    lost_ids: list[Id]


def repair(path: str | Path) -> RepairReport:
    """Repair the collection in this folder, which no process has open."""
    path = check_path(path)
    if not (path / "store.db").is_file():
        raise InvalidInput(f"path: expected the folder of a collection, got {str(path)!r}")
    check_files(path)
    check_folders(path)
    if (version := stored_format(path)) not in (None, *READABLE_FORMATS):
        raise BadState(f"{path.name}: expected store format {STORE_FORMAT}, got {version}, which repair does not know")
    report = RepairReport([], [])
    with locked_folder(path):
        incomplete = _repair_database(path, report)
    with closing(Store(path, writer=True)) as store:
        with store.reading() as connection:
            for table in store.row_arrays:
                table.repair(connection, report.actions)
        _repair_segments(store, report.actions)
        incomplete |= _repair_learners(store, report.actions)
        _repair_lexical(store, report.actions)
        _delete_lost(store, report.lost_ids)
        repair_sums(store, report.actions, incomplete=incomplete)
        _rebuild_columns(store, report.actions)
        if report.actions or report.lost_ids:
            with store.change("repair", len(report.lost_ids), report.lost_ids):
                pass
        if damage := verify_store(store):
            raise BadState(f"{path.name}: damaged beyond repair: {damage[0]}")
    return report


def _repair_database(path: Path, report: RepairReport) -> bool:
    """Repair store.db and its log; return whether rows of tables are lost."""
    new, checksums = path / "store.db.new", path / "store.sums"
    if new.exists() and checksums.exists() and sums.pack_file_checksums(new) == checksums.read_bytes():
        install_database(path)
        report.actions.append("store.db: an interrupted repair is finished")
    _repair_page_checksums(path, report.actions)
    _repair_wal(path, report.actions)
    if lost := _repair_pages(path, report.actions):
        report.actions.append(f"store.db: {len(lost)} pages are lost; the rows of the others were copied to a new file")
        restored, lost_ids = salvage(path, lost)
        report.actions.append(restored)
        report.lost_ids.extend(lost_ids)
    _repair_wal(path, report.actions)
    if (seq := _readable_seq(path)) is None:
        return bool(lost)
    with closing(connect(path, "ro")) as connection:
        missing = lacks_acknowledgement(connection, path)
    acknowledged = acknowledged_commit(path) or 0
    if missing:
        report.actions.append(f"acked: written again; commits after number {seq} are lost, if there were any")
    elif seq < acknowledged:
        report.actions.append(f"store.db-wal: the last {acknowledged - seq} of {acknowledged} commits are lost")
    if missing or seq < acknowledged:
        acknowledge(path, seq, durably=True)
    return bool(lost)


def _repair_page_checksums(path: Path, actions: list[str]) -> None:
    file = path / "store.sums"
    data = b""
    if check_kind(file):
        with open_regular(file) as opened:
            data = opened.read()
    try:
        sums.unpack_checksums(data, file.name)
        return
    except BadState:
        table = sums.repair_packed_checksums(data)
    if table is None:
        if _readable_seq(path, check=True) is None:
            raise BadState(f"{path.name}: the checksums of store.db are lost, and SQLite reports damage")
        table = sums.pack_file_checksums(path / "store.db")
        actions.append("store.sums: computed again, since SQLite reports no damage of store.db")
    else:
        actions.append("store.sums: a bit was flipped back")
    write_durably(file, [table])


def _repair_wal(path: Path, actions: list[str]) -> None:
    """Repair the WAL while it lacks acknowledged commits."""
    while (seq := _readable_seq(path)) is not None and seq < (acknowledged_commit(path) or 0) and repair_wal(path):
        actions.append("store.db-wal: a bit was flipped back")


def _repair_pages(path: Path, actions: list[str]) -> list[int]:
    """Repair pages of store.db; return those that are lost."""
    in_wal = set(read_wal(path).page_numbers.tolist())  # which SQLite reads from there
    with (path / "store.db").open("r+b") as file:
        data = bytearray(file.read())
        repaired, lost = sums.repair_blocks(data, read_page_checksums(path))
        for page in repaired:
            if page not in in_wal:
                file.seek(page * PAGE_SIZE)
                file.write(data[page * PAGE_SIZE : (page + 1) * PAGE_SIZE])
                actions.append(f"store.db: a bit of page {page} was flipped back")
        file.flush()
        SYSTEM.sync_handle(file.fileno())
    return [page for page in lost if page not in in_wal]


def _readable_seq(path: Path, *, check: bool = False) -> int | None:
    """Return the number of the last commit; None if it cannot be read, or a check by SQLite fails."""
    try:
        with closing(connect(path, "ro")) as connection:
            sound = not check or connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            return committed_seq(connection) if sound else None
    except (BadState, sqlite3.DatabaseError, TypeError, ValueError):
        return None


def _repair_segments(store: Store, actions: list[str]) -> None:
    """Repair the segments; if some codes are lost, put all others into new segments."""
    with store.reading() as connection:
        records = store.codes.segment_records(connection)
        parts = [store.codes.unsealed(connection)]
    complete = True
    for record in records:
        lost = _repair_file(store.path, f"segments/{record.file}", actions)
        if lost == []:
            try:
                store.codes.read_segment(record)
            except BadState:
                actions.append(f"segments/{record.file}: lost; the file there is another segment")
                lost = None
        complete = complete and lost == []
        if lost is not None:
            shape = store.settings["bits"], record.rows, record.first, record.last
            parts.append(read_surviving(store.path / "segments" / record.file, *shape, lost))
    if not complete:
        rows = CodedRows.join(parts, store.settings["bits"])
        store.write_segments(rows.select(np.argsort(rows.numbers)), replace=True)


def _repair_learners(store: Store, actions: list[str]) -> bool:
    """Repair the learner files; if that of the current version is lost, let it continue from another version.

    Return whether it is lost.
    """
    with store.reading() as connection:
        learners = store.versions.learners(connection)
        files = store.versions.learner_files(connection)
        current = get_meta(connection, "version")
    lost_files = {file for file in files if _repair_file(store.path, f"learner/{file}", actions) != []}
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


def _repair_file(folder: Path, file: str, actions: list[str]) -> list[int] | None:
    """Repair a sealed file; return the blocks that are lost, None if all of it is."""
    try:
        check_sealed(folder / file)
        return []
    except BadState:
        try:
            lost = repair_sealed(folder / file)
        except (OSError, StillhashError):
            actions.append(f"{file}: lost")
            return None
    actions.append(f"{file}: repaired" + (f", except {len(lost)} blocks" if lost else ""))
    return lost


def _repair_lexical(store: Store, actions: list[str]) -> None:
    """Build the lexical index again if it has other words than the items."""
    with store.reading() as connection:
        if not lexical_problems(connection):
            return
    with store.transaction() as connection:
        rebuild_lexical(connection)
    actions.append("store.db: the lexical index was built again")


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


def _delete_lost(store: Store, lost_ids: list[Id]) -> None:
    """Delete the items that have lost their code, and codes without an item."""
    with store.reading() as connection:
        rows, stray = store.codes.mismatches(connection)
        items = store.items.get(connection, rows.tolist())
    lost = [item.id for item in items.values()]
    if len(rows) or len(stray):
        with store.transaction() as connection:
            store.items.delete(connection, lost)
            store.items.add_tombstones(connection, stray.tolist())
    lost_ids += lost
