"""Prequential (test-then-train) evaluation: rows are queries before they are learnt, and a detector watches for drift.

Some rows of a step that has not been learnt are the queries, the others are what is searched; rows that share a label
are relevant, and the Jaccard of their label sets is the grade. The same rows are ranked as learnt so far and as before
anything was learnt, so the difference is what learning gained. A fall of the mean average precision from step to step
is drift. What each version of the model came from (items, labels, votes) follows from the audit log.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from sqlite3 import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.schema import get_meta, parse_json, set_meta
from stillhash.collection.types import AuditEntry
from stillhash.errors import BadState
from stillhash.hashers import Hasher, LinearHasher, Model
from stillhash.numeric import kernels
from stillhash.numeric.drift import PageHinkley
from stillhash.numeric.kernels import RankingQuality
from stillhash.numeric.labels import Labels, label_jaccard
from stillhash.numeric.ranking import rank_scores
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.rescoring import Rescorer
from stillhash.numeric.validation import Codes, Floats, Mask

PREQUENTIAL_QUERIES = 32
MIN_LABELLED_ROWS = 20  # steps with fewer labelled rows are not evaluated
MAX_CURVE_POINTS = 1000

Quality = dict[str, Any]  # as `evaluate_chunk` returns it
History = dict[str, Any]  # the last evaluation, the detector, alarms, the curve, and how many rows are learnt


class Chunk(NamedTuple):
    """Rows that are about to be learnt: their features, labels and codes."""

    features: Floats
    labels: Labels
    codes: Codes
    rescorer: Rescorer | None = None
    rescoring_codes: Codes | None = None

    def rows(self, keep: Mask) -> "Chunk":
        stored = None if self.rescoring_codes is None else self.rescoring_codes[keep]
        return Chunk(self.features[keep], self.labels.rows(keep), self.codes[keep], self.rescorer, stored)


class LearningStep(NamedTuple):
    """A step that is about to be learnt, as its observers see it."""

    hasher: Hasher  # what has learnt everything before
    chunk: Chunk
    rows: slice  # of the write
    rows_learnt: int  # labelled ones, before this step
    is_remainder: bool  # shorter than half a step: among so few items measures mean something else


class StepObserver(Protocol):
    """What looks at each step of learning before it is learnt: Evaluation, and LabelJudge."""

    def observe(self, step: LearningStep) -> None: ...


class MeasuredItems(NamedTuple):
    """Items of an evaluation as the first page reads them, by their place."""

    codes: Codes  # their rescoring codes
    stored_labels: Labels

    def rescoring_codes(self, ids: NDArray[np.int64]) -> Codes:
        return self.codes[ids]

    def labels(self, ids: NDArray[np.int64]) -> Labels:
        return self.stored_labels.take(ids)


def score_items(
    functions: LinearHasher,
    model: Model,
    queries: Floats,
    codes: Codes,
    rescorer: Rescorer | None,
    stored: MeasuredItems | None,
) -> Floats:
    """Return scores (m, n) that rank items as search does; before learning, by the cosine of their rescoring codes."""
    share = 1.0 if stored is None else float(stored.stored_labels.labelled.mean())  # of these items
    page = None if rescorer is None else functions.page_model(model, rescorer, share)
    if page is not None and stored is not None and model.side == "similarity" and not model.learnt:
        rotated = page.rescorer.queries(unit_rows(functions.prepare(queries)))
        every = np.ascontiguousarray(np.broadcast_to(stored.codes, (len(queries), *stored.codes.shape)))
        return page.rescorer.cosines(rotated, every)
    ranking = functions.rank_checked(model, queries, None, page)
    return rank_scores(ranking, codes, stored)


def evaluate_chunk(hasher: Hasher, chunk: Chunk) -> Quality | None:
    """Measure how well rows that are not learnt yet find each other, now and before learning; None if too few.

    The queries are up to PREQUENTIAL_QUERIES labelled rows, evenly spaced; each ranks all other labelled rows. Before
    learning, rows with rescoring codes are ranked by their cosine, as people would have them without us.
    """
    labelled = np.flatnonzero(chunk.labels.labelled)
    if len(labelled) < MIN_LABELLED_ROWS:
        return None
    queries, items = np.zeros(len(chunk.codes), bool), chunk.labels.labelled
    queries[labelled[:: max(2, len(labelled) // PREQUENTIAL_QUERIES)][:PREQUENTIAL_QUERIES]] = True
    items[queries] = False
    grades, functions = label_jaccard(chunk.labels.rows(queries), chunk.labels.rows(items)), hasher.functions()
    sought, found = chunk.rows(queries), chunk.rows(items)
    now, before = (
        _measure(functions, model, sought.features, found, grades) for model in (hasher.model(), hasher.initial_model())
    )
    return {**now, "before": before, "queries": int(queries.sum()), "items": int(items.sum())}


class Evaluation:
    """Measure each step of a write, into the history of the collection, and watch for drift."""

    def __init__(self, history: History, version: int, least_rows: float) -> None:
        self.history, self.version = history, version
        self.least_rows = least_rows  # of a step: among fewer measures mean something else

    def observe(self, step: LearningStep) -> None:
        if step.is_remainder or len(step.chunk.codes) < self.least_rows:
            return
        if (quality := evaluate_chunk(step.hasher, step.chunk)) is not None:
            add_point(self.history, quality, self.version)


def _measure(functions: LinearHasher, model: Model, queries: Floats, items: Chunk, grades: Floats) -> dict[str, float]:
    """Return means over queries: over the whole ranking, and of the first ten.

    The labels of items are what the ranking is measured by, so it does not see them.
    """
    stored = None
    if items.rescoring_codes is not None:
        stored = MeasuredItems(items.rescoring_codes, Labels.empty(len(items.codes)))
    scores = score_items(functions, model, queries, items.codes, items.rescorer, stored)
    mean = RankingQuality(*kernels.rank_quality(scores, grades).mean(axis=0).tolist())
    return {"map": mean.map, "precision": mean.precision_10, "ndcg": mean.ndcg_10}


def add_point(history: History, quality: Quality, version: int) -> None:
    """Add an evaluation to the curve, with the version that learns its rows, and whether it is drift."""
    try:
        detector = PageHinkley.load(history["monitor"]) if history["quality"] else PageHinkley()
    except (BadState, KeyError) as error:
        raise BadState(f"quality: the drift detector cannot be read: {error}") from error
    drift = detector.update(quality["map"])
    measures = {name: quality[name] for name in ("map", "precision", "ndcg", "before")}
    history["curve"].append({"version": version, "rows": history["rows"], **measures, "drift": drift})
    if drift and version not in history["alarms"]:
        history["alarms"].append(version)
    history |= {"quality": quality, "monitor": detector.state()}


def load_history(connection: Connection) -> History:
    """Return the last evaluation, the detector, the versions with an alarm, the curve and the rows learnt."""
    text = get_meta(connection, "curve")
    if text is None:
        return {"quality": None, "alarms": [], "curve": [], "rows": 0}
    history: History = parse_json(text, dict, "curve")
    kinds = {name: type(history.get(name)) for name in ("alarms", "curve", "rows")}
    points = all(isinstance(point, dict) for point in history.get("curve", []))
    if kinds != {"alarms": list, "curve": list, "rows": int} or not points or "quality" not in history:
        raise BadState("curve: expected evaluations, versions with an alarm, and rows, got others")
    return history


def save_history(connection: Connection, history: History) -> None:
    """Store the history, with a curve that is not too long."""
    set_meta(connection, "curve", json.dumps(history | {"curve": thinned(history["curve"])}))


def thinned(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a curve without every second of its earlier points, but with all alarms, until it is short enough."""
    half, before = MAX_CURVE_POINTS // 2, len(curve) + 1
    while MAX_CURVE_POINTS < len(curve) < before:
        before = len(curve)
        early, late = curve[:-half], curve[-half:]
        curve = [point for n, point in enumerate(early) if n % 2 == 0 or point["drift"]] + late
    return curve


