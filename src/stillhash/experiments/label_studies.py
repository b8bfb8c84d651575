"""Run the experiments with labels of stored items: labels that come late, a new class, and labels that are corrected.

All run through a collection on disk, with default settings and the labels that `relabel` gives its items. Float cosine
of the same items and queries is beside them: of raw features or of centred ones, whichever is better. A few hundred
rows fit the hash functions where there are less than 6,000.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import stillhash
from stillhash.collection import Collection
from stillhash.collection.trainer import MIN_INIT_ROWS
from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset, RowIndices, RowMask
from stillhash.experiments.feedback_study import turned
from stillhash.experiments.job import Job
from stillhash.experiments.known_labels import LabelMatrix, replace_labels
from stillhash.experiments.metrics import evaluate_hits
from stillhash.experiments.passes import ROWS_PER_STEP, describe_job
from stillhash.experiments.text_collection import LABELS_COME, SEARCHED_HITS, hit_ids
from stillhash.experiments.text_ranking import cosine_scores
from stillhash.hashers import DEFAULT_HASHER
from stillhash.numeric.ranking import order_rows
from stillhash.numeric.validation import Floats

COLLECTION_INIT = 3000  # rows that fit the hash functions, as in a collection by default
LATE_COUNTS = (0, 30, 100, 300, 1000, 3000)  # labels, and all
CLASS_COUNTS = (0, 30, 300)  # labels of the new class, and all
CLOSE_COUNTS = (0, 100)  # labels, and all, at which stored items are searched for and whole rankings are measured
MAP_QUERIES, OWN_ITEMS = 100, 300
RANKED_AT_ONCE = 256  # queries
CORRECTED_NOISE, LASTING_NOISE, DELETED_ROWS_SHARE = 0.18, 0.2, 0.1
ITEM_DRAWS, CORRECTION_DRAWS = 3, 4

Ranker = Callable[[Floats, int], RowIndices]  # queries (m, D) and k -> the numbers of the k best items (m, k)
Measured = dict[str, float]


class StudyRows:
    """The items and queries of a job, and what is measured of a ranking."""

    def __init__(self, job: Job, data: Dataset) -> None:
        stream = data.stream[: job.rows]
        queries = data.queries[:: max(1, len(data.queries) // job.queries) if job.queries else 1]
        self.job = job
        self.X, self.Y = data.read(stream), data.labels[stream]
        self.Q, self.query_labels = data.read(queries), data.labels[queries]
        self.init_rows = max(MIN_INIT_ROWS, min(job.first, len(stream) // 2))
        sizes = {"rows": len(stream), "queries": len(queries), "database": len(stream)}
        seconds = dict.fromkeys(("learn", "refresh", "encode", "io"), 0.0)
        self.about = {**describe_job(job, data), **sizes, "labelled": 0, "seconds": seconds, "final": True}

    @contextmanager
    def stored(self, Y: LabelMatrix, rows: RowIndices | None = None) -> Iterator[Collection]:
        """Open a collection of all items, or of these, with labels Y (n, C)."""
        settings: dict[str, Any] = {"dim": self.X.shape[1], "bits": self.job.bits, "init_rows": self.init_rows}
        settings["params"] = {"random_state": self.job.seed}
        with TemporaryDirectory() as folder, stillhash.open(Path(folder) / "items", **settings) as collection:
            for some in _steps(np.arange(len(self.X)) if rows is None else rows):
                collection.add(some.tolist(), self.X[some], label_lists(Y[some]))
            collection.flush()
            yield collection

    def record(self, measured: Measured, **about: Any) -> dict[str, Any]:
        """Return a record; what a result line has no key for is a group of it."""
        own = {name: measured.get(name) for name in ("map", "precision_10", "ndcg_10")}
        return {**self.about, **about, **own, "groups": {k: v for k, v in measured.items() if k not in own}}

    def page(self, rank: Ranker) -> Measured:
        """Measure the first ten hits."""
        hits = rank(self.Q, SEARCHED_HITS)
        quality = evaluate_hits(hits, self.query_labels, self.Y)
        relevant = self._relevant(hits).any(axis=1)
        measured = {"precision_10": quality.precision_10, "ndcg_10": quality.ndcg_10}
        return measured | {"a relevant hit": float(relevant.mean())}

    def page_and_items(self, rank: Ranker) -> Measured:
        """Measure the first ten hits, whole rankings, and searches for stored items and for near duplicates of them."""
        rng = np.random.default_rng([self.job.seed, ITEM_DRAWS])
        ranked = evaluate_hits(rank(self.Q[:MAP_QUERIES], len(self.X)), self.query_labels[:MAP_QUERIES], self.Y)
        items = rng.permutation(len(self.X))[:OWN_ITEMS]
        similar = np.stack([turned(x, rng) for x in self.X[items]])
        own = rank(self.X[items], 1) == items[:, None]
        near = (rank(similar, SEARCHED_HITS) == items[:, None]).any(axis=1)
        more = {"map": ranked.map, "own item first": float(own.mean()), "near duplicate": float(near.mean())}
        return self.page(rank) | more

    def by_class(self, new: int, rank: Ranker) -> Measured:
        """Measure the first ten hits of queries of one class, and of all others."""
        relevant, of_class = self._relevant(rank(self.Q, SEARCHED_HITS)).mean(axis=1), self.query_labels[:, new] > 0
        return {"precision_10": float(relevant[of_class].mean()), "others": float(relevant[~of_class].mean())}

    def cosine(self, measure: Callable[[Ranker], Measured]) -> Measured:
        """Measure float cosine, of raw features and of centred ones; of each measure, the better one."""
        mean = self.X[: self.init_rows].mean(axis=0)
        raw, centred = (measure(partial(cosine_ids, self.X - m, m)) for m in (np.zeros_like(mean), mean))
        return {name: max(value, centred[name]) for name, value in raw.items()}

    def _relevant(self, hits: RowIndices) -> RowMask:
        return np.asarray((self.Y[hits] & self.query_labels[:, None]).any(axis=2))


def late_labels(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Store all items without labels, then label them in random order; beside it, all labels at insertion."""
    rows = StudyRows(job, data)
    yield rows.record(rows.cosine(rows.page_and_items), method="cosine")
    order = np.random.default_rng(job.seed).permutation(np.flatnonzero(rows.Y.any(axis=1)))
    with rows.stored(rows.Y) as collection:
        measured = rows.page_and_items(partial(hit_ids, collection))
        yield rows.record(measured, params={LABELS_COME: "with items"}, labelled=len(order))
    with rows.stored(np.zeros_like(rows.Y)) as collection:
        for start, stop in pairwise([0, *(count for count in LATE_COUNTS if count < len(order)), len(order)]):
            relabel(collection, order[start:stop], rows.Y)
            close = stop in CLOSE_COUNTS or stop == len(order)
            measured = (rows.page_and_items if close else rows.page)(partial(hit_ids, collection))
            yield rows.record(measured, labelled=stop, final=stop == len(order))


