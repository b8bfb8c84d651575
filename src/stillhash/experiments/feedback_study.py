"""Measure feedback: vote on hits of a few queries by their true labels; compare these and others before and after.

Three ways to give ten votes to a query: on its ten best hits, on the five best of the relevant hits and the five best
of the others, and on ten hits spread evenly over the first thousand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.feedback import correct
from stillhash.collection.storage.versions import StoredVote
from stillhash.experiments.data import Dataset, RowIndices
from stillhash.experiments.metrics import evaluate
from stillhash.experiments.tables import ReportProgress, TableData, format_table, silent
from stillhash.hashers import DEFAULT_HASHER, Hasher, Model
from stillhash.numeric.codes import signs
from stillhash.numeric.validation import Codes, Floats

FEEDBACK_FIT_ROWS, FEEDBACK_CHUNK = 3000, 1000
VOTES_PER_QUERY = 10
VOTING_WAYS = ("best ten", "five and five", "spread")


def run(
    data: Dataset,
    bits: int = 64,
    seeds: int = 5,
    queries: int = 20,
    others: int = 1000,
    progress: ReportProgress = silent,
) -> dict[str, Any]:
    """Learn the whole stream, then vote on hits of `queries` queries drawn by each seed."""
    hasher = DEFAULT_HASHER(bits=bits)
    codes = np.concatenate(list(_learn_stream(hasher, data, progress)))
    Y = data.labels[data.stream]
    rows = []
    for seed in range(seeds):
        chosen = np.random.default_rng(seed).permutation(data.queries)
        parts = {"": chosen[:queries], "others_": chosen[queries : queries + others]}
        before = {f"{part}before": _map(hasher, hasher.model(), data, q, codes, Y) for part, q in parts.items()}
        for way in VOTING_WAYS:
            progress(f"seed {seed}: votes on the {way}")
            votes = [vote for query in parts[""] for vote in _votes(hasher, data, int(query), codes, Y, way)]
            model = correct(hasher, hasher.model(), votes)
            after = {f"{part}after": _map(hasher, model, data, q, codes, Y) for part, q in parts.items()}
            rows.append({"seed": seed, "way": way, "votes": len(votes), **before, **after})
    return {"dataset": data.name, "bits": bits, "queries": queries, "others": others, "rows": rows}


def tables(result: dict[str, Any]) -> list[TableData | str]:
    """Show a line for each way, the mean over seeds."""
    rows = []
    for way in VOTING_WAYS:
        seeds = [row for row in result["rows"] if row["way"] == way]
        gains = [row["after"] - row["before"] for row in seeds]
        changes = [row["others_after"] - row["others_before"] for row in seeds]
        row = {name: float(np.mean([row[name] for row in seeds])) for name in ("before", "after")}
        row |= {"gain": float(np.mean(gains)), "least": min(gains)}
        rows.append({"way": way, **row, "others": float(np.mean(changes)), "worst": min(changes)})
    columns = """: {way} | mAP: {before:.3f} | after: {after:.3f} | gain: {gain:+.4f} | least of a seed: {least:+.4f} |
        others: {others:+.4f} | worst of a seed: {worst:+.4f}"""
    title = f"{result['dataset']}, {result['bits']} bits, {result['queries']} queries with {VOTES_PER_QUERY} votes each"
    return [format_table(title, columns, rows)]


def _learn_stream(hasher: Hasher, data: Dataset, progress: ReportProgress) -> Iterator[Codes]:
    first = data.stream[:FEEDBACK_FIT_ROWS]
    hasher.fit(data.read(first), data.labels[first])
    for s in range(0, len(data.stream), FEEDBACK_CHUNK):
        progress(f"{s:,} of {len(data.stream):,} rows learnt")
        chunk = data.stream[s : s + FEEDBACK_CHUNK]
        X = data.read(chunk)
        hasher.partial_fit(X, data.labels[chunk])
        yield hasher.encode(X)


def _map(hasher: Hasher, model: Model, data: Dataset, queries: RowIndices, codes: Codes, Y: NDArray[np.uint8]) -> float:
    return evaluate(hasher.weigh_by(model, data.read(queries)), codes, data.labels[queries], Y).map


def _votes(hasher: Hasher, data: Dataset, query: int, codes: Codes, Y: NDArray[np.uint8], way: str) -> list[StoredVote]:
    features: Floats = data.read(np.array([query]))
    scores = signs(codes, hasher.bits) @ hasher.weigh(features)[0]
    order = np.argsort(-scores, kind="stable")
    relevant = (Y @ data.labels[query].astype(np.int64)) > 0
    if way == "best ten":
        picked = order[:VOTES_PER_QUERY]
    elif way == "spread":
        picked = order[np.linspace(0, min(999, len(order) - 1), VOTES_PER_QUERY).astype(int)]
    else:
        half = VOTES_PER_QUERY // 2
        picked = np.concatenate([order[relevant[order]][:half], order[~relevant[order]][:half]])
    labels = {item: np.flatnonzero(Y[item]).tolist() for item in picked.tolist()}
    vector = features.tobytes()
    votes = {i: 1.0 if relevant[i] else -1.0 for i in labels}
    return [StoredVote(vector, json.dumps(i), codes[i].tobytes(), labels[i], votes[i], "") for i in labels]
