"""`stillhash serve` in a process of its own, on a free port, for the length of a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class ServeCommand:
    process: subprocess.Popen[str]
    url: str
    log: Path

    def wait_for_log(self, text: str) -> None:
        until(lambda: text in self.log.read_text())


@contextmanager
def serve_command(log: Path, *arguments: str | Path, env: Mapping[str, str] | None = None) -> Iterator[ServeCommand]:
    """Start a server with these arguments, and kill it at the end; its log goes to a file."""
    command = [sys.executable, "-m", "stillhash", "serve", *map(str, arguments), "--port", "0", "--log", "json"]
    environment = {**os.environ, **(env or {})}
    with (
        log.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        try:
            match = re.search(r"https?://[^;\s]+", process.stdout.readline())
            assert match is not None, log.read_text(encoding="utf-8")
            yield ServeCommand(process, match[0], log)
        finally:
            process.kill()
