"""The command as a stranger meets it: a real process, its output, its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHES = ["learn", "encode", "scan", "miwq", "store"]


def stillhash(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "stillhash", *args], capture_output=True, text=True, cwd=cwd)


def test_help_names_every_command() -> None:
    out = stillhash("--help").stdout
    assert all(command in out for command in ("info", "demo", "bench"))
    out = stillhash("bench", "--help").stdout
    assert all(command in out for command in BENCHES)


def test_every_command_says_what_it_does() -> None:
    for command in (["info"], ["demo"], *(["bench", name] for name in BENCHES)):
        done = stillhash(*command, "--help")
        assert done.returncode == 0 and "--json" in done.stdout


def test_info() -> None:
    told = json.loads(stillhash("info", "--json").stdout)
    assert {"stillhash", "lanes", "available"} <= set(told)
    assert told["lanes"] in stillhash("info").stdout


@pytest.mark.parametrize("name", BENCHES)
def test_benches_print_json(name: str, tmp_path: Path) -> None:
    done = stillhash("bench", name, "--quick", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["quick"] and told["rows"] and told["goals"]


def test_the_demo_runs_from_the_command_line(tmp_path: Path) -> None:
    done = stillhash("demo", "--no-serve", "--scenes", "2000", "--bits", "32", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["codes_unchanged"]
    assert (tmp_path / "stillhash-demo.png").read_bytes().startswith(b"\x89PNG")


def test_our_errors_are_one_line_with_their_exit_code(tmp_path: Path) -> None:
    done = stillhash("demo", "--no-serve", "--scenes", "2000", "--plot", str(tmp_path / "no" / "such.png"))
    assert done.returncode == 2 and "InvalidInput" in done.stderr and "Traceback" not in done.stderr
    assert stillhash("demo", "--scenes", "5").returncode == 2
    assert stillhash("demo", "--json").returncode == 2  # a page is no result
