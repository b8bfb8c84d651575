"""Small collections for the tests: 8 features, 16 bits, hash functions fitted on the first 300 rows."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import stillhash
from stillhash import METHODS, Collection
from stillhash.collection.storage.segments import CodedRows
from stillhash.collection.storage.store import Store
from tests.collection.reference import Twin
from tests.support.toys import toy

DIM, BITS, INIT, LEARN = 8, 16, 300, 40
ONLY_OF_COLLECTIONS = ("source_cap", "codes_see_labels", "filter_fields", "keep_features", "rescore_bits")


class Rows(NamedTuple):
    X: np.ndarray
    labels: list[list[str]]
    metadata: list[dict[str, Any] | None]


def some_rows(n: int, seed: int = 0) -> Rows:
    X, Y = toy(n, DIM, 4, seed)
    rng = np.random.default_rng(seed)
    labels = [["abcd"[c] for c in np.flatnonzero(y)] if r % 3 else [] for r, y in enumerate(Y)]
    metadata = [{"n": r, "odd": bool(r % 2), "tone": float(rng.integers(5)) / 4} if r % 5 else None for r in range(n)]
    return Rows(X, labels, metadata)


def live_rows(store: Store, connection: sqlite3.Connection) -> CodedRows:
    """Return all items that have a code."""
    coded = store.codes.after(connection, -1)
    return coded.select(np.isin(coded.numbers, [row for (row,) in connection.execute("SELECT row FROM items")]))


def rescoring_codes(collection: Collection, ids: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rescoring codes of items, and which are known."""
    store = collection._store
    assert store.rescoring is not None
    with store.reading() as connection:
        rows = store.items.rows_of(connection, ids)
        return store.rescoring.read(connection, np.array([rows[name] for name in ids if name in rows], np.int64))


def begin(path: Path, rows: int = 320, **settings: Any) -> tuple[Collection, Twin]:
    """Create a collection that has these rows, and its reference model."""
    options = {"init_rows": INIT, "learn_rows": LEARN, "codes_see_labels": True, **settings}
    collection = stillhash.open(path, DIM, BITS, **options)
    twin = Twin(BITS, **{name: value for name, value in options.items() if name not in ONLY_OF_COLLECTIONS})
    if "codes_see_labels" in METHODS[twin.method].parameters():
        twin.params = {"codes_see_labels": options["codes_see_labels"]}
    twin.rescore_bits = collection._store.settings["rescore_bits"]
    if rows:
        X, labels, metadata = some_rows(rows)
        collection.add(list(range(rows)), X, labels, metadata)
        twin.put(range(rows), X, labels, metadata)
    return collection, twin


def copied(template: Path, to: Path) -> Path:
    """Copy a collection that no process has open."""
    shutil.copytree(template, to)
    return to
