"""`stillhash export` writes what `Collection.export` does, and says what it did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stillhash
from stillhash.cli.main import app
from stillhash.errors import Conflict, InvalidInput
from tests.collection.fixtures import begin, some_rows


@pytest.fixture
def films(tmp_path: Path) -> Path:
    collection, _ = begin(tmp_path / "films", 320)
    collection.close()
    return tmp_path / "films"


def test_export_reports_what_it_wrote(films: Path, tmp_path: Path) -> None:
    file = tmp_path / "e.jsonl"
    outcome = CliRunner().invoke(app, ["export", str(films), str(file)])
    assert outcome.exit_code == 0 and outcome.stdout.startswith(f"320 items exported to {file}"), outcome.output
    arguments = ["--where", '{"odd": true}', "--format", "npz", "--overwrite", "--json"]
    report = json.loads(CliRunner().invoke(app, ["export", str(films), str(file), *arguments]).stdout)
    assert report["format"] == "npz" and report["path"] == str(file) and report["bytes"] == file.stat().st_size
    with stillhash.import_export(file, tmp_path / "i") as copy, stillhash.open(films, read_only=True) as collection:
        assert report["items"] == copy.count() == collection.count({"odd": True})


def test_import_restores_an_export(films: Path, tmp_path: Path) -> None:
    file, to = tmp_path / "e.npz", tmp_path / "again"
    assert CliRunner().invoke(app, ["export", str(films), str(file)]).exit_code == 0
    result = json.loads(CliRunner().invoke(app, ["import", str(file), str(to), "--json"]).stdout)
    with stillhash.open(to, read_only=True) as copy, stillhash.open(films, read_only=True) as collection:
        assert result == {"added": 320, "count": 320, "version": collection.stats()["version"]}
        assert repr(copy.search(some_rows(5).X, 20)) == repr(collection.search(some_rows(5).X, 20))
    again = CliRunner().invoke(app, ["import", str(file), str(to)])
    assert isinstance(again.exception, Conflict)
    for arguments in ([str(file), str(file)], [str(file), "--bits", "64"], [str(file), "--id-column", "id"]):
        outcome = CliRunner().invoke(app, ["import", *arguments, str(tmp_path / "other")])
        assert isinstance(outcome.exception, InvalidInput), outcome.output
    assert not (tmp_path / "other").exists()


def test_export_beside_a_process_that_writes(films: Path, tmp_path: Path) -> None:
    with stillhash.open(films) as collection:
        collection.delete([1])
        assert CliRunner().invoke(app, ["export", str(films), str(tmp_path / "e.npz")]).exit_code == 0


def test_errors_of_the_library_reach_the_caller(films: Path, tmp_path: Path) -> None:
    (tmp_path / "e.npz").write_text("mine")
    for arguments, error in (([str(tmp_path / "e.npz")], Conflict), ([str(tmp_path / "e.csv")], InvalidInput)):
        outcome = CliRunner().invoke(app, ["export", str(films), *arguments])
        assert isinstance(outcome.exception, error)
    assert (tmp_path / "e.npz").read_text() == "mine"
