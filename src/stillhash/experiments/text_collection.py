"""Measure the first ten hits of a real collection, on disk, whose labels come with items or after them."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stillhash
from stillhash.collection import Collection
from stillhash.experiments.data import Dataset
from stillhash.experiments.job import Job
from stillhash.experiments.metrics import evaluate_hits
from stillhash.experiments.passes import ROWS_PER_STEP, describe_job
from stillhash.numeric.validation import Floats

COLLECTION_COUNTS = (0, 100, 300, 1000, 3000)  # labels, and all
SEARCHED_HITS = 10
HITS_AT_ONCE = 200_000  # of all queries together, which takes about 100 MB
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
                hits = hit_ids(collection, data.read(data.queries), SEARCHED_HITS)
        quality = evaluate_hits(hits, data.labels[data.queries], Y)
        yield about | {
            "map": None,
            "precision_10": quality.precision_10,
            "ndcg_10": quality.ndcg_10,
            "labelled": size,
            "final": size == count,
            "seconds": dict.fromkeys(("learn", "refresh", "encode", "io"), 0.0),
        }


def hit_ids(collection: Collection, queries: Floats, k: int) -> NDArray[np.int64]:
    """Return the ids (m, k) of the first k hits of each query; all are numbers."""
    at_once = max(1, HITS_AT_ONCE // k)
    batches = (collection.search(queries[s : s + at_once], k) for s in range(0, len(queries), at_once))
    return np.array([[hit.id for hit in answer.hits] for answers in batches for answer in answers], np.int64)
