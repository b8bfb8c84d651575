"""Measure an alignment: queries of a new encoder over codes of an old one, against encoding everything again.

Two feature folders describe the same images in the same order. The rows that both have, less the queries, are the
database. The old encoder's hash functions and similarity are learnt on it once; pairs for the alignment are drawn from
it.
"""

from typing import Any

import numpy as np

from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset, RowIndices
from stillhash.experiments.metrics import evaluate
from stillhash.experiments.tables import ReportProgress, TableData, format_table, silent
from stillhash.hashers import DEFAULT_HASHER, Hasher
from stillhash.numeric.alignment import fit_alignment
from stillhash.numeric.validation import Codes

FITTED_ROWS = 3000  # rows that fix the hash functions
PAIR_COUNTS = (100, 300, 1000, 3000)


def run(
    old: Dataset, new: Dataset, bits: int = 64, seeds: int = 3, progress: ReportProgress = silent
) -> dict[str, Any]:
    """Measure the mAP of the smaller folder's queries: by the old encoder, by the new one, and through alignments."""
    count = min(len(old), len(new))
    smaller = new if len(new) <= len(old) else old
    if (old.labels[:count] != new.labels[:count]).any():
        raise InvalidInput(f"new: expected the labels of {old.name} in the same rows, got others in {new.name}")
    queries, labels = smaller.queries, smaller.labels
    database = np.setdiff1d(np.arange(count), queries)
    relevance = labels[queries], labels[database]
    rows = []
    for seed in range(seeds):
        progress(f"seed {seed}: both encoders")
        (old_hasher, old_codes), (new_hasher, new_codes) = (_learn(data, database, bits, seed) for data in (old, new))
        alone = {
            "old": evaluate(old_hasher.weigh(old.read(queries)), old_codes, *relevance).map,
            "encoded_again": evaluate(new_hasher.weigh(new.read(queries)), new_codes, *relevance).map,
        }
        order = np.random.default_rng(seed).permutation(database)
        for pairs in PAIR_COUNTS:
            progress(f"seed {seed}: an alignment by {pairs} images")
            both = np.sort(order[:pairs])
            alignment, explained = fit_alignment(new.read(both), old.read(both))
            aligned = evaluate(old_hasher.weigh(alignment.apply(new.read(queries))), old_codes, *relevance).map
            rows.append({"seed": seed, "pairs": len(both), "map": aligned, "explained": explained, **alone})
    chance = float(((relevance[0] @ relevance[1].T.astype(np.int64)) > 0).mean())
    about = {"old": old.name, "new": new.name, "bits": bits, "queries": len(queries), "items": len(database)}
    return {**about, "chance": chance, "rows": rows}


def _learn(data: Dataset, rows: RowIndices, bits: int, seed: int) -> tuple[Hasher, Codes]:
    X, Y = data.read(rows), data.labels[rows]
    hasher = DEFAULT_HASHER(bits=bits, random_state=seed).fit(X[:FITTED_ROWS], Y[:FITTED_ROWS]).partial_fit(X, Y)
    return hasher, hasher.encode(X)


def tables(result: dict[str, Any]) -> list[TableData | str]:
    rows = []
    for pairs in sorted({row["pairs"] for row in result["rows"]}):
        seeds = [row for row in result["rows"] if row["pairs"] == pairs]
        mean = {key: float(np.mean([row[key] for row in seeds])) for key in seeds[0]}
        share = mean["map"] / mean["encoded_again"]
        gain = (mean["map"] - result["chance"]) / (mean["encoded_again"] - result["chance"])
        rows.append({**mean, "pairs": pairs, "share": share, "gain": gain})
    old, again = (float(np.mean([row[key] for row in result["rows"]])) for key in ("old", "encoded_again"))
    title = (
        f"{result['items']:,} images, {result['queries']} queries, {result['bits']} bits: {result['old']} (old) mAP "
        f"{old:.3f}; encoded again by {result['new']} {again:.3f}; chance {result['chance']:.3f}"
    )
    columns = """images in both: {pairs:,} | mAP: {map:.3f} | of encoding again: {share:.1%} |
        of its gain over chance: {gain:.1%} | variance explained: {explained:.2f}"""
    return [format_table(title, columns, rows)]
