"""A store from someone else: change what is in it, with sound checksums, and use all of it.

`python -m tests.collection.hostile TEMPLATE FOLDER SEED COUNT` does so with values that nobody would store, in memory
that is bounded, and prints what it changes. It fails where anything else than an error of this library comes out.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import stillhash
from stillhash.collection.learning.encoder_alignment import EncoderIdentity
from stillhash.collection.learning.models import fingerprint
from stillhash.errors import StillhashError
from stillhash.files import content_size, pack_file_checksums, write_sealed
from tests.collection.fixtures import DIM, begin, some_rows
from tests.collection.golden import PICTURE
from tests.support.toys import toy

MAX_MEMORY = 3 << 30  # of addresses, most of which libraries take
QUERIES = toy(2, DIM, 4, seed=77).X
ANOTHER_ENCODER = EncoderIdentity("another", "ab" * 32, 5)
DEEP = 100_000  # levels of JSON
TABLES = {
    "items": ("id", "labels", "metadata", "code", "features", "feature_digest", "row"),
    "pictures": ("data", "row"),
    "tombstones": ("row", "seq"),
    "changed_rows": ("row", "seq"),
    "segments": ("number", "file", "rows", "first", "last", "content"),
    "pending": ("features", "labels", "code", "own_features", "row"),
    "doubtful_labels": ("agreement", "predicted", "row"),
    "voted_queries": ("digest", "query"),
    "votes": ("version", "digest", "item", "source", "vote", "position", "code", "labels"),
    "versions": ("version", "created", "kind", "rows", "tag", "side", "model", "learner", "notes"),
}
INVALID_TEXT = "CAST(x'ff80' AS TEXT)"
VALUES: tuple[Any, ...] = (
    *(None, 0, 1, -1, 2, 2**20, 2**34, 2**40, 2**62, 2**63 - 1, -(2**63), 0.5, float("inf"), -1e308),
    *("", "x", "[]", "{}", "[[]]", "null", "[null]", '["../x"]', '{"a": 1e999}', "9" * 5000, "../x", "a\0b", "\x1f"),
    *("[" * DEEP, '{"a":' * DEEP, "[" * 900 + "]" * 900, '["' + "x" * 10**6 + '"]'),
    *(b"", b"\xff" * 2, b"\xff" * 16, bytes(32), bytes(10**6)),
)
SETTINGS: tuple[Any, ...] = (None, 0, -1, 7, 8, 2**20, 2**40, 2**70, 1.5, "x", [], {}, ["x"], {"x": 1}, True)


def create_template(path: Path) -> None:
    """Create a small store with something in every table."""
    collection, _ = begin(path, 320)
    collection.seal()
    collection.delete([3, 4])
    collection.relabel([5], [["a"]])
    collection.learn(*some_rows(50, seed=2)[:2])
    collection.feedback(QUERIES[0], [10, 11], [0.5, -0.5], source="ann", position=3)
    collection.upsert(["a", "b", 7], *some_rows(3, seed=3), pictures=[PICTURE, None, PICTURE])
    collection.align(ANOTHER_ENCODER, some_rows(30, seed=8).X[:, :5], some_rows(30, seed=4).X)
    rows = "INSERT OR REPLACE INTO doubtful_labels VALUES (20, -0.5, '[\"b\"]')"
    collection.close()
    edit(path, rows)


def edit(path: Path, *statements: str | tuple[str, list[Any]]) -> None:
    """Change store.db, and its checksums, which then match."""
    with closing(sqlite3.connect(path / "store.db")) as connection:
        for statement in statements:
            sql, values = (statement, []) if isinstance(statement, str) else statement
            connection.execute(sql, values)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (path / "store.sums").write_bytes(pack_file_checksums(path / "store.db"))


def meta(path: Path, key: str) -> Any:
    with closing(sqlite3.connect(path / "store.db")) as connection:
        return connection.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()[0]


def set_meta(path: Path, **values: Any) -> None:
    edit(path, *(("UPDATE meta SET value = ? WHERE key = ?", [value, key]) for key, value in values.items()))


def set_functions(path: Path, functions: bytes) -> None:
    set_meta(path, functions=functions, fingerprint=fingerprint(functions))


def verbs(collection: stillhash.Collection) -> list[Callable[[], object]]:
    """Return all that reads."""
    collection.warn_unknown_fields(False)
    return [
        lambda: collection.search(QUERIES, 400),
        lambda: collection.search(QUERIES, 5, where={"labels": "a", "odd": True}),
        lambda: collection.search(QUERIES, 5, where={"$not": {"other.field": 3}}, explain=True),
        lambda: collection.search(QUERIES[0], 5, version=1),
        lambda: collection.range_search(QUERIES[0], 0.0),
        lambda: collection.get([5, 7, "a"]),
        lambda: collection.count(),
        lambda: collection.count({"n": {"$gt": 3}}),
        lambda: collection.ids({"odd": True}),
        lambda: collection.ids(),
        lambda: collection.sample(5),
        lambda: collection.codes([5, "a"]),
        lambda: collection.reconstruct([5, "a"]),
        lambda: collection.picture("a"),
        lambda: collection.versions(),
        lambda: collection.quality(),
        lambda: collection.doubtful_labels(),
        lambda: collection.alignments(),
        lambda: collection.translate(some_rows(2).X[:, :5], ANOTHER_ENCODER),
        lambda: collection.stats(),
        lambda: collection.verify(),
    ]


def writing_verbs(collection: stillhash.Collection) -> list[Callable[[], object]]:
    """Return what writes after reading much."""
    return [
        lambda: collection.upsert(["n", 5], *some_rows(2, seed=9)),
        lambda: collection.delete([6, "a"]),
        lambda: collection.relabel([8, 9], [["a"], ["b"]]),
        lambda: collection.learn(*some_rows(30, seed=5)[:2]),
        lambda: collection.feedback(QUERIES[0], 12, "up"),
        lambda: collection.rollback(2),
        lambda: collection.seal(),
        lambda: collection.compact(),
    ]


def read_all(path: Path) -> list[StillhashError]:
    """Read all that there is; return the errors of this library, and raise all others."""
    return call_all(path, verbs, read_only=True)


def write_all(path: Path) -> list[StillhashError]:
    """Write in all ways; return the errors of this library, and raise all others."""
    return call_all(path, writing_verbs, read_only=False)


def call_all(
    path: Path, calls: Callable[[stillhash.Collection], list[Callable[[], object]]], *, read_only: bool
) -> list[StillhashError]:
    errors = []
    try:
        with stillhash.open(path, read_only=read_only) as collection:
            for verb in calls(collection):
                try:
                    verb()
                except StillhashError as error:
                    errors.append(error)
    except StillhashError as error:
        errors.append(error)
    return errors


def change_cell(path: Path, rng: random.Random) -> str:
    table = rng.choice(list(TABLES))
    column, value = rng.choice(TABLES[table]), rng.choice(VALUES)
    literal, values = rng.choice([("?", [value])] * 9 + [(INVALID_TEXT, [])])
    most = "" if rng.random() < 0.3 else f"WHERE rowid IN (SELECT rowid FROM {table} ORDER BY random() LIMIT 1)"
    try:
        edit(path, (f"UPDATE {table} SET {column} = {literal} {most}", values))
    except sqlite3.IntegrityError as error:
        return f"nothing: {error}"
    return f"{table}.{column} = {value!r:.40} {literal} {most[:5]}"


def change_meta(path: Path, rng: random.Random) -> str:
    with closing(sqlite3.connect(path / "store.db")) as connection:
        key = rng.choice([row[0] for row in connection.execute("SELECT key FROM meta ORDER BY key")])
    if rng.random() < 0.2:
        edit(path, ("DELETE FROM meta WHERE key = ?", [key]))
        return f"no meta {key}"
    value = rng.choice(VALUES)
    set_meta(path, **{key: value})
    if key == "functions" and isinstance(value, bytes):
        set_functions(path, value)
    return f"meta {key} = {value!r:.40}"


def change_settings(path: Path, rng: random.Random) -> str:
    settings, value = json.loads(meta(path, "settings")), rng.choice(SETTINGS)
    key = rng.choice(list(settings))
    settings[key] = value
    set_meta(path, settings=json.dumps(settings))
    return f"setting {key} = {value!r}"


def change_blob(path: Path, rng: random.Random) -> str:
    """Change bytes of hash functions or of a model, which stay near what they were."""
    data = bytearray(meta(path, "functions"))
    place = change_bytes(data, rng)
    set_functions(path, bytes(data))
    return f"functions at {place}"


def change_file(path: Path, rng: random.Random) -> str:
    """Change bytes of a sealed file, most often of its first ones, and seal it again."""
    file = rng.choice(sorted(each for folder in ("segments", "learner") for each in (path / folder).iterdir()))
    data = bytearray(file.read_bytes()[: content_size(file)])
    place = change_bytes(data, rng)
    write_sealed(file, [bytes(data)])
    return f"{file.name} at {place}"


def change_bytes(data: bytearray, rng: random.Random) -> int:
    place = rng.randrange(min(len(data) - 8, rng.choice([80, 4096, len(data)])))
    value = rng.choice([0, 1, 2**31, 2**62, 2**63, 2**64 - 1, rng.randrange(2**64)])
    size = rng.choice([1, 4, 8])
    data[place : place + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    return place


CHANGES = (change_cell, change_cell, change_cell, change_meta, change_meta, change_settings, change_blob, change_file)


def main(template: Path, folder: Path, seed: str, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    rng, errors = random.Random(seed), 0
    for number in range(count):
        path = folder / "c"
        shutil.copytree(template, path)
        print(f"case {number}: {rng.choice(CHANGES)(path, rng)}", flush=True)
        errors += bool(read_all(path) + write_all(path))
        shutil.rmtree(path)
    print(f"{count} stores, {errors} refused something")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
