"""Streams that drift: what they are, what a job on one notes, and what the report makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash import METHODS
from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset
from stillhash.experiments.drift import LEANING_SHARE, SCENARIOS, DriftWatch, drifting, open_stream, parse
from stillhash.experiments.job import Job
from stillhash.experiments.metrics import evaluate
from stillhash.experiments.presets import PRESETS
from stillhash.experiments.report import report
from stillhash.experiments.report_tables import AlarmScore, score_alarms
from stillhash.experiments.run import records, run
from tests.experiments.test_report import line, tables, written
from tests.support.toys import toy


@pytest.fixture(scope="module")
def data() -> Dataset:
    X, Y = toy(5100)
    return Dataset("toy", (X,), 1.0, Y, np.arange(0, 5100, 51))


# ---- streams ----


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_row_of_the_stream_comes_once(scenario: str, data: Dataset) -> None:
    drifted = drifting(data, scenario)
    assert sorted(drifted.stream.tolist()) == data.stream.tolist()
    assert drifted.queries.tolist() == data.queries.tolist() and drifted.name == f"toy-{scenario}"
    assert all(0 < change < len(drifted.stream) for change in drifted.changes) and drifted.changes
    again, other = drifting(data, scenario), drifting(data, scenario, seed=1)
    assert again.stream.tolist() == drifted.stream.tolist()
    looks = [(d.stream.tolist(), d.read(d.stream, np.arange(len(d.stream))).tolist()) for d in (drifted, other)]
    assert looks[0] != looks[1]


def test_new_classes_arrive_after_all_other_rows(data: Dataset) -> None:
    drifted = drifting(data, "classes")
    (change,) = drifted.changes
    old, new = drifted.groups["old"], drifted.groups["new"]
    assert new.labels.sum() == 4 and old.labels.all()
    shows = drifted.labels[:, new.labels].any(axis=1)
    assert not shows[drifted.stream[:change]].any() and shows[drifted.stream[change:]].all()
    assert (np.diff(drifted.stream[:change]) > 0).all() and (np.diff(drifted.stream[change:]) > 0).all()
    np.testing.assert_array_equal(new.rows, shows)
    np.testing.assert_array_equal(old.rows, ~shows)


def test_labels_turn_from_rare_to_frequent(data: Dataset) -> None:
    drifted = drifting(data, "labels")
    (change,) = drifted.changes
    rising, falling = drifted.groups["rising"].rows, drifted.groups["falling"].rows
    assert not (rising & falling).any()
    first, second = drifted.stream[:change], drifted.stream[change:]
    for early, late, group in ((first, second, falling), (second, first, rising)):
        there = group[early].sum() / (group[early].sum() + group[late].sum())
        assert there == pytest.approx(LEANING_SHARE, abs=0.03)


def test_a_change_of_sensor_is_seen_from_the_middle_on_and_by_queries_too(data: Dataset) -> None:
    drifted = drifting(data, "features")
    assert drifted.changes == (2500,) and drifted.stream.tolist() == data.stream.tolist() and not drifted.groups
    places = np.arange(5000)
    X, changed = data.read(data.stream), drifted.read(drifted.stream, places)
    np.testing.assert_array_equal(changed[:2500], X[:2500])
    other = (changed[2500:] != X[2500:]).any(axis=0)
    assert other.sum() == round(0.2 * data.dim)
    np.testing.assert_array_equal(drifted.read(drifted.stream[2400:2600], places[2400:2600]), changed[2400:2600])
    slope = np.ptp(changed[2500:], axis=0) / np.ptp(X[2500:], axis=0)
    assert (slope[other] < 3.01).all() and (slope[other] > 0.33).all() and (slope[~other] == 1).all()
    queries = data.read(data.queries)
    np.testing.assert_array_equal(drifted.read(drifted.queries, 2499), queries)
    assert ((drifted.read(drifted.queries, 2500) != queries).any(axis=0) == other).all()


def test_what_went_comes_back(data: Dataset) -> None:
    drifted = drifting(data, "recurring")
    assert len(drifted.changes) == 3
    blocks = np.split(drifted.stream, drifted.changes)
    first, second = drifted.groups["first"].rows, drifted.groups["second"].rows
    for i, block in enumerate(blocks):
        assert not (first if i % 2 else second)[block].any()
        assert (np.diff(block) > 0).all()
    assert abs(len(blocks[0]) - len(blocks[2])) <= 1 and abs(len(blocks[1]) - len(blocks[3])) <= 1


def test_data_strings_name_scenarios(tmp_path: Path) -> None:
    assert parse("drift:classes:simulated:some/folder") == ("classes", "simulated:some/folder")
    assert parse("some/folder") == (None, "some/folder")
    for wrong in ("drift:classes", "drift:classes:", "drift:nonsense:scenes", "drift:"):
        with pytest.raises(InvalidInput, match=r"^data"):
            parse(wrong)
    with pytest.raises(InvalidInput, match=r"^data"):
        open_stream(f"drift:classes:{tmp_path / 'nothing'}")
    X, Y = toy(600)
    np.savez(tmp_path / "all.npz", x=X, labels=Y, queries=np.arange(20))
    assert open_stream(f"drift:recurring:{tmp_path}").name == f"{tmp_path.name}-recurring"
    assert not open_stream(str(tmp_path)).changes


def test_one_label_cannot_drift(data: Dataset) -> None:
    with pytest.raises(InvalidInput, match=r"^labels"):
        drifting(replace(data, labels=data.labels[:, :1]), "labels")


def test_the_preset_takes_all_scenarios_or_the_one_that_is_named() -> None:
    jobs = PRESETS["drift"]("scenes", 1, ())
    assert len(jobs) == 5 * len(METHODS) == len({job.file for job in jobs})
    assert {(job.data, job.bits) for job in jobs} == {("drift:classes:scenes", 64)} | {
        (f"drift:{scenario}:scenes", 32) for scenario in SCENARIOS
    }
    named = PRESETS["drift"]("drift:labels:some/folder", 2, ("ohsl",))
    assert [(job.data, job.seed) for job in named] == [("drift:labels:some/folder", seed) for seed in (0, 1)]
    assert named[0].file.startswith("folder-labels-drift-ohsl-32-0-")


# ---- jobs ----


def test_groups_are_judged_on_their_labels(data: Dataset) -> None:
    drifted = drifting(data, "classes")
    *_, last = records(Job("drift", "toy", "lsh", 32, seed=0), drifted)
    hasher = METHODS["lsh"](bits=32, random_state=0).fit(drifted.read(drifted.stream[:300]))
    codes, Y = hasher.encode(drifted.read(drifted.stream)), drifted.labels[drifted.stream]
    new = drifted.groups["new"].labels
    some = drifted.queries[drifted.labels[drifted.queries][:, new].any(axis=1)]
    rest = np.setdiff1d(drifted.queries, some)
    expected = {
        "old": evaluate(hasher.weigh(drifted.read(rest)), codes, drifted.labels[rest], Y).map,
        "new": evaluate(hasher.weigh(drifted.read(some)), codes, drifted.labels[some][:, new], Y[:, new]).map,
    }
    assert last["groups"] == pytest.approx(expected)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_records_of_a_drift_job(scenario: str, data: Dataset) -> None:
    drifted = drifting(data, scenario)
    recorded = list(records(Job("drift", "toy", "ohsl", 16, 0, checkpoints=2, queries=50), drifted))
    assert [[rows for rows, _ in one["prequential"]] for one in recorded] == [[2000], [3000, 4000, 5000]]
    assert all(0 < value <= 1 for one in recorded for _, value in one["prequential"])
    for one in recorded:
        assert one["groups"].keys() == drifted.groups.keys() and one["changes"] == list(drifted.changes)
        assert set(one["alarms"]) <= {rows for before in recorded for rows, _ in before["prequential"]}
    json.dumps(recorded)


def test_new_classes_are_not_found_before_they_come(data: Dataset) -> None:
    drifted = drifting(data, "classes")
    rows = drifted.changes[0]
    *_, last = records(Job("drift", "toy", "ohsl", 16, 0, rows=rows), drifted)
    assert last["groups"]["new"] == 0 < last["groups"]["old"] and last["changes"] == []


def test_a_changed_sensor_is_noted_in_what_queries_find(data: Dataset) -> None:
    """The stored rows stay as they came, the queries do not."""
    drifted = drifting(data, "features")
    recorded = list(records(Job("drift", "toy", "pca-itq", 32, 0, checkpoints=5), drifted))
    hasher = METHODS["pca-itq"](bits=32, random_state=0).fit(drifted.read(drifted.stream[:300]))
    codes = hasher.encode(drifted.read(drifted.stream, np.arange(5000)))
    for one in recorded:
        Q = drifted.read(drifted.queries, 5000 if one["rows"] > 2500 else 0)
        Y = drifted.labels[drifted.stream[: one["rows"]]]
        expected = evaluate(hasher.weigh(Q), codes[: one["rows"]], drifted.labels[drifted.queries], Y).map
        assert one["map"] == pytest.approx(expected)


def test_chunks_are_evaluated_before_they_are_learnt_against_the_newest_rows(data: Dataset) -> None:
    stream = data.stream
    X, Y = data.read(stream), data.labels[stream].copy()
    Y[4000:4500] = 0  # rows without labels ask nothing
    hasher = METHODS["lsh"](bits=32).fit(X[:300])
    watch = DriftWatch(data, stream)
    for s in range(0, 5000, 500):
        watch.chunk(hasher, X[s : s + 500], Y[s : s + 500])
    recorded = watch.take_record()
    assert [rows for rows, _ in recorded["prequential"]] == [1000, 1500, 2000, 2500, 3000, 3500, 4000, 5000]
    queries = np.arange(4500, 5000, 3)
    expected = evaluate(hasher.weigh(X[queries]), hasher.encode(X[500:4500]), Y[queries], Y[500:4500]).map
    assert recorded["prequential"][-1] == (5000, pytest.approx(expected))
    assert watch.take_record()["prequential"] == []  # each value is returned once


def test_an_alarm_follows_a_fall(data: Dataset) -> None:
    X, Y = data.read(data.stream), data.labels[data.stream]
    hasher = METHODS["pca-itq"](bits=32).fit(X[:300])
    watch = DriftWatch(data, data.stream)
    shuffled = np.random.default_rng(0).permutation(5000)
    for s in range(0, 5000, 200):  # from row 3,000 on features say nothing of the labels any more
        watch.chunk(hasher, X[s : s + 200] if s < 3000 else X[shuffled[s : s + 200]], Y[s : s + 200])
    assert watch.alarms and 3000 < watch.alarms[0] <= 4000
    assert watch.take_record()["alarms"] == watch.alarms


def test_other_jobs_say_nothing_of_drift(data: Dataset) -> None:
    (recorded,) = records(Job("table", "toy", "lsh", 16, 0), data)
    assert not {"groups", "prequential", "alarms", "changes"} & recorded.keys()


# ---- the report ----


@pytest.mark.nightly
def test_from_the_data_string_to_the_report(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    X, Y = toy(3100)
    np.savez(folder / "all.npz", x=X, labels=Y, queries=np.arange(100))
    jobs = [
        Job("drift", f"drift:{scenario}:{folder}", method, 16, 0, checkpoints=3)
        for scenario in ("classes", "features")
        for method in ("ohsl", "lsh")
    ]
    run(jobs, tmp_path / "results", workers=1)
    made = report(tmp_path / "results", tmp_path / "out")
    text = made[0].read_text(encoding="utf-8")
    assert "## Drift" in text and "### small-classes, 16 bits" in text and "### small-features, 16 bits" in text
    measures = ["mAP", "P@10", "P@100", "nDCG@10"]
    assert tables(text)[0]["at the end"] == [*measures, "mAP, old queries", "mAP, new queries"]
    assert tables(text)[2]["at the end"] == measures
    assert "drift-small-classes-16-bits-new-chunks.svg" in {path.name for path in made}
    assert made[1].read_text(encoding="utf-8").count("<svg") == text.count("![") == 6


def noted(rows: int, **said: Any) -> dict[str, Any]:
    start = max(1000, rows - 10_000)
    return line(
        experiment="drift",
        dataset="toy-classes",
        rows=rows,
        database=40_000,
        final=rows == 40_000,
        groups={"old": 0.5, "new": rows / 100_000},
        prequential=[[r, 0.5] for r in range(start + 1000, rows + 1000, 1000)],
        **{"changes": [20_000], "alarms": [], **said},
    )


def test_tables_of_groups_and_alarms(tmp_path: Path) -> None:
    drifted = {"ohsl": [22_000, 23_000], "hmoh": [5000, 36_000], "lsh": []}
    lines = [noted(rows, method=m, alarms=drifted[m]) for m in drifted for rows in (10_000, 20_000, 30_000, 40_000)]
    lines += [noted(rows, seed=1, alarms=[21_000, 3000]) for rows in (20_000, 40_000)]
    lines[0]["groups"] = None
    text = written(tmp_path, lines)
    final, alarms, *_ = tables(text)
    assert final["OHSL"] == ["**0.500 ± 0.000**", "**0.500 ± 0.000**", "**0.400 ± 0.000**"]
    assert alarms["alarms"] == ["false, a run", "changes found", "delay, rows"]
    assert alarms["OHSL"] == ["0.5", "2 of 2", "1,500"]
    assert alarms["HMOH"] == ["2", "0 of 1", "—"] and alarms["LSH"] == ["0", "0 of 1", "—"]
    assert "10,000 rows after a change" in text


def test_alarms_are_scored_by_the_last_change_before_them() -> None:
    assert score_alarms([], [100]) == AlarmScore(0, [])
    assert score_alarms([150, 160, 350], [100, 300], 100) == AlarmScore(0, [50, 50])
    assert score_alarms([100, 201, 90], [100], 100) == AlarmScore(3, [])  # too early, too late
    assert score_alarms([5], []) == AlarmScore(1, [])


def test_a_report_without_what_drift_adds(tmp_path: Path) -> None:
    """Lines of the experiment that lack its fields, as of an older version, spoil nothing."""
    text = written(tmp_path, [line(experiment="drift", map=None), line(method="okh")])
    final, alarms = tables(text[text.index("## Drift") :])[:2]
    assert final["OHSL"] == ["—"] and alarms["OHSL"] == ["0", "0 of 0", "—"]
    assert "## Retrieval quality" in text and "## Drift" not in written(tmp_path / "other", [line()])
