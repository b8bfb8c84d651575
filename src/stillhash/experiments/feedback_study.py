"""What feedback does: a few queries get thumbs, by the labels they really have; their quality before and after, and
that of queries nobody gave a thumb on.

Three ways to give ten thumbs to a query: on its ten best hits, on the five best of the relevant hits and the five best
of the others, and on ten hits spread evenly over the first thousand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console

from stillhash.collection.feedback import Vote, corrected
from stillhash.experiments.data import Dataset
from stillhash.experiments.markdown import table
from stillhash.experiments.metrics import evaluate
from stillhash.hashers import DEFAULT_HASHER, Hasher
from stillhash.hashers.base import Model
from stillhash.numeric.codes import signs
from stillhash.numeric.validation import Codes, Floats

FIRST, CHUNK = 3000, 1000
THUMBS = 10  # a query
WAYS = ("best ten", "five and five", "spread")


def run(
    data: Dataset,
    bits: int = 64,
    seeds: int = 5,
    queries: int = 20,
    others: int = 1000,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Learns the whole stream, then gives thumbs to `queries` queries drawn by each seed."""
    hasher = DEFAULT_HASHER(bits=bits)
    codes = np.concatenate(list(_streamed(hasher, data, progress)))
    Y = data.labels[data.stream]
    rows = []
    for seed in range(seeds):
        chosen = np.random.default_rng(seed).permutation(data.queries)
        ours, theirs = chosen[:queries], chosen[queries : queries + others]
        before = [_map(hasher, hasher.model(), data, some, codes, Y) for some in (ours, theirs)]
        for way in WAYS:
            progress(f"seed {seed}: thumbs on the {way}")
            given = [thumb for query in ours for thumb in _thumbs(hasher, data, int(query), codes, Y, way)]
            model = corrected(hasher, hasher.model(), given)
            after = [_map(hasher, model, data, some, codes, Y) for some in (ours, theirs)]
            names = "before", "after", "others_before", "others_after"
            told = dict(zip(names, (before[0], after[0], before[1], after[1]), strict=True))
            rows.append({"seed": seed, "way": way, "thumbs": len(given), **told})
    return {"dataset": data.name, "bits": bits, "queries": queries, "others": others, "rows": rows}


def show(result: dict[str, Any], console: Console) -> None:
    """A line for each way, the mean over seeds."""
    lines = []
    for way in WAYS:
        some = [row for row in result["rows"] if row["way"] == way]
        gains = [row["after"] - row["before"] for row in some]
        falls = [row["others_after"] - row["others_before"] for row in some]
        before, after = (float(np.mean([row[name] for row in some])) for name in ("before", "after"))
        told = f"{before:.3f}", f"{after:.3f}", f"{np.mean(gains):+.4f}", f"{min(gains):+.4f}"
        lines.append([way, *told, f"{np.mean(falls):+.4f}", f"{min(falls):+.4f}"])
    head = ["thumbs on", "mAP", "after", "gain", "least of a seed", "others", "worst of a seed"]
    console.print(f"{result['dataset']}, {result['bits']} bits, {result['queries']} queries with {THUMBS} thumbs each")
    console.print(table(head, lines), markup=False, highlight=False)


def _streamed(hasher: Hasher, data: Dataset, progress: Callable[[str], None]) -> Any:
    first = data.stream[:FIRST]
    hasher.fit(data.read(first), data.labels[first])
    for s in range(0, len(data.stream), CHUNK):
        progress(f"{s:,} of {len(data.stream):,} rows learnt")
        some = data.stream[s : s + CHUNK]
        X = data.read(some)
        hasher.partial_fit(X, data.labels[some])
        yield hasher.encode(X)


def _map(hasher: Hasher, model: Model, data: Dataset, asked: Any, codes: Codes, Y: Any) -> float:
    return evaluate(hasher.weigh_by(model, data.read(asked)), codes, data.labels[asked], Y).map


def _thumbs(hasher: Hasher, data: Dataset, query: int, codes: Codes, Y: Any, way: str) -> list[Vote]:
    features: Floats = data.read(np.array([query]))
    scores = signs(codes, hasher.bits) @ hasher.weigh(features)[0]
    order = np.argsort(-scores, kind="stable")
    relevant = (Y @ data.labels[query].astype(np.int64)) > 0
    if way == "best ten":
        picked = order[:THUMBS]
    elif way == "spread":
        picked = order[np.linspace(0, min(999, len(order) - 1), THUMBS).astype(int)]
    else:
        half = THUMBS // 2
        picked = np.concatenate([order[relevant[order]][:half], order[~relevant[order]][:half]])
    labels = {item: np.flatnonzero(Y[item]).tolist() for item in picked.tolist()}
    asked = features.tobytes()
    return [Vote(asked, json.dumps(i), codes[i].tobytes(), labels[i], 1.0 if relevant[i] else -1.0, "") for i in labels]
