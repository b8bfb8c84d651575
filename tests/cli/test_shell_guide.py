"""The examples of docs/shell.md run, from top to bottom, in one shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import LAUNCHER, leaves
from tests.cli.conftest import RunMain

GUIDE = (Path(__file__).parents[2] / "docs" / "shell.md").read_text()


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed, and the examples are for a shell")
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) >= 5
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "stillhash"
    script.write_text(f"#!{sys.executable}\n{LAUNCHER}\n")
    script.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "--norc", "-euo", "pipefail", "-c", "\n".join(blocks)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("stillhash ") and lines[-1] == "the collection exists"


def test_the_guide_names_the_variables_of_options() -> None:
    variables = {parameter.envvar for _, command in leaves() for parameter in command.params if parameter.envvar}
    assert {"STILLHASH_URL", "STILLHASH_KEY", "STILLHASH_SERVE_PORT"} < variables
    assert all(f"`{name}`" in GUIDE for name in variables)


def test_the_command_line_comes_before_the_environment(run_main: RunMain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STILLHASH_SERVE_PORT", "many")
    code, _, message = run_main("serve", "nosuch", "--json")
    assert code == 2 and "STILLHASH_SERVE_PORT" in message
    assert "nosuch" in run_main("serve", "nosuch", "--json", "--port", "0", "--read-only")[2]
    monkeypatch.setenv("STILLHASH_SERVE_PORT", "")  # counts as none
    assert "nosuch" in run_main("serve", "nosuch", "--json", "--read-only")[2]
