"""One job under way: a pass of a method over a stream, in chunks or label by label. It knows no method by name."""

import os
import re
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import stillhash
from stillhash.experiments.data import Dataset, RowIndices, RowMask
from stillhash.experiments.drift import DriftWatch, by_group
from stillhash.experiments.job import Job
from stillhash.experiments.metrics import evaluate
from stillhash.hashers import METHODS, Hasher
from stillhash.numeric.kernels import RankingQuality
from stillhash.numeric.ranking import Ranking
from stillhash.numeric.validation import Codes, Floats

ROWS_PER_STEP = 1000
LABEL_COUNTS = (0, 10, 30, 100, 300, 1000, 3000, 10_000)  # checkpoints of `few-labels`, and all
# Fields of a job that its records carry.
JOB_KEYS = ("experiment", "method", "bits", "seed", "params", "labelled_share", "label_noise", "label_delay")
SHARE_DRAWS, NOISE_DRAWS = 1, 2  # so that one axis does not change what is drawn for the other

LabelMatrix = NDArray[np.uint8]


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
        self.set_apart = self.queries[:0]  # queries for choosing, which are not reported
        if job.experiment == "preprocessing":
            self.set_apart, self.queries = self.queries[::2], self.queries[1::2]
        self.Y = data.labels[self.stream]  # the true labels
        self.known = known_labels(job, self.Y)
        self.known_at_insertion = self.known.at_insertion
        first = data.read(self.stream[: job.first], np.arange(len(self.stream))[: job.first])
        self.hasher: Hasher = METHODS[job.method](bits=job.bits, random_state=job.seed, **job.params)
        with self.clock("learn"):
            self.hasher.fit(first, self.known.initial)
        self.codes, self.raw = self.hasher.encode(first[:0]), self.hasher.keep(first[:0])
        sizes = {"queries": len(self.queries), "database": len(self.stream), "labelled_rows": self.known.rows}
        chance = _chance(data.labels[self.queries].tobytes(), self.Y.tobytes(), count=self.Y.shape[1])
        self.about = {**describe_job(job, data), **sizes, "chance": chance}

    def read(self, places: RowIndices) -> Floats:
        """Return the features of these places of the stream."""
        with self.clock("io"):
            return self.data.read(self.stream[places], places)

    def steps(self, places: RowIndices) -> Iterator[RowIndices]:
        return (places[s : s + ROWS_PER_STEP] for s in range(0, len(places), ROWS_PER_STEP))

    def learn(self, places: RowIndices, X: Floats, codes: Codes | None = None) -> bool:
        """Learn rows with the labels that a method gets; return whether codes went stale."""
        with self.clock("learn"):
            self.hasher.partial_fit(X, self.known.Y[places], codes)
        return self.hasher.stale_

    def learn_chunk(self, places: RowIndices, X: Floats, codes: Codes | None) -> bool:
        """Learn those rows of a new chunk that wait for no labels; the others count as stored without labels."""
        late = self.known.late[places]
        if not late.any():
            return self.learn(places, X, codes)
        self.hasher.count_unlabelled(int(late.sum()))
        return self.learn(places[~late], X[~late], None if codes is None else codes[~late])

    def learn_arrived(self, places: RowIndices) -> bool:
        """Learn the rows of an earlier chunk whose labels arrive now, with the codes that are stored."""
        places = places[self.known.late[places]]
        if not len(places):
            return False
        stale = self.learn(places, self.read(places), self.codes[places])
        self.hasher.count_unlabelled(-len(places))
        return stale

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
        quality, ranking = self._evaluate(queries)
        if len(self.set_apart):
            quality["validation"] = self._evaluate(self.set_apart)[0]
        drift = self.job.experiment == "drift"
        return quality | ({"groups": by_group(data, ranking, codes, queries, rows)} if drift else {})

    def _evaluate(self, queries: RowIndices) -> tuple[dict[str, Any], Ranking]:
        """Return the quality over all codes, by the true labels, and the ranking."""
        data, codes, rows = self.data, self.codes, self.stream[: len(self.codes)]
        ranking = self.hasher.ranking(data.read(queries, len(codes) - 1))
        return evaluate(ranking, codes, data.labels[queries], data.labels[rows], threads=1)._asdict(), ranking


