"""The rows of items: what is stored of each, which are deleted, and which labelled rows are not learnt yet.

Ids, labels and metadata are read from a table `items`, of a store or of the items beside a segment; changed in place;
listed in order of their ids, a page of so many items and bytes at a time; and looked up by how ids begin. Last come the
items whose labels agree least with what their features predict: each agreement was measured before the row was learnt,
and `meta` has histograms of it, of rows with their own labels and of the same rows with labels of items at random. Both
forget with a half-life, so that they describe the latest rows and what is learnt by now.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from sqlite3 import Connection, IntegrityError, OperationalError
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.bitmaps import count_bits
from stillhash.collection.storage.lexical import index_words, remove_words
from stillhash.collection.storage.row_arrays import drop_built
from stillhash.collection.storage.schema import (
    LABELLED_KEY,
    RowNumbers,
    batches,
    count_rows,
    get_meta,
    parse_json,
    parsing,
    set_meta,
)
from stillhash.collection.types import Id, Item
from stillhash.collection.validation import ItemRows, LabelledRows
from stillhash.errors import BadState, Conflict, InvalidInput, TooLarge
from stillhash.numeric.codes import width
from stillhash.numeric.labels import Labels
from stillhash.numeric.validation import Codes, Floats, Mask

ITEM_BYTES = 100  # about so long is an item or a hit as JSON, besides its labels and metadata
MAX_SQL_SECONDS = 10  # is how long a filter may take that columns cannot answer
STEPS_PER_CHECK = 10_000  # steps of SQLite pass between two looks at the clock

ItemContent = tuple[Id, list[Any], dict[str, Any] | None]  # id, labels and metadata
ItemRecord = tuple[int, Id, str, str]  # row and id, and as JSON texts labels and metadata


def read_records(connection: Connection, rows: list[int]) -> Iterator[Iterable[ItemRecord]]:
    """Yield the records of these rows, those that there are, in batches that are read as they are iterated over."""
    for marks, batch in batches(rows):
        sql = f"SELECT row, id, labels, COALESCE(metadata, 'null') FROM items WHERE row IN ({marks})"
        yield connection.execute(sql, batch)


def read_contents(
    records_of: Callable[[list[int]], Iterable[Iterable[ItemRecord]]],
    rows: Iterable[int],
    max_bytes: int | None = None,
) -> dict[int, ItemContent]:
    """Return id, labels and metadata of these rows, whose records a function yields.

    TooLarge if they take more bytes as JSON, about, as often as their rows are listed.
    """
    contents: dict[int, ItemContent] = {}
    times, left = Counter(rows), max_bytes or 0
    for batch in records_of(list(times)):
        records = []
        for record in batch:
            left -= times[record[0]] * (len(record[2]) + len(record[3]) + ITEM_BYTES)
            if max_bytes is not None and left < 0:
                raise TooLarge(f"answer: expected at most {max_bytes} bytes, got more. Request fewer items.")
            records.append(record)
        parts = json.loads(f"[{','.join(text for record in records for text in record[2:])}]")  # once for all items
        types = set(map(type, parts[::2])), set(map(type, parts[1::2])), {type(record[1]) for record in records}
        if not (types[0] <= {list} and types[1] <= {dict, type(None)} and types[2] <= {int, str}):
            raise BadState("items: expected ids, lists of labels and objects of metadata, got others")
        pairs = zip(parts[::2], parts[1::2], strict=True)
        contents.update((record[0], (record[1], *pair)) for record, pair in zip(records, pairs, strict=True))
    return contents


def rows_of_ids(connection: Connection, ids: list[Id]) -> dict[Id, int]:
    """Return the rows of those ids that exist."""
    rows: dict[Id, int] = {}
    for marks, batch in batches(ids):
        rows.update(connection.execute(f"SELECT id, row FROM items WHERE id IN ({marks})", batch))
    return rows


def matching_rows(connection: Connection, condition: tuple[str, list[Any]]) -> NDArray[np.int64]:
    """Return the rows that meet a condition in SQL (filters.py); TooLarge if that takes too long."""
    sql, values = condition
    deadline = time.monotonic() + MAX_SQL_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_PER_CHECK)
    try:
        rows = connection.execute(f"SELECT row FROM items WHERE {sql}", values).fetchall()
    except OperationalError as error:
        if time.monotonic() <= deadline:
            raise
        most = f"expected a condition that SQL answers within {MAX_SQL_SECONDS} seconds"
        raise TooLarge(f"where: {most}. Name its fields in filter_fields, or use fewer conditions.") from error
    finally:
        connection.set_progress_handler(None, 0)
    return np.array(rows, np.int64).reshape(-1)


MetadataText = str | None  # JSON


def mark_changed(connection: Connection, rows: Iterable[int]) -> None:
    """Record that labels or metadata of these rows change in this commit, so that columns of filters follow."""
    seq = get_meta(connection, "seq") + 1
    connection.executemany("INSERT OR REPLACE INTO changed_rows VALUES (?, ?)", ((row, seq) for row in rows))


def set_metadata(connection: Connection, rows: list[int], texts: list[MetadataText]) -> None:
    """Replace the metadata of these rows, each once."""
    remove_words(connection, rows)
    connection.executemany("UPDATE items SET metadata = ? WHERE row = ?", zip(texts, rows, strict=True))
    index_words(connection, rows, texts)
    mark_changed(connection, rows)


def change_metadata(
    connection: Connection, rows: list[int], changes: Iterable[Callable[[MetadataText], MetadataText]]
) -> None:
    """Replace the metadata of each row by what its change makes of it."""
    stored: dict[int, MetadataText] = {}
    for marks, batch in batches(rows):
        stored.update(connection.execute(f"SELECT row, metadata FROM items WHERE row IN ({marks})", batch))
    set_metadata(connection, rows, [change(stored[row]) for row, change in zip(rows, changes, strict=True)])


def list_row_ids(connection: Connection, rows: list[int]) -> list[Id]:
    """Return the ids of these rows, in their order."""
    names: dict[int, Id] = {}
    for marks, batch in batches(rows):
        names.update(connection.execute(f"SELECT row, id FROM items WHERE row IN ({marks})", batch))
    return [names[row] for row in rows]


NO_LABELS = "[]"  # is how no labels are stored
MAX_LIMIT = 2**63 - 1  # is the largest limit that SQLite takes
NOT_JUDGED = -1  # stands for a row that is no item, or whose features were rebuilt from its code


@parsing(LABELLED_KEY)
def count_labelled(connection: Connection, *, again: bool = False) -> int:
    """Return how many items have labels; count them if no count is stored, or to compare it."""
    count = get_meta(connection, LABELLED_KEY)
    if count is None or again:
        return int(connection.execute("SELECT count(*) FROM items WHERE labels != ?", [NO_LABELS]).fetchone()[0])
    return int(count)


def _add_labelled(connection: Connection, rows: int) -> None:
    """Count so many more items with labels, once they are stored; in a store that has no count yet, count all."""
    missing = get_meta(connection, LABELLED_KEY) is None
    set_meta(connection, LABELLED_KEY, count_labelled(connection) + (0 if missing else rows))


def labelled_share(connection: Connection) -> float:
    """Return the share of the items that have labels."""
    with parsing(LABELLED_KEY):
        return min(1.0, max(0, count_labelled(connection)) / max(1, int(get_meta(connection, "items"))))


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
        _add_labelled(connection, len(rows) - new.label_texts.count(NO_LABELS))
        return rows

    def delete(self, connection: Connection, ids: list[Id]) -> list[Id]:
        """Delete these items and return the ids that existed."""
        existing = self.rows_of(connection, ids)
        rows = list(existing.values())
        labelled = len(rows) - self.count_unlabelled(connection, rows)
        self.add_tombstones(connection, rows)
        remove_words(connection, rows)
        for table in ("items", "pending", "pictures", "doubtful_labels", "changed_rows"):
            connection.executemany(f"DELETE FROM {table} WHERE row = ?", ((row,) for row in rows))
        drop_built(connection, rows)
        set_meta(connection, "items", get_meta(connection, "items") - len(rows))
        _add_labelled(connection, -labelled)
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
        _add_labelled(connection, without - label_texts.count(NO_LABELS))
        return without

    def count_unlabelled(self, connection: Connection, rows: list[int]) -> int:
        """Count the rows of these that have no labels."""
        sql = "SELECT count(*) FROM items WHERE row IN ({}) AND labels = ?"
        counts = (
            connection.execute(sql.format(marks), [*batch, NO_LABELS]).fetchone() for marks, batch in batches(rows)
        )
        return sum(int(count) for (count,) in counts)

    def label_texts(self, connection: Connection, rows: list[int]) -> dict[int, str]:
        """Return the labels of those rows that are items, as JSON."""
        texts: dict[int, str] = {}
        for marks, batch in batches(rows):
            texts.update(connection.execute(f"SELECT row, labels FROM items WHERE row IN ({marks})", batch))
        return texts

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
        """Give pending rows their rescoring codes in place of their features."""
        values = zip(_blobs(rescoring_codes, len(numbers)), numbers.tolist(), strict=True)
        connection.executemany("UPDATE pending SET features = ?, own_features = 1 WHERE row = ?", values)

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


def page_rows(
    items: ItemTable,
    connection: Connection,
    allowed: NDArray[np.uint8] | None,
    after: Id | None,
    limit: int,
    max_bytes: int | None,
) -> list[int]:
    """Return the rows of the items past an id, in order of their ids, of the rows in a bitmap or of all rows.

    They are at most `limit`, and fewer where they would take more than `max_bytes` as JSON, about; but one at least.
    """
    rows: list[int] = []
    size = 0
    for marks, names in batches(items.list_ids(connection, allowed, after, limit)):
        sizes = "length(labels) + ifnull(length(metadata), 4)"
        sql = f"SELECT row, {sizes} FROM items WHERE id IN ({marks}) ORDER BY id"
        for row, item_bytes in connection.execute(sql, names).fetchall():
            size += item_bytes + ITEM_BYTES
            if max_bytes is not None and size > max_bytes and rows:
                return rows
            rows.append(row)
    return rows


def read_page(items: ItemTable, connection: Connection, rows: list[int]) -> list[Item]:
    """Return the items of these rows, in this order."""
    contents = items.get(connection, rows)
    return [contents[row] for row in rows]


def ids_of(connection: Connection, rows: list[int]) -> dict[int, Id]:
    """Return the ids of these rows."""
    ids: dict[int, Id] = {}
    for marks, batch in batches(list(dict.fromkeys(rows))):
        ids.update(connection.execute(f"SELECT row, id FROM items WHERE row IN ({marks})", batch))
    return ids


def pictured_ids(connection: Connection, ids: list[Id]) -> set[Id]:
    """Return those of these ids that have a picture."""
    names: set[Id] = set()
    for marks, batch in batches(ids):
        sql = f"SELECT id FROM items JOIN pictures USING (row) WHERE id IN ({marks})"
        names.update(name for (name,) in connection.execute(sql, batch))
    return names


@parsing("labels")
def read_labels(connection: Connection, rows: Iterable[int]) -> dict[int, tuple[Id, list[Any]]]:
    """Return the id and the labels of those rows that exist."""
    labels: dict[int, tuple[Id, list[Any]]] = {}
    for marks, batch in batches(list(rows)):
        stored = connection.execute(f"SELECT row, id, labels FROM items WHERE row IN ({marks})", batch)
        labels.update((row, (name, parse_json(text, list, "labels"))) for row, name, text in stored)
    return labels


LAST_CHARACTER = chr(0x10FFFF)
MAX_ID_DIGITS = 18  # digits at most, so that each is a 64-bit integer
ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789-_./"  # may be missing or wrong in an id
EDITED_LENGTHS = range(3, 41)  # texts of these lengths may have a wrong character


def ids_beginning(connection: Connection, text: str, limit: int) -> list[Id]:
    """Return ids that begin with a text, in order: integers by their digits, then texts, in any of three cases."""
    ids: list[Id] = []
    if is_number(text) and str(number := int(text)) == text:
        for zeros in range(MAX_ID_DIGITS - len(text) + 1 if number > 0 else 1):
            sql = "SELECT id FROM items WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
            bounds = number * 10**zeros, (number + 1) * 10**zeros - 1
            ids += [name for (name,) in connection.execute(sql, [*bounds, limit])]
            if len(ids) >= limit:
                return ids[:limit]
    for start in dict.fromkeys((text, text.lower(), text.upper())):
        sql = "SELECT id FROM items WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
        ids += [name for (name,) in connection.execute(sql, [start, start + LAST_CHARACTER, limit])]
    return ids[:limit]


def ids_beside(connection: Connection, text: str, limit: int) -> list[Id]:
    """Return the ids before and after a text or a number in their order, at most so many of each."""
    key: Id = int(text) if is_number(text) else text
    before = connection.execute("SELECT id FROM items WHERE id < ? ORDER BY id DESC LIMIT ?", [key, limit]).fetchall()
    after = connection.execute("SELECT id FROM items WHERE id > ? ORDER BY id LIMIT ?", [key, limit]).fetchall()
    return [name for (name,) in [*before, *after] if type(name) is type(key)]


def ids_one_edit_away(connection: Connection, text: str) -> list[Id]:
    """Return the ids that differ from a text by one character: missing, too many, another, or two exchanged."""
    if len(text) not in EDITED_LENGTHS:
        return []
    cuts = [(text[:place], text[place:]) for place in range(len(text) + 1)]
    edits = {a + b[1:] for a, b in cuts if b} | {a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1}
    edits |= {a + character + b for a, b in cuts for character in ID_CHARACTERS}
    edits |= {a + character + b[1:] for a, b in cuts if b for character in ID_CHARACTERS}
    ids: list[Id] = []
    keys: list[Id] = [int(edit) for edit in edits if is_number(edit)] if is_number(text) else []
    for marks, batch in batches([*keys, *sorted(edits - {text, ""})]):
        ids += [name for (name,) in connection.execute(f"SELECT id FROM items WHERE id IN ({marks})", batch)]
    return ids


def is_number(text: str) -> bool:
    """Return whether a text is an integer that can be an id."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= MAX_ID_DIGITS


