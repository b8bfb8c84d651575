"""A process that may not write to a folder: `python -m tests.collection.unprivileged WHAT PATH WARM_UP`.

Root may write everywhere, so root becomes another user, who perhaps cannot read the files of Python. All is imported
before, by the same calls on a copy of the folder.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import numpy.ma  # which NumPy would import when it is first used
from typer.testing import CliRunner

import stillhash
from stillhash.cli.main import app
from stillhash.errors import StillhashError

NOBODY = 65534
COMMANDS = (["stats"], ["verify"], ["versions"])


def read(path: str) -> str:
    """Read the collection by all that a search needs; return how many items it has, or the error."""
    try:
        with stillhash.open(path, read_only=True) as collection:
            hits = collection.search(np.ones(8, np.float32), 3, where={"odd": True}).hits
            assert len(hits) == 3 and collection.versions() and collection.stats()["items"]
            return str(collection.count())
    except StillhashError as error:
        return f"{type(error).__name__}: {error}"


def write(path: str) -> str:
    try:
        with stillhash.open(path) as collection:
            return str(collection.upsert(["new"], np.ones((1, 8))))
    except StillhashError as error:
        return f"{type(error).__name__}: {error}"


def watch(path: str) -> str:
    """Count the items, wait for a line, and count again with the same connection."""
    with stillhash.open(path, read_only=True) as collection:
        print(collection.count(), flush=True)
        sys.stdin.readline()
        return str(collection.count())


def run_commands(path: str) -> str:
    """Run the commands that read; return their exit codes."""
    results = [CliRunner().invoke(app, [*command, path]) for command in COMMANDS]
    return " ".join(str(result.exit_code) for result in results)


def main(what: str, path: str, warm_up: str) -> None:
    call = {"read": read, "write": write, "watch": watch, "commands": run_commands}[what]
    (read if what == "watch" else call)(warm_up)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    assert not os.access(path, os.W_OK), "the folder can be written"
    print(call(path), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
