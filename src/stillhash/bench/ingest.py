"""Time labelled rows added to a collection that learns them, against the hasher alone on the same chunks.

"Tally alone" is the part that no collection can save: encode a chunk, learn it, solve for a new model. `add` also
validates, stores durably, evaluates before learning and publishes a version. Both are timed by the wall clock, since
`add` waits for the disk, and take turns on the same chunks. Afterwards their hits must be identical.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from stillhash.bench.timing import CODE_BITS, TOP_K, goal, interleaved, ratio, temporary_folder
from stillhash.experiments.tables import ReportProgress, TableData, format_table, silent
from stillhash.numeric.validation import Floats, check_integer
from stillhash.search import Scan

INGEST_DIM = 1280
INGEST_CHUNK = 1000  # rows of an `add`, and of a step of learning
INGEST_CHUNKS = 8  # that take turns
INGEST_LABELS = 80
LABELLED_FIT_ROWS = 3000  # that fix the hash functions
CHECKED_QUERIES = 50

IngestChunk = tuple[Floats, list[list[str]]]  # features, labels


def run(
    repeats: int = 40, quick: bool = False, progress: ReportProgress = silent, *, folder: Path | None = None
) -> dict[str, Any]:
    """Add and learn `repeats` chunks; `folder` is on the disk to measure."""
    check_integer(repeats, "repeats", 1)
    dim = 64 if quick else INGEST_DIM
    repeats = min(repeats, 3) if quick else repeats
    with temporary_folder(folder) as temporary:
        chunks = [labelled(INGEST_CHUNK, dim, seed) for seed in range(INGEST_CHUNKS)]
        sample = labelled(LABELLED_FIT_ROWS, dim, seed=10**6)
        progress(f"{repeats * INGEST_CHUNK:,} rows of {dim} dimensions in chunks of {INGEST_CHUNK:,}")
        with stillhash.open(temporary / "c", dim, CODE_BITS, learn_rows=INGEST_CHUNK, init=sample) as collection:
            row = ingest(collection, stillhash.Tally(CODE_BITS).fit(*sample), chunks, repeats)
    goals = [
        goal("rows/s of add with learning / of Tally alone", ">= 0.4", row["share_of_tally"]),
        goal("queries whose hits differ from Tally's", "<= 0", row["different"]),
    ]
    return {"columns": dim, "bits": CODE_BITS, "rows": [row], "goals": goals}


def labelled(rows: int, dim: int, seed: int) -> IngestChunk:
    """Make rows of one to three labels around the centres of their labels, so that there is something to learn."""
    rng = np.random.default_rng([seed, dim])
    centres = np.random.default_rng(dim).standard_normal((INGEST_LABELS, dim), dtype=np.float32)
    chosen = rng.integers(INGEST_LABELS, size=(rows, 3))
    counts = rng.integers(1, 4, rows)
    used = np.arange(3) < counts[:, None]  # (rows, 3)
    features = rng.standard_normal((rows, dim), dtype=np.float32) + (centres[chosen] * used[:, :, None]).sum(axis=1)
    return features, [sorted({f"label {c}" for c in row[:n]}) for row, n in zip(chosen.tolist(), counts, strict=True)]


def ingest(
    collection: stillhash.Collection, hasher: stillhash.Tally, chunks: list[IngestChunk], rounds: int
) -> dict[str, Any]:
    """Time both contenders over so many chunks, the warm-up apart, and compare what they have learnt."""
    index = Scan(CODE_BITS)
    added = 0

    def add(turn: int) -> None:
        nonlocal added
        features, labels = chunks[turn % len(chunks)]
        ids = range(added, added + len(features))
        added += collection.add(ids, features, labels, [{"n": n} for n in ids])

    def learn(turn: int) -> None:
        features, labels = chunks[turn % len(chunks)]
        index.add(hasher.encode(features))
        hasher.partial_fit(features, labels)
        hasher.model()

    times = interleaved({"add": add, "tally": learn}, rounds, wall=True)
    seconds = {name: sum(spent) for name, spent in times.items()}  # sealing a segment is rare and counts too
    queries = labelled(CHECKED_QUERIES, collection.dim, seed=10**7)[0]
    hits = index.search(hasher.weigh(queries), TOP_K)
    answers = collection.search(queries, TOP_K)
    different = sum(
        [(hit.id, hit.score) for hit in answer.hits] != list(zip(ids.tolist(), scores.tolist(), strict=True))
        for answer, ids, scores in zip(answers, hits.ids, hits.scores, strict=True)
    )
    return {
        "chunks": rounds,
        "ms": {name: spent / rounds * 1e3 for name, spent in seconds.items()},
        "rows_per_second": {name: INGEST_CHUNK * rounds / spent for name, spent in seconds.items()},
        "share_of_tally": seconds["tally"] / seconds["add"],
        "add/tally": ratio(times, "add", "tally"),
        "versions": collection.stats()["version"],
        "different": different,
    }


def tables(result: dict[str, Any]) -> list[TableData | str]:
    title = f"Chunks of {INGEST_CHUNK:,} labelled rows, D = {result['columns']}, b = {CODE_BITS}: add and learn"
    columns = """chunks: {chunks} | add, ms a chunk: {ms[add]:.1f} | Tally alone: {ms[tally]:.1f} |
        add, rows/s: {rows_per_second[add]:,.0f} | Tally: {rows_per_second[tally]:,.0f} | time / Tally: {add/tally}"""
    return [format_table(title, columns, result["rows"])]
