from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from stillhash import METHODS
from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset
from stillhash.experiments.job import Job
from stillhash.experiments.metrics import evaluate
from stillhash.experiments.passes import LABEL_COUNTS, Clock
from stillhash.experiments.presets import PRESETS
from stillhash.experiments.run import records, run
from tests.support.toys import toy


def small(folder: Path) -> str:
    X, Y = toy(1500)
    np.save(folder / "features.npy", X)
    np.save(folder / "labels.npy", Y)
    np.save(folder / "queries.npy", np.arange(100))
    return str(folder)


@pytest.fixture
def data() -> Dataset:
    X, Y = toy(3600)
    return Dataset("toy", (X,), 1.0, Y, np.arange(100))


def test_a_job_equals_the_loop_by_hand(data: Dataset) -> None:
    *_, last = records(Job("table", "toy", "ohsl", 32, seed=1, checkpoints=3), data)
    X, Y = data.parts[0][100:], data.labels[100:]
    hasher = METHODS["ohsl"](bits=32, random_state=1).fit(X[:300])
    for s in range(0, 3500, 1000):
        hasher.partial_fit(X[s : s + 1000], Y[s : s + 1000])
    expected = evaluate(hasher.weigh(data.parts[0][:100]), hasher.encode(X), data.labels[:100], Y)
    assert last["final"] and last["rows"] == 3500
    assert {k: last[k] for k in expected._fields} == pytest.approx(expected._asdict())
    shared = data.labels[:100].astype(int) @ Y.T.astype(int)
    assert last["chance"] == pytest.approx((shared > 0).mean())


def test_few_labels_learns_random_labelled_rows_over_the_same_codes(data: Dataset) -> None:
    data.labels[500:600] = 0
    job = Job("few-labels", "toy", "tally", 32, seed=1, queries=50, first=2000)
    lines = list(records(job, data))
    assert [one["labelled"] for one in lines] == [*(count for count in LABEL_COUNTS if count < 3400), 3400]
    assert {one["rows"] for one in lines} == {3500} and [one["final"] for one in lines] == [False] * 7 + [True]
    X, Y = data.parts[0][100:], data.labels[100:]
    order = np.random.default_rng(1).permutation(np.flatnonzero(Y.any(axis=1)))
    hasher = METHODS["tally"](bits=32, random_state=1).fit(X[:2000])
    codes, learnt = hasher.encode(X), 0
    for one in lines:
        rows, learnt = order[learnt : one["labelled"]], one["labelled"]
        hasher.partial_fit(X[rows], Y[rows])
        expected = evaluate(hasher.ranking(data.parts[0][:100:2]), codes, data.labels[:100:2], Y)._asdict()
        assert {key: one[key] for key in expected} == pytest.approx(expected, abs=0.002)  # chunks round differently
    assert lines[-1]["map"] > lines[0]["map"] + 0.05
    other = next(records(Job("few-labels", "toy", "tally", 32, seed=2, queries=50, first=2000), data))
    assert other["labelled"] == 0 and other["map"] != lines[0]["map"]


def test_few_labels_is_for_fixed_codes() -> None:
    jobs = PRESETS["few-labels"]("scenes", 2, ("ohsl", "lsh"))
    assert {(job.method, job.bits, job.seed) for job in jobs} == {
        (method, bits, seed) for method in ("ohsl", "lsh") for bits in (64, 256) for seed in (0, 1)
    }
    with pytest.raises(InvalidInput, match=r"^methods"):
        PRESETS["few-labels"]("scenes", 1, ("tally", "hmoh"))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_through_the_loop(method: str, data: Dataset) -> None:
    lines = list(records(Job("table", "toy", method, 16, 0, checkpoints=2, queries=50, rows=2000), data))
    assert [r["rows"] for r in lines] == [1000, 2000] and [r["final"] for r in lines] == [False, True]
    assert lines[-1]["map"] > lines[-1]["chance"] and all(s >= 0 for s in lines[-1]["seconds"].values())
    json.dumps(lines)


def test_codes_are_refreshed_after_every_chunk_only_where_time_is_measured(data: Dataset) -> None:
    for experiment, method, refreshes in (
        ("time", "ohsl", 0),
        ("table", "ohsl", 0),
        ("time", "hmoh", 3),
        ("table", "hmoh", 1),
    ):
        *_, last = records(Job(experiment, "toy", method, 16, 0, rows=3000, measure=experiment != "time"), data)
        assert last["refreshes"] == refreshes
        assert (last["map"] is None) == (experiment == "time")


@pytest.mark.nightly
def test_jobs_are_written_whole_and_never_run_twice(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    source, out = small(folder), tmp_path / "results"
    jobs = [Job("table", source, method, 16, 0) for method in ("lsh", "ohsl")]
    done: list[Job] = []
    assert run(jobs[:1], out, workers=1, done=done.append) == 1 and done == jobs[:1]
    stamp = (out / jobs[0].file).stat().st_mtime_ns
    assert run(jobs, out, workers=2) == 1
    assert (out / jobs[0].file).stat().st_mtime_ns == stamp
    assert sorted(path.name for path in out.iterdir()) == sorted(job.file for job in jobs)
    assert run(jobs, out) == 0


def test_jobs_have_files_of_their_own() -> None:
    for preset in PRESETS.values():
        jobs = preset("scenes", 2, ())
        assert len({job.file for job in jobs}) == len(jobs) > 0


def test_time_inside_something_else_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 5.0, 5.5])  # refresh begins, io begins, io ends, refresh ends
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    clock = Clock()
    with clock("refresh"), clock("io"):
        pass
    assert clock.seconds == {"learn": 0, "refresh": 1.5, "encode": 0, "io": 4}
