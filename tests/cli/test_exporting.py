"""`stillhash export` writes what `Collection.export` does, and says what it did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stillhash
from stillhash.cli.main import app
from stillhash.errors import Conflict, InvalidInput
from tests.collection.fixtures import begin


@pytest.fixture
def films(tmp_path: Path) -> Path:
    collection, _ = begin(tmp_path / "films", 320)
    collection.close()
    return tmp_path / "films"


def test_export_reports_what_it_wrote(films: Path, tmp_path: Path) -> None:
    file = tmp_path / "e.jsonl"
    outcome = CliRunner().invoke(app, ["export", str(films), str(file)])
    assert outcome.exit_code == 0 and outcome.stdout.startswith(f"320 items exported to {file}"), outcome.output
    arguments = ["--where", '{"odd": true}', "--overwrite", "--json"]
    report = json.loads(CliRunner().invoke(app, ["export", str(films), str(file), *arguments]).stdout)
    assert report["format"] == "jsonl" and report["path"] == str(file) and report["bytes"] == file.stat().st_size
    with stillhash.open(films, read_only=True) as collection:
        assert report["items"] == len(file.read_text().splitlines()) == collection.count({"odd": True})


def test_import_reads_a_table_with_features_and_refuses_one_without(films: Path, tmp_path: Path) -> None:
    begin(tmp_path / "kept", 320, keep_features=True)[0].close()
    for path in (films, tmp_path / "kept"):
        assert CliRunner().invoke(app, ["export", str(path), str(path.with_suffix(".parquet"))]).exit_code == 0
    file, to = str(tmp_path / "kept.parquet"), tmp_path / "again"
    assert json.loads(CliRunner().invoke(app, ["import", file, str(to), "--json"]).stdout)["added"] == 320
    with stillhash.open(to, read_only=True) as copy, stillhash.open(films, read_only=True) as collection:
        assert list(copy.items()) == list(collection.items())
    outcome = CliRunner().invoke(app, ["import", str(tmp_path / "films.parquet"), str(tmp_path / "other")])
    assert isinstance(outcome.exception, InvalidInput) and "expected features" in str(outcome.exception)
    assert not (tmp_path / "other").exists()


def test_snapshot_to_a_tar_file(films: Path, tmp_path: Path) -> None:
    outcome = CliRunner().invoke(app, ["snapshot", str(films), str(tmp_path / "monday.tar"), "--json"])
    assert json.loads(outcome.stdout)["bytes"] == (tmp_path / "monday.tar").stat().st_size
    outcome = CliRunner().invoke(app, ["snapshot", str(films), str(tmp_path / "monday.tar")])
    assert isinstance(outcome.exception, Conflict)


def test_export_beside_a_process_that_writes(films: Path, tmp_path: Path) -> None:
    with stillhash.open(films) as collection:
        collection.delete([1])
        assert CliRunner().invoke(app, ["export", str(films), str(tmp_path / "e.parquet")]).exit_code == 0


def test_errors_of_the_library_reach_the_caller(films: Path, tmp_path: Path) -> None:
    (tmp_path / "e.parquet").write_text("mine")
    for arguments, error in (([str(tmp_path / "e.parquet")], Conflict), ([str(tmp_path / "e.csv")], InvalidInput)):
        outcome = CliRunner().invoke(app, ["export", str(films), *arguments])
        assert isinstance(outcome.exception, error)
    assert (tmp_path / "e.parquet").read_text() == "mine"
