"""Commands that index and search words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.encoders import open_encoder
from tests.cli.test_collection import call, call_json
from tests.collection.fixtures import DIM, some_rows

TEXTS = ["Red wine", "a red, red car", "blue nights", "é"]
X = some_rows(len(TEXTS)).X


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    rows = [{"id": n, "features": X[n].tolist(), "metadata": {"text": text, "n": n}} for n, text in enumerate(TEXTS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call_json("create", tmp_path / "notes", "--dim", DIM, "--lexical-field", "text")["dim"] == DIM
    assert call_json("add", tmp_path / "notes", tmp_path / "rows.jsonl")["added"] == len(TEXTS)
    return tmp_path / "notes"


def ids(result: Any) -> list[int]:
    return [hit["id"] for hit in result["answers"][0]["hits"]]


def test_words_are_searched_without_an_encoder(notes: Path) -> None:
    assert ids(call_json("search", notes, "--text", "RED", "--lexical")) == [1, 0]
    assert ids(call_json("search", notes, "--words", '"red wine" e', "--lexical", "-k", 1)) == [3]
    assert ids(call_json("search", notes, "--text", "red", "--lexical", "--where", '{"n": 0}')) == [0]
    code, out, _ = call("search", notes, "--text", "blue", "--lexical")
    assert code == 0 and "blue nights" in out and "BM25" in out


def test_words_are_fused_with_a_vector(notes: Path) -> None:
    vector = json.dumps(X[2].tolist())
    result = call_json("search", notes, "--vector", vector, "--words", "red", "--hybrid", "-k", 3)
    with stillhash.open(notes, read_only=True) as collection:
        expected = collection.hybrid_search(X[2], "red", 3).hits
    assert ids(result) == [hit.id for hit in expected]
    assert [hit.get("lexical_rank") for hit in result["answers"][0]["hits"]] == [hit.lexical_rank for hit in expected]
    code, out, _ = call("search", notes, "--vector", vector, "--words", "red", "--hybrid")
    assert code == 0 and "learnt" in out and "words" in out


def test_a_text_is_encoded_and_its_words_are_searched(tmp_path: Path) -> None:
    encoder = open_encoder("words")
    with stillhash.open(tmp_path / "notes", encoder=encoder, lexical_field="text") as collection:
        collection.add(range(4), encoder.encode_texts(TEXTS), metadata=[{"text": text} for text in TEXTS])
        expected = collection.hybrid_search(encoder.encode_texts(["red car"])[0], "red car").hits
        other = collection.hybrid_search(encoder.encode_texts(["red car"])[0], "blue").hits
    result = call_json("search", tmp_path / "notes", "--text", "red car", "--hybrid")
    assert [(hit["id"], hit["score"]) for hit in result["answers"][0]["hits"]] == [(h.id, h.score) for h in expected]
    result = call_json("search", tmp_path / "notes", "--text", "red car", "--hybrid", "--words", "blue")
    assert [(hit["id"], hit["score"]) for hit in result["answers"][0]["hits"]] == [(h.id, h.score) for h in other]


@pytest.mark.parametrize(
    "options",
    [
        ["--text", "red", "--lexical", "--hybrid"],
        ["--like", "1", "--words", "red"],
        ["--like", "1", "--lexical"],
        ["--like", "1", "--words", "red", "--lexical"],
        ["--like", "1", "--hybrid"],
        ["--text", "red", "--words", "blue", "--lexical"],
        ["--like", "1", "--words", "red", "--hybrid", "--explain"],
        ["--text", "red", "--lexical", "--version", "0"],
        ["--hybrid", "--words", "red"],
    ],
)
def test_options_that_contradict_each_other_are_refused(notes: Path, options: list[str]) -> None:
    assert call("search", notes, *options)[0] == 2


def test_the_field_is_changed(notes: Path) -> None:
    assert call_json("lexical", notes, "--none") == {"lexical_field": None, "items": 0}
    assert call("search", notes, "--text", "red", "--lexical")[0] == 4
    assert call_json("lexical", notes, "--field", "text") == {"lexical_field": "text", "items": len(TEXTS)}
    assert ids(call_json("search", notes, "--text", "RED", "--lexical")) == [1, 0]
    assert call("lexical", notes)[0] == 2 and call("lexical", notes, "--field", "text", "--none")[0] == 2
    rows, other = notes.parent / "rows.jsonl", notes.parent / "other"
    assert call_json("import", rows, other, "--lexical-field", "text")["added"] == len(TEXTS)
    assert ids(call_json("search", other, "--text", "RED", "--lexical")) == [1, 0]
    code, out, _ = call("lexical", notes, "--field", "text")
    assert code == 0 and "4 items" in out
