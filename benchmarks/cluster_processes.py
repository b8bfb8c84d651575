"""Processes of a cluster that can be killed: a front that clients send queries to, and the writer.

A parent starts one as a `Child`, sends it lines, and reads the objects of JSON that it prints. It ends when its input
does.

`front STORAGE DEADLINE` answers queries over TCP. A query is the bytes of its weights; the answer is the bytes of its
hits, or an error as text, which is shorter or longer than any hits.

`writer STORAGE ADDRESS SHARDS REPLICAS LEASE_SECONDS` writes to an index on the Ray cluster at this address. Its
commands: `write FIRST` adds rows one by one, with ids from FIRST, and prints those acknowledged; `stop` ends that;
`ids FIRST` prints the ids from FIRST on that the index has; `drain NODE` moves the shards off a node. The shards are
detached: they go on when the writer is killed.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from benchmarks.timing import CODE_BITS, TOP_K, hit_bytes
from stillhash.cluster import ClusterIndex, ClusterReader
from stillhash.errors import StillhashError, Unreachable
from stillhash.numeric.validation import Codes, Floats

ANSWER_BYTES = TOP_K * (4 + 8)
QUERY_BYTES = 4 * CODE_BITS
CHILD_SECONDS = 120.0
WRITE_SECONDS = 0.05  # between two rows


class Child:
    """Runs `front` or `writer` with these arguments, and collects the objects of JSON that it prints."""

    def __init__(self, role: str, *arguments: object) -> None:
        command = [sys.executable, "-m", __spec__.name, role, *map(str, arguments)]
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


def answer_client(reader: ClusterReader, connection: Connection) -> None:
    """Answer the queries of one client until it goes."""
    with connection:
        while True:
            try:
                weights = np.frombuffer(connection.recv_bytes(QUERY_BYTES), np.float32)
                connection.send_bytes(answer_query(reader, weights))
            except (EOFError, OSError):
                return


def answer_query(reader: ClusterReader, weights: np.ndarray) -> bytes:
    try:
        return hit_bytes(reader.search(weights, TOP_K))[0]
    except StillhashError as error:
        text = f"{type(error).__name__}: {error}".encode()
        return text if len(text) != ANSWER_BYTES else text + b"."


def run_front(storage: str, deadline: str) -> None:
    reader = ClusterReader(storage, deadline=float(deadline))
    reader.wait_ready()
    with Listener(("127.0.0.1", 0), backlog=128) as listener:
        print_line(port=listener.address[1])
        threading.Thread(target=accept_clients, args=(reader, listener), daemon=True).start()
        for _ in commands():  # until the input ends
            pass
        os._exit(0)  # clients may still wait


def accept_clients(reader: ClusterReader, listener: Listener) -> None:
    while True:
        threading.Thread(target=answer_client, args=(reader, listener.accept()), daemon=True).start()


def marked_code(number: int) -> Codes:
    """Return the code (1, 8) of an added row, which holds its id. Its first bit is 0: see `weigh_first_bit`."""
    return np.concatenate([np.zeros(1, np.uint8), np.array([number], ">u8").view(np.uint8)[1:]])[None]


def weigh_first_bit(weights: Floats) -> Floats:
    """Return queries whose best hits all have the first bit set, so that rows of a writer are never among them."""
    weights = weights.copy()
    weights[:, 0] = np.ceil(2 * np.abs(weights).sum(axis=1))
    return weights


def add_rows(index: ClusterIndex, first: int, stopped: threading.Event) -> None:
    number = first
    while not stopped.wait(WRITE_SECONDS):
        index.add(marked_code(number), [number])
        print_line(acknowledged=number)
        number += 1


def run_writer(storage: str, address: str, shards: str, replicas: str, lease_seconds: str) -> None:
    options = {"storage": storage, "lease_seconds": float(lease_seconds), "threads": 1}
    with ClusterIndex(CODE_BITS, int(shards), int(replicas), address, detached=True, **options) as index:  # type: ignore[arg-type]
        print_line(ready=True)
        stopped, thread = threading.Event(), threading.Thread()
        for command, *arguments in commands():
            if command == "write":
                thread = threading.Thread(target=add_rows, args=(index, int(arguments[0]), stopped), daemon=True)
                thread.start()
            elif command == "stop":
                stopped.set()
                thread.join()
                print_line(stopped=True)
            elif command == "ids":
                ids = index.ids()
                print_line(ids=ids[ids >= int(arguments[0])].tolist())
            elif command == "drain":
                print_line(drained=index.drain(arguments[0]))


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "front":
        run_front(*arguments)
    else:
        run_writer(*arguments)
