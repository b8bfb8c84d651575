"""Quality over time: rows that are about to be learnt are first asked as queries, and a monitor listens.

A chunk that has not been learnt is a fair examination. Some of its rows are the queries, the others what is searched;
relevant is who shares a label. A fall of the mean average precision from chunk to chunk is drift.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.proof import Connection
from stillhash.collection.store import Store
from stillhash.errors import BadState
from stillhash.hashers import Hasher
from stillhash.numeric import kernels
from stillhash.numeric.checks import Floats
from stillhash.numeric.codes import signs
from stillhash.numeric.monitor import PageHinkley

ASKED = 64  # queries of a chunk
LEAST = 20  # labelled rows that make a chunk
FIRST = 10  # hits whose precision is told


def measured(hasher: Hasher, X: Floats, labels: list[list[Any]]) -> dict[str, Any] | None:
    """How well rows that are not learnt yet find each other; None if they are too few to tell."""
    taught = [r for r, named in enumerate(labels) if named]
    if len(taught) < LEAST:
        return None
    asked = np.array(taught[:: max(2, len(taught) // ASKED)][:ASKED])
    sought = np.setdiff1d(taught, asked)
    scores = hasher.weigh(X[asked]) @ signs(hasher.encode(X[sought]), hasher.bits).T
    Y = _indicators(labels)
    found = kernels.rank_quality(scores, Y[asked] @ Y[sought].T, min(FIRST, len(sought)))
    mean = found.mean(axis=0)
    return {"map": float(mean[0]), "precision": float(mean[2]), "queries": len(asked), "items": len(sought)}


def heard(store: Store, connection: Connection, quality: dict[str, Any], version: int) -> bool:
    """Lets the monitor hear how a version did on what it was about to learn; whether it raises an alarm."""
    told = told_so_far(store, connection)
    try:
        monitor = PageHinkley.load(told["monitor"]) if told else PageHinkley()
    except (BadState, KeyError) as error:
        raise BadState(f"the drift monitor cannot be read: {error}") from error
    alarm = monitor.update(quality["map"])
    alarms = [*told.get("alarms", []), version] if alarm else told.get("alarms", [])
    now = {"quality": quality, "monitor": monitor.state(), "alarms": alarms}
    store.set_meta(connection, "quality", json.dumps(now))
    return alarm


def told_so_far(store: Store, connection: Connection) -> dict[str, Any]:
    """The last measurement, the monitor, and the versions that began with an alarm; empty before the first."""
    text = store.meta(connection, "quality")
    return {} if text is None else json.loads(text)


def _indicators(labels: list[list[Any]]) -> NDArray[np.float32]:
    places = {name: c for c, name in enumerate(dict.fromkeys(name for named in labels for name in named))}
    Y = np.zeros((len(labels), len(places)), np.float32)
    for y, named in zip(Y, labels, strict=True):
        y[[places[name] for name in named]] = 1
    return Y
