"""The examples of docs/shell.md run, from top to bottom, in one shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stillhash.cli import settings
from tests.cli.commands import LAUNCHER, ROOT

GUIDE = (Path(__file__).parents[2] / "docs" / "shell.md").read_text()


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed, and the examples are for a shell")
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) >= 6
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
    assert "OK" in lines and "5" in lines


def test_the_settings_of_the_guide_are_right() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    known = {each.key: each for each in settings.all_settings(ROOT)}
    values, problems = settings.file_problems(text, Path("config.toml"), known)
    assert not problems and len(values) == len(re.findall("=", text)) and tomllib.loads(text)


def test_the_guide_names_every_variable_and_option_that_is_no_setting() -> None:
    assert all(f"`{name}`" in GUIDE for name in settings.OTHER_VARIABLES)
    assert all(f"`--{name}`" in GUIDE for name in settings.ONLY_ON_THE_COMMAND_LINE)
