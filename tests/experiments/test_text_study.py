"""The preset text end to end on a tiny corpus, and the report made of its files."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash.errors import InvalidInput, MissingExtra
from stillhash.experiments.data import open_dataset
from stillhash.experiments.job import Job
from stillhash.experiments.metrics import evaluate_scores
from stillhash.experiments.passes import Pass
from stillhash.experiments.presets import PRESETS
from stillhash.experiments.results import EXPERIMENT_KINDS, TEXT_KINDS, read_results
from stillhash.experiments.run import records, run_job
from stillhash.experiments.text_collection import LABELS_COME
from stillhash.experiments.text_corpora import prepare_corpus
from stillhash.experiments.text_report import text_report
from stillhash.experiments.text_study import LEARNS_UNTIL, TEXT_EXPERIMENTS, read_months
from stillhash.numeric.ranking import rank_all
from tests.experiments.test_report import line, write
from tests.support.texts import WordCounts, write_debian, write_reuters

HAS_BM25 = find_spec("bm25s") is not None
FIRST = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("texts")
    prepare_corpus("reuters", write_reuters(base / "package", 400), WordCounts(), base / "tiny")
    return base / "tiny"


def lines_of(folder: Path, experiment: str, method: str = "tally", **changes: Any) -> list[dict[str, Any]]:
    job = replace(Job(experiment, str(folder), method, 32, 0, first=FIRST), **changes)
    return list(records(job, open_dataset(folder)))


def test_the_preset_has_all_experiments_and_dates_only_where_there_are_some(folder: Path, tmp_path: Path) -> None:
    assert tuple(TEXT_EXPERIMENTS) == TEXT_KINDS and set(TEXT_KINDS) < set(EXPERIMENT_KINDS)
    jobs = PRESETS["text"](str(folder), 2, ())
    assert {job.experiment for job in jobs} == set(TEXT_KINDS) and len({job.file for job in jobs}) == len(jobs)
    chosen = PRESETS["text"](str(folder), 1, ("lemon",))
    assert {job.method for job in chosen} == {"cosine", "bm25", "lemon"}
    prepare_corpus("debian", write_debian(tmp_path / "source"), WordCounts(), tmp_path / "debian")
    assert "text-time" not in {job.experiment for job in PRESETS["text"](str(tmp_path / "debian"), 1, ())}
    with pytest.raises(InvalidInput, match="dates"):
        read_months(tmp_path / "debian", 40)


@pytest.mark.slow  # nine figures and three collections
def test_the_preset_runs_and_the_report_shows_every_experiment(folder: Path, tmp_path: Path) -> None:
    chosen = [job for job in PRESETS["text"](str(folder), 1, ("tally",)) if job.bits in (0, 64)]
    jobs = [replace(job, first=300 if job.experiment == "text-collection" else FIRST) for job in chosen]
    for job in jobs:
        if HAS_BM25 or "bm25" not in job.method:
            run_job(job, tmp_path)
    runs = read_results(tmp_path)
    assert {run.experiment for run in runs.runs} == set(TEXT_KINDS) and not runs.unfinished
    paths = text_report(tmp_path, tmp_path / "out")
    text = paths[0].read_text(encoding="utf-8")
    assert text.count("\n## ") == len(TEXT_KINDS) + 1 and "float cosine" in text and "Tally, 64 bits" in text
    assert len(paths) == 8 and all(path.read_bytes().startswith(b"\x89PNG") for path in paths[1:])
    assert all(f"]({path.name})" in text for path in paths[1:])


def test_more_labels_rank_better_than_none_both_ways(folder: Path) -> None:
    for experiment in ("text-insertion", "text-late"):
        found = lines_of(folder, experiment)
        assert [one["labelled"] for one in found] == [0, 10, 30, 100, 300, 320] and found[-1]["final"]
        assert found[-1]["map"] > found[0]["map"] + 0.05
        assert all(one["rows"] == 320 and one["queries"] == 80 for one in found)
    shares = lines_of(folder, "text-shares")
    assert [one["labelled"] for one in shares] == [3, 10, 32, 96, 320]


def test_labels_at_insertion_are_seen_by_the_initial_stage_codes_and_learning(folder: Path) -> None:
    data = open_dataset(folder)
    job = Job("text-insertion", str(folder), "tally", 32, 3, first=FIRST, labelled_rows=100)
    run = Pass(job, data)
    labelled = run.known.Y.any(axis=1)
    assert labelled.sum() == run.known.rows == 100 and not run.known.late.any()
    assert run.known.initial is not None and np.array_equal(run.known.initial, run.known.Y[:FIRST])
    more = Pass(replace(job, labelled_rows=200), data).known.Y.any(axis=1)
    assert more.sum() == 200 and not (labelled & ~more).any()
    assert Pass(replace(job, labelled_rows=0), data).known.initial is None
    assert job.file != replace(job, labelled_rows=None).file
    with pytest.raises(InvalidInput, match="labelled_rows"):
        replace(job, labelled_rows=-1)


def test_cosine_is_that_of_features(folder: Path) -> None:
    data, (found,) = open_dataset(folder), lines_of(folder, "text-late", "cosine")
    X, Q = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in map(data.read, (data.stream, data.queries)))
    expected = evaluate_scores((Q @ X.T).__getitem__, data.labels[data.queries], data.labels[data.stream])
    assert found["map"] == pytest.approx(expected.map, abs=1e-3) and found["labelled"] == 0 and found["final"]


def test_over_time_each_text_is_searched_among_earlier_ones(folder: Path) -> None:
    found = lines_of(folder, "text-time")
    stopped = lines_of(folder, "text-time", params={LEARNS_UNTIL: "1987-02"})
    assert [one["period"] for one in found] == ["1987-02", "1987-03", "1987-04"] and found[-1]["final"]
    assert stopped[0]["map"] == found[0]["map"] and stopped[-1]["map"] < found[-1]["map"]
    assert stopped[0]["params"] == {LEARNS_UNTIL: "1987-02"} and found[-1]["rows"] == 400
    data, months = open_dataset(folder), read_months(folder, 400)
    cosine = lines_of(folder, "text-time", "cosine")
    (chunk,) = [np.flatnonzero(months == month) for month in np.unique(months)[-1:]]
    X = data.read(np.arange(400))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    before = chunk[0]
    expected = evaluate_scores((X[chunk] @ X[:before].T).__getitem__, data.labels[chunk], data.labels[:before])
    assert len(chunk) <= 250 and cosine[-1]["map"] == pytest.approx(expected.map, abs=1e-3)


def test_a_collection_has_the_hits_of_the_method(folder: Path, tmp_path: Path) -> None:
    data = open_dataset(folder)
    job = Job("text-late", str(folder), "tally", 32, 0, {"codes_see_labels": False}, first=300)
    run = Pass(job, data)
    X, Y = data.read(data.stream), data.labels[data.stream]
    run.encode(X)
    run.hasher.partial_fit(X[:50], Y[:50])
    settings = {"bits": 32, "init_rows": 300, "codes_see_labels": False, "params": {"random_state": 0}}
    settings["rescore_bits"] = 0  # the study measures the ranking of short codes
    with stillhash.open(tmp_path / "c", dim=data.dim, **settings) as collection:
        collection.add(range(len(X)), X)
        collection.learn(X[:50], [np.flatnonzero(row).tolist() for row in Y[:50]])
        fresh = [q for q in range(len(data.queries)) if not (data.read(data.queries[[q]]) == X).all(axis=1).any()]
        queries = data.read(data.queries[fresh])
        hits = [[hit.id for hit in answer.hits] for answer in collection.search(queries, 10)]
    assert len(fresh) > 20 and np.array_equal(rank_all(run.hasher.ranking(queries), run.codes)[:, :10], hits)


@pytest.mark.parametrize("way", ["with items", "by learn"])
def test_first_hits_of_a_collection_get_better_with_labels(folder: Path, way: str) -> None:
    found = lines_of(folder, "text-collection", params={LABELS_COME: way}, first=300)
    assert [one["labelled"] for one in found] == [0, 100, 300, 320]
    assert found[-1]["ndcg_10"] > found[0]["ndcg_10"] and all(one["map"] is None for one in found)


def test_bm25_without_its_package_names_the_extra(folder: Path) -> None:
    if HAS_BM25:
        (found,) = lines_of(folder, "text-late", "bm25")
        fused = lines_of(folder, "text-late", "tally+bm25")
        assert found["map"] > 0.4 and fused[0]["method"] == "tally+bm25" and fused[-1]["map"] > fused[0]["map"]
    else:
        with pytest.raises(MissingExtra, match="text-study"):
            lines_of(folder, "text-late", "bm25")


def test_the_report_fills_constant_rows_and_says_from_where_on_a_line_is_above(tmp_path: Path) -> None:
    def at(labelled: int, value: float, **changes: Any) -> dict[str, Any]:
        about = {"experiment": "text-late", "bits": 64, "method": "tally", "final": labelled in (0, 30)}
        return line(**about | {"labelled": labelled, "map": value, "precision_10": 0.5, "ndcg_10": 0.5} | changes)

    lines = [at(0, 0.4, final=False), at(10, 0.6, final=False), at(30, 0.7)]
    lines += [at(0, 0.5, method="cosine", bits=0), at(0, 0.65, method="bm25", bits=0)]
    text = text_report(write(tmp_path / "in", lines), tmp_path / "out")[0].read_text(encoding="utf-8")
    assert "|  | 0 | 10 | 30 |" in text and "| float cosine | 0.500 | 0.500 | 0.500 |" in text
    assert "| Tally, 64 bits | 0.400 | **0.600** | **0.700** |" in text
    assert "| Tally, 64 bits | 10 | never | never | 30 | never | never |" in text
    with pytest.raises(InvalidInput, match="preset text"):
        text_report(write(tmp_path / "other", [line()]), tmp_path / "out")
    with pytest.raises(InvalidInput, match="out"):
        text_report(tmp_path / "in", tmp_path / "in" / "results.jsonl")
