"""The versions of the model, and the files their learners go on from."""

import json
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

from stillhash.collection.storage.schema import get_meta, parse_json, set_meta
from stillhash.errors import BadState, Conflict, InvalidInput
from stillhash.files import stored_file

MAX_VERSION = 2**63 - 1
VERSION_COLUMNS = ("version", "created", "kind", "rows", "tag")


class NewVersion(NamedTuple):
    """A version to publish."""

    kind: str  # fit, learn, feedback, rollback to N
    rows: int  # that it has learnt
    learner: list[str]  # files below learner/, in the order they are read
    notes: dict[str, Any] | None = None


class VersionTable:
    """Version 0 is the state before learning and has no row."""

    def __init__(self, keep_versions: int) -> None:
        self.keep_versions = keep_versions

    def next_number(self, connection: Connection) -> int:
        """Return the number of the next version."""
        return int(connection.execute("SELECT ifnull(max(version), 0) + 1 FROM versions").fetchone()[0])

    def publish(self, connection: Connection, new: NewVersion, side: str, model: bytes | None) -> int:
        """Make this the current version, with its model, and drop versions that need not be kept."""
        version = self.next_number(connection)
        created = datetime.now(UTC).isoformat(timespec="milliseconds")
        learner, notes = json.dumps(new.learner), json.dumps(new.notes or {})
        row = version, created, new.kind, new.rows, None, side, model, learner, notes
        connection.execute("INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        set_meta(connection, "version", version)
        oldest = version - self.keep_versions
        connection.execute("DELETE FROM versions WHERE version <= ? AND tag IS NULL", [oldest])
        return version

    def drop_others(self, connection: Connection, version: int, since: int = 0) -> list[int]:
        """Drop all versions but this one, with their tags, or those from `since` on; return their numbers."""
        sql = "FROM versions WHERE version != ? AND version >= ?"
        rows = connection.execute(f"SELECT version {sql} ORDER BY version", [version, since]).fetchall()
        connection.execute(f"DELETE {sql}", [version, since])
        return [number for (number,) in rows]

    def model(self, connection: Connection, version: int) -> tuple[str, bytes | None]:
        """Return the side and the serialised model of a version."""
        sql = "SELECT side, model FROM versions WHERE version = ?"
        row = connection.execute(sql, [version]).fetchone()
        if row is None:
            raise InvalidInput(f"version: expected one that is kept, got {version}")
        return row[0], row[1]

    def earliest(self, connection: Connection) -> int:
        """Return the first version that is kept."""
        return int(connection.execute("SELECT min(version) FROM versions").fetchone()[0])

    def describe(self, connection: Connection) -> list[dict[str, Any]]:
        """Return the versions that are kept, the latest last."""
        current = get_meta(connection, "version")
        sql = f"SELECT {', '.join(VERSION_COLUMNS)}, notes FROM versions ORDER BY version"
        versions = []
        for row in connection.execute(sql).fetchall():
            stored, notes = dict(zip(VERSION_COLUMNS, row, strict=False)), parse_json(row[-1], dict, "notes")
            if [type(value) for value in row[:4]] != [int, str, str, int] or not isinstance(row[4], str | None):
                raise BadState(f"versions: expected what describes version {row[0]}, got {stored!r:.200}")
            notes.pop("lineage", None)  # of the learner, for `forget`
            versions.append({**stored, "current": row[0] == current, **notes})
        return versions

    def tag(self, connection: Connection, version: int, name: str) -> None:
        """Name a version, so that it is kept."""
        self.model(connection, version)
        if connection.execute("SELECT 1 FROM versions WHERE tag = ? AND version != ?", [name, version]).fetchone():
            raise Conflict(f"name: another version is called {name!r}")
        if version not in self.learners(connection):
            self.set_learner(connection, version, None)  # its files are gone
        connection.execute("UPDATE versions SET tag = ? WHERE version = ?", [name, version])

    def learners(self, connection: Connection) -> dict[int, list[str]]:
        """Return the files that a learner goes on from, of the latest two versions and of those with a tag.

        Other versions may still name files, which are gone: to clear that would write their models again.
        """
        needed = "tag NOT NULL OR version >= (SELECT max(version) FROM versions) - 1"
        rows = connection.execute(f"SELECT version, learner FROM versions WHERE {needed}").fetchall()
        learners = {version: parse_json(files, list, "learner") for version, files in rows if files is not None}
        for file in (file for files in learners.values() for file in files):
            stored_file(Path("learner"), file)
        return learners

    def set_learner(self, connection: Connection, version: int, files: list[str] | None) -> None:
        """Replace the learner files of a version."""
        value = None if files is None else json.dumps(files)
        connection.execute("UPDATE versions SET learner = ? WHERE version = ?", [value, version])

    def learner_files(self, connection: Connection) -> list[str]:
        """Return every file that a learner of some version needs."""
        return sorted({file for files in self.learners(connection).values() for file in files})
