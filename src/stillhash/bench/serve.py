"""What HTTP costs: a search over the wire against the same call in a process, then many clients at once.

The server is a process of its own, as `stillhash serve` starts it, on this machine's loopback. Under load it also
takes in labelled rows and learns, and at the end it is killed in the middle of that, started again, and asked for
everything that it had acknowledged.
"""

from __future__ import annotations

import multiprocessing
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import stillhash
from stillhash.bench.timing import Progress, goal, interleaved, print_frame, silent
from stillhash.errors import InvalidInput, StillhashError
from stillhash.experiments.machine import machine
from stillhash.experiments.tables import print_table
from stillhash.numeric.validation import Floats, check_integer

DIM, BITS, K = 1280, 64, 10
SAMPLE = 1000  # rows that fix the hash functions
STEP = 10_000  # rows of an `add`
LABELS = 40
QUERIES = 256  # that take turns
CLIENTS = 16
CHUNK = 500  # labelled rows that are added, and learnt, each second
PAUSE = 1.0  # seconds from chunk to chunk
ADDRESS = re.compile(r"http://\S+:\d+")


def run(
    repeats: int = 500,
    quick: bool = False,
    progress: Progress = silent,
    *,
    items: int = 1_000_000,
    seconds: float = 60.0,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Times so many single searches, then `seconds` of load, over a collection of `items`."""
    check_integer(items, "items", 1000)
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"folder is {str(folder)!r}; a folder that is there is wanted")
    if quick:
        repeats, items, seconds = 20, 2000, 2.0
    here = machine()
    with tempfile.TemporaryDirectory(prefix=".stillhash-bench-", dir=folder or Path.cwd()) as made:
        path = Path(made) / "served"
        fill(path, items, progress)
        with served(path) as server:
            progress("single searches")
            one = overhead(path, server.url, repeats)
            progress(f"{CLIENTS} clients for {seconds:g} seconds, beside ingest and learning")
            load = loaded(server.url, items, seconds)
            progress("killing the server under ingest")
            acknowledged = until_killed(server, items)
        began = time.perf_counter()
        with served(path) as server, stillhash.Client(server.url) as client:
            client.search(features(1, seed=1)[0], K)
            restart = time.perf_counter() - began
            lost = sum(item is None for item in client.get(acknowledged)) if acknowledged else 0
    goals = [
        goal("HTTP over the library, raw bodies, p50, ms", "<= 2", one["over_ms"]),
        goal("errors under load", "<= 0", load["errors"]),
        goal("from start to the first answer after kill -9, s", "<= 2", restart),
        goal("acknowledged rows lost", "<= 0", lost),
    ]
    killed = {"acknowledged": len(acknowledged), "lost": lost, "restart_s": restart}
    about = {"items": items, "columns": DIM, "bits": BITS, "k": K}
    return {"machine": here, "quick": quick, **about, "one": one, "load": load, "killed": killed, "goals": goals}


def features(rows: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, DIM), dtype=np.float32)


def labelled(rows: int, seed: int) -> tuple[Floats, list[list[str]]]:
    """Rows around centres, one for each label, so that there is something to learn."""
    chosen = np.random.default_rng([seed, 1]).integers(LABELS, size=rows)
    return features(rows, seed) + features(LABELS, seed=0)[chosen], [[f"label {c}"] for c in chosen]


def fill(path: Path, items: int, progress: Progress) -> None:
    """A collection of so many items that has learnt a little."""
    with stillhash.open(path, DIM, BITS, learn_rows=CHUNK, init=labelled(SAMPLE, seed=1)) as collection:
        for start in range(0, items, STEP):
            progress(f"{start:,} of {items:,} items")
            rows = min(STEP, items - start)
            X, labels = labelled(rows, seed=2 + start)
            ids = range(start, start + rows)
            collection.add(ids, X, labels, [{"n": number} for number in ids], learn=False)
        collection.learn(*labelled(SAMPLE, seed=1))


class Server:
    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def served(path: Path) -> Iterator[Server]:
    """A server of its own process, once it says where it listens."""
    command = [sys.executable, "-m", "stillhash", "serve", str(path), "--port", "0", "--log", "off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = ADDRESS.search(process.stdout.readline())
            if found is None:
                raise StillhashError("the server did not start")
            yield Server(process, found[0])
        finally:
            process.terminate()


def overhead(path: Path, url: str, repeats: int) -> dict[str, float]:
    """One search at a time: over HTTP with raw and JSON bodies, and by the library on the same collection."""
    asked = features(QUERIES, seed=1)
    with stillhash.Client(url) as client, stillhash.open(path, read_only=True) as collection:
        assert client.search(asked[0], K) == collection.search(asked[0], K)
        times = interleaved(
            {
                "http": lambda turn: client.search(asked[turn % QUERIES], K),
                "library": lambda turn: collection.search(asked[turn % QUERIES], K),
            },
            repeats,
            wall=True,
        )
    http, library = (1e3 * float(np.median(times[name])) for name in ("http", "library"))
    tail = {f"{name}_p99_ms": 1e3 * float(np.quantile(times[name], 0.99)) for name in times}
    return {"http_ms": http, "library_ms": library, "over_ms": http - library, **tail}


# ---- load ----


def loaded(url: str, items: int, seconds: float) -> dict[str, Any]:
    """Clients that search for so long, while rows are added and learnt."""
    context = multiprocessing.get_context("spawn")
    told: Queue[tuple[list[float], list[str]]] = context.Queue()
    searching = context.Process(target=search_all, args=(url, seconds, told))
    with stillhash.Client(url) as client:
        before = client.stats()["version"]
        searching.start()
        written, failed, waits = ingest(client, items, seconds, searching)
        times, errors = told.get()
        searching.join()
        versions = client.stats()["version"] - before
    ms = 1e3 * np.array(times or [0.0])
    return {
        "clients": CLIENTS,
        "seconds": seconds,
        "searches": len(times),
        "per_second": len(times) / seconds,
        "p50_ms": float(np.median(ms)),
        "p99_ms": float(np.quantile(ms, 0.99)),
        "rows_added": written,
        "add_p50_ms": 1e3 * float(np.median(waits or [0.0])),
        "versions": versions,
        "errors": len(errors) + len(failed),
        "first_error": next(iter([*errors, *failed]), None),
    }


def search_all(url: str, seconds: float, told: Queue[tuple[list[float], list[str]]]) -> None:
    """Sixteen clients, a thread each."""
    asked = features(QUERIES, seed=1)
    times: list[float] = []
    errors: list[str] = []
    start = threading.Barrier(CLIENTS)

    def search(number: int) -> None:
        with stillhash.Client(url, retries=0) as client:
            client.search(asked[0], K)
            start.wait()
            end = time.perf_counter() + seconds
            turn = number
            while (began := time.perf_counter()) < end:
                try:
                    found = client.search(asked[turn % QUERIES], K)
                    times.append(time.perf_counter() - began)
                    if len(found.hits) != K:
                        errors.append(f"{len(found.hits)} hits")
                except StillhashError as error:
                    errors.append(repr(error))
                turn += CLIENTS

    threads = [threading.Thread(target=search, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.put((times, errors))


def ingest(client: stillhash.Client, first: int, seconds: float, beside: Any) -> tuple[int, list[str], list[float]]:
    """A chunk each second, for as long as the others search; rows, errors, and how long each took."""
    written, failed, waits = 0, list[str](), list[float]()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and beside.is_alive():
        began = time.perf_counter()
        try:
            X, labels = labelled(CHUNK, seed=10**9 + written)
            written += client.add(range(first + written, first + written + CHUNK), X, labels)
            waits.append(time.perf_counter() - began)
        except StillhashError as error:
            failed.append(repr(error))
        time.sleep(max(0.0, began + PAUSE - time.perf_counter()))
    return written, failed, waits


def until_killed(server: Server, items: int) -> list[str]:
    """Adds rows as fast as it goes until the server is killed; the ids that were acknowledged."""
    acknowledged: list[str] = []
    killer = threading.Timer(1.0, server.kill)
    with stillhash.Client(server.url, retries=0) as client:
        killer.start()
        try:
            for turn in range(10_000):
                ids = [f"late {turn} {number}" for number in range(20)]
                client.add(ids, *labelled(20, seed=turn))
                acknowledged += ids
        except StillhashError:
            pass
    killer.join()
    return acknowledged[-5000:]


def show(result: dict[str, Any], console: Console) -> None:
    one, load, killed = result["one"], result["load"], result["killed"]
    print_table(
        console,
        f"One search at a time, {result['items']:,} items, D = {DIM}, b = {BITS}, k = {K}: ms",
        ("", "p50", "p99"),
        [(name, f"{one[f'{name}_ms']:.2f}", f"{one[f'{name}_p99_ms']:.2f}") for name in ("library", "http")],
    )
    print_table(
        console,
        f"{load['clients']} clients for {load['seconds']:g} s; meanwhile {load['rows_added']:,} rows added, learnt in "
        f"{load['versions']} versions",
        ("searches/s", "p50 ms", "p99 ms", "errors", "p50 ms of an add"),
        [
            (
                f"{load['per_second']:,.0f}",
                f"{load['p50_ms']:.1f}",
                f"{load['p99_ms']:.1f}",
                str(load["errors"]),
                f"{load['add_p50_ms']:.0f}",
            )
        ],
    )
    console.print(
        f"Killed under ingest: of {killed['acknowledged']:,} rows that it had acknowledged {killed['lost']} are lost; "
        f"it answers again after {killed['restart_s']:.2f} s.\n",
        highlight=False,
        soft_wrap=True,
    )
    print_frame(result, console)
