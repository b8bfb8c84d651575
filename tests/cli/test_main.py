"""The command as a user meets it: help of every command, JSON, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stillhash.cli.main import app
from stillhash.errors import InvalidInput
from stillhash.experiments import run
from stillhash.experiments.label_studies import LABEL_STUDIES
from stillhash.experiments.results import LABEL_STUDY_KINDS

EXPERIMENTS = ["list", "run", "repeat", "feedback", "align", "report", "active"]
EXPERIMENTS += ["late-labels", "new-class", "corrections"]


def output(*args: str, exit_code: int = 0) -> str:
    """Return what a command prints, run in this process."""
    outcome = CliRunner().invoke(app, args)
    assert outcome.exit_code == exit_code, outcome.output
    return outcome.output


def stillhash(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "stillhash", *args], capture_output=True, text=True, cwd=cwd)


def test_help_names_every_command() -> None:
    out = output("--help")
    assert all(command in out for command in ("info", "demo", "experiment"))
    out = output("experiment", "--help")
    assert all(command in out for command in EXPERIMENTS)


@pytest.mark.parametrize("command", [["info"], ["demo"], ["experiment", "list"]], ids=" ".join)
def test_every_command_has_help_and_json(command: list[str]) -> None:
    assert "--json" in output(*command, "--help")


def test_info() -> None:
    info = json.loads(output("info", "--json"))
    assert {"stillhash", "lanes", "available"} <= set(info)
    assert info["lanes"] in output("info")


def test_experiments_are_listed() -> None:
    listed = json.loads(output("experiment", "list", "--json"))
    assert "tally" in listed["methods"]
    assert {"labelled-init", "labelled-share", "label-noise", "label-delay", "preprocessing"} <= set(listed["presets"])
    assert list(listed) == ["experiments", "methods", "presets"]
    assert set(listed["experiments"]) == set(LABEL_STUDIES) == set(LABEL_STUDY_KINDS)
    assert listed["methods"]["tally"] in output("experiment", "list")


def test_unknown_presets_and_methods_are_refused(tmp_path: Path) -> None:
    for option in ("--preset", "--methods"):
        done = CliRunner().invoke(app, ["experiment", "run", option, "nosuch", "--results", str(tmp_path)])
        assert str(done.exception).startswith(option.strip("-"))
    done = CliRunner().invoke(app, ["experiment", "run", "--preset", "late-labels", "--results", str(tmp_path)])
    assert "stillhash experiment late-labels" in str(done.exception)


@pytest.mark.parametrize(
    ("options", "seeds"),
    [([], 1), (["--preset", "few-labels"], 5), (["--preset", "few-labels", "--seeds", "2"], 2)],
)
def test_presets_have_a_default_of_seeds(
    options: list[str], seeds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[run.Job] = []
    monkeypatch.setattr(run, "run", lambda some, *_: jobs.extend(some) or len(some))
    output("experiment", "run", *options, "--results", str(tmp_path))
    assert {job.seed for job in jobs} == set(range(seeds))


@pytest.mark.nightly
def test_the_demo_runs_from_the_command_line(tmp_path: Path) -> None:
    done = stillhash("demo", "--no-serve", "--scenes", "2000", "--bits", "32", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["codes_unchanged"]
    assert (tmp_path / "stillhash-demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.medium
def test_our_errors_are_one_line_with_their_exit_code(tmp_path: Path) -> None:
    done = stillhash("demo", "--no-serve", "--scenes", "2000", "--plot", str(tmp_path / "no" / "such.png"))
    assert done.returncode == 2 and "InvalidInput" in done.stderr and "Traceback" not in done.stderr
    output("demo", "--scenes", "5", exit_code=2)
    assert isinstance(CliRunner().invoke(app, ["demo", "--json"]).exception, InvalidInput)  # a page has no result
