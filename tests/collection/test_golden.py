"""Stores of all formats that were ever released open, answer as they did, and can be written to; others are refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.collection.storage.database import stored_format
from stillhash.errors import BadState
from tests.collection.fixtures import some_rows
from tests.collection.golden import FOLDER, QUERIES, answers, close
from tests.collection.hostile import edit


def write_to(collection: stillhash.Collection, expected: dict[str, Any]) -> None:
    """Check that the collection can be changed, and that an earlier version ranks as before."""
    before = collection.versions()[-1]["version"]
    collection.upsert(["new"], *some_rows(1, seed=9))
    assert collection.learn(*some_rows(30, seed=9)[:2]) == before + 2  # pending rows, and these
    collection.feedback(QUERIES[0], "new", True)
    collection.compact()
    assert collection.verify() == [] and collection.get(["new"])[0] is not None
    again = collection.search(QUERIES, 5, version=2)
    assert [hit.id for hit in again[0].hits][:1] == [hit["id"] for hit in expected["earlier"][0]["hits"]][:1]


def test_there_is_one_for_each_format() -> None:
    assert sorted(file.stem for file in FOLDER.glob("format-*.zip")) == ["format-5", "format-7"]


@pytest.mark.parametrize("number", [5, 7])
def test_a_golden_store_answers_as_it_did(tmp_path: Path, number: int) -> None:
    with zipfile.ZipFile(FOLDER / f"format-{number}.zip") as archive:
        archive.extractall(tmp_path)
    assert stored_format(tmp_path / "golden") == number
    expected = json.loads((tmp_path / "answers.json").read_text())
    with stillhash.open(tmp_path / "golden", read_only=True) as collection:
        results = answers(collection)
        for name in expected:
            assert close(results[name], expected[name]), name
        assert collection.verify() == []
    with stillhash.open(tmp_path / "golden") as collection:
        write_to(collection, expected)


@pytest.mark.parametrize("number", [1, 4, 8, "5"])
def test_other_formats_are_refused_and_not_changed(tmp_path: Path, number: int | str) -> None:
    with zipfile.ZipFile(FOLDER / "format-5.zip") as archive:
        archive.extractall(tmp_path)
    path = tmp_path / "golden"
    edit(path, ("UPDATE meta SET value = ? WHERE key = 'format'", [number]))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and "store.db-" not in file.name}
    for read_only in (True, False):
        with pytest.raises(BadState, match=f"expected store format 5, got {number!r}"):
            stillhash.open(path, read_only=read_only)
    assert {file: file.read_bytes() for file in before} == before
