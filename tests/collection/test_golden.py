"""Stores of all formats that were ever released open, answer as they did, and can be written to."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

import stillhash
from tests.collection.fixtures import some_rows
from tests.collection.golden import FOLDER, QUERIES, answers, close

FILES = sorted(FOLDER.glob("format-*.zip"))


def test_there_is_one_for_this_format() -> None:
    assert [file.stem for file in FILES] == ["format-5"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_golden_store_answers_as_it_did(file: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path)
    expected = json.loads((tmp_path / "answers.json").read_text())
    with stillhash.open(tmp_path / "golden", read_only=True) as collection:
        results = answers(collection)
        for name in expected:
            assert close(results[name], expected[name]), name
        assert collection.verify() == []
    with stillhash.open(tmp_path / "golden") as collection:
        before = collection.versions()[-1]["version"]
        collection.upsert(["new"], *some_rows(1, seed=9))
        assert collection.learn(*some_rows(30, seed=9)[:2]) == before + 2  # pending rows, and these
        collection.feedback(QUERIES[0], "new", True)
        collection.compact()
        assert collection.verify() == [] and collection.get(["new"])[0] is not None
        again = collection.search(QUERIES, 5, version=2)
        assert [hit.id for hit in again[0].hits][:1] == [hit["id"] for hit in expected["earlier"][0]["hits"]][:1]
