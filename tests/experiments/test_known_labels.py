"""Labels that are missing, wrong or late: what a method gets, and that all methods get the same."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stillhash import METHODS
from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset
from stillhash.experiments.job import Job
from stillhash.experiments.metrics import evaluate
from stillhash.experiments.passes import Pass, known_labels
from stillhash.experiments.presets import LABEL_METHODS, PAPER_METHODS, PRESETS
from stillhash.experiments.run import records
from stillhash.hashers import Hasher
from tests.support.toys import toy

INIT: dict[str, Any] = {"first": 1500, "labelled_init": True}
JOB = Job("table", "toy", "tally", 32, seed=1, queries=50)


@pytest.fixture
def data() -> Dataset:
    X, Y = toy(3600)
    return Dataset("toy", (X,), 1.0, Y, np.arange(100))


def labelled(job: Job, data: Dataset) -> np.ndarray[Any, Any]:
    return known_labels(job, data.labels[100:]).Y.any(axis=1)


def quality(line: dict[str, Any]) -> dict[str, float]:
    return {key: line[key] for key in ("map", "precision_10", "precision_100", "ndcg_10")}


class Calls:
    """Notes what a method is passed."""

    def __init__(self, job: Job, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fit: Any = None
        self.stored: list[Any] = []  # labels that rows are encoded with
        self.learnt: list[tuple[Any, Any, Any]] = []
        method, fit, encode, learn = METHODS[job.method], Hasher.fit, Hasher.encode, Hasher.partial_fit

        def noted_fit(hasher: Hasher, X: Any, Y: Any = None) -> Hasher:
            self.fit = Y
            return fit(hasher, X, Y)

        def noted_encode(hasher: Hasher, X: Any, Y: Any = None) -> Any:
            if Y is not None:
                self.stored.append(Y)
            return encode(hasher, X, Y)

        def noted_learn(hasher: Hasher, X: Any, Y: Any = None, codes: Any = None) -> Hasher:
            self.learnt.append((X, Y, codes))
            return learn(hasher, X, Y, codes)

        with monkeypatch.context() as patch:
            for name, function in (("fit", noted_fit), ("encode", noted_encode), ("partial_fit", noted_learn)):
                patch.setattr(method, name, function)
            self.lines = list(records(job, data))


# ---- the labels themselves ----


def test_by_default_all_labels_are_known_and_true(data: Dataset) -> None:
    known = known_labels(JOB, data.labels[100:])
    assert np.array_equal(known.Y, data.labels[100:]) and not known.late.any() and known.initial is None
    assert known.at_insertion is known.Y and known.rows == 3500
    assert np.array_equal(known_labels(replace(JOB, **INIT), data.labels[100:]).initial, data.labels[100:1600])


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01, 0.0])
def test_the_share_of_rows_is_exact_and_the_same_for_all_methods(share: float, data: Dataset) -> None:
    rows = labelled(replace(JOB, labelled_share=share), data)
    assert rows.sum() == round(3500 * share)
    others = [replace(JOB, labelled_share=share, method=method, bits=16) for method in ("hmoh", "lemon")]
    assert all(np.array_equal(labelled(job, data), rows) for job in others)
    assert not share or not np.array_equal(labelled(replace(JOB, labelled_share=share, seed=2), data), rows)
    assert labelled(replace(JOB, labelled_share=0.6), data)[rows].all()  # a larger share has the same rows and more


def test_labelled_initial_rows_are_known_whatever_the_share_but_none(data: Dataset) -> None:
    known = known_labels(replace(JOB, labelled_share=0.1, **INIT), data.labels[100:])
    assert np.array_equal(known.initial, data.labels[100:1600]) and np.array_equal(known.Y[:1500], known.initial)
    assert known.rows == 1500 + 200
    nothing = known_labels(replace(JOB, labelled_share=0, **INIT), data.labels[100:])
    assert nothing.initial is None and nothing.rows == 0


def test_noise_replaces_labels_by_those_of_other_rows(data: Dataset) -> None:
    Y = np.eye(3500, dtype=np.uint8)  # each row has a label of its own, so that none looks replaced by chance
    known = known_labels(replace(JOB, label_noise=0.2, **INIT), Y)
    wrong = (known.Y != Y).any(axis=1)
    assert wrong.sum() == 700 and (known.Y.sum(axis=1) == 1).all() and 200 < wrong[:1500].sum() < 400
    assert np.array_equal(known.initial, known.Y[:1500])
    less = known_labels(replace(JOB, label_noise=0.1), Y)
    replaced = (less.Y != Y).any(axis=1)
    assert np.array_equal(less.Y[replaced], known.Y[replaced])  # the same rows, and the same labels
    assert known_labels(replace(JOB, label_noise=1.0), Y[:1]).rows == 1


def test_labels_of_the_initial_stage_are_not_late(data: Dataset) -> None:
    known = known_labels(replace(JOB, label_delay=2, labelled_share=0.5, **INIT), data.labels[100:])
    assert not known.late[:1500].any() and np.array_equal(known.late[1500:], known.Y[1500:].any(axis=1))
    assert np.array_equal(known.at_insertion[:1500], known.Y[:1500]) and not known.at_insertion[1500:].any()
    assert known_labels(replace(JOB, label_delay=1), data.labels[100:]).late.all()


@pytest.mark.parametrize(
    ("field", "value"),
    [("labelled_share", 1.5), ("labelled_share", float("nan")), ("label_noise", -0.1), ("label_delay", -1)],
)
def test_impossible_values_are_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=rf"^{field}: expected .*, got"):
        replace(JOB, **{field: value})


def test_few_labels_takes_no_delay() -> None:
    with pytest.raises(InvalidInput, match=r"^label_delay: expected 0"):
        replace(JOB, experiment="few-labels", label_delay=1)


# ---- what methods get ----


@pytest.mark.parametrize("method", ["tally", "lemon", "oesh", "ohsl", "hmoh"])
def test_rows_without_labels_are_passed_on_without_them(
    method: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(JOB, method=method, labelled_share=0.1, label_noise=0.2)
    expected = known_labels(job, data.labels[100:]).Y
    calls = Calls(job, data, monkeypatch)
    assert calls.fit is None
    assert np.array_equal(np.concatenate(calls.stored), expected)
    assert np.array_equal(np.concatenate([Y for _, Y, _ in calls.learnt]), expected)
    assert np.array_equal(np.concatenate([X for X, _, _ in calls.learnt]), data.parts[0][100:])
    fixed = METHODS[method].fixed_codes
    assert all((codes is not None) == fixed for _, _, codes in calls.learnt)
    (line,) = calls.lines
    assert line["labelled_rows"] == 350 and line["map"] > line["chance"]


@pytest.mark.parametrize("method", ["tally", "lemon", "oesh", "ohsl", "hmoh", "osh"])
@pytest.mark.parametrize(("delay", "sizes"), [(1, [1000, 1000, 1000, 500]), (20, [1000, 1000, 1000, 500])])
def test_late_labels_are_learnt_with_the_stored_codes(
    method: str, delay: int, sizes: list[int], data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(replace(JOB, method=method, label_delay=delay), data, monkeypatch)
    assert not np.concatenate(calls.stored).any()
    arrived = [(X, Y, codes) for X, Y, codes in calls.learnt if len(X)]
    assert [len(X) for X, _, _ in arrived] == sizes
    assert np.array_equal(np.concatenate([X for X, _, _ in arrived]), data.parts[0][100:])
    assert np.array_equal(np.concatenate([Y for _, Y, _ in arrived]), data.labels[100:])
    assert all(len(codes) == len(X) for X, _, codes in arrived)
    (line,) = calls.lines
    assert line["final"] and line["rows"] == line["labelled_rows"] == 3500


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_missing_wrong_and_late_labels(method: str, data: Dataset) -> None:
    job = replace(JOB, method=method, bits=16, rows=2500, labelled_share=0.3, label_noise=0.1, label_delay=1)
    (line,) = records(job, data)
    assert line["final"] and line["labelled_rows"] == 750 and line["map"] > line["chance"]


def test_a_delayed_job_equals_the_loop_by_hand(data: Dataset) -> None:
    job = replace(JOB, label_delay=1, labelled_share=0.5, label_noise=0.1, **INIT)
    known = known_labels(job, data.labels[100:])
    X, Y = data.parts[0][100:], data.labels[100:]
    hasher = METHODS["tally"](bits=32, random_state=1).fit(X[:1500], known.Y[:1500])
    codes = hasher.encode(X, known.at_insertion)
    hasher.partial_fit(X[~known.late], known.Y[~known.late], codes[~known.late])
    hasher.partial_fit(X[known.late], known.Y[known.late], codes[known.late])
    expected = evaluate(hasher.ranking(data.parts[0][:100:2]), codes, data.labels[:100:2], Y)._asdict()
    (line,) = records(job, data)
    assert quality(line) == pytest.approx({key: expected[key] for key in quality(line)}, abs=0.002)  # chunks round


def test_rows_that_wait_for_labels_count_as_unlabelled_until_they_arrive(data: Dataset) -> None:
    run = Pass(replace(JOB, label_delay=1, labelled_share=0.5), data)
    places = np.arange(1000)
    X = run.read(places)
    run.learn_chunk(places, X, run.encode(X))
    stats = run.hasher.stats_  # type: ignore[attr-defined]
    assert (stats.unlabelled, stats.rows) == (1000, 0)
    run.learn_arrived(places)
    late = int(run.known.late[:1000].sum())
    assert (stats.unlabelled, stats.rows) == (1000 - late, late)


def test_stale_codes_are_refreshed_after_the_last_labels(data: Dataset) -> None:
    job = replace(JOB, method="hmoh", label_delay=20)
    run = Pass(job, data)
    (line,) = records(job, data)
    X = run.read(np.arange(3500))
    for s in range(0, 3500, 1000):
        run.hasher.partial_fit(X[s : s + 1000], run.Y[s : s + 1000])
    run.encode(X)
    assert line["refreshes"] == 1 and quality(line) == pytest.approx(quality(run.record()))


def test_quality_is_judged_by_the_true_labels_and_falls_with_noise(data: Dataset) -> None:
    (clean,), (noisy,) = (records(replace(JOB, label_noise=noise, **INIT), data) for noise in (0, 1.0))
    assert clean["chance"] == noisy["chance"] and clean["map"] > noisy["map"] + 0.1


def test_without_any_label_nothing_is_learnt(data: Dataset) -> None:
    (line,) = records(replace(JOB, labelled_share=0, **INIT), data)
    hasher = METHODS["tally"](bits=32, random_state=1).fit(data.parts[0][100:1600])
    codes = hasher.encode(data.parts[0][100:])
    expected = evaluate(hasher.ranking(data.parts[0][:100:2]), codes, data.labels[:100:2], data.labels[100:])
    assert line["labelled_rows"] == 0 and line["map"] == pytest.approx(expected.map)


def test_few_labels_draws_from_the_known_labels(data: Dataset) -> None:
    *_, last = records(replace(JOB, experiment="few-labels", labelled_share=0.1), data)
    assert last["labelled"] == last["labelled_rows"] == 350 and last["final"]


# ---- jobs ----


def test_file_names_of_default_jobs_are_as_before() -> None:
    assert Job("table", "toy", "ohsl", 32, 0).file == "toy-table-ohsl-32-0-a7618fdc.jsonl"
    assert Job("table", "toy", "tally", 64, 1, **INIT).file == "toy-table-tally-64-1-ce8cd67b.jsonl"
    changes: list[dict[str, Any]] = [{"labelled_share": 0.5}, {"label_noise": 0.5}, {"label_delay": 5}, INIT]
    assert len({replace(JOB, **change).file for change in [{}, *changes]}) == 5
    assert replace(JOB, labelled_share=1, label_noise=0).file == JOB.file


def test_records_carry_the_fields_of_the_axes(data: Dataset) -> None:
    job = replace(JOB, labelled_share=0.5, label_noise=0.1, label_delay=1, rows=2000)
    (line,) = records(job, data)
    assert [line[key] for key in ("labelled_share", "label_noise", "label_delay")] == [0.5, 0.1, 1]
    json.dumps(line)


@pytest.mark.parametrize(
    ("preset", "field", "values", "lengths"),
    [
        ("labelled-share", "labelled_share", {1, 0.5, 0.1, 0.01, 0}, {32, 64}),
        ("label-noise", "label_noise", {0, 0.1, 0.2, 0.4}, {64}),
        ("label-delay", "label_delay", {0, 1, 5, 20}, {64}),
    ],
)
def test_presets_vary_one_field_for_the_same_methods(
    preset: str, field: str, values: set[float], lengths: set[int]
) -> None:
    jobs = PRESETS[preset]("scenes", 1, ())
    assert {job.experiment for job in jobs} == {preset} and {job.queries for job in jobs} == {1000}
    assert {getattr(job, field) for job in jobs} == values and {job.bits for job in jobs} == lengths
    assert {job.method for job in jobs} == {"tally", "lemon", "oesh", "ohsl", "hmoh"} == set(LABEL_METHODS)
    assert len(jobs) == 6 * 2 * len(values) * len(lengths)
    assert {(job.first, job.labelled_init) for job in jobs} == {(300, False), (3000, True)}
    assert {job.method for job in PRESETS[preset]("scenes", 1, ("lsh",))} == {"lsh"}


# ---- pre-processing ----


def test_preprocessing_chooses_and_reports_on_different_queries(data: Dataset) -> None:
    params = {"center": False, "unit_norm": False}
    (line,) = records(Job("preprocessing", "toy", "ohsl", 32, 1, params), data)
    X, Y = data.parts[0][100:], data.labels[100:]
    hasher = METHODS["ohsl"](bits=32, random_state=1, **params).fit(X[:300])
    for s in range(0, 3500, 1000):
        hasher.partial_fit(X[s : s + 1000], Y[s : s + 1000])
    for start, reported in ((0, line["validation"]), (1, line)):
        some = slice(start, 100, 2)
        expected = evaluate(hasher.ranking(data.parts[0][some]), hasher.encode(X), data.labels[some], Y)._asdict()
        assert quality(reported) == pytest.approx({key: expected[key] for key in quality(reported)})
    assert line["queries"] == 50


def test_preprocessing_is_of_all_methods_of_the_paper() -> None:
    jobs = PRESETS["preprocessing"]("scenes", 1, ())
    assert {job.method for job in jobs} == set(PAPER_METHODS) <= set(METHODS) and {job.bits for job in jobs} == {64}
    assert len(jobs) == 2 * (len(PAPER_METHODS) + 1)  # HMOH has two forms
    assert {(job.params["center"], job.params["unit_norm"]) for job in jobs} == {(True, True), (False, False)}
