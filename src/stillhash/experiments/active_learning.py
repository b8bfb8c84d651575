"""Measure which labels are worth asking for: items chosen by `suggest_labels`, and in other ways, against random ones.

A collection holds items without labels. Round after round some items are chosen, get their true labels by `relabel`,
and are learnt, as on the page where a person does it. Queries that are no items then rank all items by what was learnt,
as `search` does, first page and all. Every seed has items, queries and hash functions of its own, and all choices see
the same, so their difference has a smaller error than either of them.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import stillhash
from stillhash.collection import Collection
from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset, open_dataset
from stillhash.experiments.label_choices import LABEL_CHOICES, LabelPool, PoolRows
from stillhash.experiments.metrics import evaluate
from stillhash.experiments.tables import ReportProgress, TableData, silent
from stillhash.hashers import DEFAULT_HASHER, Hasher, load
from stillhash.numeric.codes import signs
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes

TAUGHT_COUNTS = (0, 100, 300, 1000)  # labels at which queries are ranked
TAUGHT_MEASURES = {"precision_10": "P@10", "ndcg_10": "nDCG@10", "map": "mAP"}
SUGGESTED = "suggest_labels"  # the choice of the library
FITTED_ON = 3000  # items that fix the hash functions
ADDED_AT_ONCE = 2000  # items


@dataclass(frozen=True)
class TeachingJob:
    """One seed of one choice: so many labels in each round, until there are as many as the last count."""

    data: str
    choice: str
    bits: int
    keep_features: bool
    seed: int
    items: int
    queries: int
    per_round: int
    rows: int | None = None
    counts: tuple[int, ...] = TAUGHT_COUNTS

    def identity(self) -> dict[str, Any]:
        """Return what tells it from the other jobs of a run."""
        return {name: getattr(self, name) for name in ("bits", "keep_features", "choice", "seed")}


class TaughtCollection:
    """A collection on disk whose items have no labels at first, and what has learnt the same labels in memory."""

    def __init__(self, job: TeachingJob, data: Dataset, folder: Path) -> None:
        rng = np.random.default_rng(job.seed)
        items = np.sort(rng.permutation(data.stream)[: job.items])
        queries = np.sort(rng.permutation(data.queries)[: job.queries])
        self.X, self.labels = data.read(items), data.labels[items]
        self.Q, self.query_labels = data.read(queries), data.labels[queries]
        first = min(FITTED_ON, len(items))
        self.collection: Collection = stillhash.open(
            folder,
            dim=data.dim,
            bits=job.bits,
            init=self.X[:first],
            keep_features=job.keep_features,
            rescore_bits=0,  # the study measures the ranking of short codes
            params={"random_state": job.seed},
        )
        for start in range(0, len(items), ADDED_AT_ONCE):
            rows = self.X[start : start + ADDED_AT_ONCE]
            self.collection.add(range(start, start + len(rows)), rows)
        self.codes: Codes = self._stored_codes()
        fitted = DEFAULT_HASHER(job.bits, double_sums=job.keep_features, random_state=job.seed)
        self._state, self.labelled = fitted.fit(self.X[:first]).state(), np.empty(0, np.int64)

    def _stored_codes(self) -> Codes:
        codes = self.collection.codes(range(len(self.X)))
        assert codes is not None
        return codes

    def teach(self, rows: PoolRows) -> None:
        """Give items their true labels, and learn them."""
        self.collection.relabel(rows.tolist(), self._names(rows))
        self.collection.flush()
        self.labelled = np.concatenate([self.labelled, rows])

    def hasher(self) -> Hasher:
        """Return a hasher that has learnt what the collection has: the same model, since the order of rows is free."""
        hasher = load(self._state)
        if len(self.labelled):
            features = self.collection.reconstruct(self.labelled.tolist())
            hasher.partial_fit(features, self._names(self.labelled), self.codes[self.labelled])
        hasher.count_unlabelled(len(self.X) - len(self.labelled))
        return hasher

    def _names(self, rows: PoolRows) -> list[list[int]]:
        return [np.flatnonzero(labels).tolist() for labels in self.labels[rows]]

    def measure(self) -> dict[str, float]:
        """Rank all items for the queries, by the model as it is now."""
        ranking = self.hasher().ranking(self.Q)
        quality = evaluate(ranking, self.codes, self.query_labels, self.labels, threads=1)._asdict()
        return {measure: quality[measure] for measure in TAUGHT_MEASURES}


def choose(taught: TaughtCollection, job: TeachingJob, count: int, rng: np.random.Generator) -> PoolRows:
    """Return the next items to label."""
    if job.choice == SUGGESTED:
        suggestions = taught.collection.suggest_labels(count, seed=int(rng.integers(2**31)))
        return np.array([suggestion.id for suggestion in suggestions], np.int64)
    pool = LabelPool(signs(taught.codes, job.bits), taught.labelled, taught.hasher(), rng)
    return LABEL_CHOICES[job.choice](pool, count)


def teach(job: TeachingJob) -> list[dict[str, Any]]:
    """Run one job; return a record for each count of labels."""
    rng, records = np.random.default_rng(job.seed), []
    with TemporaryDirectory() as folder:
        taught = TaughtCollection(job, _open_rows(job.data, job.rows), Path(folder) / "items")
        with taught.collection:
            for count in job.counts:
                while len(taught.labelled) < min(count, job.items):
                    left = min(count, job.items) - len(taught.labelled)
                    taught.teach(choose(taught, job, left if job.choice == "random" else min(left, job.per_round), rng))
                records.append({**job.identity(), "labels": count, **taught.measure()})
    return records


@lru_cache(maxsize=1)
def _open_rows(data: str, rows: int | None) -> Dataset:
    """Open a dataset, or its first rows only."""
    whole = open_dataset(data)
    if rows is None:
        return whole
    starts = np.cumsum([0, *map(len, whole.parts)])[:-1]
    parts = tuple(part[: max(0, rows - start)] for part, start in zip(whole.parts, starts.tolist(), strict=True))
    return replace(whole, parts=parts, labels=whole.labels[:rows], queries=whole.queries[whole.queries < rows])


def run(
    data: str,
    bits: Sequence[int] = (64, 128),
    seeds: int = 5,
    items: int = 20_000,
    queries: int = 1000,
    per_round: int = 50,
    rows: int | None = None,
    choices: Sequence[str] = ("random", SUGGESTED),
    keep_features: Sequence[bool] = (True, False),
    workers: int | None = None,
    progress: ReportProgress = silent,
) -> dict[str, Any]:
    """Run all jobs, with features that are kept and without, on the first rows of a dataset; return their records."""
    for choice in choices:
        if choice not in (*LABEL_CHOICES, SUGGESTED):
            raise InvalidInput(f"choices: expected {', '.join((*LABEL_CHOICES, SUGGESTED))}, got {choice!r}")
    jobs = [
        TeachingJob(str(data), choice, length, keep, seed, items, queries, per_round, rows)
        for seed in range(seeds)
        for length in bits
        for keep in keep_features
        for choice in choices
    ]
    records: list[dict[str, Any]] = []
    with ProcessPoolExecutor(workers or usable_cores(), mp_context=get_context("spawn")) as pool:
        running = [pool.submit(teach, job) for job in jobs]
        for done, finished in enumerate(as_completed(running), 1):
            records += finished.result()
            progress(f"{done} of {len(jobs)} jobs")
    records.sort(key=lambda record: tuple(record[key] for key in ("bits", "keep_features", "choice", "seed", "labels")))
    name = open_dataset(data).name if str(data) == "scenes" else Path(data).name
    about = {"items": items, "queries": queries, "seeds": seeds, "per_round": per_round}
    return {"dataset": name, **about, "records": records}


def compare(result: dict[str, Any], keep_features: bool, bits: int) -> Iterator[dict[str, Any]]:
    """Yield for each choice and count the mean of each measure, its gain over random items, and the gain's error."""
    records = [r for r in result["records"] if (r["keep_features"], r["bits"]) == (keep_features, bits)]
    values = {
        (r["choice"], r["labels"], r["seed"]): np.array([r[measure] for measure in TAUGHT_MEASURES]) for r in records
    }
    seeds = sorted({r["seed"] for r in records})
    for choice in dict.fromkeys(["random", *(r["choice"] for r in records)]):
        for labels in sorted({r["labels"] for r in records}):
            own, random = (np.array([values[name, labels, seed] for seed in seeds]) for name in (choice, "random"))
            gains, root = own - random, np.sqrt(len(seeds))
            errors = gains.std(axis=0, ddof=1) / root if len(seeds) > 1 else np.full(len(TAUGHT_MEASURES), np.nan)
            means = zip(own.mean(axis=0).tolist(), gains.mean(axis=0).tolist(), errors.tolist(), strict=True)
            yield {"choice": choice, "labels": labels, **dict(zip(TAUGHT_MEASURES, means, strict=True))}


