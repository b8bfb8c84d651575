"""Measure an alignment: queries of a new encoder over codes of an old one, against encoding everything again.

Two feature folders describe the same images in the same order. The rows that both have, less the queries, are the
database. The old encoder's hash functions and similarity are learnt on it once; pairs for the alignment are drawn from
it.
"""

from typing import Any

import numpy as np

from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset, RowIndices
from stillhash.experiments.metrics import MEASURE_COLUMNS, MEASURE_NAMES, evaluate
from stillhash.experiments.results import grouped
from stillhash.experiments.tables import ReportProgress, TableData, format_table, silent
from stillhash.hashers import DEFAULT_HASHER, Hasher
from stillhash.numeric.regression import fit_alignment
from stillhash.numeric.validation import Codes

FITTED_ROWS = 3000  # rows that fix the hash functions
PAIR_COUNTS = (100, 300, 1000, 3000)


def run(
    old: Dataset, new: Dataset, bits: int = 64, seeds: int = 3, progress: ReportProgress = silent
) -> dict[str, Any]:
    """Measure the smaller folder's queries: by the old encoder, by the new one, and through alignments."""
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
            "old": evaluate(old_hasher.ranking(old.read(queries)), old_codes, *relevance)._asdict(),
            "encoded_again": evaluate(new_hasher.ranking(new.read(queries)), new_codes, *relevance)._asdict(),
        }
        order = np.random.default_rng(seed).permutation(database)
        for pairs in PAIR_COUNTS:
            progress(f"seed {seed}: an alignment by {pairs} images")
            both = np.sort(order[:pairs])
            alignment, explained = fit_alignment(new.read(both), old.read(both))
            aligned = evaluate(old_hasher.ranking(alignment.apply(new.read(queries))), old_codes, *relevance)._asdict()
            rows.append({"seed": seed, "pairs": len(both), "explained": explained, "aligned": aligned, **alone})
    chance = float(((relevance[0] @ relevance[1].T.astype(np.int64)) > 0).mean())
    about = {"old": old.name, "new": new.name, "bits": bits, "queries": len(queries), "items": len(database)}
    return {**about, "chance": chance, "rows": rows}


def _learn(data: Dataset, rows: RowIndices, bits: int, seed: int) -> tuple[Hasher, Codes]:
    X, Y = data.read(rows), data.labels[rows]
    hasher = DEFAULT_HASHER(bits=bits, random_state=seed).fit(X[:FITTED_ROWS], Y[:FITTED_ROWS]).partial_fit(X, Y)
    return hasher, hasher.encode(X)


def tables(result: dict[str, Any]) -> list[TableData | str]:
    """Show a line for each number of pairs, between the old encoder and encoding again; the mean over seeds."""
    by_pairs = grouped(result["rows"], lambda row: row["pairs"])
    again = _mean(result["rows"], "encoded_again")
    lines = [("old encoder", _mean(result["rows"], "old"), "")]
    for pairs, seeds in by_pairs.items():
        explained = float(np.mean([row["explained"] for row in seeds]))
        lines.append((f"{pairs:,} images in both", _mean(seeds, "aligned"), f"{explained:.2f}"))
    lines.append(("encoded again", again, ""))
    rows = []
    for name, mean, explained_text in lines:
        share = mean["map"] / again["map"]
        gain = (mean["map"] - result["chance"]) / (again["map"] - result["chance"])
        rows.append({**mean, "name": name, "share": share, "gain": gain, "explained": explained_text})
    title = (
        f"{result['items']:,} images, {result['queries']} queries, {result['bits']} bits, from {result['old']} to "
        f"{result['new']}; chance {result['chance']:.3f}"
    )
    columns = f""": {{name}} | {MEASURE_COLUMNS} | mAP of encoding again: {{share:.1%}} |
        of its gain over chance: {{gain:.1%}} | variance explained: {{explained}}"""
    return [format_table(title, columns, rows)]


def _mean(rows: list[dict[str, Any]], ranking: str) -> dict[str, float]:
    return {field: float(np.mean([row[ranking][field] for row in rows])) for field in MEASURE_NAMES}
