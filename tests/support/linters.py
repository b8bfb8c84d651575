"""Programs that check files of the repository, where they are installed: `make repository` installs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint(program: str, *arguments: str | Path) -> str:
    """Run a linter in the root of the repository and return its output; a finding fails the test."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    file = shutil.which(program, path=path)
    if file is None:
        pytest.skip(f"{program} is not installed: run make repository")
    result = subprocess.run([file, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def check_schema(schema: str, *files: str | Path) -> None:
    """Check YAML files against a JSON schema that check-jsonschema brings along, without a network."""
    lint("check-jsonschema", "--builtin-schema", schema, *files)
