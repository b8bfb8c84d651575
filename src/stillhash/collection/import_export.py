"""Restore a collection from a file that `export` wrote: it appears complete and verified, or not at all.

The file may come from anyone: everything in it is validated, nothing is unpickled, and memory is bounded by the
batches that it is read in.
"""

import json
import os
import shutil
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import numpy as np

from stillhash.collection.collection import Collection
from stillhash.collection.export import Progress
from stillhash.collection.export_formats import export_format, open_export
from stillhash.collection.export_formats.records import (
    ExportDigest,
    ExportReader,
    ExportShape,
    Record,
    parse_header,
    parse_record,
)
from stillhash.collection.import_state import StateImporter, check_label_texts
from stillhash.collection.storage.exported_items import ItemBatch, insert_items
from stillhash.collection.storage.row_arrays import round_features
from stillhash.collection.storage.schema import MAX_ROW_NUMBER, count_rows, parsing
from stillhash.collection.storage.segments import CodedRows
from stillhash.collection.storage.settings import parse_settings
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.verification import verify_store
from stillhash.collection.stored_models import verify_models
from stillhash.collection.validation import check_ids, check_metadata, check_path, check_pictures
from stillhash.errors import BadState, Conflict, InvalidInput, StillhashError, StoreFailed, report_shortages, shortage
from stillhash.numeric.validation import Floats, check_codes, check_features
from stillhash.platform import SYSTEM


def is_export(file: str | Path) -> bool:
    """Return whether a file is one that `export` wrote, by how it begins."""
    path = check_path(file)
    try:
        return path.is_file() and export_format(path) is not None
    except OSError:
        return False


@report_shortages
def import_export(file: str | Path, path: str | Path, *, progress: Progress | None = None) -> Collection:
    """Create a collection in a new folder from a file that `export` wrote, and return it, open for writing.

    Searches by the current version and by earlier ones answer the same, and learning goes on from the same state.
    progress: called with the number of items so far, and of all. If it fails, there is no such folder.
    """
    source, target = check_path(file), check_path(path)
    if not source.is_file():
        raise InvalidInput(f"file: expected a file that `export` wrote, got {str(source)!r}")
    if os.path.lexists(target):
        raise Conflict(f"path: expected a folder that does not exist yet, got {str(target)!r}")
    unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with closing(open_export(source)) as reader:
            _build(reader, unfinished, progress)
        SYSTEM.rename_folder(unfinished, target)
        SYSTEM.sync(target.parent)
    except (OSError, sqlite3.DatabaseError) as error:
        if isinstance(error, StillhashError):
            raise
        raise shortage(error) or StoreFailed(f"path: {target.name} could not be created: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return Collection(Store(target, writer=True))


def _build(reader: ExportReader, folder: Path, progress: Progress | None) -> None:
    """Create a collection of all that a file holds, and verify it."""
    lines, digest = reader.state_lines(), ExportDigest()
    digest.add_line(first := next(lines))
    header = parse_header(first)
    settings = parse_settings(json.dumps(header["settings"]))
    shape = ExportShape.of(header)
    with closing(Store.create(folder, settings)) as store:
        with store.transaction() as connection, parsing("state"):
            state = StateImporter(store, connection, header)
            for line in lines:
                digest.add_line(line)
                name, values = parse_record(line)
                if name != "items":
                    state.add(name, values)
            state.finish()
        _add_items(store, reader, shape, header, digest, progress)
        if reader.end() != digest.end_line():
            raise BadState("export: damaged, or incomplete: what it holds has another digest than its last line says")
        with store.change("import", digest.items) as change:
            for table in ("pending", "doubtful_labels", *["summed_rows"] * (store.summed_rows is not None)):
                strays = f"(SELECT row FROM {table} WHERE row NOT IN (SELECT row FROM items))"
                if count_rows(change.connection, strays):
                    raise BadState(f"{table}: expected rows of items, got others")
        if problems := verify_store(store) or verify_models(store):
            raise BadState(f"export: expected a sound collection, got a problem: {problems[0]}")


def _add_items(
    store: Store,
    reader: ExportReader,
    shape: ExportShape,
    header: Record,
    digest: ExportDigest,
    progress: Progress | None,
) -> None:
    """Store the items a batch at a time, and their codes in segments."""
    waiting: list[CodedRows] = []  # codes that are in no segment yet
    last = -1
    for batch in reader.batches(shape):
        with parsing("items"):
            items = _check_batch(batch, shape, last, header["next_row"])
        digest.add_items(items)
        if sum(len(part.numbers) for part in waiting) + len(items.rows) > store.codes.segment_rows:
            store.write_segments(CodedRows.join(waiting, shape.bits))
            waiting = []
        with store.transaction() as connection:
            insert_items(store, connection, items)
        last = int(items.rows[-1])
        if items.codes is not None and items.digests is not None:
            waiting.append(CodedRows(items.rows, items.codes, items.digests))
        if progress is not None:
            progress(digest.items, shape.items)
    if digest.items != shape.items:
        raise BadState(f"items: expected {shape.items}, got {digest.items}")
    if waiting:
        store.write_segments(CodedRows.join(waiting, shape.bits))


def _check_batch(batch: ItemBatch, shape: ExportShape, last: int, next_row: int) -> ItemBatch:
    """Validate items as `add` does, and return them as it stores them."""
    count, rows = len(batch.ids), np.ascontiguousarray(batch.rows, np.int64)
    if not (np.diff(rows, prepend=last) > 0).all() or rows[-1] >= min(next_row, MAX_ROW_NUMBER):
        raise BadState(f"row: expected ascending numbers below {next_row}, got others")
    objects = [None if text is None else json.loads(text) for text in batch.metadata]
    if any(data is None and text is not None for data, text in zip(objects, batch.metadata, strict=True)):
        raise BadState("metadata: expected objects, got null")
    codes = None if batch.codes is None else check_codes(batch.codes, shape.bits, "code")
    features = None if batch.features is None else _check_vectors(batch.features, shape)
    pictures = check_pictures(batch.pictures, count) or []
    texts = check_label_texts([json.loads(text) for text in batch.labels]), check_metadata(objects, count)
    return ItemBatch(rows, check_ids(batch.ids), *texts, pictures, codes, batch.digests, features, batch.rescoring)


def _check_vectors(features: Floats, shape: ExportShape) -> Floats:
    """Validate features; of items that have codes, they are as they are kept, or lost: all NaN."""
    lost = np.isnan(features).all(axis=1) if shape.fitted else np.zeros(len(features), bool)
    known = check_features(features[~lost], "features", columns=shape.dim)
    if shape.fitted and not np.array_equal(round_features(known), known):
        raise BadState("features: expected numbers that float16 holds, got others")
    checked = np.full((len(features), shape.dim), np.nan, np.float32)
    checked[~lost] = known
    return checked
