"""The state of a collection as records: what an export holds once, beside the items.

These are the hash functions, the versions of the model with what learning goes on from, the history, rows that are
not learnt yet, doubtful labels, alignments and votes. With a filter, only what belongs to the items that travel.
"""

import json
from collections.abc import Iterator
from sqlite3 import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.encoder_alignment import ALIGNMENT_PREFIX
from stillhash.collection.export_formats.records import ITEMS_LINE, Record, header_line, record_line
from stillhash.collection.prequential import load_history
from stillhash.collection.storage.bitmaps import count_bits
from stillhash.collection.storage.doubtful_labels import HISTOGRAMS_KEY
from stillhash.collection.storage.learnt_rows import NO_ITEM
from stillhash.collection.storage.lexical import lexical_field
from stillhash.collection.storage.schema import LEXICAL_KEY, get_meta, is_fitted, meta_with_prefix, parse_json, parsing
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.summed_rows import NO_LABELS, SummedRowTable
from stillhash.collection.stored_models import check_learner

Allowed = NDArray[np.uint8] | None  # a bitmap of rows


@parsing("header")
def export_header(store: Store, connection: Connection, allowed: Allowed) -> Record:
    """Return the header of an export: settings, counters, and what the items have."""
    items = int(get_meta(connection, "items")) if allowed is None else count_bits(allowed)
    first, last = connection.execute("SELECT min(id), max(id) FROM items").fetchone()  # integers are before texts
    ids = "integers" if not isinstance(last, str) else "texts" if isinstance(first, str) else "mixed"
    fitted = is_fitted(connection)
    features = not fitted or store.features is not None
    counters = {name: int(get_meta(connection, name)) for name in ("next_row", "version", "unlabelled")}
    field = lexical_field(connection)
    settings = store.settings if field is None else {**store.settings, LEXICAL_KEY: field}
    return {"settings": settings, "items": items, "fitted": fitted, "features": features, "ids": ids, **counters}


def state_lines(store: Store, connection: Connection, header: Record, allowed: Allowed) -> Iterator[bytes]:
    """Yield the header and all records as lines, one at a time."""
    yield header_line(header)
    with parsing("state"):
        if header["fitted"]:
            yield record_line("functions", data=get_meta(connection, "functions"))
            yield from _versions(store, connection)
        if get_meta(connection, "curve") is not None:
            yield record_line("history", history=load_history(connection))
        if (histograms := get_meta(connection, HISTOGRAMS_KEY)) is not None:
            yield record_line("label_agreement", data=histograms)
        for encoder, data in meta_with_prefix(connection, ALIGNMENT_PREFIX).items():
            yield record_line("alignment", encoder=encoder, data=data)
        yield from _pending(connection, allowed)
        if store.learnt_rows is not None:
            yield from _learnt_rows(connection, allowed)
        if store.summed_rows is not None:
            yield from _summed_rows(store.summed_rows, connection, allowed)
        yield from _doubtful_labels(connection, allowed)
        yield from _votes(connection, allowed)
    yield ITEMS_LINE


def _versions(store: Store, connection: Connection) -> Iterator[bytes]:
    """Yield the learners that are kept, each as one state, and all versions."""
    learners = store.versions.learners(connection)
    by_files: dict[tuple[str, ...], int] = {}  # versions that learnt nothing share the files of an earlier one
    for version, files in learners.items():
        if (key := tuple(files)) not in by_files:
            by_files[key] = version
            hasher = store.learner_files.load(files)
            check_learner(hasher, connection, files[0])
            yield record_line("learner", version=version, data=hasher.state())
    sql = "SELECT version, created, kind, rows, tag, side, model, notes FROM versions ORDER BY version"
    for *row, notes in connection.execute(sql):
        names = ("version", "created", "kind", "rows", "tag", "side", "model")
        values: Record = dict(zip(names, row, strict=True))
        learner = by_files[tuple(learners[row[0]])] if row[0] in learners else None
        yield record_line("version", **values, learner=learner, notes=parse_json(notes, dict, "notes"))


