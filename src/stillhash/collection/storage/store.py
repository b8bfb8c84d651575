"""The store: one folder, in which SQLite is the commit point and sealed segments hold most codes.

    lock            held by the one process that writes
    store.db        settings, items, unsealed codes, deletions, versions (schema.py)
    segments/       immutable files of sealed codes (segments.py), and columns for filters (columns.py)
    learner/        what the latest versions learnt, to go on from (learner.py)

A write is one transaction; when it returns, it is on disk. `seq` counts commits. A reader at seq n needs only the rows
and deletions of later commits.
"""

import copy
import json
import os
import sqlite3
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from stillhash.collection.settings import check_id, parse_settings
from stillhash.collection.storage.audit import AuditTable, Change
from stillhash.collection.storage.columns import columns_file, segment_contents, write_columns
from stillhash.collection.storage.database import (
    ACKED_KEY,
    Database,
    acknowledge,
    acknowledged_commit,
    check_exists,
    connect,
    sync_commits,
)
from stillhash.collection.storage.items import DoubtfulLabelTable, ItemTable
from stillhash.collection.storage.learner import LearnerFiles, LearntRowTable, SummedRowTable, VersionTable
from stillhash.collection.storage.lexical import check_new_field, merge_lexical
from stillhash.collection.storage.row_arrays import FEATURES, RESCORING, RowArrayTable, end_build
from stillhash.collection.storage.schema import (
    COMPACTED_FORMAT,
    COUNTERS,
    LABELLED_KEY,
    LEXICAL_KEY,
    OPTIONAL_TABLES,
    READABLE_FORMATS,
    RESCORING_FORMAT,
    STORE_FORMAT,
    RowNumbers,
    count_rows,
    create_script,
    get_meta,
    has_table,
    is_fitted,
    optional_tables,
    set_meta,
)
from stillhash.collection.storage.segments import (
    SEGMENT_ROWS,
    CodedRows,
    CodeTable,
    SegmentRecord,
    even_rows,
    write_segment,
)
from stillhash.collection.storage.verify_pages import PAGE_SIZE
from stillhash.collection.storage.votes import VoteTable
from stillhash.collection.types import Id
from stillhash.errors import BadState, StoreFailed
from stillhash.files import (
    FOLDER_MODE,
    check_kind,
    create_private,
    file_size,
    locked_folder,
    pack_file_checksums,
    remove_unlisted,
    write_durably,
)
from stillhash.numeric.rescoring import Rescorer
from stillhash.platform import SYSTEM


class SegmentWriter:
    """Write segments under numbers that none ever had: past all commits, and `register` counts them as commits."""

    def __init__(self, codes: CodeTable, row_arrays: Sequence[RowArrayTable], filter_fields: list[str] | None) -> None:
        self._codes, self._row_arrays, self._filter_fields = codes, row_arrays, filter_fields
        self._lock, self._last_number = threading.Lock(), 0

    def write(self, connection: Connection, parts: Iterable[CodedRows]) -> list[SegmentRecord]:
        """Write a segment of each part, as of the commit of this transaction; all are on disk when this returns.

        If it fails, none of them is left.
        """
        records: list[SegmentRecord] = []
        numbers: list[int] = []
        try:
            for rows in parts:
                if len(rows.numbers):
                    numbers.append(self._new_number(connection))
                    records.append(self._write(connection, rows, numbers[-1]))
        except BaseException:
            for number in numbers:
                self._remove(f"{number:08d}.tiles")
            raise
        return records

    def write_columns(self, connection: Connection, file: str, numbers: RowNumbers) -> None:
        """Write the columns of a segment, for filters, as of now; without them searches take longer."""
        record = len(numbers), int(numbers[0]), int(numbers[-1])
        contents, seq = segment_contents(connection, numbers), get_meta(connection, "seq")
        write_columns(self._codes.folder / file, contents, record, seq, self._filter_fields)

    @staticmethod
    def register(connection: Connection, records: list[SegmentRecord]) -> None:
        """Let the number of this commit be no less than those of its segments, so that they are not used again."""
        if records:
            last = max(record.number for record in records)
            connection.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'seq'", [last - 1])

    def _new_number(self, connection: Connection) -> int:
        with self._lock:
            self._last_number = max(self._last_number, int(get_meta(connection, "seq"))) + 1
            return self._last_number

    def _write(self, connection: Connection, rows: CodedRows, number: int) -> SegmentRecord:
        file, numbers = f"{number:08d}.tiles", rows.numbers
        path = self._codes.folder / file
        content = write_segment(path, rows, self._codes.bits, self._codes.collection, number)
        self.write_columns(connection, file, numbers)
        for table in self._row_arrays:
            table.write(connection, path, number, numbers)
        return SegmentRecord(number, file, len(numbers), int(numbers[0]), int(numbers[-1]), content)

    def _remove(self, file: str) -> None:
        for name in (file, columns_file(file), *(table.file(file) for table in self._row_arrays)):
            with suppress(OSError):  # the next clean-up removes it
                Path(self._codes.folder / name).unlink(missing_ok=True)


