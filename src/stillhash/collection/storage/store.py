"""The store: one folder, in which SQLite is the commit point and segments hold the codes that are sealed.

    lock            held by the one process that writes
    store.db        settings, items, the tail of codes, deletions, versions (database.py)
    segments/       immutable files of sealed codes (segments.py)
    learner/        what the latest versions learnt from, to learn on

A write is one transaction; once it returned, it is on disk. `seq` counts them. Rows are numbered in order of arrival
and a number is never used again, so whoever has seen `seq` n asks only for what came after.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.feedback import Vote
from stillhash.collection.storage.connections import connect
from stillhash.collection.storage.database import Database
from stillhash.collection.storage.integrity import find_damage
from stillhash.collection.storage.sealed_files import lock_folder, read_sealed, remove_unlisted
from stillhash.collection.storage.segments import Segment, read_segment, write_segment
from stillhash.collection.types import Id, Item, label_texts
from stillhash.errors import BadState, Conflict, InvalidInput
from stillhash.numeric.codes import width
from stillhash.numeric.kernels import read_tiles
from stillhash.numeric.validation import Codes, Floats

FORMAT = 1
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE items (
  row INTEGER PRIMARY KEY, id NOT NULL UNIQUE, labels TEXT NOT NULL, metadata TEXT, code BLOB, features BLOB);
CREATE TABLE pictures (row INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE dead (row INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE INDEX dead_by_seq ON dead (seq);
CREATE TABLE segments (
  number INTEGER PRIMARY KEY, file TEXT NOT NULL, rows INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE TABLE lessons (
  number INTEGER PRIMARY KEY, row INTEGER UNIQUE, features BLOB NOT NULL, labels TEXT NOT NULL);
CREATE TABLE feedback (
  number INTEGER PRIMARY KEY, version INTEGER NOT NULL, asked BLOB NOT NULL, item TEXT NOT NULL, code BLOB NOT NULL,
  labels TEXT NOT NULL, vote REAL NOT NULL, source TEXT NOT NULL);
CREATE UNIQUE INDEX feedback_once ON feedback (asked, item, source);
CREATE TABLE versions (
  version INTEGER PRIMARY KEY, made TEXT NOT NULL, kind TEXT NOT NULL, rows INTEGER NOT NULL, tag TEXT UNIQUE,
  side TEXT NOT NULL, model BLOB, learner TEXT, notes TEXT NOT NULL);
"""
MANY = 500  # parameters in one statement

Numbers = NDArray[np.int64]


