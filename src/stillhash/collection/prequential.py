"""Prequential (test-then-train) evaluation: rows are queries before they are learnt, and a detector watches for drift.

Some rows of a chunk that has not been learnt are the queries, the others are what is searched; rows that share a label
are relevant, and the Jaccard of their label sets is the grade. A fall of the mean average precision from chunk to chunk
is drift.
"""

import json
from sqlite3 import Connection
from typing import Any

import numpy as np

from stillhash.collection.storage.schema import get_meta, set_meta
from stillhash.collection.validation import LabelledRows
from stillhash.errors import BadState
from stillhash.hashers import Hasher
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.drift import PageHinkley
from stillhash.numeric.labels import label_jaccard
from stillhash.numeric.validation import Codes

PREQUENTIAL_QUERIES = 64
MIN_LABELLED_ROWS = 20  # of a chunk that is evaluated
MAX_CURVE_POINTS = 1000


def evaluate_chunk(hasher: Hasher, rows: LabelledRows, codes: Codes) -> dict[str, Any] | None:
    """Measure how well rows that are not learnt yet find each other; None if they are too few."""
    labelled = np.flatnonzero(rows.labels.labelled)
    if len(labelled) < MIN_LABELLED_ROWS:
        return None
    queries = labelled[:: max(2, len(labelled) // PREQUENTIAL_QUERIES)][:PREQUENTIAL_QUERIES]
    items = np.setdiff1d(labelled, queries)
    item_signs, query_signs = (signs(codes[part], hasher.bits) for part in (items, queries))
    numbers = np.arange(len(codes))
    grades = label_jaccard(*(rows.labels.rows(np.isin(numbers, part)) for part in (queries, items)))
    learnt, hamming = (
        kernels.rank_quality(weights @ item_signs.T, grades).mean(axis=0).tolist()
        for weights in (hasher.weigh(rows.features[queries]), query_signs)
    )
    quality = {"map": learnt[0], "precision": learnt[2], "ndcg": learnt[4]}  # the last two of the first ten
    quality["hamming"] = hamming[0]  # the mean average precision of the same codes before learning
    return {**quality, "queries": len(queries), "items": len(items)}


def record(connection: Connection, quality: dict[str, Any], version: int) -> bool:
    """Record how the version before did on the rows that this one learns; return whether that is drift."""
    history = load_history(connection)
    try:
        detector = PageHinkley.load(history["monitor"]) if history["quality"] else PageHinkley()
    except (BadState, KeyError) as error:
        raise BadState(f"quality: the drift detector cannot be read: {error}") from error
    drift = detector.update(quality["map"])
    measures = {name: quality[name] for name in ("map", "precision", "ndcg", "hamming")}
    point = {"version": version, **measures, "drift": drift}
    alarms, curve = history["alarms"] + [version] * drift, _thin([*history["curve"], point])
    history = {"quality": quality, "monitor": detector.state(), "alarms": alarms, "curve": curve}
    set_meta(connection, "quality", json.dumps(history))
    return drift


def _thin(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop every second point of the earlier half of a curve that is too long, but no alarm."""
    if len(curve) <= MAX_CURVE_POINTS:
        return curve
    half = MAX_CURVE_POINTS // 2
    return [point for n, point in enumerate(curve[:half]) if n % 2 == 0 or point["drift"]] + curve[half:]


def load_history(connection: Connection) -> dict[str, Any]:
    """Return the last evaluation, the detector, the versions with an alarm and the curve."""
    text = get_meta(connection, "quality")
    return {"quality": None, "alarms": [], "curve": []} if text is None else json.loads(text)
