"""Verify a store: every page, every sealed file, and that what they hold belongs together."""

import sqlite3
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from stillhash.collection.storage.database import find_damage
from stillhash.collection.storage.lexical import lexical_problems
from stillhash.collection.storage.schema import check_counters, count_rows, get_meta
from stillhash.collection.storage.snapshot import ShareMeter
from stillhash.collection.storage.store import SCRUB_KEY, STORE_FOLDERS, Store
from stillhash.errors import BadState
from stillhash.files import check_sealed, file_size, stored_file

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
