"""Create a collection from segments that were written elsewhere: it appears with all its items, or not at all."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import numpy as np

from stillhash.collection.learning.trainer import Trainer
from stillhash.collection.storage.columns import ROWS_PER_READ, LabelsAndMetadata, write_columns
from stillhash.collection.storage.items import NO_LABELS, count_labelled
from stillhash.collection.storage.schema import RowNumbers, get_meta, set_meta
from stillhash.collection.storage.segments import CodedRows, Segment, SegmentRecord, even_rows, write_segment
from stillhash.collection.storage.store import Store
from stillhash.collection.validation import ItemRows
from stillhash.errors import Conflict, InvalidInput, StoreFailed
from stillhash.hashers import Hasher, check_fixed_codes
from stillhash.numeric.validation import Codes
from stillhash.platform import SYSTEM

Batches = Iterable[tuple[Segment, ItemRows, Codes | None]]
SOURCE_KEY = "bulk_load_source"  # in the table `meta` says what the collection was loaded from


def is_loaded(path: Path, source: str) -> bool:
    """Return whether the collection there was loaded from this source; raise Conflict if it is another one."""
    if not (path / "store.db").is_file():
        return False
    with closing(Store(path, writer=False)) as store, store.reading() as connection:
        if get_meta(connection, SOURCE_KEY) == source:
            return True
    raise Conflict(f"path: expected a new folder, got {str(path)!r}, which holds another collection")


def bulk_load(
    path: Path, hasher: Hasher, batches: Batches, *, id: bytes, source: str, learnt: int, settings: dict[str, Any]
) -> None:
    """Create a collection of segments of ascending rows, each with its items and its rescoring codes, if it has some.

    learnt: how many rows the hasher has learnt. If it learns from rescoring codes, and these are as many as the items
    that have labels, they are these items. id: the id of the collection, which is in its segments.

    It is created in a folder beside, in one transaction, and renamed when it is complete.
    """
    check_fixed_codes(hasher.name, "hasher")
    params = json.loads(json.dumps(hasher.params_to_json()))
    own = {"bits": params.pop("bits"), "codes_see_labels": params.pop("codes_see_labels", False)}
    own["rescore_bits"] = params.pop("rescore_bits", 0)
    model = {"dim": hasher.n_features_in_, "method": hasher.name, "params": params, **own}
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)  # of an earlier attempt
        with closing(Store.create(unfinished, model | settings, id)) as store:
            trainer = Trainer(store)
            with store.change("bulk load") as change:
                _insert(store, change.connection, batches)
                set_meta(change.connection, SOURCE_KEY, source)
                of_items = _learn_from_items(store, change.connection, learnt)
                trainer.start(change.connection, hasher, "learn" if learnt else "fit", learnt, of_items=of_items)
                change.rows = int(get_meta(change.connection, "items"))
        SYSTEM.rename_folder(unfinished, path)
        SYSTEM.sync(path.parent)
    except OSError as error:
        raise StoreFailed(f"path: a collection cannot be created at {str(path)!r}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _insert(store: Store, connection: Connection, batches: Batches) -> None:
    number = 0
    for segment, items, rescoring in batches:
        if not segment.rows:
            continue
        set_meta(connection, "next_row", segment.first)
        rows = store.items.append(connection, items)
        for record in _place(store, segment, number):
            number, start = record.number, record.first - rows[0]
            store.codes.add_segments(connection, [record])
            contents, named = _contents(items, start, start + record.rows), store.settings["filter_fields"]
            write_columns(store.path / "segments" / record.file, contents, record.shape(), number, named)
            if store.rescoring is not None:
                if rescoring is None:
                    raise InvalidInput(
                        "hasher: expected rescore_bits of 0 for rows without rescoring codes, got another"
                    )
                numbers = np.arange(record.first, record.last + 1)
                read = partial(_codes_of, rescoring, rows[0])
                store.rescoring.write_values(store.path / "segments" / record.file, number, numbers, read)
    SYSTEM.sync(store.path / "segments")
    set_meta(connection, "seq", number)  # a later segment is numbered by its commit, past all of these


def _codes_of(codes: Codes, first: int, numbers: RowNumbers) -> Codes:
    return np.asarray(codes[numbers - first])


def _learn_from_items(store: Store, connection: Connection, learnt: int) -> bool:
    """Return whether the sums are those of the labelled items; if not, note that their labels are not learnt."""
    if store.summed_rows is None:
        return False
    if learnt and learnt == count_labelled(connection):
        return True
    labelled = connection.execute("SELECT row FROM items WHERE labels != ?", [NO_LABELS])
    store.summed_rows.set_unlearnt(connection, (row for (row,) in labelled), unlearnt=True)
    return False


def _place(store: Store, segment: Segment, last: int) -> Iterator[SegmentRecord]:
    """Link a segment into the store; divide it if it has too many rows, and write it if its number is used by now."""
    if segment.rows <= store.codes.segment_rows and segment.identity.number > last:
        number = segment.identity.number
        file = f"{number:08d}.tiles"
        _link(segment.path, store.path / "segments" / file)
        yield SegmentRecord(number, file, segment.rows, *segment.bounds(), segment.identity.content)
        return
    rows = even_rows(segment.rows, store.codes.segment_rows)
    for number, part in enumerate(CodedRows.regroup(segment.parts(), rows, segment.bits), last + 1):
        file = f"{number:08d}.tiles"
        content = write_segment(store.path / "segments" / file, part, segment.bits, store.codes.collection, number)
        yield SegmentRecord(number, file, len(part.numbers), int(part.numbers[0]), int(part.numbers[-1]), content)


def _contents(items: ItemRows, first: int, end: int) -> Iterator[LabelsAndMetadata]:
    for start in range(first, end, ROWS_PER_READ):
        part = slice(start, min(start + ROWS_PER_READ, end))
        yield items.label_texts[part], items.metadata[part]


def _link(segment: Path, to: Path) -> None:
    """Link a sealed file, which never changes, into another folder; copy it where that fails."""
    try:
        os.link(segment, to)
    except OSError:
        shutil.copyfile(segment, to)
        SYSTEM.sync(to)
