"""Time labelled rows that a collection adds and learns, against the hasher alone on the same chunks; and `relabel`.

"Tally alone" is the part that no collection can save: encode a chunk, learn it, solve for a new model. `add` also
validates, stores durably, evaluates before learning and publishes a version. Both are timed by the wall clock, since
`add` waits for the disk, and take turns on the same chunks. Afterwards their scores must be identical. Then items get
other labels, in one transaction that takes out what the earlier ones taught, and `verify` must find nothing.
"""

import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from benchmarks.timing import CODE_BITS, TOP_K, Figures, Sections, interleaved, mean_ms, ratio, temporary_folder
from stillhash import Collection, Tally
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.validation import Floats
from stillhash.search import Scan

INGEST_DIM, INGEST_LABELS = 1280, 80
INGEST_CHUNK, INGEST_CHUNKS = 1000, 8  # rows of an `add`, and of a step of learning; chunks that take turns
LABELLED_FIT_ROWS = 3000  # that fix the hash functions
CHECKED_QUERIES = 50
RELABELLED = 10_000  # items

IngestChunk = tuple[Floats, list[list[str]]]  # features, labels


def run(quick: bool, progress: ReportProgress, repeats: int = 40, folder: Path | None = None) -> Figures:
    """Add and learn `repeats` chunks; `folder` is on the disk to measure."""
    dim = 64 if quick else INGEST_DIM
    chunks = [labelled(INGEST_CHUNK, dim, seed) for seed in range(INGEST_CHUNKS)]
    sample = labelled(LABELLED_FIT_ROWS, dim, seed=10**6)
    progress(f"{repeats * INGEST_CHUNK:,} rows of {dim} dimensions in chunks of {INGEST_CHUNK:,}")
    settings: dict[str, Any] = {"learn_rows": INGEST_CHUNK, "init": sample, "codes_see_labels": True}
    with (
        temporary_folder(folder) as temporary,
        stillhash.open(temporary / "c", dim, CODE_BITS, **settings) as collection,
    ):
        row = ingest(
            collection, Tally(CODE_BITS, rescore_bits=collection.stats()["rescore_bits"]).fit(*sample), chunks, repeats
        )
        progress("other labels for items that have some")
        row["relabel"] = relabel(collection, min(RELABELLED, repeats * INGEST_CHUNK))
    goals = [
        ("rows/s of add with learning / of Tally alone", ">= 0.4", row["share_of_tally"]),
        ("queries whose best scores differ from Tally's", "<= 0", row["different"]),
        ("problems after relabel", "<= 0", row["relabel"]["problems"]),
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


def ingest(collection: Collection, hasher: Tally, chunks: list[IngestChunk], rounds: int) -> Figures:
    """Time both contenders over so many chunks, the warm-up apart, and compare what they have learnt."""
    index, starts = Scan(CODE_BITS), count(step=INGEST_CHUNK)

    def add(turn: int) -> None:
        features, labels = chunks[turn % len(chunks)]
        ids = range(start := next(starts), start + INGEST_CHUNK)
        collection.add(ids, features, labels, [{"n": n} for n in ids])

    def learn(turn: int) -> None:
        features, labels = chunks[turn % len(chunks)]
        index.add(codes := hasher.encode(features, labels))
        hasher.partial_fit(features, labels, codes)
        hasher.model()

    times = interleaved({"add": add, "tally": learn}, rounds, wall=True)
    ms = mean_ms(times)  # sealing a segment is rare and counts too
    queries = labelled(CHECKED_QUERIES, collection.dim, seed=10**7)[0]
    best = index.search(hasher.ranking(queries).weights, TOP_K)
    different = 0
    for query, ids, scores in zip(queries, best.ids.tolist(), best.scores.tolist(), strict=True):
        answer = collection.range_search(query, scores[-1])
        different += [(hit.id, hit.score) for hit in answer.hits[:TOP_K]] != list(zip(ids, scores, strict=True))
    speeds = {name: INGEST_CHUNK / each * 1e3 for name, each in ms.items()}
    ratios = {"share_of_tally": ms["tally"] / ms["add"], "add/tally": ratio(times, "add/tally")}
    outcome = {"versions": collection.stats()["version"], "different": different}
    return {"chunks": rounds, "ms": ms, "rows_per_second": speeds, **ratios, **outcome}


def relabel(collection: Collection, items: int) -> Figures:
    """Time giving so many items labels of others, and learning them; then verify the collection."""
    labels = labelled(items, 1, seed=10**8)[1]
    start = time.perf_counter()
    collection.relabel(range(items), labels)
    seconds = time.perf_counter() - start
    return {"items": items, "seconds": seconds, "problems": len(collection.verify())}


def tables(result: Figures) -> Sections:
    title = f"Chunks of {INGEST_CHUNK:,} labelled rows, D = {result['columns']}, b = {CODE_BITS}: add and learn"
    columns = """chunks: {chunks} | add, ms a chunk: {ms[add]:.1f} | Tally alone: {ms[tally]:.1f} |
        add, rows/s: {rows_per_second[add]:,.0f} | Tally: {rows_per_second[tally]:,.0f} | time / Tally: {add/tally}"""
    (row,) = result["rows"]
    again = row["relabel"] | {"per_second": row["relabel"]["items"] / row["relabel"]["seconds"]}
    relabelled = "items: {items:,} | seconds: {seconds:.2f} | items/s: {per_second:,.0f} | problems: {problems}"
    return [
        format_table(title, columns, result["rows"]),
        format_table("Other labels for labelled items, learnt, in one transaction", relabelled, [again]),
    ]
