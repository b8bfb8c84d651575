"""Walk over all commands, and run one as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from stillhash.cli.main import app

ROOT = typer.main.get_command(app)
LAUNCHER = "import sys; sys.argv[0] = 'stillhash'; from stillhash.__main__ import main; main()"


def walk(command: Any = ROOT, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all commands and groups, with the words that lead to them."""
    yield place, command
    for name, below in getattr(command, "commands", {}).items():
        yield from walk(below, (*place, name))


def leaves() -> list[tuple[tuple[str, ...], Any]]:
    return [(place, command) for place, command in walk() if not hasattr(command, "commands")]


def stillhash(
    *args: Any, cwd: Path | None = None, env: dict[str, str] | None = None, stdin: str = "", before: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, after some Python code."""
    words = [sys.executable, "-c", f"{before}\n{LAUNCHER}", *map(str, args)]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=environment, input=stdin)
