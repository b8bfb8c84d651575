"""Build rescoring codes for a collection that has none: of an earlier release, of a bulk job, or with `rescore_bits=0`.

They are computed from features that are kept, or that are given again, some items at a time, each time in one
transaction. Until every item has one the collection answers without them. Then they are written to files beside the
segments, and one transaction lets the collection have them, with all labels learnt again from what is stored.
"""

import threading
from contextlib import suppress
from sqlite3 import Connection
from typing import Any

import numpy as np

from stillhash.collection.learning.trainer import Trainer
from stillhash.collection.settings import check_rescore_bits
from stillhash.collection.storage.items import ids_of
from stillhash.collection.storage.row_arrays import (
    RESCORING,
    RowArrayTable,
    add_built,
    begin_build,
    built_rows,
    count_missing,
    end_build,
    ids_without_code,
    new_rescore_bits,
    read_built,
    round_features,
    rows_without_code,
)
from stillhash.collection.storage.schema import RowNumbers, batches, get_meta, is_fitted, sums_stored_rows
from stillhash.collection.storage.store import Store
from stillhash.collection.transfer.snapshot import ShareMeter
from stillhash.collection.types import Id
from stillhash.errors import Conflict, InvalidInput, StillhashError
from stillhash.hashers import Tally
from stillhash.numeric.codes import feature_digests, signs
from stillhash.numeric.rescoring import Rescorer
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes, Floats, Mask

KEPT_ROWS = 4096  # rows have their features read in one transaction
ROUNDING = 1e-3  # a hash function of features that are computed again may differ by it, times its length


def build_some(
    store: Store, trainer: Trainer, write_lock: threading.RLock, names: list[Id], X: Floats, rescore_bits: Any
) -> int:
    """Build the codes of those of these items that there are; return how many items still have none."""
    if store.features is not None:
        X = round_features(X)
    with write_lock, store.transaction() as connection:
        bits = _check_bits(store, connection, rescore_bits)
        if bits is None or not is_fitted(connection):
            return 0
        if not bits:
            raise InvalidInput("rescore_bits: expected 1, 2, 4 or 8 with features, got 0")
        begin_build(connection, bits)
        rows = store.items.rows_of(connection, names)
        built = built_rows(connection, list(rows.values()))
        places_of = {rows[name]: place for place, name in enumerate(names) if name in rows}
        if new := sorted((row, place) for row, place in places_of.items() if row not in built):
            numbers, places = np.array(new, np.int64).T
            _build(store, trainer, connection, numbers, X[places])
        return count_missing(connection)


def build_all(
    store: Store,
    trainer: Trainer,
    compaction_lock: threading.RLock,
    write_lock: threading.RLock,
    rescore_bits: Any,
    meter: ShareMeter,
) -> None:
    """Build the codes that kept features tell, and let the collection have codes; Conflict if some item has none.

    Writes wait while the files are written and labels are learnt. If it fails, the codes that were built stay.
    """
    with compaction_lock:
        with store.reading() as connection:
            bits = _check_bits(store, connection, rescore_bits)
            meter.expect(2 * int(get_meta(connection, "items")))  # rows to encode, and rows to write
        if bits is None:
            return
        if not bits:
            with write_lock, store.transaction() as connection:
                end_build(connection)
            return
        _build_kept(store, trainer, write_lock, bits, meter)
        with write_lock:
            _begin_to_write(store, bits)
            with store.reading() as connection:
                _write_files(store, connection, Rescorer(store.settings["dim"], bits), meter)
            with store.change("build_rescoring") as change:
                change.rows = int(get_meta(change.connection, "items"))
                _change_over(store, trainer, change.connection, bits)
            with suppress(StillhashError, OSError, MemoryError):  # give back what the codes took in store.db
                store.shrink(files_removed=False)


def _check_bits(store: Store, connection: Connection, rescore_bits: Any) -> int | None:
    """Return the bits a dimension of the codes to build, 0 for none; None if the collection has codes already."""
    if own := store.settings["rescore_bits"]:
        if rescore_bits is not None and rescore_bits != own:
            raise Conflict(f"rescore_bits: expected {own}, as {store.path.name} has, got {rescore_bits!r}")
        return None
    chosen = new_rescore_bits(connection) if rescore_bits is None else rescore_bits
    bits = check_rescore_bits(chosen, store.settings)
    if not bits and chosen is None:
        raise InvalidInput("rescore_bits: expected a collection of features that are scaled to unit norm, got another")
    return bits


