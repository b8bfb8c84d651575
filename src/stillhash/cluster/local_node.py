"""One node of a local cluster: the processes that `ray start` runs, in a session of their own."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from stillhash.errors import Unreachable, Unsupported

NODE_START_SECONDS = 120.0
HEAD_PORTS = (20_000, 32_000)  # below those that systems choose, above those of Ray's workers
NODE_STOP_SECONDS = 30.0  # for killed processes to disappear
LOG_TAIL = 2000  # characters of a node's log in an error
# The shell leads the session. It ends Ray's daemons as soon as `ray start` has ended, or the process that holds its
# input; workers, which are in groups of their own, end without their daemon.
LEADER = '{ "$@" </dev/null >"$RAY_NODE_LOG" 2>&1; kill -KILL 0; } & read -r _; kill -KILL 0'


class LocalNode:
    """Start a node at an address of loopback, with `ray start` and these arguments, in its own folder for logs."""

    def __init__(self, address: str, arguments: Iterable[str], settings: Mapping[str, str]) -> None:
        self.address = address
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        self._log = self.folder / "start.log"
        options = ["--node-ip-address", address, "--temp-dir", str(self.folder), "--block", "--disable-usage-stats"]
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *arguments]
        environment = {**os.environ, **settings, "RAY_NODE_LOG": str(self._log)}
        self._leader = subprocess.Popen(
            ["sh", "-c", LEADER, "sh", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    @property
    def processes(self) -> list[int]:
        """The ids of its processes that run."""
        return session_processes(self._leader.pid)

    def check_running(self) -> None:
        """Raise Unreachable, with the end of the log, if the node has ended."""
        if self._leader.poll() is not None:
            log = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
            raise Unreachable(f"the node at {self.address} did not start: {log[-LOG_TAIL:].strip() or 'no output'}")

    def wait_listening(self, port: int) -> None:
        """Wait until something listens at this port of its address."""
        end = time.monotonic() + NODE_START_SECONDS
        while time.monotonic() < end:
            self.check_running()
            with contextlib.suppress(OSError), socket.create_connection((self.address, port), 1.0):
                return
            time.sleep(0.02)
        raise Unreachable(
            f"the node at {self.address} did not listen at port {port} within {NODE_START_SECONDS:g} seconds"
        )

    def stop(self, *, graceful: bool) -> None:
        """End all its processes and wait for that: by SIGTERM, which they handle, or at once."""
        if graceful:
            for pid in self.processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            self._wait(NODE_STOP_SECONDS)
        self.kill()
        self._wait(NODE_STOP_SECONDS)
        if self._leader.stdin is not None:
            self._leader.stdin.close()
        self._leader.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Send SIGKILL to all its processes, as if the machine lost power."""
        if sys.platform == "win32":  # which `connect` has refused
            raise Unsupported("a cluster: expected Linux, got Windows")
        while pids := self.processes:  # one may have started another meanwhile
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._leader.poll() is None or self.processes:
            if time.monotonic() > end:
                return
            time.sleep(0.01)


def session_processes(session: int) -> list[int]:
    """Return the ids of the processes in a session, without those that ended and were not waited for."""
    pids = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, _, _, its_session = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                pids.append(int(folder.name))
    return sorted(pids)


def free_port(address: str) -> int:
    """Return a port that nothing listens at, outside of those that systems and Ray give to other processes.

    Servers of gRPC share ports that are given to two of them, and each would get some of the other's requests.
    """
    while True:
        port = random.randint(*HEAD_PORTS)
        with socket.socket() as here, socket.socket() as anywhere, contextlib.suppress(OSError):
            here.bind((address, port))
            here.close()
            anywhere.bind(("", port))
            return port