class Store:
    def __init__(self, path: Path, *, writer: bool) -> None:
        self.path = path
        if not (path / "store.db").is_file():
            raise InvalidInput(f"path is {str(path)!r}; there is no collection")
        self.db = Database(path, writer=writer)
        weakref.finalize(self, self.db.close)  # at the end of the process, at the latest
        self.reading, self.close = self.db.reading, self.db.close
        self._tidied = not writer
        try:
            with closing(
                connect(path, "ro")
            ) as connection:  # and not for long: the file is looked at before it is used
                found = self.meta(connection, "format")
                if found != FORMAT:
                    raise BadState(f"{path.name} has store format {found}; this release reads format {FORMAT}")
                self.settings: dict[str, Any] = json.loads(self.meta(connection, "settings"))
        except (ValueError, TypeError, sqlite3.DatabaseError) as error:
            self.close()
            raise error if isinstance(error, BadState) else BadState(f"{path.name} cannot be read: {error}") from error
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any]) -> Store:
        """A new store in a folder that is not there yet, or is empty."""
        path.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(path)
        try:
            if not (path / "store.db").exists():
                _check_new(path)
                for folder in ("segments", "learner"):
                    (path / folder).mkdir(exist_ok=True)
                counters = dict.fromkeys(("seq", "generation", "next_row", "items", "version"), 0)
                meta = {"format": FORMAT, "settings": json.dumps(settings), **counters}
                Database.create(path, SCHEMA, {"meta": list(meta.items())})
        finally:
            os.close(lock)
        return cls(path, writer=True)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is on disk when this ends, or nothing of it ever was."""
        self._ready()
        with self.db.transaction() as connection:
            yield connection

    def _ready(self) -> None:
        """Before anything is written."""
        self.db.check_writer()
        if not self._tidied:
            self._tidy()

    def meta(self, connection: sqlite3.Connection, key: str) -> Any:
        try:
            found = connection.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
        except sqlite3.DatabaseError as error:
            raise BadState(f"{self.path.name} cannot be read: {error}") from error
        return None if found is None else found[0]

    def fitted(self, connection: sqlite3.Connection) -> bool:
        """Whether there are hash functions, told without reading them."""
        return self.meta(connection, "fingerprint") is not None

    def set_meta(self, connection: sqlite3.Connection, key: str, value: Any) -> None:
        connection.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", [key, value]
        )

    # ---- items ----

    def insert(
        self,
        connection: sqlite3.Connection,
        ids: list[Id],
        labels: list[list[Any]],
        metadata: list[str | None],
        codes: Codes | None,
        features: NDArray[np.float32] | None,
    ) -> range:
        """Adds items under new row numbers. With no codes yet, they wait with their features."""
        first = self.meta(connection, "next_row")
        rows = range(first, first + len(ids))
        blobs, waiting = _blobs(codes, len(ids)), _blobs(features, len(ids))
        values = zip(rows, ids, label_texts(labels), metadata, blobs, waiting, strict=True)
        try:
            connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?)", values)
        except sqlite3.IntegrityError:
            there = [name for name, row in self.rows_of(connection, ids).items() if row < first]
            if not there:
                raise
            raise Conflict(
                f"ids holds {len(there)} that the collection has already, {there[0]!r} for one; upsert replaces them"
            ) from None
        self.set_meta(connection, "next_row", rows.stop)
        self.set_meta(connection, "items", self.meta(connection, "items") + len(rows))
        return rows

    def rows_of(self, connection: sqlite3.Connection, ids: list[Id]) -> dict[Id, int]:
        found: dict[Id, int] = {}
        for some in _some(ids):
            found.update(connection.execute(f"SELECT id, row FROM items WHERE id IN ({_marks(some)})", some))
        return found

    def items(self, connection: sqlite3.Connection, rows: Iterable[int]) -> dict[int, Item]:
        found = {}
        for some in _some(list(rows)):
            sql = f"SELECT row, id, labels, metadata FROM items WHERE row IN ({_marks(some)})"
            for row, id_, labels, metadata in connection.execute(sql, some):
                found[row] = Item(id_, json.loads(labels), None if metadata is None else json.loads(metadata))
        return found

    def add_feedback(self, connection: sqlite3.Connection, version: int, thumbs: list[Vote]) -> None:
        """Keeps these thumbs, which came with this version; a source's last word on a query and an item counts."""
        told = ((version, *thumb[:3], json.dumps(thumb.labels), thumb.vote, thumb.source) for thumb in thumbs)
        marks = "(version, asked, item, code, labels, vote, source) VALUES (?, ?, ?, ?, ?, ?, ?)"
        connection.executemany(f"INSERT OR REPLACE INTO feedback {marks}", told)

    def feedback(self, connection: sqlite3.Connection, queries: int) -> list[Vote]:
        """Thumbs of the latest so many queries; those of a source with more than `source_cap` count for less."""
        sql = """
            SELECT asked, item, code, labels, vote * min(1.0, ? / total), source FROM feedback
            JOIN (SELECT source AS who, sum(abs(vote)) AS total FROM feedback GROUP BY source) ON who = source
            WHERE asked IN (SELECT asked FROM feedback GROUP BY asked ORDER BY max(number) DESC LIMIT ?)
            ORDER BY number"""
        found = connection.execute(sql, [float(self.settings["source_cap"]), queries]).fetchall()
        return [Vote(asked, item, code, json.loads(told), vote, who) for asked, item, code, told, vote, who in found]

    def remove(self, connection: sqlite3.Connection, ids: list[Id]) -> int:
        rows = list(self.rows_of(connection, ids).values())
        seq = self.meta(connection, "seq") + 1
        connection.executemany("INSERT INTO dead VALUES (?, ?)", ((row, seq) for row in rows))
        for table in ("items", "lessons", "pictures"):
            connection.executemany(f"DELETE FROM {table} WHERE row = ?", ((row,) for row in rows))
        self.set_meta(connection, "items", self.meta(connection, "items") - len(rows))
        return len(rows)

    def matching(self, connection: sqlite3.Connection, condition: tuple[str, list[Any]]) -> NDArray[np.uint8]:
        """The rows that meet a condition, as a bitmap."""
        sql, values = condition
        found = connection.execute(f"SELECT row FROM items WHERE {sql}", values).fetchall()
        chosen = np.zeros(self.meta(connection, "next_row"), bool)
        chosen[np.array(found, np.int64).reshape(-1)] = True
        return np.packbits(chosen, bitorder="little")

    def waiting(self, connection: sqlite3.Connection) -> tuple[Numbers, Floats]:
        """The rows that have no codes yet, and their features."""
        found = connection.execute("SELECT row, features FROM items WHERE features NOT NULL ORDER BY row").fetchall()
        X = np.frombuffer(b"".join(blob for _, blob in found), np.float32).reshape(len(found), self.settings["dim"])
        return np.array([row for row, _ in found], np.int64), X

    def relabel(self, connection: sqlite3.Connection, rows: list[int], labels: list[list[Any]]) -> None:
        each = zip(label_texts(labels), rows, strict=True)
        connection.executemany("UPDATE items SET labels = ? WHERE row = ?", each)

    def lessons_of(self, connection: sqlite3.Connection, rows: list[int], X: Floats) -> Floats:
        """Takes lessons of these rows that wait out, to be given anew: their own features, or else these."""
        found = X.copy()
        for place, row in enumerate(rows):
            there = connection.execute("SELECT features FROM lessons WHERE row = ?", [row]).fetchone()
            if there is not None:
                found[place] = np.frombuffer(there[0], np.float32)
        connection.executemany("DELETE FROM lessons WHERE row = ?", ((row,) for row in rows))
        return found

    def add_pictures(self, connection: sqlite3.Connection, rows: range, pictures: list[bytes | None]) -> None:
        given = ((row, data) for row, data in zip(rows, pictures, strict=True) if data is not None)
        connection.executemany("INSERT INTO pictures VALUES (?, ?)", given)

    def picture(self, connection: sqlite3.Connection, row: int) -> bytes | None:
        found = connection.execute("SELECT data FROM pictures WHERE row = ?", [row]).fetchone()
        return None if found is None else bytes(found[0])

    def some_rows(self, connection: sqlite3.Connection, count: int) -> list[int]:
        """Rows of items at random, mostly so many: each is the first at or after a place that is drawn."""
        places = random.choices(range(max(1, self.meta(connection, "next_row"))), k=2 * count)
        sql = "SELECT row FROM items WHERE row >= ? ORDER BY row LIMIT 1"
        found = [connection.execute(sql, [place]).fetchone() for place in places]
        return list(dict.fromkeys(row for (row,) in filter(None, found)))[:count]

    def features(self, connection: sqlite3.Connection, rows: Numbers) -> Floats:
        """The features of rows that wait, in this order."""
        numbers, X = self.waiting(connection)
        return X[np.searchsorted(numbers, rows)]

    def count(self, connection: sqlite3.Connection, table: str) -> int:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def counts(self, connection: sqlite3.Connection) -> dict[str, int]:
        """How many there are of everything, and the bytes on disk."""
        found = {"items": self.meta(connection, "items")}
        tables = {"segments": "segments", "pending": "lessons", "deleted": "dead", "feedback": "feedback"}
        found |= {name: self.count(connection, table) for name, table in tables.items()}
        late = self.count(connection, f"items WHERE row > {self._sealed(connection)}")  # have no code in a segment
        fitted = self.fitted(connection)
        found |= {"awaiting_codes": 0 if fitted else late, "unsealed": late if fitted else 0}
        return {**found, "disk_bytes": sum(map(_size, self.path.rglob("*")))}

    # ---- codes ----

    def segments(self, connection: sqlite3.Connection, after: int = -1) -> Iterator[Segment]:
        """Those that hold rows past this one."""
        newer = connection.execute("SELECT file FROM segments WHERE last > ? ORDER BY number", [after]).fetchall()
        return (self.segment(file) for (file,) in newer)

    def segment(self, file: str) -> Segment:
        return read_segment(self.path / "segments" / file, self.settings["bits"])

    def codes_after(self, connection: sqlite3.Connection, last: int) -> tuple[Numbers, Codes]:
        """The rows past this one, deleted ones perhaps among them, and their codes."""
        numbers, codes = [np.empty(0, np.int64)], [np.empty((0, width(self.settings["bits"])), np.uint8)]
        for segment in self.segments(connection, last):
            here = segment.row_numbers()
            late = np.flatnonzero(here > last)
            numbers.append(here[late])
            codes.append(read_tiles(segment.tiles, late))
        tail = self.tail(connection, last)
        return np.concatenate([*numbers, tail[0]]), np.concatenate([*codes, tail[1]])

    def tail(self, connection: sqlite3.Connection, last: int = -1) -> tuple[Numbers, Codes]:
        """The rows past this one whose codes are not sealed."""
        last = max(last, self._sealed(connection))
        sql = "SELECT row, code FROM items WHERE row > ? AND code NOT NULL ORDER BY row"
        found = connection.execute(sql, [last]).fetchall()
        joined = np.frombuffer(b"".join(code for _, code in found), np.uint8)
        return np.array([row for row, _ in found], np.int64), joined.reshape(len(found), width(self.settings["bits"]))

    def _sealed(self, connection: sqlite3.Connection) -> int:
        """The last row that a segment holds; no row up to it has its code in the table."""
        return int(connection.execute("SELECT ifnull(max(last), -1) FROM segments").fetchone()[0])

    def seal(self) -> bool:
        """Moves the tail of codes into a segment; False if there is none."""
        self.db.check_writer()
        with self.reading() as connection:
            numbers, codes = self.tail(connection)
        if not len(numbers):
            return False
        with self._written(numbers, codes) as connection:
            connection.execute("UPDATE items SET code = NULL WHERE row BETWEEN ? AND ?", numbers[[0, -1]].tolist())
        return True

    def compact(self) -> None:
        """Rewrites all live codes into one new segment and forgets the deleted rows."""
        self.db.check_writer()
        with self.reading() as connection:
            numbers, codes = self.codes_after(connection, -1)
            live = np.array(connection.execute("SELECT row FROM items ORDER BY row").fetchall(), np.int64).reshape(-1)
        keep = np.isin(numbers, live)
        self.replace_segments(numbers[keep], codes[keep])
        self._tidy()
        self.db.shrink()

    def replace_segments(self, numbers: Numbers, codes: Codes) -> None:
        """Makes one segment of these rows the only one; all codes of live rows are among them."""
        with self._written(numbers, codes, "DELETE FROM segments") as connection:
            connection.execute("DELETE FROM dead")
            connection.execute("UPDATE items SET code = NULL WHERE code NOT NULL")
            connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'generation'")

    @contextmanager
    def _written(self, numbers: Numbers, codes: Codes, first: str = "") -> Iterator[sqlite3.Connection]:
        """A new segment of these rows, if there are any, and the transaction that names it."""
        self._ready()
        with self.reading() as connection:
            number = self.meta(connection, "seq") + 1  # of that transaction: no file had it that anybody may look for
        file = f"{number:08d}.tiles"
        if len(numbers):
            write_segment(self.path / "segments" / file, codes, numbers, self.settings["bits"])
        with self.writing() as connection:
            if first:
                connection.execute(first)
            if len(numbers):
                about = number, file, len(numbers), int(numbers[0]), int(numbers[-1])
                connection.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", about)
            yield connection

    def _tidy(self) -> None:
        """Drops segments that are not named any more, or never were because a write did not end."""
        with self.reading() as connection:
            named = {file for (file,) in connection.execute("SELECT file FROM segments")}
        remove_unlisted(self.path / "segments", named)
        self._tidied = True

    def learner(self, file: str) -> bytes:
        """What a version learnt from."""
        return read_sealed(self.path / "learner" / file)

    # ---- soundness ----

    def verify(self) -> list[str]:
        """What is wrong with the store, as sentences."""
        if wrong := find_damage(self.path):
            return wrong
        with self.reading() as connection:
            generation = self.meta(connection, "generation")
            wrong += [f"store.db: {line}" for (line,) in connection.execute("PRAGMA integrity_check") if line != "ok"]
            files = connection.execute("SELECT file FROM segments").fetchall()
            learners = connection.execute("SELECT learner FROM versions WHERE learner NOT NULL").fetchall()
            checks: list[tuple[Callable[[str], Any], str]] = [(self.segment, file) for (file,) in files]
            for read, file in checks + [(self.learner, file) for (file,) in learners]:
                try:
                    read(file)
                except BadState as error:
                    wrong.append(str(error))
            if (told := self.meta(connection, "items")) != (there := self.count(connection, "items")):
                wrong.append(f"there are {there} items, and {told} were counted")
            if not wrong:
                lost, stray = self.astray(connection)
                wrong += [f"{len(lost)} items have no code, the one of row {lost[0]} for one"] if len(lost) else []
                wrong += [f"{len(stray)} codes have no item, that of row {stray[0]} for one"] if len(stray) else []
        return self.verify() if wrong and self._moved_on(generation, learners) else wrong

    def astray(self, connection: sqlite3.Connection) -> tuple[Numbers, Numbers]:
        """Rows of items that should have a code and have none; and rows that have one, and no item nor a deletion."""
        sealed = [segment.row_numbers() for segment in self.segments(connection)]
        coded = np.concatenate([*sealed, self.tail(connection)[0]])
        live = connection.execute("SELECT row FROM items WHERE features IS NULL ORDER BY row").fetchall()
        known = connection.execute("SELECT row FROM items UNION SELECT row FROM dead").fetchall()
        lost = np.setdiff1d(np.array(live, np.int64).reshape(-1), coded)
        return lost, np.setdiff1d(coded, np.array(known, np.int64).reshape(-1))

    def _moved_on(self, generation: int, learners: list[Any]) -> bool:
        """Whether another process compacted, or dropped learners, meanwhile."""
        with self.reading() as connection:
            now = connection.execute("SELECT learner FROM versions WHERE learner NOT NULL").fetchall()
            return self.meta(connection, "generation") != generation or now != learners

    # ---- for snapshots, repair, bulk load and encoder alignment ----

    def sealed_files(self, connection: sqlite3.Connection) -> dict[str, list[str]]:
        """Return the files that this commit needs, by folder."""
        segments = [file for file, *_ in self.segment_records(connection)]
        return {"segments": segments, "learner": sorted(set(self.learners(connection).values()))}

    def segment_records(self, connection: sqlite3.Connection) -> list[tuple[str, int, int, int]]:
        """Return file, rows, first and last row of each segment."""
        return connection.execute("SELECT file, rows, first, last FROM segments ORDER BY number").fetchall()

    def add_segment(self, connection: sqlite3.Connection, number: int, file: str, rows: range) -> None:
        """Register the segment that holds these rows."""
        values = [number, file, len(rows), rows[0], rows[-1]]
        connection.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", values)

    def learners(self, connection: sqlite3.Connection) -> dict[int, str]:
        """Return the learner files, by version."""
        sql = "SELECT version, learner FROM versions WHERE learner NOT NULL ORDER BY version"
        return dict(connection.execute(sql).fetchall())

    def set_learner(self, connection: sqlite3.Connection, version: int, file: str | None) -> None:
        """Set the learner file of a version."""
        connection.execute("UPDATE versions SET learner = ? WHERE version = ?", [file, version])

    def add_tombstones(self, connection: sqlite3.Connection, rows: list[int]) -> None:
        """Mark rows as deleted."""
        seq = self.meta(connection, "seq") + 1
        connection.executemany("INSERT OR IGNORE INTO dead VALUES (?, ?)", [(row, seq) for row in rows])

    def meta_with_prefix(self, connection: sqlite3.Connection, prefix: str) -> dict[str, Any]:
        """Return the values of the table `meta` whose keys begin so, by the rest of the key."""
        sql = "SELECT substr(key, ?), value FROM meta WHERE substr(key, 1, ?) = ? ORDER BY key"
        return dict(connection.execute(sql, [len(prefix) + 1, len(prefix), prefix]).fetchall())


def _check_new(path: Path) -> None:
    """Refuses a folder whose collection has lost its store.db: making a new one would throw the rest away."""
    held = [
        file for folder in ("segments", "learner") if (path / folder).is_dir() for file in (path / folder).iterdir()
    ]
    if held or (path / "acked").exists():
        raise BadState(f"{path.name} holds a collection without its store.db; take that from a snapshot, or clear it")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except FileNotFoundError:  # a process that writes tidied up
        return 0


def _some(values: list[Any]) -> Iterator[list[Any]]:
    return (values[s : s + MANY] for s in range(0, len(values), MANY))


def _marks(values: list[Any]) -> str:
    return ", ".join("?" * len(values))


def _blobs(array: NDArray[Any] | None, rows: int) -> list[bytes | None]:
    if array is None:
        return [None] * rows
    data, size = array.tobytes(), array.shape[1] * array.itemsize
    return [data[s : s + size] for s in range(0, len(data), size)]
