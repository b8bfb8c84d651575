"""The rows of items: what is stored of each, which are deleted, and which labelled rows are not learnt yet."""

import json
import random
from collections.abc import Iterable
from functools import partial
from itertools import islice
from sqlite3 import Connection, IntegrityError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.bitmaps import count_bits
from stillhash.collection.storage.item_changes import mark_changed
from stillhash.collection.storage.item_contents import (
    ItemContent,
    matching_rows,
    read_contents,
    read_records,
    rows_of_ids,
)
from stillhash.collection.storage.lexical import index_words, remove_words
from stillhash.collection.storage.schema import batches, get_meta, parsing, set_meta
from stillhash.collection.types import Id, Item
from stillhash.collection.validation import ItemRows, LabelledRows
from stillhash.errors import BadState, Conflict, InvalidInput
from stillhash.numeric.codes import width
from stillhash.numeric.labels import Labels
from stillhash.numeric.validation import Codes, Floats, Mask

RowNumbers = NDArray[np.int64]
MAX_LIMIT = 2**63 - 1  # that SQLite takes
NOT_JUDGED = -1  # in place of the number of a row that is no item, or whose features were rebuilt from its code


class ItemTable:
    """Rows are numbered in order of arrival, and a number is never used again."""

    def __init__(self, dim: int, bits: int, pending_codes: int = 0) -> None:
        """pending_codes: the bytes of rescoring codes, where pending rows have these in place of features."""
        self.dim, self.code_bytes, self._pending_codes = dim, width(bits), pending_codes

    def append(
        self,
        connection: Connection,
        new: ItemRows,
        codes: Codes | None = None,
        features: Floats | None = None,
        digests: NDArray[np.int64] | None = None,
    ) -> range:
        """Insert items under the next row numbers, with their codes and the digests of their features.

        With features in place of these they wait for hash functions; with neither they are in a segment.
        """
        first = get_meta(connection, "next_row")
        rows = range(first, first + len(new.ids))
        blobs = _blobs(codes, len(rows)), _blobs(features, len(rows))
        numbers = [None] * len(rows) if digests is None else digests.tolist()
        columns = rows, new.ids, new.label_texts, new.metadata, *blobs, numbers
        try:
            connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?, ?)", zip(*columns, strict=True))
        except IntegrityError:
            existing = [name for name, row in self.rows_of(connection, new.ids).items() if row < first]
            if not existing:
                raise
            exist = "id already exists" if len(existing) == 1 else "ids already exist"
            raise Conflict(f"ids: {len(existing)} {exist}: {existing[0]!r}. Use upsert to replace.") from None
        index_words(connection, rows, new.metadata)
        if new.pictures is not None:
            values = ((row, data) for row, data in zip(rows, new.pictures, strict=True) if data is not None)
            connection.executemany("INSERT INTO pictures VALUES (?, ?)", values)
        set_meta(connection, "next_row", rows.stop)
        set_meta(connection, "items", get_meta(connection, "items") + len(rows))
        return rows

    def delete(self, connection: Connection, ids: list[Id]) -> list[Id]:
        """Delete these items and return the ids that existed."""
        existing = self.rows_of(connection, ids)
        rows = list(existing.values())
        self.add_tombstones(connection, rows)
        remove_words(connection, rows)
        for table in ("items", "pending", "pictures", "doubtful_labels", "changed_rows"):
            connection.executemany(f"DELETE FROM {table} WHERE row = ?", ((row,) for row in rows))
        set_meta(connection, "items", get_meta(connection, "items") - len(rows))
        return [name for name in ids if name in existing]

    def add_tombstones(self, connection: Connection, rows: Iterable[int]) -> None:
        """Mark rows as deleted."""
        seq = get_meta(connection, "seq") + 1
        connection.executemany("INSERT OR IGNORE INTO tombstones VALUES (?, ?)", ((row, seq) for row in rows))

    def relabel(self, connection: Connection, rows: list[int], label_texts: list[str]) -> int:
        """Replace the labels of these rows, which are no longer doubtful; return how many had none."""
        without = self.count_unlabelled(connection, rows)
        connection.executemany("UPDATE items SET labels = ? WHERE row = ?", zip(label_texts, rows, strict=True))
        connection.executemany("DELETE FROM doubtful_labels WHERE row = ?", ((row,) for row in rows))
        mark_changed(connection, rows)
        return without

    def count_unlabelled(self, connection: Connection, rows: list[int]) -> int:
        """Count the rows of these that have no labels."""
        sql = "SELECT count(*) FROM items WHERE row = ? AND labels = '[]'"
        return sum(int(connection.execute(sql, [row]).fetchone()[0]) for row in rows)

    def rows_of(self, connection: Connection, ids: list[Id]) -> dict[Id, int]:
        """Return the rows of those ids that exist."""
        return rows_of_ids(connection, ids)

    def count_from(self, connection: Connection, row: int) -> int:
        """Count the items with this row number or a higher one."""
        return int(connection.execute("SELECT count(*) FROM items WHERE row >= ?", [row]).fetchone()[0])

    def existing_rows(self, connection: Connection, ids: list[Id]) -> RowNumbers:
        """Return the row of each id; all must exist."""
        rows = self.rows_of(connection, ids)
        if absent := [name for name in ids if name not in rows]:
            raise InvalidInput(f"id: no item {absent[0]!r}")
        return np.array([rows[name] for name in ids], np.int64)

    def get(self, connection: Connection, rows: Iterable[int], max_bytes: int | None = None) -> dict[int, Item]:
        """Return the items of these rows; TooLarge if they take more bytes."""
        return {row: Item(*content) for row, content in self.contents(connection, rows, max_bytes).items()}

    def contents(
        self, connection: Connection, rows: Iterable[int], max_bytes: int | None = None
    ) -> dict[int, ItemContent]:
        """Return id, labels and metadata of the items of these rows.

        TooLarge if they take more bytes as JSON, about, as often as their rows are listed.
        """
        return read_contents(partial(read_records, connection), rows, max_bytes)

    def picture(self, connection: Connection, id_: Id) -> bytes | None:
        """Return the picture of an item, None if it has none or does not exist."""
        sql = "SELECT data FROM pictures JOIN items USING (row) WHERE id = ?"
        row = connection.execute(sql, [id_]).fetchone()
        if row is not None and not isinstance(row[0], bytes):
            raise BadState(f"pictures: expected the bytes of an image, got {row[0]!r:.100}")
        return None if row is None else row[0]

    def matching(self, connection: Connection, condition: tuple[str, list[Any]]) -> NDArray[np.uint8]:
        """Return the rows that meet a condition (filters.py), as a bitmap; TooLarge if SQL takes too long."""
        matches = np.zeros(get_meta(connection, "next_row"), bool)
        matches[matching_rows(connection, condition)] = True
        return np.packbits(matches, bitorder="little")

    def list_ids(
        self, connection: Connection, allowed: NDArray[np.uint8] | None, after: Id | None, limit: int
    ) -> list[Id]:
        """Return the ids past one, in order, of the rows in a bitmap, or of all rows; at most `limit`."""
        condition, values = ("1", []) if after is None else ("id > ?", [after])
        if allowed is None:
            sql = f"SELECT id FROM items WHERE {condition} ORDER BY id LIMIT ?"
            return [name for (name,) in connection.execute(sql, [*values, min(limit, MAX_LIMIT)])]
        matching = count_bits(allowed)
        if matching * matching <= limit * get_meta(connection, "items"):  # reading these is less than reading in order
            rows = np.flatnonzero(np.unpackbits(allowed, bitorder="little")).tolist()
            names: list[Id] = []
            for marks, batch in batches(rows):
                sql = f"SELECT id FROM items WHERE row IN ({marks}) AND {condition}"
                names += [name for (name,) in connection.execute(sql, [*batch, *values])]
            return sorted(names, key=lambda name: (isinstance(name, str), name))[:limit]
        ordered = connection.execute(f"SELECT row, id FROM items WHERE {condition} ORDER BY id", values)
        bits = allowed.tobytes()
        return list(islice((name for row, name in ordered if bits[row >> 3] >> (row & 7) & 1), limit))

    def sample(self, connection: Connection, count: int, max_bytes: int | None = None) -> list[Item]:
        """Return items at random, mostly `count`: each is the first at or after a random row number."""
        places = random.choices(range(max(1, get_meta(connection, "next_row"))), k=2 * count)
        sql = "SELECT row FROM items WHERE row >= ? ORDER BY row LIMIT 1"
        draws = [connection.execute(sql, [place]).fetchone() for place in places]
        rows = list(dict.fromkeys(row for (row,) in filter(None, draws)))[:count]
        items = self.get(connection, rows, max_bytes)
        return [items[row] for row in rows]

    @parsing("labels")
    def sample_labels(self, connection: Connection, count: int, rng: np.random.Generator) -> Labels:
        """Return the labels of items at random, at most `count`, without items that have none."""
        rows = np.unique(rng.integers(max(1, get_meta(connection, "next_row")), size=count)).tolist()
        texts: list[tuple[str]] = []
        for marks, batch in batches(rows):
            texts += connection.execute(f"SELECT labels FROM items WHERE row IN ({marks}) AND labels != '[]'", batch)
        lists: list[list[Any]] = json.loads(f"[{','.join(text for (text,) in texts)}]")
        names: dict[Any, int] = {}
        indices = [names.setdefault(label, len(names)) for labels in lists for label in labels]
        indptr = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return Labels(indptr, np.array(indices, np.int64), list(names))

    @parsing("items")
    def awaiting_codes(self, connection: Connection) -> tuple[RowNumbers, LabelledRows]:
        """Return the rows that have no code yet, with their features and labels."""
        sql = "SELECT row, features, labels FROM items WHERE features NOT NULL ORDER BY row"
        rows = connection.execute(sql).fetchall()
        features = self._features([blob for _, blob, _ in rows])
        return np.array([row for row, _, _ in rows], np.int64), LabelledRows.from_texts(features, [r[2] for r in rows])

    def set_codes(self, connection: Connection, rows: RowNumbers, codes: Codes, digests: NDArray[np.int64]) -> None:
        """Give rows that waited their codes, also where they are pending; of their features the digests stay."""
        blobs, numbers = _blobs(codes, len(rows)), rows.tolist()
        values = zip(blobs, digests.tolist(), numbers, strict=True)
        connection.executemany("UPDATE items SET code = ?, feature_digest = ?, features = NULL WHERE row = ?", values)
        connection.executemany("UPDATE pending SET code = ? WHERE row = ?", zip(blobs, numbers, strict=True))

    def existing(self, connection: Connection, rows: list[int]) -> list[int]:
        """Return which of these rows are items, in their order."""
        known: set[int] = set()
        for marks, batch in batches(rows):
            known.update(row for (row,) in connection.execute(f"SELECT row FROM items WHERE row IN ({marks})", batch))
        return [row for row in rows if row in known]

    def add_pending(
        self,
        connection: Connection,
        numbers: Iterable[int],
        rows: LabelledRows,
        codes: Codes | None,
        own_features: Mask | None = None,
    ) -> None:
        """Keep labelled rows until there are enough to learn from.

        own_features: which rows have the features of their items, not rebuilt from codes; None: all.
        """
        count = len(rows.features)
        own = [1] * count if own_features is None else own_features.astype(int).tolist()
        columns = numbers, _blobs(rows.features, count), rows.label_texts, _blobs(codes, count), own
        sql = "INSERT INTO pending (row, features, labels, code, own_features) VALUES (?, ?, ?, ?, ?)"
        connection.executemany(sql, zip(*columns, strict=True))

    @parsing("pending")
    def take_pending(self, connection: Connection) -> tuple[LabelledRows, Codes, RowNumbers]:
        """Remove all pending rows and return them in order of arrival: only after hash functions.

        They come with their codes and row numbers; NOT_JUDGED for rows whose features were rebuilt from their codes.
        """
        sql = "SELECT features, labels, code, CASE WHEN own_features THEN row ELSE ? END FROM pending ORDER BY number"
        rows = connection.execute(sql, [NOT_JUDGED]).fetchall()
        connection.execute("DELETE FROM pending")
        codes = np.frombuffer(b"".join(row[2] for row in rows), np.uint8).reshape(len(rows), self.code_bytes)
        blobs, numbers = [row[0] for row in rows], np.array([row[3] for row in rows], np.int64)
        if self._pending_codes:
            features: Any = np.frombuffer(b"".join(blobs), np.uint8).reshape(len(rows), self._pending_codes)
        else:
            features = self._features(blobs)
        return LabelledRows.from_texts(features, [row[1] for row in rows]), codes, numbers

    def pending_rows(self, connection: Connection) -> RowNumbers:
        """Return the rows of items that are pending, ascending."""
        rows = connection.execute("SELECT row FROM pending WHERE row NOT NULL ORDER BY row").fetchall()
        return np.array([row for (row,) in rows], np.int64)

    def drop_pending(self, connection: Connection, numbers: Iterable[int]) -> None:
        """Drop these rows from the pending ones."""
        connection.executemany("DELETE FROM pending WHERE row = ?", ((row,) for row in numbers))

    def set_pending_codes(self, connection: Connection, numbers: RowNumbers, rescoring_codes: Codes) -> None:
        """Give pending rows that waited for hash functions their rescoring codes in place of their features."""
        values = zip(_blobs(rescoring_codes, len(numbers)), numbers.tolist(), strict=True)
        connection.executemany("UPDATE pending SET features = ? WHERE row = ?", values)

    @parsing("pending")
    def remove_pending(
        self, connection: Connection, numbers: list[int], rows: LabelledRows
    ) -> tuple[LabelledRows, Mask]:
        """Remove these rows from the pending ones; return them with the features that were pending, if any were.

        Also return which rows now have the features of their items, not rebuilt from codes.
        """
        features, own = rows.features.copy(), np.zeros(len(numbers), bool)
        for place, row in enumerate(numbers):
            pending = connection.execute("SELECT features, own_features FROM pending WHERE row = ?", [row]).fetchone()
            if pending is not None:
                features[place], own[place] = np.frombuffer(pending[0], np.float32), pending[1]
        connection.executemany("DELETE FROM pending WHERE row = ?", ((row,) for row in numbers))
        return rows._replace(features=features), own

    def _features(self, blobs: list[bytes]) -> Floats:
        return np.frombuffer(b"".join(blobs), np.float32).reshape(len(blobs), self.dim)


def _blobs(array: NDArray[Any] | None, rows: int) -> list[bytes | None]:
    """Return the bytes of each row; None for each if there is no array."""
    if array is None:
        return [None] * rows
    data, size = array.tobytes(), array.shape[1] * array.itemsize
    return [data[start : start + size] for start in range(0, len(data), size)]
