"""Corpora of texts: what is read from the packages, and the feature folders that are written of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from stillhash.cli.defaults import CORPUS_NAMES
from stillhash.cli.main import app
from stillhash.encoders import open_encoder
from stillhash.errors import Conflict, InvalidInput
from stillhash.experiments.data import open_dataset
from stillhash.experiments.text_corpora import (
    CORPORA,
    parse_date,
    prepare_corpus,
    read_debian,
    read_reuters,
    read_stanzas,
    read_texts,
)
from tests.support.texts import WordCounts, write_debian, write_reuters


def test_reuters_has_documents_with_body_and_topics_in_the_order_of_dates(tmp_path: Path) -> None:
    texts = read_reuters(write_reuters(tmp_path / "package"))
    assert len(texts) == 90 and {text.id for text in texts} == {str(number) for number in range(90)}
    times = [text.time or 0 for text in texts]
    assert times == sorted(times) and min(times) > 0
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
    with pytest.raises(InvalidInput, match="line 2"):
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
    assert np.load(out / "times.npy").tolist() == [text.time for text in texts]
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