def tables(result: dict[str, Any]) -> list[TableData | str]:
    """Show a table for each length of the codes, with features that are kept and without."""
    sections: list[TableData | str] = []
    for bits in sorted({record["bits"] for record in result["records"]}):
        for keep in sorted({record["keep_features"] for record in result["records"]}, reverse=True):
            lines = [
                [line["choice"], f"{line['labels']:,}", *(_cell(line, measure) for measure in TAUGHT_MEASURES)]
                for line in compare(result, keep, bits)
                if line["labels"] or line["choice"] == "random"
            ]
            features = "features kept" if keep else "codes alone"
            title = f"{result['dataset']}: {result['items']:,} items, {bits} bits, {features}, {result['seeds']} seeds"
            sections.append(TableData(title, ["", "labels", *TAUGHT_MEASURES.values()], lines))
    return sections


def _cell(line: dict[str, Any], measure: str) -> str:
    mean, gain, error = line[measure]
    if line["choice"] == "random":
        return f"{mean:.4f}"
    return f"{mean:.4f} ({gain:+.4f} ± {error:.4f})"


def write(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write the records as JSON and the tables as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "results.json", folder / "tables.md"]
    paths[0].write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    parts = []
    for section in tables(result):
        assert isinstance(section, TableData)
        lines = [section.columns, ["---"] * len(section.columns), *section.rows]
        parts.append("\n".join([f"## {section.title}\n", *(f"| {' | '.join(map(str, line))} |" for line in lines)]))
    paths[1].write_text("\n\n".join(["# Active learning", *parts]) + "\n", encoding="utf-8")
    return paths