MAX_DOUBTFUL = 1000  # rows at most are in the table
HISTOGRAM_BINS = 256  # bins of agreement, from -1 to 1
HISTOGRAM_HALF_LIFE = 20_000  # rows after which a row counts for half in the histograms
HISTOGRAMS_KEY = "label_agreement"  # is their key in the table `meta`


class DoubtfulRow(NamedTuple):
    """A row of the table."""

    row: int
    agreement: float  # the cosine of the labels and of those predicted, -1 to 1
    predicted: str  # labels as JSON, best first


class DoubtfulLabelTable:
    """Keep at most MAX_DOUBTFUL rows: those of the lowest agreement."""

    def add(self, connection: Connection, rows: Iterable[DoubtfulRow]) -> None:
        """Add rows, and drop those that agree better than MAX_DOUBTFUL others."""
        connection.executemany("INSERT OR REPLACE INTO doubtful_labels VALUES (?, ?, ?)", rows)
        worst = f"SELECT row FROM doubtful_labels ORDER BY agreement, row LIMIT {MAX_DOUBTFUL}"
        if count_rows(connection, "doubtful_labels") > MAX_DOUBTFUL:
            connection.execute(f"DELETE FROM doubtful_labels WHERE row NOT IN ({worst})")

    def highest(self, connection: Connection) -> float:
        """Return the agreement below which a row belongs into the table."""
        count, highest = connection.execute("SELECT count(*), max(agreement) FROM doubtful_labels").fetchone()
        return float(highest) if count >= MAX_DOUBTFUL else np.inf

    def first(self, connection: Connection, count: int) -> list[DoubtfulRow]:
        """Return rows, the lowest agreement first."""
        sql = "SELECT row, agreement, predicted FROM doubtful_labels ORDER BY agreement, row LIMIT ?"
        return [DoubtfulRow(*row) for row in connection.execute(sql, [count])]

    def count_stray(self, connection: Connection) -> int:
        """Count the rows without an item."""
        sql = "SELECT count(*) FROM doubtful_labels WHERE row NOT IN (SELECT row FROM items)"
        return int(connection.execute(sql).fetchone()[0])

    def add_agreements(self, connection: Connection, own: Floats, random: Floats) -> None:
        """Count the agreement of rows with their own labels, and with labels at random."""
        counts = 0.5 ** (len(own) / HISTOGRAM_HALF_LIFE) * self.histograms(connection)
        for histogram, agreements in zip(counts, (own, random), strict=True):
            histogram += np.bincount(histogram_bins(agreements), minlength=HISTOGRAM_BINS)
        set_meta(connection, HISTOGRAMS_KEY, counts.astype("<f4").tobytes())

    def histograms(self, connection: Connection) -> NDArray[np.float64]:
        """Return both histograms (2, HISTOGRAM_BINS): of own labels, and of labels at random."""
        data = get_meta(connection, HISTOGRAMS_KEY)
        if data is None:
            return np.zeros((2, HISTOGRAM_BINS))
        if not isinstance(data, bytes) or len(data) != 8 * HISTOGRAM_BINS:
            raise BadState(f"{HISTOGRAMS_KEY}: expected two histograms of {HISTOGRAM_BINS} bins, got other data")
        counts = np.frombuffer(data, "<f4").reshape(2, HISTOGRAM_BINS).astype(np.float64)
        if not np.isfinite(counts).all() or (counts < 0).any():
            raise BadState(f"{HISTOGRAMS_KEY}: expected counts, got negative numbers, infinity or NaN")
        return counts


def histogram_bins(agreements: Floats) -> NDArray[np.int64]:
    """Return the bin of each agreement."""
    return np.asarray(np.clip((agreements + 1) * (HISTOGRAM_BINS / 2), 0, HISTOGRAM_BINS - 1), np.int64)