def by_rows(run: Pass) -> Iterator[dict[str, Any]]:
    """Learn the stream chunk by chunk. Fixed codes are stored before a chunk is learnt, others after.

    Labels that are late are learnt before the chunk with which they arrive, and all that are left after the last chunk.
    Stale codes are refreshed after each chunk where time is measured, and otherwise only for the checkpoints.
    """
    job, hasher = run.job, run.hasher
    fixed = METHODS[job.method].fixed_codes
    watch = DriftWatch(run.data, run.stream) if job.experiment == "drift" else None
    steps = list(run.steps(np.arange(len(run.stream))))
    marks = {round(len(steps) * (i + 1) / job.checkpoints) for i in range(job.checkpoints)}
    waiting: deque[RowIndices] = deque()  # chunks whose labels are late
    stale, refreshes = False, 0
    for i, places in enumerate(steps, 1):
        X, Y = run.read(places), run.known_at_insertion[places]
        if watch:
            watch.chunk(hasher, X, run.Y[places])
        codes = run.encode(X, Y) if fixed else None
        waiting.append(places)
        if len(waiting) > job.label_delay:
            stale |= run.learn_arrived(waiting.popleft())
        stale |= run.learn_chunk(places, X, codes)
        if stale and (i in marks or job.experiment == "time"):
            run.refresh()
            stale, refreshes = False, refreshes + 1
        if not fixed:
            run.encode(X, Y)
        while i == len(steps) and waiting:
            stale |= run.learn_arrived(waiting.popleft())
        if stale and i == len(steps):
            run.refresh()
            stale, refreshes = False, refreshes + 1
        if i in marks:
            drift = watch.take_record() if watch else {}
            yield run.record(final=len(run.codes) == len(run.stream), refreshes=refreshes, **drift)


def by_labels(run: Pass) -> Iterator[dict[str, Any]]:
    """Encode the whole stream once, as fixed codes allow, then learn labelled rows of it in random order."""
    for places in run.steps(np.arange(len(run.stream))):
        run.encode(run.read(places))
    order = np.random.default_rng(run.job.seed).permutation(np.flatnonzero(run.known.Y.any(axis=1)))
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


def machine() -> dict[str, Any]:
    """Return the CPU, kernels, versions and load that the numbers belong to."""
    here = stillhash.info()
    cpuinfo = Path("/proc/cpuinfo")
    cpu = re.search(
        r"^model name\s*: *(.*)", cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else "", re.MULTILINE
    )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    known = {key: here[key] for key in ("cores", "lanes", "numpy", "stillhash")}
    return {"cpu": cpu[1].strip() if cpu else "unknown", **known, "load": load}


def describe_job(job: Job, data: Dataset) -> dict[str, Any]:
    """Return what all records of a job carry."""
    here = machine()
    return {
        "dataset": data.name + (f", {job.first:,} labelled initial rows" if job.labelled_init else ""),
        **{key: getattr(job, key) for key in JOB_KEYS},
        "machine": {key: here[key] for key in ("cpu", "cores", "lanes")},
        "versions": {"stillhash": stillhash.__version__, "numpy": np.__version__},
        "commit": _commit(),
    }


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    with suppress(OSError):
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, encoding="utf-8")
        return done.stdout.strip() or "unknown"
    return "unknown"


# ---- the labels that a method gets of the true ones: some missing, some wrong, some late ----
#
# All is drawn from the job's seed, so all methods get the same. Of two shares the rows of the smaller are among those
# of the larger.


class KnownLabels(NamedTuple):
    """The labels of the rows of a stream, as a method gets them; a row without labels is all zeros."""

    Y: LabelMatrix  # (n, C), those that arrive late included
    late: RowMask  # (n,) rows whose labels arrive after they were inserted
    initial: LabelMatrix | None  # of the initial stage; None without labels

    @property
    def at_insertion(self) -> LabelMatrix:
        """Return the labels that are known when each row is inserted."""
        return np.where(self.late[:, None], np.uint8(0), self.Y) if self.late.any() else self.Y

    @property
    def rows(self) -> int:
        """Return how many rows get labels, sooner or later."""
        return int(np.count_nonzero(self.Y.any(axis=1)))


def known_labels(job: Job, truth: LabelMatrix) -> KnownLabels:
    """Return the labels of a stream of which `truth` (n, C) are the true ones."""
    Y = truth
    if job.label_noise:
        Y = replace_labels(Y, job.label_noise, np.random.default_rng([job.seed, NOISE_DRAWS]))
    if job.labelled_rows is not None:
        rows = np.random.default_rng([job.seed, SHARE_DRAWS]).permutation(np.flatnonzero(Y.any(axis=1)))
        known = np.zeros(len(Y), bool)
        known[rows[: job.labelled_rows]] = True
        Y = np.where(known[:, None], Y, np.uint8(0))
        return KnownLabels(Y, np.zeros(len(Y), bool), Y[: job.first] if known[: job.first].any() else None)
    initial = job.labelled_init and job.labelled_share > 0
    from_start = (np.arange(len(Y)) < job.first) & initial
    if job.labelled_share < 1:
        later = np.random.default_rng([job.seed, SHARE_DRAWS]).permutation(np.flatnonzero(~from_start))
        known = from_start.copy()
        known[later[: round(job.labelled_share * len(later))]] = True
        Y = np.where(known[:, None], Y, np.uint8(0))
    late = Y.any(axis=1) & ~from_start if job.label_delay else np.zeros(len(Y), bool)
    return KnownLabels(Y, late, Y[: job.first] if initial else None)


def replace_labels(Y: LabelMatrix, share: float, rng: np.random.Generator) -> LabelMatrix:
    """Return labels of which a share of the rows, drawn at random, has those of another row."""
    n = len(Y)
    others = (np.arange(n) + rng.integers(1, max(2, n), n)) % n
    replaced = rng.permutation(n)[: round(share * n)]
    noisy = Y.copy()
    noisy[replaced] = Y[others[replaced]]
    return noisy
