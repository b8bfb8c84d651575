"""Measure feedback: vote on hits of a few queries by their true labels; compare these and others before and after.

Three ways to give ten votes to a query: on its ten best hits, on the five best of the relevant hits and the five best
of the others, and on ten hits spread evenly over the first thousand.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.feedback import correct
from stillhash.collection.storage.votes import StoredVote
from stillhash.experiments.data import Dataset, RowIndices
from stillhash.experiments.metrics import MEASURE_NAMES, evaluate
from stillhash.experiments.tables import ReportProgress, TableData, format_table, silent
from stillhash.hashers import DEFAULT_HASHER, Hasher, Model
from stillhash.numeric.codes import signs
from stillhash.numeric.validation import Codes

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
    stream, Y = data.stream, data.labels[data.stream]
    hasher = DEFAULT_HASHER(bits=bits).fit(data.read(stream[:FEEDBACK_FIT_ROWS]), Y[:FEEDBACK_FIT_ROWS])
    chunk_codes = []
    for s in range(0, len(stream), FEEDBACK_CHUNK):
        progress(f"{s:,} of {len(stream):,} rows learnt")
        X = data.read(stream[s : s + FEEDBACK_CHUNK])
        hasher.partial_fit(X, Y[s : s + FEEDBACK_CHUNK])
        chunk_codes.append(hasher.encode(X))
    codes, rows = np.concatenate(chunk_codes), []
    for seed in range(seeds):
        chosen = np.random.default_rng(seed).permutation(data.queries)
        parts = {"": chosen[:queries], "others_": chosen[queries : queries + others]}
        before = {f"{part}before": _quality(hasher, hasher.model(), data, q, codes, Y) for part, q in parts.items()}
        for way in VOTING_WAYS:
            progress(f"seed {seed}: votes on the {way}")
            votes = [vote for query in parts[""] for vote in _votes(hasher, data, int(query), codes, Y, way)]
            model = correct(hasher, hasher.model(), votes, codes)
            after = {f"{part}after": _quality(hasher, model, data, q, codes, Y) for part, q in parts.items()}
            rows.append({"seed": seed, "way": way, "votes": len(votes), **before, **after})
    return {"dataset": data.name, "bits": bits, "queries": queries, "others": others, "rows": rows}


def tables(result: dict[str, Any]) -> list[TableData | str]:
    """Show for each measure a line for each way, the mean over seeds."""
    columns = """: {way} | before: {before:.3f} | after: {after:.3f} | gain: {gain:+.4f} |
        least of a seed: {least:+.4f} | others: {others:+.4f} | worst of a seed: {worst:+.4f}"""
    title = f"{result['dataset']}, {result['bits']} bits, {result['queries']} queries with {VOTES_PER_QUERY} votes each"
    return [
        format_table(f"{title}: {name}", columns, [_line(result["rows"], way, field) for way in VOTING_WAYS])
        for field, name in MEASURE_NAMES.items()
    ]


def _line(rows: list[dict[str, Any]], way: str, field: str) -> dict[str, Any]:
    seeds = [row for row in rows if row["way"] == way]
    gains = [row["after"][field] - row["before"][field] for row in seeds]
    changes = [row["others_after"][field] - row["others_before"][field] for row in seeds]
    line = {name: float(np.mean([row[name][field] for row in seeds])) for name in ("before", "after")}
    line |= {"gain": float(np.mean(gains)), "least": min(gains)}
    return {"way": way, **line, "others": float(np.mean(changes)), "worst": min(changes)}


def _quality(
    hasher: Hasher, model: Model, data: Dataset, queries: RowIndices, codes: Codes, Y: NDArray[np.uint8]
) -> dict[str, float]:
    return evaluate(hasher.functions().ranking_by(model, data.read(queries)), codes, data.labels[queries], Y)._asdict()


def _votes(hasher: Hasher, data: Dataset, query: int, codes: Codes, Y: NDArray[np.uint8], way: str) -> list[StoredVote]:
    features, half = data.read(np.array([query])), VOTES_PER_QUERY // 2
    scores = signs(codes, hasher.bits) @ hasher.weigh(features)[0]
    order = np.argsort(-scores, kind="stable")
    relevant = (Y @ data.labels[query].astype(np.int64)) > 0
    picked = {
        "best ten": order[:VOTES_PER_QUERY],
        "five and five": np.concatenate([order[relevant[order]][:half], order[~relevant[order]][:half]]),
        "spread": order[np.linspace(0, min(999, len(order) - 1), VOTES_PER_QUERY).astype(int)],
    }
    labels = {item: np.flatnonzero(Y[item]).tolist() for item in picked[way].tolist()}
    votes = {item: 1.0 if relevant[item] else -1.0 for item in labels}
    vector = features.tobytes()
    return [StoredVote(vector, i, "", votes[i], None, codes[i].tobytes(), labels[i]) for i in labels]
