"""The audit log: who changed what, when, and the version of the model before and after.

An entry is written in the transaction of its change, so there is never one without the other. The table is created when
it is first needed; a store without it has an empty log. Numbers count up from 1, and the oldest entries are removed, so
the log has at most MAX_ENTRIES.

    with acting_as("importer"):
        collection.add(ids, features)

The name belongs to the context (contextvars), so to one thread or task: a thread that is started inside the block does
not have it. Without one, it is the operating system's user.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from sqlite3 import Connection

from stillhash.collection.storage.schema import OPTIONAL_TABLES, get_meta, has_table, parse_json
from stillhash.collection.types import AuditEntry, Id
from stillhash.errors import BadState, InvalidInput, WrongType
from stillhash.platform import SYSTEM

MAX_ACTOR_LENGTH = 200

_actor: ContextVar[str] = ContextVar("actor")


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Make all changes inside the block under this name, which the audit log will have."""
    token = _actor.set(check_actor(name))
    try:
        yield
    finally:
        _actor.reset(token)


def set_actor(name: str) -> None:
    """Set the name for the rest of this context, as a task that answers one request does."""
    _actor.set(check_actor(name))


def current_actor() -> str:
    """Return the name under which changes are made now."""
    return _actor.get(None) or system_user()


def check_actor(name: str, argument: str = "name") -> str:
    """Validate a name for the audit log: printable, and not longer than the log keeps."""
    if not isinstance(name, str):
        raise WrongType(f"{argument}: expected a string, got {name!r}")
    if not name.strip() or not name.isprintable() or len(name) > MAX_ACTOR_LENGTH:
        raise InvalidInput(f"{argument}: expected 1 to {MAX_ACTOR_LENGTH} printable characters, got {name[:50]!r}")
    return name


@cache
def system_user() -> str:
    """Return the name of the operating system's user, or its number where there is no valid name."""
    try:
        return check_actor(SYSTEM.user_name() or "")
    except InvalidInput:
        return SYSTEM.unnamed_user()


MAX_ENTRIES = 100_000
REMOVED_AT_ONCE = 100  # oldest entries go together; one at a time would write a page more for each change
MAX_NUMBER = 2**63 - 1  # is the largest number that SQLite takes
MAX_IDS = 10  # ids at most are in an entry
FORGOTTEN = "forgotten"  # stands for the name of a source
MAX_IDS_LENGTH = 2100  # characters of these ids as JSON at most; one id always fits
encode_json = json.JSONEncoder(ensure_ascii=False).encode
AUDIT_COLUMNS = ("number", "time", "who", "what", "rows", "ids", "version_before", "version_after")


@dataclass
class Change:
    """A change under way, inside its transaction, as the audit log will have it."""

    connection: Connection
    what: str
    rows: int | None  # how many items, rows or votes it is about; None: nothing has changed, so there is no entry
    ids: Sequence[Id] = ()

    def count(self, ids: Sequence[Id]) -> None:
        """Count more items that it is about."""
        self.rows = (self.rows or 0) + len(ids) or None
        self.ids = [*self.ids, *ids[:MAX_IDS]][:MAX_IDS]


class AuditTable:
    """Entries in the order of their commits."""

    def add(self, change: Change, version_before: int) -> None:
        """Write the entry of a change, if it has changed anything, and remove the oldest beyond MAX_ENTRIES."""
        if change.rows is None:
            return
        connection, time = change.connection, datetime.now(UTC).isoformat(timespec="milliseconds")
        versions = version_before, get_meta(connection, "version")
        if not has_table(connection, "audit"):
            connection.execute(OPTIONAL_TABLES["audit"])
        values = time, current_actor(), change.what, change.rows, ids_text(change.ids), *versions
        cursor = connection.execute("INSERT INTO audit VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", values)
        number = cursor.lastrowid or 0
        if number % REMOVED_AT_ONCE == 0:
            connection.execute("DELETE FROM audit WHERE number <= ?", [number - MAX_ENTRIES + REMOVED_AT_ONCE])

    def entries(self, connection: Connection, after: int | None, limit: int, who: str | None) -> list[AuditEntry]:
        """Return entries, the latest last: the first ones past a number, or without one the last of all."""
        if not has_table(connection, "audit"):
            return []
        order = "DESC" if after is None else "ASC"
        meets = "number > :after AND (:who IS NULL OR who = :who)"
        sql = f"SELECT {', '.join(AUDIT_COLUMNS)} FROM audit WHERE {meets} ORDER BY number {order} LIMIT :limit"
        rows = connection.execute(sql, {"after": after or 0, "who": who, "limit": limit}).fetchall()
        try:
            fields = [dict(zip(AUDIT_COLUMNS, row, strict=True)) for row in rows]
            entries = [AuditEntry(**{**entry, "ids": json.loads(entry["ids"])}) for entry in fields]
        except (TypeError, ValueError) as error:
            raise BadState(f"audit: an entry cannot be read: {error}") from error
        return entries[::-1] if after is None else entries

    def redact(self, connection: Connection, ids: Iterable[Id], source: str | None) -> None:
        """Take ids out of all entries, and write FORGOTTEN in place of a name."""
        if not has_table(connection, "audit"):
            return
        gone = set(ids)
        changed = []
        for number, text in connection.execute("SELECT number, ids FROM audit WHERE ids != '[]'") if gone else ():
            listed = parse_json(text, list, "audit")
            if any(name in gone for name in listed):
                changed.append((ids_text([name for name in listed if name not in gone]), number))
        connection.executemany("UPDATE audit SET ids = ? WHERE number = ?", changed)
        if source is not None:
            connection.execute("UPDATE audit SET who = ? WHERE who = ?", [FORGOTTEN, source])


def ids_text(ids: Sequence[Id]) -> str:
    """Return the first ids as a JSON list: at most MAX_IDS, and fewer where they are long."""
    first = list(ids[:MAX_IDS])
    while len(text := encode_json(first)) > MAX_IDS_LENGTH:
        first.pop()
    return text