STORE_FOLDERS = ("segments", "learner")
SCRUB_KEY = "unscrubbed"  # is in `meta` from when something is forgotten until nothing of it is in any file
FORGOTTEN_KEY = "forgotten"  # in `meta` is the commit in which something was last forgotten, for publishers
LOOSE_KEY = "loose_rows"  # in `meta` counts rows sealed or dropped since a compaction, which leave pages partly unused
LOOSE_SHARE = 8  # store.db is written again once one in so many items is such a row
LOG_SECONDS = 10.0  # is how long the end of other processes' reads is waited for
SEAL_ROWS, MIN_SEAL_ROWS = SEGMENT_ROWS, 1024
MAX_UNSEALED_BYTES = 1 << 25  # of rescoring codes at most are in store.db
COUNTED_TABLES = {"segments": "segments", "pending": "pending", "deleted": "tombstones", "feedback": "current_votes"}


class Store:
    """All SQL of a collection, by table, and the files beside the database.

    The tables are `items`, `codes`, `versions`, `votes`, `doubtful_labels` and `audit`; where features are kept, or
    follow from codes, also `features` and `learnt_rows`; where there are rescoring codes, also `rescoring`.
    """

    def __init__(self, path: Path, *, writer: bool, wait: float = 0.0) -> None:
        self.path, self.read_only = path, not writer
        check_exists(path)
        check_folders(path)
        self.db = Database(path, writer=writer, wait=wait)
        self._settings_lock = threading.Lock()
        self._close_at_exit = weakref.finalize(self, self.db.close)
        self._files_checked = not writer
        try:
            with closing(connect(path, "ro")) as connection:
                version = get_meta(connection, "format")
                if version not in READABLE_FORMATS:
                    raise BadState(f"{path.name}: expected store format {STORE_FORMAT}, got {version!r:.100}")
                settings = parse_settings(get_meta(connection, "settings"))
                collection = check_id(get_meta(connection, "collection"))
            self.codes = CodeTable(path / "segments", settings["bits"], collection)
            self.versions = VersionTable(settings["keep_versions"])
            self.doubtful_labels = DoubtfulLabelTable()
            self.audit = AuditTable()
            self.votes = VoteTable(settings["source_cap"])
            self.learner_files = LearnerFiles(path / "learner")
            self.rescoring: RowArrayTable | None = None
            self._use(settings)
        except sqlite3.DatabaseError as error:
            self.close()
            raise BadState(f"{path.name}: cannot be read: {error}") from error
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any], collection: bytes | None = None) -> "Store":
        """Create a store in a folder that does not exist yet, or is empty; its id is `collection`, or a random one."""
        field = check_new_field(settings.get(LEXICAL_KEY))
        path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        with locked_folder(path):
            if not (path / "store.db").exists():
                lost_commits = os.path.lexists(path / "acked") and acknowledged_commit(path) != 0
                if lost_commits or any(path.glob("segments/*")) or any(path.glob("learner/*")):
                    lost = "a collection without its store.db"  # a new one would throw the rest away
                    raise BadState(f"{path.name}: {lost}. Restore a snapshot, or clear the folder.")
                for folder in STORE_FOLDERS:
                    (path / folder).mkdir(FOLDER_MODE, exist_ok=True)
                version = RESCORING_FORMAT if settings.get("rescore_bits", 0) else STORE_FORMAT
                meta = {"format": version, "collection": collection or uuid.uuid4().bytes}
                fixed = {name: value for name, value in settings.items() if name != LEXICAL_KEY}
                meta |= {"settings": json.dumps(fixed), **dict.fromkeys((*COUNTERS, LABELLED_KEY), 0), ACKED_KEY: 1}
                meta |= {} if field is None else {LEXICAL_KEY: field}
                script = create_script(optional_tables(settings), field is not None)
                _create_database(path, script, meta)
        return cls(path, writer=True)

    def _use(self, settings: dict[str, Any]) -> None:
        """Read and write as these settings say. The only one that ever changes is `rescore_bits`, and it does once."""
        self.settings = settings
        tables, dim, rescore_bits = optional_tables(settings), settings["dim"], settings["rescore_bits"]
        self.features = RowArrayTable(FEATURES, dim, self.codes) if "features" in tables else None
        self.rescorer = Rescorer(dim, rescore_bits) if rescore_bits else None
        width = 0 if self.rescorer is None else self.rescorer.width
        rescoring = RowArrayTable(RESCORING, width, self.codes) if "rescoring" in tables else None
        self.items = ItemTable(dim, settings["bits"], width if "summed_rows" in tables else 0)
        self.row_arrays = [table for table in (self.features, rescoring) if table is not None]
        self.seal_rows = SEAL_ROWS  # unsealed rows that the writer makes a segment of; fewer if they take much
        if width:
            self.seal_rows = min(SEAL_ROWS, max(MIN_SEAL_ROWS, MAX_UNSEALED_BYTES // width))
        self.segment_writer = SegmentWriter(self.codes, self.row_arrays, settings["filter_fields"])
        self.learnt_rows = LearntRowTable() if "learnt_rows" in tables else None
        self.summed_rows = SummedRowTable(width, settings["bits"]) if "summed_rows" in tables else None
        self.rescoring = rescoring  # last, since `_follow` looks at it

    def _follow(self, connection: Connection) -> None:
        """Use the rescoring codes that the collection has had since some commit, perhaps of another process."""
        if self.rescoring is None and get_meta(connection, "format") == RESCORING_FORMAT:
            with self._settings_lock:
                if self.rescoring is None:
                    self._use(parse_settings(get_meta(connection, "settings")))

    def close(self) -> None:
        """Close the database and release the write lock."""
        self._close_at_exit()
        self.db.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read in one transaction: everything in the block is of the same commit."""
        with self.db.reading() as connection:
            self._follow(connection)
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Write in one transaction: all of it is on disk when the block ends, or nothing of it ever was."""
        self._check_writable()
        with self.db.transaction() as connection:
            self._follow(connection)
            yield connection

    def add_rescoring(self, connection: Connection, bits: int) -> "Store":
        """Let the collection have rescoring codes from this transaction on: their files are written for all segments.

        Returns the store as it then is, for the rest of the transaction; this one follows after its commit.
        """
        settings = {**parse_settings(get_meta(connection, "settings")), "rescore_bits": bits}
        end_build(connection)
        for name in optional_tables(settings):
            for statement in OPTIONAL_TABLES[name].split(";") if not has_table(connection, name) else ():
                connection.execute(statement)
        set_meta(connection, "settings", json.dumps(settings))
        set_meta(connection, "format", RESCORING_FORMAT)
        self.codes.start_over(connection)
        store = copy.copy(self)
        store._use(settings)
        return store

    @contextmanager
    def change(self, what: str, rows: int | None = 0, ids: Sequence[Id] = ()) -> Iterator[Change]:
        """Write in one transaction, with an entry in the audit log; rows and ids may be set in the block."""
        with self.transaction() as connection:
            version, change = get_meta(connection, "version"), Change(connection, what, rows, ids)
            yield change
            self.audit.add(change, version)

    def _check_writable(self) -> None:
        """Raise Conflict unless this may write; before the first write, remove what unfinished writes left."""
        self.db.check_writer()
        if not self._files_checked:
            self._remove_unlisted_segments()

    def counts(self, connection: sqlite3.Connection) -> dict[str, int]:
        """Count everything, and the bytes on disk."""
        counts = {"items": int(get_meta(connection, "items"))}
        counts |= {name: count_rows(connection, table) for name, table in COUNTED_TABLES.items()}
        unsealed, fitted = self.codes.count_unsealed(connection), is_fitted(connection)
        counts |= {"awaiting_codes": 0 if fitted else unsealed, "unsealed": unsealed if fitted else 0}
        return {**counts, "disk_bytes": sum(map(file_size, self.path.rglob("*")))}

    def sealed_files(self, connection: sqlite3.Connection) -> dict[str, list[str]]:
        """Return the files that this commit needs, by folder."""
        return {"segments": self._segment_files(connection), "learner": self.versions.learner_files(connection)}

    def _segment_files(self, connection: sqlite3.Connection) -> list[str]:
        files = [*self.codes.segment_files(connection), *self.column_files(connection)]
        return files + [file for table in self.row_arrays for file in table.files(connection)]

    def seal(self) -> bool:
        """Move unsealed codes into segments, in one transaction; return False if there are none."""
        self._check_writable()
        with self.reading() as connection:
            rows = even_rows(self.codes.count_unsealed(connection), self.codes.segment_rows)
            records = self.segment_writer.write(connection, self.codes.unsealed_parts(connection, rows))
            deleted = any(count_rows(connection, table.kind.table) for table in self.row_arrays)
        if records or deleted:  # if all unsealed rows were deleted, what is left of them goes too
            self._register(records)
        return len(records) > 0

    def _register(self, records: list[SegmentRecord]) -> None:
        """Register segments that hold all rows which were not sealed, in one transaction."""
        with self.transaction() as connection:
            self._exchange(connection, [], records)
            for record in records:
                self.codes.clear_unsealed(connection, record.first, record.last)
            self._count_loose(connection, sum(record.rows for record in records))
            for table in self.row_arrays:
                table.clear(connection)

    def replace_segments(self, replaced: Sequence[SegmentRecord], records: list[SegmentRecord]) -> None:
        """Register segments in the place of those whose items they hold, in one transaction."""
        with self.transaction() as connection:
            self._exchange(connection, replaced, records)
            set_meta(connection, "format", max(get_meta(connection, "format"), COMPACTED_FORMAT))

    def _exchange(
        self, connection: sqlite3.Connection, replaced: Sequence[SegmentRecord], records: list[SegmentRecord]
    ) -> None:
        self.codes.remove_segments(connection, replaced)
        self.codes.add_segments(connection, records)
        self.segment_writer.register(connection, records)

    def finish_compaction(self, seq: int, *, changed: bool) -> int:
        """Drop the tombstones up to this commit, of rows that no segment holds by now, and return how many.

        changed: segments were replaced. If not, and nothing was deleted or changed, readers need not start over.
        """
        with self.change("compact", None) as change:
            connection = change.connection
            merge_lexical(connection)
            change.rows = 0
            if changed or self.codes.has_changes(connection):
                change.rows = self.codes.drop_deleted(connection, seq)
            self._count_loose(connection, change.rows)
            return change.rows

    def _count_loose(self, connection: sqlite3.Connection, rows: int) -> None:
        connection.execute("UPDATE meta SET value = value + ? WHERE key = ?", [rows, LOOSE_KEY])

    def remove_obsolete_files(self) -> bool:
        """Remove the files that the latest commit does not need; return whether the system let us remove all."""
        with self.reading() as connection:
            learner_files = set(self.versions.learner_files(connection))
        return self._remove_unlisted_segments() & remove_unlisted(self.path / "learner", learner_files)

    def shrink(self, files_removed: bool) -> bool:
        """Free what store.db has unused; return False if its log holds an earlier commit, which another process reads.

        It is written again, while writes wait, if something was forgotten, or if so many rows were sealed or deleted
        since the last time that much of its pages may be unused.
        """
        with self.reading() as connection:
            interrupted = get_meta(connection, SCRUB_KEY) is not None
            loose, items = get_meta(connection, LOOSE_KEY), int(get_meta(connection, "items"))
        rewritten = interrupted or loose is None or loose * LOOSE_SHARE >= items or not self.db.frees_pages()
        if rewritten:
            self.db.shrink()
        else:
            self.db.free_pages()
        if rewritten:
            with self.transaction() as connection:
                set_meta(connection, LOOSE_KEY, 0)
                if files_removed:
                    connection.execute("DELETE FROM meta WHERE key = ?", [SCRUB_KEY])
        return self.db.empty_log(LOG_SECONDS if interrupted else 0)

    def write_columns(self, file: str, numbers: RowNumbers) -> None:
        """Write the columns of a segment, for filters, as of now."""
        with self.reading() as connection:
            self.segment_writer.write_columns(connection, file, numbers)

    def column_files(self, connection: sqlite3.Connection) -> list[str]:
        """Return the files of columns that there are, of the segments of this commit."""
        files = map(columns_file, self.codes.segment_files(connection))
        return [file for file in files if (self.path / "segments" / file).exists()]

    def _remove_unlisted_segments(self) -> bool:
        """Remove segments that no commit names: replaced ones, and those of writes that did not end."""
        with self.reading() as connection:
            files = set(self._segment_files(connection))
        self._files_checked = True
        return remove_unlisted(self.path / "segments", files)


def check_folders(path: Path) -> None:
    """Raise BadState if a folder of the store is a link: files that no commit names are removed from it."""
    for name in STORE_FOLDERS:
        check_kind(path / name, folder=True)


def _create_database(path: Path, script: str, meta: dict[str, Any]) -> None:
    """Create the database file store.db: complete, with its checksums, or not at all."""
    new = path / "store.db.new"
    for suffix in ("", "-journal", "-wal", "-shm"):
        new.with_name(new.name + suffix).unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(create_private(new), isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":  # SQLite does not say why
                raise StoreFailed(f"{path.name}: could not be written: it has no write-ahead log")
            sync_commits(connection)
            connection.executescript("BEGIN IMMEDIATE;" + script)
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            connection.execute("COMMIT")
            (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:  # the file is renamed, its WAL is not
                raise StoreFailed(f"{path.name}: could not be written: its write-ahead log did not empty")
    except sqlite3.DatabaseError as error:
        raise StoreFailed(f"{path.name}: could not be written: {error}") from error
    write_durably(path / "store.sums", [pack_file_checksums(new)])
    acknowledge(path, meta["seq"], durably=True)
    for file in ("store.db-wal", "store.db-shm"):
        (path / file).unlink(missing_ok=True)
    SYSTEM.replace(new, path / "store.db")
    SYSTEM.sync(path)
    SYSTEM.sync(path.parent)
