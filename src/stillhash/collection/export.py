"""Export a collection, as it is at one commit, to a file from which `import_export` restores it."""

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from stillhash.collection.export_formats import WRITERS, check_export_format
from stillhash.collection.export_formats.records import ExportDigest, ExportShape, ExportWriter, Record
from stillhash.collection.export_state import Allowed, export_header, state_lines
from stillhash.collection.filter_columns import FilterColumns, MovedOn
from stillhash.collection.filters import Condition, compile_filter
from stillhash.collection.storage.exported_items import ExportedItems
from stillhash.collection.storage.integrity import committed_seq
from stillhash.collection.storage.pinned_commit import pinned_commit
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Filter
from stillhash.collection.validation import check_path
from stillhash.errors import BadState, Busy, Conflict, StillhashError, StoreFailed, shortage
from stillhash.platform import SYSTEM

EXPORT_ATTEMPTS = 8  # while others compact, or learn

Progress = Callable[[int, int], object]  # called with the items so far, and all
CreateWriter = Callable[[ExportShape], ExportWriter]


def export(
    store: Store,
    columns: FilterColumns,
    path: str | Path,
    format: str | None,
    where: Filter | None,
    overwrite: bool,
    progress: Progress | None,
) -> dict[str, Any]:
    """Write the file under another name, and rename it when it is complete and on disk; return what it holds."""
    target = check_path(path)
    name = check_export_format(format, target)
    condition = None if where is None else compile_filter(where)
    if os.path.lexists(target) and (not overwrite or not target.is_file()):
        use = "" if not target.is_file() else ". Use overwrite to replace it"
        raise Conflict(f"path: expected a file that does not exist yet, got {str(target)!r}{use}")
    unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        header = _write_retrying(store, columns, condition, partial(WRITERS[name], unfinished), progress)
        _publish(unfinished, target, overwrite)
        size = target.stat().st_size
    except OSError as error:
        if isinstance(error, StillhashError):
            raise
        raise shortage(error) or StoreFailed(f"path: {target.name} could not be written: {error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return {"format": name, "items": header["items"], "version": header["version"], "bytes": size}


def _write_retrying(
    store: Store, columns: FilterColumns, condition: Condition | None, create: CreateWriter, progress: Progress | None
) -> Record:
    """Write the latest commit, or a later one where that has removed files meanwhile; return the header."""
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
    store: Store, connection: Connection, allowed: Allowed, create: CreateWriter, progress: Progress | None
) -> Record:
    """Write all that a file holds; return its header."""
    items = ExportedItems(store, connection, allowed)
    with store.reading() as latest:  # a file of features that a compaction removed looks like one that is lost
        if not set(store.codes.segment_files(connection)) <= set(store.codes.segment_files(latest)):
            raise MovedOn
    header, digest = export_header(store, connection, allowed), ExportDigest()
    writer = create(ExportShape.of(header))
    try:
        for line in state_lines(store, connection, header, allowed):
            digest.add_line(line)
            writer.write_state(line)
        writer.begin_items()
        for batch in items.batches():
            digest.add_items(batch)
            writer.write_items(batch)
            if progress is not None:
                progress(digest.items, header["items"])
        if digest.items != header["items"]:
            raise BadState(f"items: expected {header['items']}, got {digest.items}")
        writer.finish(digest.end_line())
    except BaseException:
        with suppress(Exception):  # the first error says more
            writer.close()
        raise
    writer.close()
    return header


def _publish(unfinished: Path, target: Path, overwrite: bool) -> None:
    """Give the file its name once it is on disk; a file of this name that appeared meanwhile is not overwritten."""
    SYSTEM.sync(unfinished)
    if overwrite:
        SYSTEM.replace(unfinished, target)
    else:
        try:
            os.link(unfinished, target)
        except FileExistsError:
            raise Conflict(f"path: expected a file that does not exist yet, got {str(target)!r}") from None
        except OSError:  # a file system without links
            unfinished.rename(target)
    SYSTEM.sync(target.parent)
