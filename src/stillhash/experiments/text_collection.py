"""Measure the first ten hits of a real collection, on disk, whose labels come with items or after them."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import stillhash
from stillhash.experiments.data import Dataset
from stillhash.experiments.job import Job
from stillhash.experiments.metrics import evaluate_scores
from stillhash.experiments.passes import ROWS_PER_STEP, describe_job
from stillhash.numeric.validation import Floats

COLLECTION_COUNTS = (0, 100, 300, 1000, 3000)  # labels, and all
SEARCHED_HITS = 10
LABELS_COME = "labels_come"  # a parameter of these jobs: how labels get into the collection, one of
LABEL_WAYS = ("with items", "by learn", "by relabel", "by relabel, keep_features")


def in_collection(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Yield P@10 and nDCG@10 of searches in a collection for each number of labels."""
    way, params = job.params[LABELS_COME], {name: v for name, v in job.params.items() if name != LABELS_COME}
    stream, count = data.stream, len(data.stream)
    X, Y = data.read(stream), data.labels[stream]
    order = np.random.default_rng(job.seed).permutation(count)
    sizes = [*(size for size in COLLECTION_COUNTS if size < count), count]
    about = describe_job(job, data) | {"queries": len(data.queries), "database": count, "rows": count}
    for size in sizes:
        labels: list[list[int]] = [[] for _ in range(count)]
        for row in order[:size]:
            labels[row] = np.flatnonzero(Y[row]).tolist()
        settings = {"keep_features": way.endswith("keep_features"), "params": {"random_state": job.seed, **params}}
        with TemporaryDirectory() as folder:
            path = Path(folder) / "texts"
            with stillhash.open(path, dim=data.dim, bits=job.bits, init_rows=job.first, **settings) as collection:
                for start in range(0, count, ROWS_PER_STEP):
                    some = slice(start, start + ROWS_PER_STEP)
                    known = labels[some] if way == "with items" else None
                    collection.add(range(start, start + len(X[some])), X[some], known)
                chosen = order[:size].tolist()
                if chosen and way == "by learn":
                    collection.learn(X[chosen], [labels[row] for row in chosen])
                elif chosen and way != "with items":
                    collection.relabel(chosen, [labels[row] for row in chosen])
                collection.flush()
                scores = _first_hits(collection, data.read(data.queries), count)
        quality = evaluate_scores(scores.__getitem__, data.labels[data.queries], Y, threads=1)
        yield about | {
            "map": None,
            "precision_10": quality.precision_10,
            "ndcg_10": quality.ndcg_10,
            "labelled": size,
            "final": size == count,
            "seconds": dict.fromkeys(("learn", "refresh", "encode", "io"), 0.0),
        }


def _first_hits(collection: "stillhash.Collection", queries: Floats, count: int) -> Floats:
    """Return scores (m, n) by which the first hits come in their order, and no other item before them."""
    scores = np.zeros((len(queries), count), np.float32)
    for start in range(0, len(queries), ROWS_PER_STEP):
        for row, answer in enumerate(collection.search(queries[start : start + ROWS_PER_STEP], SEARCHED_HITS), start):
            for rank, hit in enumerate(answer.hits):
                scores[row, int(hit.id)] = SEARCHED_HITS - rank
    return scores
