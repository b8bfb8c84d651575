"""A child process of a bench that takes lines on its input and prints lines: it ends when its input does."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from stillhash.errors import Unreachable

CHILD_SECONDS = 120.0


class Child:
    """Runs a module of this package with these arguments, and collects the objects of JSON that it prints."""

    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=environment
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def send(self, line: str) -> None:
        """Pass a line to its input."""
        pipe = cast("IO[str]", self.process.stdin)
        pipe.write(line + "\n")
        pipe.flush()

    def values(self, key: str) -> list[Any]:
        """Return the values of this key in all lines so far."""
        return [line[key] for line in list(self.lines) if key in line]

    def wait_for(self, key: str, count: int = 1, seconds: float = CHILD_SECONDS) -> Any:
        """Wait for so many lines with this key, and return the value of the last."""
        end = time.monotonic() + seconds
        while len(values := self.values(key)) < count:
            if not self._reader.is_alive() or time.monotonic() > end:
                raise Unreachable(f"{self.process.args!r:.300}: expected {key!r}, got {self.lines[-1:]!r:.300}")
            time.sleep(0.01)
        return values[count - 1]

    def kill(self) -> None:
        """End it at once, as `kill -9` does; what it printed before can still be read."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        with suppress(OSError):  # a line that nobody read
            cast("IO[str]", self.process.stdin).close()

    def close(self) -> None:
        """End it by the end of its input."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(CHILD_SECONDS)
        finally:
            self.kill()

    def _read(self) -> None:
        with cast("IO[str]", self.process.stdout) as lines:
            for line in lines:
                if line.startswith("{"):
                    self.lines.append(json.loads(line))


def print_line(**values: Any) -> None:
    """Print an object of JSON, as a child."""
    print(json.dumps(values), flush=True)


def commands() -> Iterator[list[str]]:
    """Return the words of each line that the parent sends."""
    lines: Iterable[str] = sys.stdin
    for line in lines:
        yield line.split()
