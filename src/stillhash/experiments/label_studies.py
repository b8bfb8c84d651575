"""Experiments with labels of stored items: labels that come late, a new class, corrections, and active learning.

All run through a collection on disk and the labels that `relabel` gives its items. The first three have default
settings, and float cosine of the same items and queries is beside them: of raw features or of centred ones, whichever
is better. A few hundred rows fit the hash functions where there are less than 6,000.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, product
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import stillhash
from stillhash.collection import Collection
from stillhash.collection.learning.trainer import MIN_INIT_ROWS
from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset, RowIndices, RowMask
from stillhash.experiments.feedback import turned
from stillhash.experiments.figures import Measure
from stillhash.experiments.job import Job
from stillhash.experiments.metrics import cosine_scores, evaluate, evaluate_hits
from stillhash.experiments.passes import ROWS_PER_STEP, LabelMatrix, describe_job, replace_labels
from stillhash.experiments.report_tables import ABSENT, TABLE_MEASURES, mean_cell, plain
from stillhash.experiments.results import LABEL_STUDY_KINDS, Checkpoint, Run, by_size, grouped
from stillhash.experiments.tables import TableData
from stillhash.hashers import DEFAULT_HASHER, Hasher, load
from stillhash.numeric.ranking import order_rows
from stillhash.numeric.validation import Floats

COLLECTION_INIT = 3000  # rows that fit the hash functions, as in a collection by default
LATE_COUNTS = (0, 30, 100, 300, 1000, 3000)  # labels, and all
CLASS_COUNTS = (0, 30, 300)  # labels of the new class, and all
CLOSE_COUNTS = (0, 100)  # labels, and all, at which stored items are searched for and whole rankings are measured
MAP_QUERIES, OWN_ITEMS = 100, 300
RANKED_AT_ONCE = 256  # queries
SEARCHED_HITS = 10
HITS_AT_ONCE = 200_000  # of all queries together, which takes about 100 MB
LABELS_COME = "labels_come"  # a parameter of a run: how labels get into the collection
CORRECTED_NOISE, LASTING_NOISE, DELETED_ROWS_SHARE = 0.18, 0.2, 0.1
ITEM_DRAWS, CORRECTION_DRAWS = 3, 4
ACTIVE_COUNTS, ACTIVE_ITEMS, ITEMS_PER_ROUND = (0, 100, 300, 1000), 20_000, 50
RANDOM, SUGGESTED = "random", "suggest_labels"  # choices of the items to label

Ranker = Callable[[Floats, int], RowIndices]  # queries (m, D) and k -> the numbers of the k best items (m, k)
Measured = dict[str, float]


class StudyRows:
    """The items and queries of a job, and what is measured of a ranking."""

    def __init__(self, job: Job, data: Dataset, drawn: tuple[RowIndices, RowIndices] | None = None) -> None:
        stream = data.stream[: job.rows]
        queries = data.queries[:: max(1, len(data.queries) // job.queries) if job.queries else 1]
        if drawn is not None:
            stream, queries = drawn
        self.job = job
        self.X, self.Y = data.read(stream), data.labels[stream]
        self.Q, self.query_labels = data.read(queries), data.labels[queries]
        self.init_rows = max(MIN_INIT_ROWS, min(job.first, len(stream) // 2))
        sizes = {"rows": len(stream), "queries": len(queries), "database": len(stream)}
        seconds = dict.fromkeys(("learn", "refresh", "encode", "io"), 0.0)
        self.about = {**describe_job(job, data), **sizes, "labelled": 0, "seconds": seconds, "final": True}

    @contextmanager
    def stored(self, Y: LabelMatrix, rows: RowIndices | None = None, **settings: Any) -> Iterator[Collection]:
        """Open a collection of all items, or of these, with labels Y (n, C)."""
        settings |= {"dim": self.X.shape[1], "bits": self.job.bits, "init_rows": self.init_rows}
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


def active(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Label items that `suggest_labels` chooses, round after round, and as many random ones; features kept or not.

    A seed has items, queries and hash functions of its own, the same for both choices. Queries rank all items by the
    short codes and the model, as a collection without rescoring codes does.
    """
    rng, pool = np.random.default_rng(job.seed), data.stream[: job.rows]
    items = np.sort(rng.permutation(pool)[: min(ACTIVE_ITEMS, 4 * len(pool) // 5)])
    rows = StudyRows(job, data, (items, np.sort(rng.permutation(data.queries)[: job.queries])))
    counts = [count for count in ACTIVE_COUNTS if count <= len(items)]
    for keep, choice in product((True, False), (RANDOM, SUGGESTED)):
        draws, labelled = np.random.default_rng(job.seed), np.empty(0, np.int64)
        about = {"params": {"choice": choice, "features": "kept" if keep else "codes alone"}}
        first = rows.X[: rows.init_rows]
        fitted = DEFAULT_HASHER(job.bits, double_sums=keep, random_state=job.seed).fit(first).state()
        with rows.stored(np.zeros_like(rows.Y), init=first, keep_features=keep, rescore_bits=0) as collection:
            for count in counts:
                while (left := count - len(labelled)) > 0:
                    chosen = draws.permutation(np.setdiff1d(np.arange(len(items)), labelled))[:left]
                    if choice == SUGGESTED:
                        seed = int(draws.integers(2**31))
                        suggestions = collection.suggest_labels(min(left, ITEMS_PER_ROUND), seed=seed)
                        chosen = np.array([each.id for each in suggestions], np.int64)
                    relabel(collection, chosen, rows.Y)
                    labelled = np.concatenate([labelled, chosen])
                quality = rank_all(rows, collection, load(fitted), labelled)
                yield rows.record(quality, **about, labelled=count, final=count == counts[-1])


def rank_all(rows: StudyRows, collection: Collection, hasher: Hasher, labelled: RowIndices) -> Measured:
    """Measure whole rankings, by a hasher that learns what the collection has learnt: the order of rows is free."""
    codes = collection.codes(range(len(rows.X)))
    assert codes is not None  # all have codes after `flush`
    if len(labelled):
        features = collection.reconstruct(labelled.tolist())
        hasher.partial_fit(features, label_lists(rows.Y[labelled]), codes[labelled])
    hasher.count_unlabelled(len(rows.X) - len(labelled))
    quality = evaluate(hasher.ranking(rows.Q), codes, rows.query_labels, rows.Y, threads=1)
    return {name: getattr(quality, name) for name in ("map", "precision_10", "ndcg_10")}


LABEL_STUDIES: dict[str, Callable[[Job, Dataset], Iterator[dict[str, Any]]]] = {
    "late-labels": late_labels,
    "new-class": new_class,
    "corrections": corrections,
    "active": active,
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


def hit_ids(collection: Collection, queries: Floats, k: int) -> NDArray[np.int64]:
    """Return the ids (m, k) of the first k hits of each query; all are numbers."""
    at_once = max(1, HITS_AT_ONCE // k)
    batches = (collection.search(queries[s : s + at_once], k) for s in range(0, len(queries), at_once))
    return np.array([[hit.id for hit in answer.hits] for answers in batches for answer in answers], np.int64)


# ---- tables; cells are Markdown, which reads as plain text too ----

LABEL_STUDY_TEXTS = {  # heading and text, by experiment
    "late-labels": (
        "Labels that come late",
        "Items are stored without labels, in a collection with default settings, and random ones of them are labelled "
        "later, more from line to line; in the last line all labels came with the items. Float cosine, of raw features "
        "or of centred ones, whichever is better, is what there is without labels. “No relevant hit” is the share of "
        "queries without one among the first ten, “own item first” the share of stored items that are their own first "
        "hit, and “near duplicate” the share that are among the first ten hits of features at a cosine of 0.97 to "
        "theirs. mAP is of the first 100 queries.",
    ),
    "new-class": (
        "A new class among labelled items",
        "All items are stored without labels; then all but those of one class are labelled, and more and more of that "
        "class. Each class is the new one in turn. P@10 of its queries, and of all other queries.",
    ),
    "corrections": (
        "Labels that are corrected",
        "P@10 before labels are corrected and after, beside a collection that was right from the start. “Verify” is "
        "the share of collections in which nothing is wrong after it, and what was learnt equals what is computed "
        "again from what is stored. The first line is of float cosine.",
    ),
    "active": (
        "Labels that are asked for",
        "Items are stored without labels; in rounds of 50, those that `suggest_labels` chooses get theirs. In "
        "brackets, the gain over as many random items of the same seed, with its standard error.",
    ),
}
LabelMeasures = dict[str, Measure]
LATE_MEASURES: LabelMeasures = {
    **{name: TABLE_MEASURES[name] for name in ("P@10", "nDCG@10", "mAP")},
    "no relevant hit": lambda at: 1 - at.groups["a relevant hit"],
    "own item first": lambda at: at.groups.get("own item first"),
    "near duplicate": lambda at: at.groups.get("near duplicate"),
}
ACTIVE_MEASURES = ("P@10", "nDCG@10", "mAP")
CORRECTION_MEASURES: LabelMeasures = {
    "before": lambda at: at.groups.get("before"),
    "corrected": lambda at: at.precision_10,
    "right from the start": lambda at: at.groups.get("right"),
    "verify": lambda at: at.groups.get("verified"),
}


def study_sections(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return for each experiment of which there are runs its heading, its text and its tables, with titles."""
    of = grouped(runs, lambda run: run.experiment)
    sections = []
    for kind in LABEL_STUDY_KINDS:
        tables = [
            table._replace(title=f"{dataset}, {bits} bits{', ' if table.title else ''}{table.title or ''}")
            for (dataset, bits), some in by_size(of.get(kind, [])).items()
            for table in STUDY_TABLES[kind](some)
        ]
        heading, text = LABEL_STUDY_TEXTS[kind]
        sections += [{"heading": heading, "text": text, "tables": tables}] if tables else []
    return sections


def late_tables(runs: Sequence[Run]) -> list[TableData]:
    """Return a line for cosine, for each number of late labels, and for labels at insertion."""
    groups = grouped(runs, lambda run: (run.variant.method == "cosine", bool(run.variant.params)))
    lines = {"float cosine": [run.end for run in groups.get((True, False), [])]}
    late = grouped((at for run in groups.get((False, False), []) for at in run.checkpoints), lambda at: at.labelled)
    lines |= {f"{labels:,} late": some for labels, some in late.items()}
    inserted = [run.end for run in groups.get((False, True), [])]
    lines |= {f"{at.labelled:,} at insertion": inserted for at in inserted[:1]}
    return [TableData(None, ["labels", *LATE_MEASURES], _lines(lines, LATE_MEASURES))]


def new_class_tables(runs: Sequence[Run]) -> list[TableData]:
    """Return P@10 of queries of the new class, and of all others: a line for each class, and the mean of them."""
    measures: LabelMeasures = {"queries of the new class": attrgetter("precision_10"), "other queries": _others}
    tables = []
    for title, measure in measures.items():
        cells: dict[int, dict[float, list[float | None]]] = {}  # by class, then by labels: -1 cosine, infinity all
        for run in runs:
            columns = cells.setdefault(int(dict(run.variant.params)["new_class"]), {})
            for at in run.checkpoints:
                labels = -1 if run.variant.method == "cosine" else math.inf if at.final else at.labelled or 0
                columns.setdefault(labels, []).append(measure(at))
        counts = sorted({labels for columns in cells.values() for labels in columns})
        names = ["float cosine" if n < 0 else "all late" if n == math.inf else f"{n:,} late" for n in counts]
        rows = [[str(new), *(_cell(cells[new].get(n, [])) for n in counts)] for new in sorted(cells)]
        means = [_cell([v for columns in cells.values() for v in columns.get(n, [])], deviation=False) for n in counts]
        tables.append(TableData(f"P@10 of {title}", ["new class", *names], [*rows, ["mean", *means]]))
    return tables


def correction_tables(runs: Sequence[Run]) -> list[TableData]:
    """Return a line for cosine, and for each correction."""
    lines = grouped(runs, lambda run: plain(dict(run.variant.params).get("correction", "float cosine")))
    ends = {name: [run.end for run in some] for name, some in lines.items()}
    ordered = {name: ends[name] for name in sorted(ends, key=lambda name: name != "float cosine")}
    return [TableData(None, ["", *CORRECTION_MEASURES], _lines(ordered, CORRECTION_MEASURES))]


def active_tables(runs: Sequence[Run]) -> list[TableData]:
    """Return a line for each number of labels: random items, and chosen ones with their gain over these."""
    tables = []
    for features, some in grouped(runs, lambda run: dict(run.variant.params)["features"]).items():
        values = {
            (dict(run.variant.params)["choice"], at.labelled, run.seed): at for run in some for at in run.checkpoints
        }
        seeds, lines = sorted({run.seed for run in some}), []
        for labels in sorted({at.labelled or 0 for run in some for at in run.checkpoints}):
            cells = [f"{labels:,}"]
            for measure in ACTIVE_MEASURES:
                random, chosen = (
                    np.array([TABLE_MEASURES[measure](values[choice, labels, seed]) for seed in seeds], np.float64)
                    for choice in (RANDOM, SUGGESTED)
                )
                gains = chosen - random
                error = f" ± {gains.std(ddof=1) / math.sqrt(len(seeds)):.4f}" if len(seeds) > 1 else ""
                cells += [f"{random.mean():.3f}", f"{chosen.mean():.3f} ({gains.mean():+.4f}{error})" if labels else ""]
            lines.append(cells)
        names = [f"{measure}, {which}" for measure in ACTIVE_MEASURES for which in ("random", "chosen")]
        tables.append(TableData(f"features: {features}", ["labels", *names], lines))
    return tables


STUDY_TABLES: dict[str, Callable[[Sequence[Run]], list[TableData]]] = {
    "late-labels": late_tables,
    "new-class": new_class_tables,
    "corrections": correction_tables,
    "active": active_tables,
}


def _lines(lines: Mapping[str, Sequence[Checkpoint]], measures: LabelMeasures) -> list[list[str]]:
    return [
        [name, *(_cell([measure(at) for at in some]) for measure in measures.values())]
        for name, some in lines.items()
        if some
    ]


def _cell(values: Sequence[float | None], deviation: bool = True) -> str:
    """Return the mean over seeds, with their deviation."""
    known = [value for value in values if value is not None]
    return ABSENT if not known else mean_cell(known) if deviation else mean_cell([statistics.fmean(known)])


def _others(at: Checkpoint) -> float | None:
    return at.groups.get("others")
