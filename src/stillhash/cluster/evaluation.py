"""How good the ranking of a large set is, exactly: some queries a task, each of which ranks all codes.

Average precision is of a whole ranking and no sum over parts. So parts are unpacked once, into codes and the labels
that queries ask for, which are small; each task reads them all, and what tasks find is averaged over queries.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray

from stillhash.cluster.encoding import functions_in
from stillhash.cluster.manifest import read_plan
from stillhash.cluster.part_files import read_part
from stillhash.cluster.tasks import each, got, task
from stillhash.collection.types import check_path
from stillhash.errors import InvalidInput
from stillhash.hashers import Hasher, Model
from stillhash.numeric import kernels
from stillhash.numeric.codes import from_tiles, signs
from stillhash.numeric.labels import Labels, parse_labels
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Floats, check_features, check_integer

SCORES = 2**25  # that a task holds at a time
SIGNS = 2**28  # the same, of codes
MOST = 64  # queries that a task ranks at a time

Sought = tuple[Codes, NDArray[np.int64], NDArray[np.int64]]  # codes; and by labels of the queries, which rows have them


class Quality(NamedTuple):
    """Means over queries, as `stillhash.experiments` has them."""

    map: float  # mean average precision, ties in the order of rows
    expected_map: float  # the same, averaged over all orders of ties
    precision: float  # of the first k
    ndcg: float  # of the first k, gain 2^(shared labels) - 1


def evaluate_dataset(
    by: Hasher | Model,
    queries: Any,
    query_labels: Any,
    parts: str | Path,
    *,
    k: int = 100,
    at_once: int | None = None,
) -> Quality:
    """Ranks all rows of the parts that `encode_dataset` made, for each query; relevant is who shares a label.

    by : a hasher with the hash functions that made the codes, or a model over them.
    query_labels : in any shape that `partial_fit` takes, by the names that the rows of the parts have.
    """
    out = check_path(parts)
    plan, functions = read_plan(out), functions_in(out)
    Q = check_features(queries, "queries", columns=functions.n_features_in_, whose="this data set", least=1)
    labels = parse_labels(query_labels, len(Q), "query_labels")
    if isinstance(by, Hasher) and by.functions().state() != functions.state():
        raise InvalidInput(f"by has other hash functions than made the codes in {out.name}")
    weights = functions.weigh_by(by, Q) if isinstance(by, Model) else by.weigh(Q)
    unpack, names = task(unpacked, returns=2), ray.put(labels.names)
    sought = [unpack.remote(names, str(out), n, first, functions.bits) for n, (first, _) in enumerate(plan.parts)]
    rows = sum(got([count for _, count in sought]))
    batch = max(1, min(MOST, SCORES // max(1, rows)))
    asked = [np.arange(len(Q)) // batch == n for n in range(-(-len(Q) // batch))]
    work = ((weights[some], labels.rows(some), rows, check_integer(k, "k", 1)) for some in asked)
    found = dict(each(ranked, [part for part, _ in sought], work, at_once))
    return Quality(*np.concatenate([found[n] for n in range(len(asked))]).mean(axis=0).tolist())


def unpacked(names: list[Any], out: str, number: int, first: int, bits: int) -> tuple[Sought, int]:
    """A task: the codes of a part; pairs of a label that queries have and a row that has it; how many rows it has."""
    segment, items = read_part(Path(out), number, first, bits)
    labels, places = parse_labels(items.labels, segment.rows), {name: place for place, name in enumerate(names)}
    columns = np.array([places.get(name, -1) for name in labels.names], np.int64)[labels.indices]
    rows = np.repeat(np.arange(segment.rows), np.diff(labels.indptr))
    order = np.argsort(columns, kind="stable")[np.count_nonzero(columns < 0) :]
    return (from_tiles(segment.tiles, segment.rows), columns[order], rows[order]), segment.rows


@one_thread
def ranked(parts: list[Any], weights: Floats, labels: Labels, rows: int, k: int) -> NDArray[np.float64]:
    """A task: the measures (m, 4) of these queries over all parts."""
    scores, grades = np.empty((len(weights), rows), np.float32), np.zeros((len(weights), rows), np.float32)
    bits, found, at = weights.shape[1], [], 0
    for part in parts:
        codes, columns, having = ray.get(part)
        ends = np.searchsorted(columns, np.arange(len(labels.names) + 1))
        for query, (start, stop) in enumerate(pairwise(labels.indptr.tolist())):
            for label in labels.indices[start:stop]:
                grades[query, at + having[ends[label] : ends[label + 1]]] += 1  # a row has a label once
        found.append(codes)
        at += len(codes)
    every = np.concatenate(found)
    for some in (slice(s, s + SIGNS // bits) for s in range(0, rows, SIGNS // bits)):
        # Few products, and mostly one: how BLAS rounds depends on the shape, and that decides between near ties.
        scores[:, some] = weights @ signs(every[some], bits).T.copy()
    return kernels.rank_quality(scores, grades, k)
