"""Export the items of a collection, as they are at one commit, as a plain table: JSON lines or Parquet.

The columns are those that `import` recognises: `id`, `labels`, `metadata`, and `features` where they are stored. The
code of an item is in `stillhash_code`, for other programs; `import` leaves it out. A lossless copy is a snapshot.
"""

import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.columns import FilterColumns, MovedOn
from stillhash.collection.filters.language import Condition, compile_filter
from stillhash.collection.storage.bitmaps import count_bits
from stillhash.collection.storage.database import committed_seq
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.snapshot import check_target, publish_file
from stillhash.collection.storage.store import Store
from stillhash.collection.transfer.exported_items import ExportedItems, ItemBatch, pinned_commit
from stillhash.collection.types import Filter
from stillhash.collection.validation import check_path
from stillhash.errors import BadState, Busy, InvalidInput, StillhashError, StoreFailed, shortage
from stillhash.files import create_private
from stillhash.io.arrow_batches import load_pyarrow
from stillhash.io.columns import CODE_NAME
from stillhash.numeric.codes import width

EXPORT_ATTEMPTS = 8  # while others compact, or learn

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
