"""What a bridge keeps: queries of a new encoder, over codes that an old one made, against encoding all anew.

Two feature folders describe the same images in the same order. The rows that both have, less the queries, are the
database. The old encoder's hash functions and similarity are learnt on it once; pairs for the bridge are drawn from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console

from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset, Rows
from stillhash.experiments.markdown import table
from stillhash.experiments.metrics import evaluate
from stillhash.hashers import DEFAULT_HASHER, Hasher
from stillhash.numeric.alignment import build_bridge
from stillhash.numeric.validation import Codes, Floats

FIRST = 3000  # rows that the hash functions are fitted on
PAIRS = (100, 300, 1000, 3000)


def run(
    old: Dataset, new: Dataset, bits: int = 64, seeds: int = 3, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """mAP of the queries of the smaller folder: by the old encoder, by the new one throughout, and over bridges."""
    rows = min(len(old), len(new))
    smaller = new if len(new) <= len(old) else old
    if (old.labels[:rows] != new.labels[:rows]).any():
        raise InvalidInput(f"{old.name} and {new.name} have other labels in the same rows; the same images are wanted")
    asked = smaller.queries
    kept = np.setdiff1d(np.arange(rows), asked)
    labels = smaller.labels
    found = []
    for seed in range(seeds):
        progress(f"seed {seed}: both encoders")
        ours, theirs = (_learnt(data, kept, bits, seed) for data in (old, new))

        def quality(hasher: Hasher, codes: Codes, Q: Floats) -> float:
            return evaluate(hasher.weigh(Q), codes, labels[asked], labels[kept]).map

        result = {"old": quality(*ours, old.read(asked)), "anew": quality(*theirs, new.read(asked))}
        order = np.random.default_rng(seed).permutation(kept)
        for pairs in PAIRS:
            progress(f"seed {seed}: a bridge by {pairs} images")
            some = np.sort(order[:pairs])
            bridge, explained = build_bridge(new.read(some), old.read(some))
            crossed = quality(*ours, bridge.cross(new.read(asked)))
            found.append({"seed": seed, "pairs": len(some), "map": crossed, "explained": explained, **result})
    chance = float(((labels[asked] @ labels[kept].T.astype(np.int64)) > 0).mean())
    about = {"old": old.name, "new": new.name, "bits": bits, "queries": len(asked), "items": len(kept)}
    return {**about, "chance": chance, "rows": found}


def _learnt(data: Dataset, rows: Rows, bits: int, seed: int) -> tuple[Hasher, Codes]:
    X, Y = data.read(rows), data.labels[rows]
    hasher = DEFAULT_HASHER(bits=bits, random_state=seed).fit(X[:FIRST], Y[:FIRST]).partial_fit(X, Y)
    return hasher, hasher.encode(X)


def show(result: dict[str, Any], console: Console) -> None:
    rows = result["rows"]

    def mean(name: str, pairs: int | None = None) -> float:
        return float(np.mean([row[name] for row in rows if pairs in (None, row["pairs"])]))

    console.print(
        f"{result['items']:,} images, {result['queries']} queries, {result['bits']} bits: {result['old']} (old) mAP "
        f"{mean('old'):.3f}; encoded anew by {result['new']} {mean('anew'):.3f}; chance {result['chance']:.3f}",
        highlight=False,
        soft_wrap=True,
    )
    lines = []
    for pairs in sorted({row["pairs"] for row in rows}):
        crossed, anew = mean("map", pairs), mean("anew", pairs)
        above = (crossed - result["chance"]) / (anew - result["chance"])
        lines.append(
            [f"{pairs:,}", f"{crossed:.3f}", f"{crossed / anew:.1%}", f"{above:.1%}", f"{mean('explained', pairs):.2f}"]
        )
    head = ["images in both", "mAP", "of encoding anew", "of its gain over chance", "variance explained"]
    console.print(table(head, lines), markup=False, highlight=False)