def _build(store: Store, trainer: Trainer, connection: Connection, rows: RowNumbers, X: Floats) -> None:
    """Store the codes of ascending rows with these features; InvalidInput if a short code is of other features.

    Bits of labels say nothing of the features of a row with labels, and may be held by one that had some earlier.
    """
    functions, bits = trainer.functions(connection), new_rescore_bits(connection)
    assert functions is not None and bits is not None
    prepared = functions.prepare(X)
    values, codes = functions.project(prepared), store.codes.codes_of(connection, rows)[0]
    differs = (values >= 0) != (signs(codes, functions.bits) > 0)
    certain = differs & (np.abs(values) > ROUNDING * np.linalg.norm(functions.W_, axis=0))
    labelled, of_labels = _labelled(connection, rows), np.arange(functions.bits) < functions.label_bits_
    held = (differs & of_labels).any(axis=1) & (labelled | (certain & of_labels).any(axis=1))
    others = np.flatnonzero((certain & ~(of_labels & labelled[:, None])).any(axis=1))
    if len(others):
        digests = store.codes.of_rows(connection, rows[others]).digests
        others = others[digests != feature_digests(X[others])]
    if len(others):
        row = int(rows[others[0]])
        count, name = int(certain[others[0]].sum()), ids_of(connection, [row])[row]
        got = f"others for {name!r}: {count} bits of its code are not of these"
        raise InvalidInput(f"features: expected those that items were added with, got {got}")
    rescorer = Rescorer(store.settings["dim"], bits)
    add_built(connection, rows.tolist(), rescorer.mark(rescorer.encode(prepared, usable_cores()), held))


def _labelled(connection: Connection, rows: RowNumbers) -> Mask:
    """Return which of these rows have labels now."""
    found: set[int] = set()
    for marks, batch in batches(rows.tolist()):
        sql = f"SELECT row FROM items WHERE row IN ({marks}) AND labels != '[]'"
        found.update(row for (row,) in connection.execute(sql, batch))
    return np.array([row in found for row in rows.tolist()])


def _build_kept(store: Store, trainer: Trainer, write_lock: threading.RLock, bits: int, meter: ShareMeter) -> None:
    """Build the codes of all items whose features are kept; other changes go on in between."""
    after = -1
    while store.features is not None:
        with write_lock, store.transaction() as connection:
            if not is_fitted(connection):
                return
            begin_build(connection, bits)
            rows = rows_without_code(connection, after, KEPT_ROWS)
            X, known = store.features.read(connection, rows)
            if known.any():
                _build(store, trainer, connection, rows[known], X[known])
        if not len(rows):
            return
        after = int(rows[-1])
        meter.add(len(rows))


def _begin_to_write(store: Store, bits: int) -> None:
    """Seal all codes; Conflict if an item has no rescoring code. Items that wait for hash functions need none."""
    store.seal()
    with store.transaction() as connection:
        if not is_fitted(connection):
            return
        if (building := new_rescore_bits(connection)) not in (None, bits):
            raise Conflict(f"rescore_bits: expected {building}, as the codes that were built, got {bits}")
        begin_build(connection, bits)
    with store.reading() as connection:
        if first := ids_without_code(connection, 3):
            some = f"{count_missing(connection)} of {get_meta(connection, 'items')} items have no rescoring code yet"
            raise Conflict(f"features: {some}: {', '.join(map(repr, first))}. Pass their ids and features.")


def _write_files(store: Store, connection: Connection, rescorer: Rescorer, meter: ShareMeter) -> None:
    """Write the file of each segment; if that fails, none of them is left."""
    table = RowArrayTable(RESCORING, rescorer.width, store.codes)

    def read(rows: RowNumbers) -> Codes:
        codes: Codes = table.lost(len(rows))  # of rows that are deleted
        read_built(connection, rows, codes)
        meter.add(len(rows))
        return codes

    written = []
    try:
        for record in store.codes.segment_records(connection):
            segment = store.codes.folder / record.file
            written.append(segment.with_name(table.file(record.file)))
            numbers = store.codes.read_segment(record, check=False).row_numbers()
            table.write_values(segment, record.number, numbers, read)
    except BaseException:
        for file in written:
            with suppress(OSError):  # the next clean-up removes it
                file.unlink(missing_ok=True)
        raise


def _change_over(store: Store, trainer: Trainer, connection: Connection, bits: int) -> None:
    """Let the collection have the codes from this transaction on, and learn all labels again by them."""
    sums = sums_stored_rows({**store.settings, "rescore_bits": bits})
    hasher = trainer.hasher(connection) if sums and is_fitted(connection) else None
    after = store.add_rescoring(connection, bits)
    if isinstance(hasher, Tally):
        Trainer(after).learn_again(connection, hasher.with_rescore_bits(bits))
    if sums and store.learnt_rows is not None:
        connection.execute("DROP TABLE learnt_rows")
