"""The experiments with a collection on disk, on small made-up data."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stillhash.cli.main import app
from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset
from stillhash.experiments.label_studies import (
    LABEL_STUDIES,
    StudyRows,
    hit_ids,
    label_lists,
    make_corrections,
    rank_all,
    ranked_rows,
    relabel,
    rows_without_labels,
    study_jobs,
)
from stillhash.experiments.metrics import evaluate, evaluate_hits
from stillhash.experiments.report import report
from stillhash.experiments.results import read_results
from stillhash.experiments.study_tables import active_tables
from stillhash.hashers import Tally
from stillhash.numeric.ranking import Ranking, order_rows, rank_scores
from tests.experiments.test_report import line, write
from tests.support.toys import toy

STUDY_BITS = 32


@pytest.fixture(scope="module")
def single() -> Dataset:
    """700 rows with one of four labels, 100 of them queries; features say less than labels do."""
    rng = np.random.default_rng(0)
    classes = rng.integers(4, size=700)
    X = rng.standard_normal((4, 32))[classes] + 2 * rng.standard_normal((700, 32)) + 1
    return Dataset("toy", (X.astype(np.float32),), 1.0, np.eye(4, dtype=np.uint8)[classes], np.arange(100))


@pytest.fixture(scope="module")
def several() -> Dataset:
    """The same with several labels on a row."""
    X, Y = toy(700, dim=32, labels=4)
    return Dataset("toy", (X,), 1.0, Y, np.arange(100))


@pytest.fixture(scope="module")
def encoded_again(single: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with other features of the same rows."""
    folder = tmp_path_factory.mktemp("again")
    features = single.parts[0] @ np.random.default_rng(0).standard_normal((32, 40))
    arrays = {"features": features.astype(np.float32), "labels": single.labels, "queries": single.queries}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


