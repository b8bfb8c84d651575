"""Run experiments: one loop over a stream, a method and checkpoints. It knows no method by name.

A job is one pass of one method over one dataset; its records are one file of JSON lines, written whole when the job
is done, so a stopped run continues with the jobs that are missing. Reports are made from these files alone.
"""

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from stillhash.experiments.data import Dataset, RowIndices
from stillhash.experiments.drift import DriftWatch, by_group, open_stream, parse
from stillhash.experiments.machine import machine
from stillhash.experiments.metrics import evaluate
from stillhash.hashers import METHODS, OnlineHasher
from stillhash.numeric.kernels import RankingQuality
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes, Floats

ROWS_PER_STEP = 1000
INITIAL_STAGE_ROWS = 300  # the paper's


@dataclass(frozen=True)
class Job:
    """One pass: `rows` of the stream, measured at `checkpoints` even steps with so many `queries` (None: all).

    The initial stage sees the `first` rows, and with `labelled_init` their labels; the paper's has 300 without labels.
    """

    experiment: str
    data: str
    method: str
    bits: int
    seed: int
    params: dict[str, Any] = field(default_factory=dict)
    checkpoints: int = 1
    queries: int | None = None
    rows: int | None = None
    measure: bool = True
    first: int = INITIAL_STAGE_ROWS
    labelled_init: bool = False

    @property
    def file(self) -> str:
        stage = [self.first, self.labelled_init]
        stage = [] if stage == [INITIAL_STAGE_ROWS, False] else stage
        text = json.dumps([self.params, self.queries, self.rows, self.checkpoints, *stage], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:8]
        scenario, under = parse(self.data)
        name = Path(under).name + (f"-{scenario}" if scenario else "")
        return f"{name}-{self.experiment}-{self.method}-{self.bits}-{self.seed}-{key}.jsonl"


def run(jobs: list[Job], out: Path, workers: int | None = None, done: Callable[[Job], None] | None = None) -> int:
    """Run the jobs whose files are missing, as many at a time as there are cores; return how many ran."""
    out.mkdir(parents=True, exist_ok=True)
    missing = [job for job in jobs if not (out / job.file).exists()]
    with ProcessPoolExecutor(workers or usable_cores(), mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run_job, job, out): job for job in missing}
        for finished in as_completed(running):
            finished.result()
            if done:
                done(running[finished])
    return len(missing)


def run_job(job: Job, out: Path) -> None:
    """Run one job into its file, which appears only when it is complete."""
    lines = [json.dumps(record) for record in records(job, _open_cached(job.data))]
    unfinished = out / f".{job.file}.{os.getpid()}"
    unfinished.write_text("\n".join(lines) + "\n")
    unfinished.rename(out / job.file)


_open_cached = lru_cache(maxsize=1)(open_stream)  # the jobs of a worker are mostly on one dataset


class Clock:
    """Adds up the seconds of each activity; what is timed inside another activity counts only once."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("learn", "refresh", "encode", "io"), 0.0)
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        self._turn()
        self._running.append(what)
        try:
            yield
        finally:
            self._turn()
            self._running.pop()

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


def records(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Learn the stream chunk by chunk, and yield a record at every checkpoint.

    Stale codes are refreshed after each chunk where time is measured, and otherwise only for the checkpoints.
    """
    stream = data.stream[: job.rows]
    queries = data.queries if job.queries is None else data.queries[:: max(1, len(data.queries) // job.queries)]
    Y, places = data.labels[stream], np.arange(len(stream))
    clock = Clock()
    watch = DriftWatch(data, stream) if job.experiment == "drift" else None

    def read(start: int, stop: int) -> Floats:
        with clock("io"):
            return data.read(stream[start:stop], places[start:stop])

    hasher = METHODS[job.method](bits=job.bits, random_state=job.seed, **job.params)
    first = data.read(stream[: job.first], places[: job.first])
    with clock("learn"):
        hasher.fit(first, Y[: job.first] if job.labelled_init else None)
    starts = range(0, len(stream), ROWS_PER_STEP)
    marks = {round(len(starts) * (i + 1) / job.checkpoints) for i in range(job.checkpoints)}
    chance = _chance(data.labels[queries].tobytes(), Y.tobytes(), count=Y.shape[1])
    about = {**_about(job, data), "queries": len(queries), "database": len(stream), "chance": chance}
    codes, raw = hasher.encode(first[:0]), hasher.keep(first[:0])
    stale, refreshes = False, 0
    for i, s in enumerate(starts, 1):
        X = read(s, s + ROWS_PER_STEP)
        if watch:
            watch.chunk(hasher, X, Y[s : s + ROWS_PER_STEP])
        with clock("learn"):
            hasher.partial_fit(X, Y[s : s + ROWS_PER_STEP])
        stale |= hasher.stale_
        if stale and (i in marks or job.experiment == "time"):
            with clock("refresh"):
                codes = hasher.refresh(raw, lambda s=s: read(0, s)) if s else codes  # type: ignore[misc]
            stale, refreshes = False, refreshes + 1
        with clock("encode"):
            codes, raw = np.concatenate([codes, hasher.encode(X)]), np.concatenate([raw, hasher.keep(X)])
        if i in marks:
            quality = _quality(job, hasher, codes, data, queries, stream[: len(codes)])
            drift = watch.take_record() if watch else {}
            final = len(codes) == len(stream)
            progress = {"rows": len(codes), "final": final, "seconds": dict(clock.seconds), "refreshes": refreshes}
            yield {**about, **progress, **quality, **drift}


def _quality(
    job: Job, hasher: OnlineHasher, codes: Codes, data: Dataset, queries: RowIndices, rows: RowIndices
) -> dict[str, Any]:
    if not job.measure:
        return dict.fromkeys(RankingQuality._fields)
    weights = hasher.weigh(data.read(queries, len(codes) - 1))
    quality = evaluate(weights, codes, data.labels[queries], data.labels[rows], threads=1)._asdict()
    return quality | ({"groups": by_group(data, weights, codes, queries, rows)} if job.experiment == "drift" else {})


@lru_cache(maxsize=1)
def _chance(*labels: bytes, count: int) -> float:
    """Return the share of relevant items, what a random order would score; once for all jobs of a dataset."""
    queries, items = (np.frombuffer(side, np.uint8).reshape(-1, count).astype(np.float32) for side in labels)
    some = (queries[s : s + 64] @ items.T for s in range(0, len(queries), 64))
    return sum(int(np.count_nonzero(shared)) for shared in some) / (len(queries) * len(items))


def _about(job: Job, data: Dataset) -> dict[str, Any]:
    here = machine()
    return {
        "dataset": data.name + (f", {job.first:,} labelled initial rows" if job.labelled_init else ""),
        **{key: getattr(job, key) for key in ("experiment", "method", "bits", "seed", "params")},
        "machine": {key: here[key] for key in ("cpu", "cores", "lanes")},
        "versions": {"stillhash": stillhash.__version__, "numpy": np.__version__},
        "commit": _commit(),
    }


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    with suppress(OSError):
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
        return done.stdout.strip() or "unknown"
    return "unknown"
