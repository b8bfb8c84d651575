"""Export the items of a collection, as they are at one commit, as a plain table: JSON lines or Parquet.

The columns are those that `import` recognises: `id`, `labels`, `metadata`, and `features` where they are stored. The
code of an item is in `stillhash_code`, for other programs; `import` leaves it out. A lossless copy is a snapshot.
"""

import json
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.columns import FilterColumns, MovedOn
from stillhash.collection.filters.language import Condition, compile_filter
from stillhash.collection.storage.bitmaps import count_bits
from stillhash.collection.storage.database import committed_seq, connect
from stillhash.collection.storage.row_arrays import find_lost
from stillhash.collection.storage.schema import RowNumbers, batches, get_meta, is_fitted, parsing
from stillhash.collection.storage.store import Store
from stillhash.collection.transfer.snapshot import check_target, publish_file
from stillhash.collection.types import Filter, Id
from stillhash.collection.validation import check_path
from stillhash.errors import BadState, Busy, InvalidInput, StillhashError, StoreFailed, shortage
from stillhash.files import create_private
from stillhash.io.arrow import load_pyarrow
from stillhash.io.rows import CODE_NAME
from stillhash.numeric.codes import width
from stillhash.numeric.kernels import read_tiles
from stillhash.numeric.validation import Codes, Floats

BATCH_ROWS = 4096
MAX_BATCH_BYTES = 1 << 25  # is how long a batch with more than one item may be
BITMAP_PART = 1 << 13  # bytes of a bitmap have their rows listed at a time
NUMBER_TEXT_BYTES = 32  # about so long is a feature as a Python number or as text
COLUMNS = "row, id, labels, COALESCE(metadata, 'null'), code, features"


class ItemBatch(NamedTuple):
    """Items in ascending order of their rows."""

    ids: list[Id]
    labels: list[list[Any]]
    metadata: list[dict[str, Any] | None]
    codes: Codes | None  # None while items wait for hash functions
    features: Floats | None  # None once there are hash functions, unless they are kept; NaN where they are lost


@contextmanager
def pinned_commit(store: Store) -> Iterator[Connection]:
    """Read in one transaction of a connection of its own, so that this thread can read later commits meanwhile."""
    with store.reading():
        pass  # Closed if the store is closed, BadState if it is damaged
    try:
        with closing(connect(store.path, "ro")) as connection:
            connection.execute("BEGIN")
            committed_seq(connection)  # the commit that a transaction sees is that of its first read
            yield connection
    except sqlite3.DatabaseError as error:
        raise BadState(f"{store.path.name}: cannot be read: {error}") from error


