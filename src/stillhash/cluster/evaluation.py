"""Evaluate the ranking of a large data set exactly: each task ranks all codes for some queries.

Average precision is of a whole ranking, and not a sum over parts. So parts are unpacked once, into codes, numbers of
labels and those labels that queries have, which are small; each task reads them all, and its measures are averaged
over queries.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import ArrayLike, NDArray

from stillhash.cluster.jobs import get_result, read_functions, read_manifest, read_part, remote_task, run_tasks
from stillhash.collection.validation import check_path
from stillhash.errors import InvalidInput
from stillhash.hashers import Hasher, Model
from stillhash.numeric import kernels
from stillhash.numeric.codes import from_tiles
from stillhash.numeric.kernels import RankingQuality
from stillhash.numeric.labels import Labels, jaccard, parse_labels
from stillhash.numeric.ranking import Ranking, rank_scores
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, check_features

MAX_TASK_QUERIES, MAX_TASK_SCORES = 64, 2**25  # that a task holds at a time

# Codes; how many labels each row has; labels of queries, and the rows with them.
PartLabels = tuple[Codes, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def evaluate_dataset(
    ranker: Hasher | Model,
    queries: ArrayLike,
    query_labels: Any,
    parts: str | Path,
    *,
    max_tasks: int | None = None,
) -> RankingQuality:
    """Rank all rows that `encode_dataset` encoded, for each query; rows that share a label are relevant.

    ranker : a hasher with the hash functions that encoded the rows, or a model over them.
    query_labels : in any shape that `partial_fit` takes, by the names that the rows of the parts have.
    """
    out = check_path(parts)
    manifest, functions = read_manifest(out), read_functions(out)
    Q = check_features(queries, "queries", columns=functions.n_features_in_, whose="this data set", least=1)
    labels = parse_labels(query_labels, len(Q), "query_labels")
    if isinstance(ranker, Hasher) and ranker.functions().state() != functions.state():
        raise InvalidInput(f"ranker: expected the hash functions that encoded {out.name}, got others")
    ranking = functions.ranking_by(ranker, Q) if isinstance(ranker, Model) else ranker.ranking(Q)
    unpack, names = remote_task(unpack_part, returns=2), ray.put(labels.names)
    unpacked = [unpack.remote(names, out, n, first, functions.bits) for n, (first, _) in enumerate(manifest.parts)]
    rows = sum(get_result([count for _, count in unpacked]))
    batch = max(1, min(MAX_TASK_QUERIES, MAX_TASK_SCORES // max(1, rows)))
    batches = [np.arange(len(Q)) // batch == n for n in range(-(-len(Q) // batch))]
    arguments = ((ranking.rows(chosen), labels.rows(chosen), rows) for chosen in batches)
    measures = dict(run_tasks(rank_queries, [part for part, _ in unpacked], arguments, max_tasks))
    return RankingQuality(*np.concatenate([measures[n] for n in range(len(batches))]).mean(axis=0).tolist())


def unpack_part(names: list[Any], out: Path, number: int, first: int, bits: int) -> tuple[PartLabels, int]:
    """Return the codes and labels of a part, and its number of rows."""
    segment, items = read_part(out, number, first, bits)
    labels, places = parse_labels(items.labels, segment.rows), {name: place for place, name in enumerate(names)}
    columns = np.array([places.get(name, -1) for name in labels.names], np.int64)[labels.indices]
    sizes = np.diff(labels.indptr)
    rows = np.repeat(np.arange(segment.rows), sizes)
    order = np.argsort(columns, kind="stable")[np.count_nonzero(columns < 0) :]
    return (from_tiles(segment.tiles, segment.rows), sizes, columns[order], rows[order]), segment.rows


@one_thread
def rank_queries(parts: list[Any], ranking: Ranking, labels: Labels, rows: int) -> NDArray[np.float64]:
    """Return the measures (m, 5) of these queries over all parts."""
    shared = np.zeros((len(ranking.weights), rows), np.float32)
    all_codes, all_sizes, at = [], [], 0
    for part in parts:
        codes, sizes, columns, rows_with = ray.get(part)
        ends = np.searchsorted(columns, np.arange(len(labels.names) + 1))
        for query, (start, stop) in enumerate(pairwise(labels.indptr.tolist())):
            for label in labels.indices[start:stop]:
                shared[query, at + rows_with[ends[label] : ends[label + 1]]] += 1  # a row has a label once
        all_codes.append(codes)
        all_sizes.append(sizes)
        at += len(codes)
    scores = rank_scores(ranking, np.concatenate(all_codes))
    return kernels.rank_quality(scores, jaccard(shared, np.diff(labels.indptr), np.concatenate(all_sizes)))