def new_class(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Label all items but those of one class, each in turn, then those; all are stored without labels."""
    rows = StudyRows(job, data)
    if (rows.Y.sum(axis=1, dtype=np.int64) != 1).any():
        raise InvalidInput(f"labels: expected one label on each row of {data.name}, got rows with none or several")
    order = np.random.default_rng(job.seed).permutation(len(rows.Y))
    with rows.stored(np.zeros_like(rows.Y)) as base, TemporaryDirectory() as folder:
        for new in np.flatnonzero(rows.query_labels.any(axis=0)).tolist():
            of_class, measure = order[rows.Y[order, new] > 0], partial(rows.by_class, new)
            about = {"params": {"new_class": new}}
            yield rows.record(rows.cosine(measure), **about, method="cosine")
            base.snapshot(Path(folder) / str(new))
            with stillhash.open(Path(folder) / str(new)) as collection:
                relabel(collection, np.setdiff1d(order, of_class), rows.Y)
                counts = [*(count for count in CLASS_COUNTS if count < len(of_class)), len(of_class)]
                for start, stop in pairwise([0, *counts]):
                    relabel(collection, of_class[start:stop], rows.Y)
                    measured = measure(partial(hit_ids, collection))
                    yield rows.record(measured, **about, labelled=stop, final=stop == len(of_class))


class LabelCorrection(NamedTuple):
    """Labels at insertion, the right ones, and the items that are right to have; a last class is for a new name."""

    stored: LabelMatrix
    right: LabelMatrix
    rows: RowIndices
    is_applied: bool = True


def make_corrections(Y: LabelMatrix, init_rows: int, rng: np.random.Generator) -> dict[str, LabelCorrection]:
    """Return the corrections by name; the classes that they are about are the two most frequent ones."""
    n, (one, other) = len(Y), np.argsort(-Y.sum(axis=0, dtype=np.int64), kind="stable")[:2]
    Y = np.pad(Y, ((0, 0), (0, 1)))
    swapped, renamed, removed, every = Y.copy(), Y.copy(), Y.copy(), np.arange(n)
    swapped[:, [one, other]] = Y[:, [other, one]]
    renamed[:, [one, -1]] = Y[:, [-1, one]]
    removed[:, one] = 0
    deleted = init_rows + rng.permutation(n - init_rows)[: round(DELETED_ROWS_SHARE * n)]
    return {
        "two classes swapped": LabelCorrection(swapped, Y, every),
        f"{CORRECTED_NOISE:.0%} wrong labels": LabelCorrection(replace_labels(Y, CORRECTED_NOISE, rng), Y, every),
        "a class renamed": LabelCorrection(Y, renamed, every),
        "a label removed": LabelCorrection(Y, removed, every),
        f"{DELETED_ROWS_SHARE:.0%} of the rows deleted": LabelCorrection(Y, Y, np.setdiff1d(every, deleted)),
        f"{LASTING_NOISE:.0%} wrong labels, not corrected": LabelCorrection(
            replace_labels(Y, LASTING_NOISE, rng), Y, every, is_applied=False
        ),
    }


def corrections(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Store items, then correct their labels; beside it, a collection that was right from the start."""
    rows = StudyRows(job, data)
    yield rows.record(rows.cosine(rows.page), method="cosine")
    rng = np.random.default_rng([job.seed, CORRECTION_DRAWS])
    for name, correction in make_corrections(rows.Y, rows.init_rows, rng).items():
        with rows.stored(correction.right, correction.rows) as collection:
            right = rows.page(partial(hit_ids, collection))
        with rows.stored(correction.stored) as collection:
            before = rows.page(partial(hit_ids, collection))
            if correction.is_applied:
                changed = (correction.stored != correction.right).any(axis=1)
                relabel(collection, np.flatnonzero(changed), correction.right)
                collection.delete(np.setdiff1d(np.arange(len(rows.X)), correction.rows).tolist())
                collection.flush()
            after, problems = rows.page(partial(hit_ids, collection)), collection.verify()
        compared = {"before": before["precision_10"], "right": right["precision_10"], "verified": float(not problems)}
        yield rows.record(after | compared, params={"correction": name}) | {"problems": problems}


LABEL_STUDIES: dict[str, Callable[[Job, Dataset], Iterator[dict[str, Any]]]] = {
    "late-labels": late_labels,
    "new-class": new_class,
    "corrections": corrections,
}


def study_jobs(
    study: str, data: str, bits: tuple[int, ...], seeds: int, queries: int, rows: int | None = None
) -> list[Job]:
    """Return one job for each length and seed."""
    every = product(range(seeds), bits)
    sizes: dict[str, Any] = {"queries": queries, "rows": rows, "first": COLLECTION_INIT}
    return [Job(study, data, DEFAULT_HASHER.name, length, seed, **sizes) for seed, length in every]


def cosine_ids(items: Floats, mean: Floats, queries: Floats, k: int) -> RowIndices:
    """Return the k items of the highest cosine; these are centred, and queries are not yet."""
    parts = (queries[s : s + RANKED_AT_ONCE] - mean for s in range(0, len(queries), RANKED_AT_ONCE))
    return np.concatenate([order_rows(cosine_scores(items, part))[:, :k] for part in parts])


def relabel(collection: Collection, rows: RowIndices, Y: LabelMatrix) -> None:
    """Give items the labels that they have in Y (n, C), and learn them."""
    for some in _steps(rows):
        collection.relabel(some.tolist(), label_lists(Y[some]))
    collection.flush()


def label_lists(Y: LabelMatrix) -> list[list[int]]:
    return [np.flatnonzero(labels).tolist() for labels in Y]


def _steps(rows: RowIndices) -> Iterator[RowIndices]:
    return (rows[s : s + ROWS_PER_STEP] for s in range(0, len(rows), ROWS_PER_STEP))