@pytest.fixture(scope="module")
def records(single: Dataset, encoded_again: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of one job of each experiment."""
    params = {"align": {"new": str(encoded_again)}}
    return {study: run_study(study, single, **params.get(study, {})) for study in LABEL_STUDIES}


def run_study(study: str, data: Dataset, **params: Any) -> list[dict[str, Any]]:
    (job,) = study_jobs(study, data.name, (STUDY_BITS,), seeds=1, queries=100, **params)
    return list(LABEL_STUDIES[study](job, data))


def test_late_labels_are_beside_cosine_and_labels_at_insertion(
    records: dict[str, list[dict[str, Any]]], single: Dataset
) -> None:
    cosine, inserted, *late = records["late-labels"]
    assert [one["labelled"] for one in late] == [0, 30, 100, 300, 600] and inserted["labelled"] == 600
    assert [one["final"] for one in late] == [False] * 4 + [True]
    assert [one["map"] is not None for one in late] == [True, False, True, False, True]
    assert late[-1]["precision_10"] > late[0]["precision_10"] and late[-1]["map"] > cosine["map"]
    assert cosine["groups"]["own item first"] == cosine["groups"]["near duplicate"] == 1
    items, queries = (single.read(rows) for rows in (single.stream, single.queries))
    raw = (queries @ items.T) / np.linalg.norm(items, axis=1)
    hits = np.argsort(-raw, axis=1, kind="stable")[:, :10]
    own = evaluate_hits(hits, single.labels[single.queries], single.labels[single.stream])
    assert own.precision_10 <= cosine["precision_10"] < own.precision_10 + 0.1


def test_each_class_is_the_new_one(records: dict[str, list[dict[str, Any]]], several: Dataset) -> None:
    for new in range(4):
        cosine, *late = (one for one in records["new-class"] if one["params"] == {"new_class": new})
        assert cosine["method"] == "cosine" and [one["labelled"] for one in late][:2] == [0, 30]
        assert late[-1]["final"] and late[-1]["precision_10"] > late[0]["precision_10"]
        assert late[-1]["groups"]["others"] > cosine["groups"]["others"]
    with pytest.raises(InvalidInput, match=r"^labels"):
        run_study("new-class", several)


def test_corrections_are_beside_a_collection_that_was_right(records: dict[str, list[dict[str, Any]]]) -> None:
    cosine, *corrected = records["corrections"]
    assert cosine["method"] == "cosine" and len({str(one["params"]) for one in corrected}) == len(corrected) == 7
    assert all(one["problems"] == [] and one["groups"]["verified"] == 1 for one in corrected[:-1])
    lasting, hidden = corrected[-2:]
    assert "not corrected" in lasting["params"]["correction"] and "without stored" in hidden["params"]["correction"]
    assert lasting["precision_10"] == lasting["groups"]["before"] < lasting["groups"]["right"]
    assert hidden["precision_10"] == hidden["groups"]["before"] != lasting["precision_10"]


def test_rows_are_ranked_as_search_does(several: Dataset) -> None:
    rows = StudyRows(study_jobs("late-labels", "toy", (STUDY_BITS,), 1, 30)[0], several)
    with rows.stored(rows.Y) as collection:
        page, whole = hit_ids(collection, rows.Q, 10), hit_ids(collection, rows.Q, 600)
        assert np.array_equal(ranked_rows(collection, rows.Q, 600), whole)
        hidden = rows_without_labels(collection, rows.Q, 600)
        assert not np.array_equal(hidden[:, :10], page)
        collection.relabel(list(range(600)), label_lists(rows.Y[::-1]), learn=False)
        assert not np.array_equal(hit_ids(collection, rows.Q, 10), page)
        assert np.array_equal(rows_without_labels(collection, rows.Q, 600), hidden)


def test_voted_items_move_and_clicks_teach(records: dict[str, list[dict[str, Any]]]) -> None:
    votes, *clicks = records["feedback"]
    groups = votes["groups"]
    assert groups["liked"] + groups["disliked"] == 50 and groups["fell"] == groups["rose"] == 0
    assert groups["liked"] and groups["disliked"]
    for name in ("other hits", "a similar query", "other queries"):
        assert groups[f"{name} after"] > groups[f"{name} before"] - 0.02 > 0
    assert [one["labelled"] for one in clicks] == [0, 30, 100, 300, 600] and clicks[-1]["final"]
    assert clicks[-1]["precision_10"] > clicks[0]["precision_10"]


def test_an_alignment_is_between_the_encoders(
    records: dict[str, list[dict[str, Any]]], single: Dataset, several: Dataset, encoded_again: Path
) -> None:
    old, *aligned, again = records["align"]
    assert [one["params"]["queries"] for one in aligned] == [f"{n} images in both" for n in (100, 300, 600)]
    assert again["params"] == {"queries": "encoded again"} and old["dataset"] == f"toy to {encoded_again.name}"
    for one in aligned:
        assert one["chance"] < one["map"] and one["map"] > 0.9 * again["map"] and one["groups"]["explained"] > 0.5
    with pytest.raises(InvalidInput, match=r"^new"):
        run_study("align", several, new=str(encoded_again))


def test_corrections_change_what_they_say(single: Dataset, several: Dataset) -> None:
    for Y in (single.labels, several.labels):
        made = make_corrections(Y, 300, np.random.default_rng(0))
        one, other = np.argsort(-Y.sum(axis=0, dtype=int), kind="stable")[:2]
        swapped, removed = made["two classes swapped"].stored, made["a label removed"].right
        assert np.array_equal(swapped[:, one], Y[:, other]) and not removed[:, one].any()
        assert np.array_equal(made["a class renamed"].right[:, -1], Y[:, one])
        wrong = made["18% wrong labels"]
        assert 0 < (wrong.stored != wrong.right).any(axis=1).mean() <= 0.18
        left = made["10% of the rows deleted"].rows
        assert len(left) == 630 and np.array_equal(left[:300], np.arange(300))


def test_suggested_items_are_beside_random_ones(records: dict[str, list[dict[str, Any]]]) -> None:
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for record in records["active"]:
        found.setdefault(tuple(record["params"].values()), []).append(record)
    assert set(found) == {(c, f) for c in ("random", "suggest_labels") for f in ("kept", "codes alone")}
    for some in found.values():
        assert [one["labelled"] for one in some] == [0, 100, 300] and [one["final"] for one in some][-1]
        assert some[-1]["map"] > some[0]["map"]
    random, chosen = (found[choice, "kept"] for choice in ("random", "suggest_labels"))
    assert random[0]["map"] == chosen[0]["map"] and random[0]["database"] == 480


@pytest.mark.parametrize("keep_features", [True, False])
def test_active_learning_measures_the_ranking_of_the_collection(keep_features: bool, several: Dataset) -> None:
    rows = StudyRows(study_jobs("active", "toy", (STUDY_BITS,), 1, 100)[0], several)
    labelled = np.arange(0, 600, 7)
    settings = {"init": rows.X[: rows.init_rows], "keep_features": keep_features, "rescore_bits": 0}
    hasher = Tally(STUDY_BITS, double_sums=keep_features, random_state=0).fit(settings["init"])
    with rows.stored(np.zeros_like(rows.Y), **settings) as collection:
        relabel(collection, labelled, rows.Y)
        measured, page = rank_all(rows, collection, hasher, labelled), rows.page(partial(hit_ids, collection))
    assert all(measured[name] == pytest.approx(page[name], abs=1e-6) for name in ("precision_10", "ndcg_10"))


def test_gains_are_over_random_items_of_the_same_seed(tmp_path: Path) -> None:
    values = {("random", 0): 0.5, ("random", 1): 0.7, ("suggest_labels", 0): 0.6, ("suggest_labels", 1): 0.82}
    lines = [
        line(experiment="active", method="tally", seed=seed, labelled=100, map=value, precision_10=value, ndcg_10=value)
        | {"params": {"choice": choice, "features": "kept"}}
        for (choice, seed), value in values.items()
    ]
    (table,) = active_tables(read_results(write(tmp_path, lines)).runs)
    assert list(table.rows) == [["100", *["0.600", "0.710 (+0.1100 ± 0.0100)"] * 3]]


def test_first_hits_have_the_quality_of_the_ranking(several: Dataset) -> None:
    rows = StudyRows(study_jobs("late-labels", "toy", (STUDY_BITS,), 1, 100)[0], several)
    codes = np.random.default_rng(0).integers(0, 256, (600, 4), dtype=np.uint8)
    weights = np.random.default_rng(1).standard_normal((100, 32)).astype(np.float32)
    whole = evaluate(weights, codes, rows.query_labels, rows.Y)
    hits = order_rows(rank_scores(Ranking(weights), codes))
    some, every = (evaluate_hits(part, rows.query_labels, rows.Y) for part in (hits[:, :10], hits))
    assert some.precision_10 == pytest.approx(whole.precision_10) and some.ndcg_10 == pytest.approx(whole.ndcg_10)
    assert every.map == pytest.approx(whole.map)


def test_the_report_shows_them_first(records: dict[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    lines = [json.dumps(record) for some in records.values() for record in some]
    (tmp_path / "all.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = report(tmp_path, tmp_path / "report")[0].read_text(encoding="utf-8")
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert headings[:3] == ["Labels that come late", "A new class among labelled items", "Labels that are corrected"]
    assert text.index("| float cosine | ") < text.index("| 0 late | ") < text.index("| 600 at insertion | ")
    assert "| new class | float cosine | 0 late | 30 late | all late |" in text and "| mean | " in text
    assert all(f"| {record['params']['correction']} | " in text for record in records["corrections"][1:])
    assert "| 0 of " in text and "| queries with clicks | P@10 | nDCG@10 |" in text
    (line,) = (line for line in text.splitlines() if line.startswith("| encoded again |"))
    assert line.split(" | ")[-3:-1] == ["100.0%", "100.0%"]


@pytest.mark.nightly
def test_a_command_writes_results_once_and_prints_tables(single: Dataset, tmp_path: Path) -> None:
    for name, array in (("features", single.parts[0]), ("labels", single.labels), ("queries", single.queries)):
        np.save(tmp_path / f"{name}.npy", array)
    results = str(tmp_path / "results")
    options = ["--data", str(tmp_path), "--bits", "32", "--seeds", "1", "--queries", "50", "--results", results]
    words = ["experiment", "new-class", *options, "--workers", "1"]
    first, again = (CliRunner().invoke(app, [*words, *more]) for more in ([], ["--json"]))
    assert first.exit_code == 0 and "float cosine" in first.stdout and "P@10 of other queries" in first.stdout
    assert json.loads(again.stdout) == {"jobs": 1, "run": 0, "skipped": 1, "results": results}


@pytest.mark.parametrize("study", LABEL_STUDIES)
def test_lengths_are_validated(study: str) -> None:
    data = ["old", "new"] if study == "align" else ["--data", "scenes"]
    done = CliRunner().invoke(app, ["experiment", study, *data, "--bits", "64,x"])
    assert isinstance(done.exception, InvalidInput) and str(done.exception).startswith("bits")
