"""The preset text: corpora that are read, rankings by their definitions, experiments and their report on tiny ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from stillhash.cli.completion import CORPUS_NAMES
from stillhash.cli.main import app
from stillhash.encoders import open_encoder
from stillhash.errors import Conflict, InvalidInput, MissingExtra
from stillhash.experiments.data import open_dataset
from stillhash.experiments.job import Job
from stillhash.experiments.metrics import cosine_scores, evaluate_scores
from stillhash.experiments.passes import Pass
from stillhash.experiments.presets import PRESETS
from stillhash.experiments.report import report
from stillhash.experiments.results import EXPERIMENT_KINDS, TEXT_KINDS, read_results
from stillhash.experiments.run import records, run_job
from stillhash.experiments.texts import (
    BM25_B,
    BM25_K1,
    CORPORA,
    TEXT_EXPERIMENTS,
    bm25_scores,
    fuse_ranks,
    parse_date,
    prepare_corpus,
    read_debian,
    read_reuters,
    read_stanzas,
    read_texts,
    tokenize,
)
from tests.experiments.test_report import line, tables, written
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


def test_the_preset_has_all_experiments(folder: Path) -> None:
    assert tuple(TEXT_EXPERIMENTS) == TEXT_KINDS and set(TEXT_KINDS) < set(EXPERIMENT_KINDS)
    jobs = PRESETS["text"](str(folder), 2, ())
    assert {job.experiment for job in jobs} == set(TEXT_KINDS) and len({job.file for job in jobs}) == len(jobs)
    chosen = PRESETS["text"](str(folder), 1, ("lemon",))
    assert {job.method for job in chosen} == {"cosine", "bm25", "lemon"}


@pytest.mark.nightly
def test_the_preset_runs_and_the_report_shows_every_experiment(folder: Path, tmp_path: Path) -> None:
    chosen = [job for job in PRESETS["text"](str(folder), 1, ("tally",)) if job.bits in (0, 64)]
    for job in (replace(job, first=FIRST) for job in chosen if HAS_BM25 or "bm25" not in job.method):
        run_job(job, tmp_path)
    runs = read_results(tmp_path)
    assert {run.experiment for run in runs.runs} == set(TEXT_KINDS)
    text = report(tmp_path, tmp_path / "out")[0].read_text(encoding="utf-8")
    assert text.count("\n## Texts: ") == len(TEXT_KINDS) and "float cosine" in text and "Tally (bits=64)" in text


def test_more_labels_rank_better_than_none_both_ways(folder: Path) -> None:
    for experiment in ("text-insertion", "text-late"):
        found = lines_of(folder, experiment)
        assert [one["labelled"] for one in found] == [0, 10, 30, 100, 300, 320] and found[-1]["final"]
        assert found[-1]["map"] > found[0]["map"] + 0.05
        assert all(one["rows"] == 320 and one["queries"] == 80 for one in found)


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


def test_bm25_without_its_package_names_the_extra(folder: Path) -> None:
    if HAS_BM25:
        (found,) = lines_of(folder, "text-late", "bm25")
        fused = lines_of(folder, "text-late", "tally+bm25")
        assert found["map"] > 0.4 and fused[0]["method"] == "tally+bm25" and fused[-1]["map"] > fused[0]["map"]
    else:
        with pytest.raises(MissingExtra, match="text-study"):
            lines_of(folder, "text-late", "bm25")


def test_the_report_fills_the_rows_of_rankings_that_learn_nothing(tmp_path: Path) -> None:
    def at(labelled: int, value: float, **changes: Any) -> dict[str, Any]:
        about = {"experiment": "text-late", "bits": 64, "method": "tally", "final": labelled in (0, 30)}
        return line(**about | {"labelled": labelled, "map": value, "precision_10": 0.5} | changes)

    lines = [at(0, 0.4, final=False), at(10, 0.6, final=False), at(30, 0.7)]
    lines += [at(0, 0.5, method="cosine", bits=0), at(0, 0.65, method="bm25", bits=0)]
    quality, precision, *_ = tables(written(tmp_path, lines))
    assert quality[""] == ["0", "10", "30"] and quality["float cosine"] == ["<u>0.500</u>", "0.500", "0.500"]
    assert quality["Tally (bits=64)"] == ["0.400", "<u>0.600</u>", "**0.700**"]
    assert precision["BM25"] == ["**0.500**"] * 3


# ---- rankings ----


def slow_bm25(items: list[list[str]], queries: list[list[str]]) -> NDArray[np.float64]:
    """The definition of BM25, as Lucene has it."""
    mean = sum(map(len, items)) / len(items)
    scores = np.zeros((len(queries), len(items)))
    for q, query in enumerate(queries):
        for word in query:
            holding = sum(word in item for item in items)
            rarity = math.log(1 + (len(items) - holding + 0.5) / (holding + 0.5))
            for i, item in enumerate(items):
                count = item.count(word)
                scores[q, i] += rarity * count / (count + BM25_K1 * (1 - BM25_B + BM25_B * len(item) / mean))
    return scores


@pytest.mark.parametrize("seed", range(5))
def test_bm25_is_its_definition(seed: int) -> None:
    pytest.importorskip("bm25s", reason="needs stillhash[text-study]")
    rng = np.random.default_rng(seed)
    words = [f"w{number}" for number in range(30)]
    items = [rng.choice(words, rng.integers(1, 40)).tolist() for _ in range(50)]
    queries = [*(rng.choice([*words, "unknown"], rng.integers(1, 20)).tolist() for _ in range(10)), [], ["unknown"]]
    assert np.allclose(bm25_scores(items, queries), slow_bm25(items, queries), rtol=1e-5, atol=1e-6)


def test_words_are_lower_case_without_stop_words() -> None:
    pytest.importorskip("bm25s", reason="needs stillhash[text-study]")
    assert tokenize(["The price of WHEAT rose, wheat", ""]) == [["price", "wheat", "rose", "wheat"], []]


def test_cosine_is_its_definition_and_zero_for_zeros() -> None:
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((7, 5)).astype(np.float32), rng.standard_normal((3, 5)).astype(np.float32)
    X[2] = 0
    expected = [[float(q @ x / max(1e-30, np.linalg.norm(q) * np.linalg.norm(x))) for x in X] for q in Q]
    assert np.allclose(cosine_scores(X, Q), expected, atol=1e-6)


def test_fusion_adds_reciprocal_ranks_with_ties_in_database_order() -> None:
    a, b = np.array([[3, 1, 2]], np.float32), np.array([[0, 0, 5]], np.float32)
    ranks_a, ranks_b = np.array([1, 3, 2]), np.array([2, 3, 1])
    assert np.allclose(fuse_ranks(a, b), 1 / (60 + ranks_a) + 1 / (60 + ranks_b))


# ---- corpora ----


def test_reuters_has_documents_with_body_and_topics_in_the_order_of_dates(tmp_path: Path) -> None:
    texts = read_reuters(write_reuters(tmp_path / "package"))
    assert len(texts) == 90 and {text.id for text in texts} == {str(number) for number in range(90)}
    assert [text.id for text in texts] != sorted((text.id for text in texts), key=int)  # the newest were written first
    assert int(texts[0].id) > 60 > 30 > int(texts[-1].id)
    assert texts == read_reuters(tmp_path / "package" / "data" / "full")
    assert all(text.labels and "NOTE" in text.text and "word" in text.text for text in texts)


def test_dates_are_read_with_words_around_them_and_others_are_refused() -> None:
    expected = int(datetime(1987, 2, 26, 15, 1, 1, tzinfo=UTC).timestamp())
    assert parse_date("26-FEB-1987 15:01:01.79", "x") == parse_date("CRUDE 26-FEB-1987 15:01:01.79 #5", "x") == expected
    assert parse_date(" 5-MAR-1987 605:12:19.12", "x") == int(datetime(1987, 3, 5, tzinfo=UTC).timestamp())
    for date in ("", "1987-02-26", "31-FEB-1987 10:00:00", "1-XXX-1987 10:00:00"):
        with pytest.raises(InvalidInput, match="date"):
            parse_date(date, "x")


def test_debian_has_one_text_for_each_description_with_frequent_tags(tmp_path: Path) -> None:
    texts = read_debian(write_debian(tmp_path))
    assert sorted(text.id for text in texts) == sorted(f"p{number}" for number in range(40))
    assert {tuple(text.labels) for text in texts} == {("use::gameplaying",), ("works-with::audio",)}
    assert [text.id for text in texts] != [f"p{number}" for number in range(40)] and texts == read_debian(tmp_path)
    assert all(text.text.splitlines()[1:3] == ["first line", ""] for text in texts)


def test_stanzas_keep_continued_lines(tmp_path: Path) -> None:
    path = tmp_path / "Packages"
    path.write_text("\n\nA: 1\nB: x:y\n more\n\nA: 2", encoding="utf-8")
    assert list(read_stanzas(path)) == [{"A": "1", "B": "x:y\n more"}, {"A": "2"}]
    path.write_text("A: 1\nno colon\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="NAME: VALUE"):
        list(read_stanzas(path))


def test_a_prepared_corpus_is_a_feature_folder_with_texts(tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    source, out = write_reuters(tmp_path / "package"), tmp_path / "out"
    result = prepare_corpus("reuters", source, WordCounts(), out, lambda *counts: done.append(counts))
    assert (result["texts"], result["labels"], result["queries"]) == (90, 3, 18) and done[-1] == (90, 90)
    data, texts = open_dataset(out), read_reuters(source)
    assert (data.name, len(data), data.dim, len(data.queries)) == ("out", 90, 24, 18)
    assert read_texts(out, 90) == [text.text for text in texts]
    names = json.loads((out / "label_names.json").read_text(encoding="utf-8"))
    assert [[names[c] for c in np.flatnonzero(row)] for row in data.labels] == [text.labels for text in texts]
    assert np.array_equal(data.read(np.arange(90)), WordCounts().encode_texts([text.text for text in texts]))
    with pytest.raises(InvalidInput, match=r"texts\.jsonl"):
        read_texts(out, 91)
    with pytest.raises(InvalidInput, match="prepare-text"):
        read_texts(tmp_path, 90)


def test_wrong_sources_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    out, full = tmp_path / "out", tmp_path / "full"
    for corpus in CORPORA:
        with pytest.raises(InvalidInput, match="source"):
            prepare_corpus(corpus, tmp_path / "nothing", WordCounts(), out)
    with pytest.raises(InvalidInput, match="corpus"):
        prepare_corpus("novels", tmp_path, WordCounts(), out)
    with pytest.raises(InvalidInput, match="encoder"):
        prepare_corpus("debian", write_debian(tmp_path / "debian"), open_encoder("vectors:8"), out)
    for content in ("{", '{"a": 1}', "[1]", '[{"body": "a", "topics": ["b"], "date": "?"}]', "[]"):
        full.mkdir(exist_ok=True)
        (full / "reuters-000.json").write_text(content, encoding="utf-8")
        with pytest.raises(InvalidInput):
            prepare_corpus("reuters", full, WordCounts(), out)
    assert not out.exists()
    with pytest.raises(Conflict, match="out"):
        prepare_corpus("debian", tmp_path / "debian", WordCounts(), full)


def test_the_command_prepares_a_corpus_or_names_what_is_wrong(tmp_path: Path) -> None:
    assert tuple(CORPORA) == CORPUS_NAMES
    source = write_reuters(tmp_path / "package")
    done = CliRunner().invoke(
        app, ["experiment", "prepare-text", "reuters", str(source), str(tmp_path / "a"), "--json"]
    )
    assert done.exit_code == 0 and json.loads(done.stdout)["texts"] == len(open_dataset(tmp_path / "a")) == 90
    arguments = ["experiment", "prepare-text", "debian", str(tmp_path), str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, [*arguments, "--encoder", "vectors:8"])
    assert isinstance(done.exception, InvalidInput | SystemExit) and done.exit_code != 0
    assert not (tmp_path / "out").exists()
