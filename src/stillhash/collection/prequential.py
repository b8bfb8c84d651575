"""Quality over time: rows that are about to be learnt are first asked as queries, and a monitor listens.

A chunk that has not been learnt is a fair examination. Some of its rows are the queries, the others what is searched;
relevant is who shares a label. A fall of the mean average precision from chunk to chunk is drift.
"""

from __future__ import annotations

import json
from sqlite3 import Connection
from typing import Any

import numpy as np

from stillhash.collection.storage.store import Store
from stillhash.errors import BadState
from stillhash.hashers import Hasher
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.drift import PageHinkley
from stillhash.numeric.labels import parse_labels, share_label
from stillhash.numeric.validation import Floats

ASKED = 64  # queries of a chunk
LEAST = 20  # labelled rows that make a chunk
FIRST = 10  # hits whose precision is told
POINTS = 1000  # of the curve that is kept


def measured(hasher: Hasher, X: Floats, labels: list[list[Any]]) -> dict[str, Any] | None:
    """How well rows that are not learnt yet find each other; None if they are too few to tell."""
    taught = [r for r, named in enumerate(labels) if named]
    if len(taught) < LEAST:
        return None
    asked = np.array(taught[:: max(2, len(taught) // ASKED)][:ASKED])
    sought = np.setdiff1d(taught, asked)
    codes, asked_codes = (signs(hasher.encode(X[rows]), hasher.bits) for rows in (sought, asked))
    parsed, rows = parse_labels(labels, len(X)), np.arange(len(X))
    shared = share_label(parsed.rows(np.isin(rows, asked)), parsed.rows(np.isin(rows, sought)))
    grades, first = shared.astype(np.float32), min(FIRST, len(sought))
    learnt, hamming = (
        kernels.rank_quality(weights @ codes.T, grades, first).mean(axis=0)
        for weights in (hasher.weigh(X[asked]), asked_codes)
    )
    return {
        "map": float(learnt[0]),
        "precision": float(learnt[2]),
        "hamming": float(hamming[0]),  # the mean average precision of the same codes, had nothing been learnt
        "queries": len(asked),
        "items": len(sought),
    }


def heard(store: Store, connection: Connection, quality: dict[str, Any], version: int) -> bool:
    """Lets the monitor hear how a version did on what it was about to learn; whether it raises an alarm."""
    told = told_so_far(store, connection)
    try:
        monitor = PageHinkley.load(told["monitor"]) if told else PageHinkley()
    except (BadState, KeyError) as error:
        raise BadState(f"the drift monitor cannot be read: {error}") from error
    alarm = monitor.update(quality["map"])
    alarms = [*told.get("alarms", []), version] if alarm else told.get("alarms", [])
    point = {"version": version, **{name: quality[name] for name in ("map", "hamming")}, "drift": alarm}
    now = {
        "quality": quality,
        "monitor": monitor.state(),
        "alarms": alarms,
        "curve": _thinned([*told.get("curve", []), point]),
    }
    store.set_meta(connection, "quality", json.dumps(now))
    return alarm


def _thinned(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most so many points; of older ones every second goes when there are more, but no alarm."""
    if len(curve) <= POINTS:
        return curve
    half = POINTS // 2
    return [point for n, point in enumerate(curve[:half]) if n % 2 == 0 or point["drift"]] + curve[half:]


def told_so_far(store: Store, connection: Connection) -> dict[str, Any]:
    """The last measurement, the monitor, the versions with an alarm and the curve; empty before the first."""
    text = store.meta(connection, "quality")
    return {} if text is None else json.loads(text)