class ExportedItems:
    """The items of one commit: of the rows in a bitmap, or all. The transaction must stay open while they are read.

    Segments are mapped at once, so that they can be read after another commit has replaced them.
    """

    def __init__(self, store: Store, connection: Connection, allowed: NDArray[np.uint8] | None) -> None:
        self._store, self._connection, self._allowed = store, connection, allowed
        self._fitted = is_fitted(connection)
        self._segments = list(store.codes.segments(connection))
        self._features = [] if store.features is None else store.features.mapped(connection)
        self._code_bytes, self._dim = width(store.settings["bits"]), store.settings["dim"]
        self.has_codes, self.has_features = self._fitted, not self._fitted or store.features is not None

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items, in batches of at most BATCH_ROWS rows and about MAX_BATCH_BYTES."""
        batch: list[tuple[Any, ...]] = []
        size = 0
        for row in self._stored_rows():
            row_bytes = sum(len(value) for value in row if isinstance(value, (str, bytes)))
            row_bytes += NUMBER_TEXT_BYTES * self._dim * self.has_features
            if batch and (len(batch) == BATCH_ROWS or size + row_bytes > MAX_BATCH_BYTES):
                yield self._parse(batch)
                batch, size = [], 0
            batch.append(row)
            size += row_bytes
        if batch:
            yield self._parse(batch)

    def _stored_rows(self) -> Iterator[tuple[Any, ...]]:
        if self._allowed is None:
            yield from self._connection.execute(f"SELECT {COLUMNS} FROM items ORDER BY row")
            return
        for start in range(0, len(self._allowed), BITMAP_PART):
            part = np.unpackbits(self._allowed[start : start + BITMAP_PART], bitorder="little")
            for marks, rows in batches((8 * start + np.flatnonzero(part)).tolist()):
                sql = f"SELECT {COLUMNS} FROM items WHERE row IN ({marks}) ORDER BY row"
                yield from self._connection.execute(sql, rows)

    @parsing("items")
    def _parse(self, stored: list[tuple[Any, ...]]) -> ItemBatch:
        numbers, ids, labels, metadata, codes, features = map(list, zip(*stored, strict=True))
        lists, objects = (json.loads(f"[{','.join(texts)}]") for texts in (labels, metadata))
        kinds = ((ids, (int, str)), (lists, (list,)), (objects, (dict, type(None))))
        if not all(type(value) in allowed for values, allowed in kinds for value in values):
            raise BadState("items: expected ids, labels and metadata, got others")
        if self._fitted:
            return ItemBatch(ids, lists, objects, *self._coded(np.array(numbers, np.int64), codes))
        X = np.frombuffer(b"".join(features), np.float32).reshape(len(ids), self._dim)
        return ItemBatch(ids, lists, objects, None, X)

    def _coded(self, rows: RowNumbers, blobs: list[Any]) -> tuple[Codes, Floats | None]:
        """Return codes and, where they are kept, features of ascending rows, sealed or not."""
        codes, known = np.zeros((len(rows), self._code_bytes), np.uint8), np.zeros(len(rows), bool)
        for place, blob in enumerate(blobs):
            if blob is not None:
                codes[place], known[place] = np.frombuffer(blob, np.uint8), True
        features = None
        if self._store.features is not None:
            features = self._store.features.lost(len(rows)).astype(np.float32)
            features[known] = self._store.features.read(self._connection, rows[known])[0]
        for number, segment in enumerate(self._segments):
            first, last = segment.bounds()
            inside = np.flatnonzero((rows >= first) & (rows <= last) & ~known)
            places = rows[inside] - segment.first
            if segment.numbers is not None:
                places = np.searchsorted(segment.numbers, rows[inside])
                held = segment.numbers[places] == rows[inside]
                inside, places = inside[held], places[held]
            if len(inside):
                codes[inside], known[inside] = read_tiles(segment.tiles, places), True
                if features is not None:
                    features[inside] = self._features[number][places]
        if not known.all():
            raise BadState(f"items: {int((~known).sum())} items have no code, the first in row {rows[~known][0]}")
        if features is not None:
            features[find_lost(features)] = np.nan
        return codes, features


EXPORT_ATTEMPTS = 8  # times an export starts over while others compact, or learn

Progress = Callable[[int, int], object]  # called with the items so far, and all
CreateWriter = Callable[[Store, Connection, ExportedItems], Any]


def export(
    store: Store,
    columns: FilterColumns,
    path: str | Path,
    where: Filter | None,
    overwrite: bool,
    progress: Progress | None,
) -> dict[str, Any]:
    """Write the file under another name, and rename it when it is complete and on disk; return what it holds."""
    target = check_path(path)
    name = check_table_format(target)
    condition = None if where is None else compile_filter(where)
    check_target(target, overwrite)
    unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        items = _write_retrying(store, columns, condition, partial(WRITERS[name], unfinished), progress)
        publish_file(unfinished, target, overwrite)
        size = target.stat().st_size
    except OSError as error:
        if isinstance(error, StillhashError):
            raise
        raise shortage(error) or StoreFailed(f"path: {target.name} could not be written: {error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return {"format": name, "items": items, "bytes": size}


def check_table_format(path: Path) -> str:
    """Return the format of a table by the suffix of its file."""
    name = path.suffix.removeprefix(".").lower()
    if name not in WRITERS:
        raise InvalidInput(
            f"path: expected a file that ends in {' or '.join(f'.{one}' for one in WRITERS)}, got {path.name!r}"
        )
    return name


def _write_retrying(
    store: Store, columns: FilterColumns, condition: Condition | None, create: CreateWriter, progress: Progress | None
) -> int:
    """Write the latest commit, or a later one where that has removed files meanwhile; return how many items."""
    for _ in range(EXPORT_ATTEMPTS):
        seq = -1
        try:
            with pinned_commit(store) as connection:
                seq = committed_seq(connection)
                allowed = None if condition is None else columns.matching(connection, condition)
                return _write(store, connection, allowed, create, progress)
        except MovedOn:
            continue
        except BadState:
            with store.reading() as connection:
                if committed_seq(connection) == seq:
                    raise
    raise Busy(f"export: another commit removed files {EXPORT_ATTEMPTS} times before they were read. Try again")


def _write(
    store: Store,
    connection: Connection,
    allowed: NDArray[np.uint8] | None,
    create: CreateWriter,
    progress: Progress | None,
) -> int:
    """Write all items of this commit; return how many there are."""
    items, written = ExportedItems(store, connection, allowed), 0
    with store.reading() as latest:  # a file of features that a compaction removed looks like one that is lost
        if not set(store.codes.segment_files(connection)) <= set(store.codes.segment_files(latest)):
            raise MovedOn
    total = int(get_meta(connection, "items")) if allowed is None else count_bits(allowed)
    writer = create(store, connection, items)
    try:
        for batch in items.batches():
            writer.write(batch)
            written += len(batch.ids)
            if progress is not None:
                progress(written, total)
        if written != total:
            raise BadState(f"items: expected {total}, got {written}")
    except BaseException:
        with suppress(Exception):  # the first error says more
            writer.close()
        raise
    writer.close()
    return total


class JsonLinesTable:
    """Write a line for each item; its code is in hexadecimal."""

    def __init__(self, path: Path, store: Store, connection: Connection, items: ExportedItems) -> None:
        self._file = create_private(path).open("wb")

    def write(self, batch: ItemBatch) -> None:
        codes = None if batch.codes is None else [code.tobytes().hex() for code in batch.codes]
        features = None if batch.features is None else batch.features.tolist()
        for place, name in enumerate(batch.ids):
            line: dict[str, Any] = {"id": name, "labels": batch.labels[place], "metadata": batch.metadata[place]}
            if features is not None:
                line["features"] = None if features[place][0] != features[place][0] else features[place]  # NaN: lost
            if codes is not None:
                line[CODE_NAME] = codes[place]
            self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


class ParquetTable:
    """Write a row group for each batch. A column has one type: ids or labels that are not all integers are texts."""

    def __init__(self, path: Path, store: Store, connection: Connection, items: ExportedItems) -> None:
        self._arrow, parquet = load_pyarrow("export: Parquet"), load_pyarrow("export: Parquet", "pyarrow.parquet")
        arrow = self._arrow
        (other_ids,) = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM items WHERE typeof(id) != 'integer')"
        ).fetchone()
        sql = "SELECT EXISTS (SELECT 1 FROM items, json_each(labels) WHERE json_each.type != 'integer')"
        (other_labels,) = connection.execute(sql).fetchone()
        kind, label_kind = (arrow.string() if other else arrow.int64() for other in (other_ids, other_labels))
        columns = [("id", kind), ("labels", arrow.list_(label_kind)), ("metadata", arrow.string())]
        if items.has_features:
            columns.append(("features", arrow.list_(arrow.float32())))
        if items.has_codes:
            columns.append((CODE_NAME, arrow.binary(width(store.settings["bits"]))))
        self._as_texts = bool(other_ids), bool(other_labels)
        self._schema = arrow.schema(columns)
        self._sink = arrow.OSFile(str(create_private(path)), "wb")
        self._writer = parquet.ParquetWriter(self._sink, self._schema, compression="zstd")

    def write(self, batch: ItemBatch) -> None:
        ids: list[Any] = list(map(str, batch.ids)) if self._as_texts[0] else batch.ids
        labels = [list(map(str, own)) for own in batch.labels] if self._as_texts[1] else batch.labels
        columns: list[Any] = [ids, labels, [None if one is None else json.dumps(one) for one in batch.metadata]]
        if batch.features is not None:
            lost = np.isnan(batch.features[:, 0])
            ends = np.cumsum(np.where(lost, 0, batch.features.shape[1]), dtype=np.int32)
            starts, values = self._arrow.array(np.insert(ends, 0, 0)), self._arrow.array(batch.features[~lost].ravel())
            columns.append(self._arrow.ListArray.from_arrays(starts, values, mask=self._arrow.array(lost)))
        if batch.codes is not None:
            columns.append([code.tobytes() for code in batch.codes])
        arrays = [self._arrow.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._writer.write_table(self._arrow.table(arrays, schema=self._schema), row_group_size=len(batch.ids))

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            self._writer.is_open = False  # after a failure it would try again when it is deleted
            self._sink.close()


WRITERS: dict[str, Any] = {"jsonl": JsonLinesTable, "parquet": ParquetTable}
