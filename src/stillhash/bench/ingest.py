"""Time labelled rows added to a collection that learns them, against the hasher alone on the same chunks.

"Tally alone" is the part that no collection can save: encode a chunk, learn it, solve for a new model. `add` also
validates, stores durably, evaluates before learning and publishes a version. Both are timed by the wall clock, since
`add` waits for the disk, and take turns on the same chunks. Afterwards their hits must be identical.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import stillhash
from stillhash.bench.timing import Progress, goal, interleaved, print_frame, ratio, silent, spread
from stillhash.errors import InvalidInput
from stillhash.experiments.machine import machine
from stillhash.experiments.tables import print_table
from stillhash.numeric.validation import Floats, check_integer
from stillhash.search import Scan

BITS, K = 64, 10
INGEST_DIM = 1280
INGEST_CHUNK = 1000  # rows of an `add`, and of a step of learning
DISTINCT_CHUNKS = 8  # that take turns
INGEST_LABELS = 80
FIT_ROWS = 3000  # labelled rows that fix the hash functions
CHECKED_QUERIES = 50


def run(
    repeats: int = 40, quick: bool = False, progress: Progress = silent, *, folder: Path | None = None
) -> dict[str, Any]:
    """Add and learn `repeats` chunks; `folder` is on the disk to measure, and a temporary folder in it is removed."""
    check_integer(repeats, "repeats", 1)
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"folder: expected an existing folder, got {str(folder)!r}")
    dim = 64 if quick else INGEST_DIM
    repeats = min(repeats, 3) if quick else repeats
    here = machine()
    chunks = [labelled(INGEST_CHUNK, dim, seed) for seed in range(DISTINCT_CHUNKS)]
    sample = labelled(FIT_ROWS, dim, seed=10**6)
    with tempfile.TemporaryDirectory(prefix=".stillhash-bench-", dir=folder or Path.cwd()) as made:
        progress(f"{repeats * INGEST_CHUNK:,} rows of {dim} dimensions in chunks of {INGEST_CHUNK:,}")
        with stillhash.open(Path(made) / "collection", dim, BITS, learn_rows=INGEST_CHUNK, init=sample) as collection:
            row = ingest(collection, stillhash.Tally(BITS).fit(*sample), chunks, repeats)
    goals = [
        goal("rows/s of add with learning / of Tally alone", ">= 0.4", row["add/tally rows per second"]),
        goal("queries whose hits differ from Tally's", "<= 0", row["different"]),
    ]
    return {"machine": here, "quick": quick, "columns": dim, "bits": BITS, **row, "goals": goals}


def labelled(rows: int, dim: int, seed: int) -> tuple[Floats, list[list[str]]]:
    """Make rows of one to three labels around the centres of their labels, so that there is something to learn."""
    rng = np.random.default_rng([seed, dim])
    centres = np.random.default_rng(dim).standard_normal((INGEST_LABELS, dim), dtype=np.float32)
    chosen = rng.integers(INGEST_LABELS, size=(rows, 3))
    counts = rng.integers(1, 4, rows)
    shown = np.arange(3) < counts[:, None]  # (rows, 3)
    features = rng.standard_normal((rows, dim), dtype=np.float32) + (centres[chosen] * shown[:, :, None]).sum(axis=1)
    return features, [sorted({f"label {c}" for c in row[:n]}) for row, n in zip(chosen.tolist(), counts, strict=True)]


def ingest(
    collection: stillhash.Collection, hasher: stillhash.Tally, chunks: list[tuple[Floats, list[list[str]]]], rounds: int
) -> dict[str, Any]:
    """Time both contenders over so many chunks, the warm-up apart, and compare what they have learnt."""
    index = Scan(BITS)
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
    hits = index.search(hasher.weigh(queries), K)
    answers = collection.search(queries, K)
    different = sum(
        [(hit.id, hit.score) for hit in answer.hits] != list(zip(ids.tolist(), scores.tolist(), strict=True))
        for answer, ids, scores in zip(answers, hits.ids, hits.scores, strict=True)
    )
    return {
        "chunks": rounds,
        "ms": {name: spent / rounds * 1e3 for name, spent in seconds.items()},
        "rows_per_second": {name: INGEST_CHUNK * rounds / spent for name, spent in seconds.items()},
        "add/tally rows per second": seconds["tally"] / seconds["add"],
        "add/tally": ratio(times, "add", "tally"),
        "versions": collection.stats()["version"],
        "different": different,
    }


def show(result: dict[str, Any], console: Console) -> None:
    print_table(
        console,
        f"Chunks of {INGEST_CHUNK:,} labelled rows, D = {result['columns']}, b = {BITS}: add and learn",
        ("", "ms a chunk", "rows/s", "time / Tally"),
        [
            (
                name,
                f"{result['ms'][key]:.1f}",
                f"{result['rows_per_second'][key]:,.0f}",
                spread(result["add/tally"]) if key == "add" else "",
            )
            for name, key in (("Collection.add", "add"), ("Tally alone", "tally"))
        ],
    )
    print_frame(result, console)
