"""A real server under load: what each request came to, how fast, and whether all that was acknowledged is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import urllib3

from stillhash import errors
from stillhash.server import responses
from tests.collection.fixtures import some_rows

ROOT = Path(__file__).parents[2]
CLIENTS = 3
TIMEOUT = 30.0  # seconds until a request that is not answered, or a server that does not start, is a failure
ROWS = 20  # of an `add`
CLOSED = "connection closed"


@dataclass
class Phase:
    """What the requests of some seconds came to."""

    seconds: float
    outcomes: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)  # seconds of answered requests
    wrong: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        """Return the milliseconds that this share of the answers took at most."""
        return 1000 * float(np.quantile(self.latencies, share)) if self.latencies else float("nan")


class Server:
    """A process that serves one collection."""

    def __init__(self, process: subprocess.Popen[str], url: str, name: str) -> None:
        self.process, self.url, self.name = process, url, name
        self.acknowledged: set[str] = set()
        self._lock, self._number = threading.Lock(), 0

    def cpu_seconds(self) -> float:
        """Return the processor time that it took so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def control_disk(self, kind: str) -> None:
        """Let its disk fail; an empty kind lets it work again."""
        assert self.process.stdin is not None
        self.process.stdin.write(kind + "\n")
        self.process.stdin.flush()

    def load(self, seconds: float) -> Phase:
        """Send requests from several clients for so long."""
        phase, end = Phase(seconds), time.monotonic() + seconds
        clients = [threading.Thread(target=self._send, args=(phase, end, c)) for c in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        return phase

    def _send(self, phase: Phase, end: float, client: int) -> None:
        pool = urllib3.PoolManager(maxsize=1)
        rng = np.random.default_rng(client)
        while time.monotonic() < end:
            ids: list[str] = []
            with self._lock:
                self._number += 1
                number = self._number
            if number % 3 == 0:
                rows, ids = some_rows(ROWS, seed=number), [f"{number}/{r}" for r in range(ROWS)]
                path, body = "add", {"ids": ids, "features": rows.X.tolist(), "labels": rows.labels}
            else:
                path, body = "search", {"query": rng.standard_normal((8, 8)).tolist(), "k": 100}
            began = time.monotonic()
            outcome = self.request(pool, path, body)
            with self._lock:
                phase.outcomes[outcome] += 1
                if outcome != CLOSED:
                    phase.latencies.append(time.monotonic() - began)
                if outcome == "200":
                    self.acknowledged.update(ids)
                if outcome.startswith("wrong"):
                    phase.wrong.append(outcome)
            if outcome != "200":
                time.sleep(0.01)

    def request(self, pool: urllib3.PoolManager, path: str, body: Any) -> str:
        """Return "200", the class of a typed error, that the connection was closed, or what is wrong."""
        url = f"{self.url}/v1/collections/{self.name}/{path}"
        try:
            reply = pool.request("POST", url, body=json.dumps(body).encode(), retries=False, timeout=TIMEOUT)
        except urllib3.exceptions.ReadTimeoutError as error:
            return f"wrong: {error!r}"
        except (urllib3.exceptions.HTTPError, OSError):
            return CLOSED
        try:
            content = json.loads(reply.data)
        except ValueError:
            return f"wrong: {reply.status} {reply.data[:200]!r}"
        if reply.status == 200:
            return "200"
        name = str(content.get("error"))
        kind = getattr(errors, name, getattr(responses, name, None))
        typed = kind is not None and kind.status == reply.status == content.get("status") and "request_id" in content
        return name if typed and name != "Unexpected" else f"wrong: {reply.status} {reply.data[:200]!r}"

    def missing(self) -> list[str]:
        """Return what is wrong afterwards: a server that has ended, or acknowledged items that are not there."""
        if self.process.poll() is not None:
            return [f"the server ended with {self.process.returncode}"]
        ids = sorted(self.acknowledged)
        pool = urllib3.PoolManager()
        for part in (ids[s : s + 5000] for s in range(0, len(ids), 5000)):
            url = f"{self.url}/v1/collections/{self.name}/get"
            reply = pool.request("POST", url, body=json.dumps({"ids": part}).encode(), retries=False, timeout=TIMEOUT)
            items = json.loads(reply.data)["items"]
            lost = [name for name, item in zip(part, items, strict=True) if item is None]
            if lost:
                return [f"{len(lost)} acknowledged items are lost, such as {lost[0]}"]
        return []


@contextmanager
def serving(path: Path, environment: dict[str, str], *options: str, disk: bool = False) -> Iterator[Server]:
    """Run `stillhash serve` of this collection; disk: on a disk that can be controlled."""
    command = [sys.executable, "-m", "tests.faults.serve_process", str(path) if disk else "", "serve", str(path)]
    command += ["--port", "0", "--log", "off", *options]
    with (path.parent / "server.log").open("a") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, env=environment, text=True
        )
        try:
            assert process.stdout is not None
            address = re.search(r"http://\S+?:\d+", process.stdout.readline())
            assert address, f"the server did not start: {(path.parent / 'server.log').read_text()[-2000:]}"
            yield Server(process, address[0], path.name)
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT)
            finally:
                process.kill()
                process.communicate()