def _pending(connection: Connection, allowed: Allowed) -> Iterator[bytes]:
    sql = "SELECT row, features, labels, code, own_features FROM pending ORDER BY number"
    for row, features, labels, code, own in connection.execute(sql):
        if _travels(row, allowed):
            values = {"row": row, "features": features, "code": code, "own_features": own}
            yield record_line("pending", **values, labels=json.loads(labels))


def _learnt_rows(connection: Connection, allowed: Allowed) -> Iterator[bytes]:
    """Yield which rows were learnt, and how many each version has learnt."""
    sql = "SELECT version, position, row, labels FROM learnt_rows ORDER BY number"
    for version, position, row, labels in connection.execute(sql):
        if row == NO_ITEM or _travels(row, allowed):
            values = {"version": version, "position": position, "row": row}
            yield record_line("learnt_row", **values, labels=json.loads(labels))


def _summed_rows(summed: SummedRowTable, connection: Connection, allowed: Allowed) -> Iterator[bytes]:
    """Yield which rows the sums hold, what the next step of learning takes out, and how many rows they hold besides.

    With a filter, what the sums hold of other items travels within them alone, and stays there.
    """
    others = summed.count_others(connection)
    for row, labels, learnt, version in connection.execute("SELECT * FROM summed_rows ORDER BY row"):
        if _travels(row, allowed):
            values = {"row": row, "labels": json.loads(labels), "learnt": learnt}
            yield record_line("summed_row", **values, version=version)
        else:
            others += labels != NO_LABELS
    if allowed is None:
        sql = "SELECT rescoring, code, labels, learnt FROM removals ORDER BY number"
        for rescoring, code, labels, learnt in connection.execute(sql):
            values = {"rescoring": rescoring, "code": code, "labels": json.loads(labels), "learnt": learnt}
            yield record_line("removal", **values)
    else:
        others += summed.count_removals(connection)
    if others:
        yield record_line("other_summed_rows", rows=others)


def _doubtful_labels(connection: Connection, allowed: Allowed) -> Iterator[bytes]:
    for row, agreement, predicted in connection.execute("SELECT row, agreement, predicted FROM doubtful_labels"):
        if _travels(row, allowed):
            yield record_line("doubtful_label", row=row, agreement=agreement, predicted=json.loads(predicted))


def _votes(connection: Connection, allowed: Allowed) -> Iterator[bytes]:
    """Yield votes, also on items that were deleted, unless there is a filter; and their queries before them."""
    for digest, query in connection.execute("SELECT digest, query FROM voted_queries ORDER BY number"):
        if allowed is None or any(True for _ in _votes_on(connection, allowed, digest)):
            yield record_line("voted_query", query=query)
    for values in _votes_on(connection, allowed):
        yield record_line("vote", **values)


def _votes_on(connection: Connection, allowed: Allowed, digest: bytes | None = None) -> Iterator[Record]:
    columns = ("version", "digest", "item", "source", "vote", "position", "code")
    chosen = "" if digest is None else "WHERE digest = ?"
    own = ", ".join(f"votes.{name}" for name in (*columns, "labels"))
    sql = f"SELECT {own}, items.row FROM votes LEFT JOIN items ON id = item {chosen}"
    parameters: list[Any] = [] if digest is None else [digest]
    for *values, labels, row in connection.execute(f"{sql} ORDER BY number", parameters):
        if allowed is None or (row is not None and _travels(row, allowed)):
            yield {**dict(zip(columns, values, strict=True)), "labels": json.loads(labels)}


def _travels(row: int, allowed: Allowed) -> bool:
    """Return whether the item of a row is exported."""
    return allowed is None or (row >> 3 < len(allowed) and bool(allowed[row >> 3] >> (row & 7) & 1))
