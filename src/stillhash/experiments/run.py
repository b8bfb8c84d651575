"""Run experiments: one pass over a stream, with a method and checkpoints. It knows no method by name.

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
from itertools import pairwise
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
LABEL_COUNTS = (0, 10, 30, 100, 300, 1000, 3000, 10_000)  # checkpoints of `few-labels`, and all


@dataclass(frozen=True)
class Job:
    """One pass: `rows` of the stream, measured at `checkpoints` even steps with so many `queries` (None: all).

    The experiment `few-labels` is measured at LABEL_COUNTS instead. The initial stage sees the `first` rows, and with
    `labelled_init` their labels; the paper's has 300 without labels.
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


class Pass:
    """One job under way: its stream and queries, the hasher after the initial stage, and the time so far."""

    def __init__(self, job: Job, data: Dataset) -> None:
        self.job, self.data, self.clock = job, data, Clock()
        self.stream = data.stream[: job.rows]
        self.queries = data.queries[:: max(1, len(data.queries) // job.queries) if job.queries else 1]
        self.Y = data.labels[self.stream]
        first = data.read(self.stream[: job.first], np.arange(len(self.stream))[: job.first])
        self.hasher: OnlineHasher = METHODS[job.method](bits=job.bits, random_state=job.seed, **job.params)
        with self.clock("learn"):
            self.hasher.fit(first, self.Y[: job.first] if job.labelled_init else None)
        self.codes, self.raw = self.hasher.encode(first[:0]), self.hasher.keep(first[:0])
        sizes = {"queries": len(self.queries), "database": len(self.stream)}
        chance = _chance(data.labels[self.queries].tobytes(), self.Y.tobytes(), count=self.Y.shape[1])
        self.about = {**_about(job, data), **sizes, "chance": chance}

    def read(self, places: RowIndices) -> Floats:
        """Return the features of these places of the stream."""
        with self.clock("io"):
            return self.data.read(self.stream[places], places)

    def steps(self, places: RowIndices) -> Iterator[RowIndices]:
        return (places[s : s + ROWS_PER_STEP] for s in range(0, len(places), ROWS_PER_STEP))

    def learn(self, places: RowIndices, X: Floats, codes: Codes | None = None) -> None:
        with self.clock("learn"):
            self.hasher.partial_fit(X, self.Y[places], codes)

    def refresh(self) -> None:
        """Bring stale codes up to date."""
        if len(self.codes):
            with self.clock("refresh"):
                self.codes = self.hasher.refresh(self.raw, lambda: self.read(np.arange(len(self.codes))))

    def encode(self, X: Floats, Y: Any = None) -> Codes:
        """Append the codes of new rows, which are stored with these labels."""
        with self.clock("encode"):
            codes = self.hasher.encode(X, Y)
            self.codes = np.concatenate([self.codes, codes])
            self.raw = np.concatenate([self.raw, self.hasher.keep(X)])
        return codes

    def record(self, **progress: Any) -> dict[str, Any]:
        """Return what is known of the job so far, with the quality over all codes."""
        now = {"rows": len(self.codes), "seconds": dict(self.clock.seconds)}
        return {**self.about, **now, **progress, **self._quality()}

    def _quality(self) -> dict[str, Any]:
        if not self.job.measure:
            return dict.fromkeys(RankingQuality._fields)
        data, codes, queries, rows = self.data, self.codes, self.queries, self.stream[: len(self.codes)]
        ranking = self.hasher.ranking(data.read(queries, len(codes) - 1))
        quality = evaluate(ranking, codes, data.labels[queries], data.labels[rows], threads=1)._asdict()
        drift = self.job.experiment == "drift"
        return quality | ({"groups": by_group(data, ranking, codes, queries, rows)} if drift else {})


def records(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Yield a record at every checkpoint of a job."""
    return (by_labels if job.experiment == "few-labels" else by_rows)(Pass(job, data))


def by_rows(run: Pass) -> Iterator[dict[str, Any]]:
    """Learn the stream chunk by chunk. Fixed codes are stored before a chunk is learnt, others after.

    Stale codes are refreshed after each chunk where time is measured, and otherwise only for the checkpoints.
    """
    job, hasher = run.job, run.hasher
    fixed = METHODS[job.method].fixed_codes
    watch = DriftWatch(run.data, run.stream) if job.experiment == "drift" else None
    steps = list(run.steps(np.arange(len(run.stream))))
    marks = {round(len(steps) * (i + 1) / job.checkpoints) for i in range(job.checkpoints)}
    stale, refreshes = False, 0
    for i, places in enumerate(steps, 1):
        X = run.read(places)
        if watch:
            watch.chunk(hasher, X, run.Y[places])
        run.learn(places, X, run.encode(X, run.Y[places]) if fixed else None)
        stale |= hasher.stale_
        if stale and (i in marks or job.experiment == "time"):
            run.refresh()
            stale, refreshes = False, refreshes + 1
        if not fixed:
            run.encode(X, run.Y[places])
        if i in marks:
            drift = watch.take_record() if watch else {}
            yield run.record(final=len(run.codes) == len(run.stream), refreshes=refreshes, **drift)


def by_labels(run: Pass) -> Iterator[dict[str, Any]]:
    """Encode the whole stream once, as fixed codes allow, then learn labelled rows of it in random order."""
    for places in run.steps(np.arange(len(run.stream))):
        run.encode(run.read(places))
    order = np.random.default_rng(run.job.seed).permutation(np.flatnonzero(run.Y.any(axis=1)))
    counts = [*(count for count in LABEL_COUNTS if count < len(order)), len(order)]
    for start, stop in pairwise([0, *counts]):
        for places in run.steps(order[start:stop]):
            run.learn(places, run.read(places))
        yield run.record(final=stop == len(order), labelled=stop)


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