COUNTED_BY = {  # the field of an event that counts the rows of a change, by its first word
    "add": "added",
    "upsert": "added",
    "import": "added",
    "bulk": "added",
    "relabel": "relabelled",
    "add_labels": "relabelled",
    "remove_labels": "relabelled",
    "feedback": "votes",
    "undo": "votes",
    "learn": "learnt",
}


@dataclass(frozen=True)
class LearningEvent:
    """The changes since the version before, up to the one that published this version."""

    version: int | None  # None: no version has learnt from them yet
    time: str  # of the last change, UTC, ISO 8601
    what: str  # the last change, as the audit log has it
    added: int = 0  # items, with labels or without
    relabelled: int = 0  # items
    votes: int = 0  # also those that were taken back
    learnt: int = 0  # labelled rows that are no items


def learning_events(entries: Iterable[AuditEntry]) -> list[LearningEvent]:
    """Return an event for each version, the latest last, from entries in the order of their changes."""
    events: list[LearningEvent] = []
    counts: dict[str, int] = {}
    for entry in entries:
        field = COUNTED_BY.get(entry.what.split()[0])
        if field is not None:
            counts[field] = counts.get(field, 0) + entry.rows
        event = LearningEvent(None, entry.time, entry.what, **counts)
        if entry.version_after != entry.version_before:
            events.append(replace(event, version=entry.version_after))
            counts = {}
    if counts:
        events.append(event)
    return events
