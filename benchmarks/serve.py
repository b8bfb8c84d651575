"""Time searches over HTTP against the same call in a process, then many clients at once.

The server is a process of its own, as `stillhash serve` starts it, on this machine's loopback. Under load it also
takes in labelled rows and learns, and at the end it is killed in the middle of that, started again, and queried for
everything that it had acknowledged.

`run_hostile` times good clients alone and beside hostile ones: slow ones, ones that do not read, oversized requests,
wrong keys and heavy filters. Each kind runs in threads of one process and paces itself: what is measured is the server,
not how fast this machine can send.
"""

import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

import urllib3

import stillhash
from benchmarks.fixtures import labelled_features, random_features
from benchmarks.timing import (
    CODE_BITS,
    TOP_K,
    Bench,
    Contenders,
    Figures,
    Sections,
    interleaved,
    quantiles_ms,
    temporary_folder,
)
from stillhash.errors import StillhashError, Unsupported
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.validation import Floats, check_integer

SERVED_DIM = 1280
SERVED_FIT_ROWS = 1000  # rows that fix the hash functions
FILL_ROWS = 10_000  # rows of an `add` before the server starts
SERVED_QUERIES = 256  # that take turns
CLIENT_THREADS = 16
LOAD_CHUNK, LOAD_INTERVAL = 500, 1.0  # labelled rows that are added, and learnt, and seconds from chunk to chunk
MAX_CHECKED_ROWS = 5000  # acknowledged rows that are looked up after the kill
ADDRESS = re.compile(r"http://\S+:\d+")

LoadOutcome = tuple[list[float], list[str]]  # of requests that succeeded, and of the others


def run(
    quick: bool,
    progress: ReportProgress,
    repeats: int = 500,
    items: int = 1_000_000,
    seconds: float = 60,
    folder: Path | None = None,
) -> Figures:
    """Time so many single searches, then `seconds` of load, over a collection of `items`."""
    check_integer(items, "items", 1000)
    if quick:
        items, seconds = 2000, 1.0
    with temporary_folder(folder) as temporary:
        path = temporary / "served"
        fill(path, items, progress)
        with start_server(path) as (process, url):
            progress("single searches")
            one = measure_overhead(path, url, repeats)
            progress(f"{CLIENT_THREADS} clients for {seconds:g} seconds, beside ingest and learning")
            load = measure_load(url, items, seconds)
            progress("killing the server under ingest")
            acknowledged = add_until_killed(process, url)
        began = time.perf_counter()
        with start_server(path) as (_, url), stillhash.Client(url) as client:
            client.search(queries()[0], TOP_K)
            restart = time.perf_counter() - began
            lost = sum(item is None for item in client.get(acknowledged)) if acknowledged else 0
    goals = [
        ("HTTP over the library, raw bodies, p50, ms", "<= 2", one["over_ms"]),
        ("errors under load", "<= 0", load["errors"]),
        ("from start to the first answer after kill -9, s", "<= 2", restart),
        ("acknowledged rows lost", "<= 0", lost),
    ]
    killed = {"acknowledged": len(acknowledged), "lost": lost, "restart_s": restart}
    about = {"items": items, "columns": SERVED_DIM, "bits": CODE_BITS, "k": TOP_K}
    return {**about, "one": one, "load": load, "killed": killed, "goals": goals}


def queries() -> Floats:
    return random_features(SERVED_QUERIES, SERVED_DIM, seed=1)


def labelled(rows: int, seed: int) -> tuple[Floats, list[list[str]]]:
    features, labels = labelled_features(rows, SERVED_DIM, seed)
    return features, [[f"label {label}"] for label in labels]


def fill(path: Path, items: int, progress: ReportProgress) -> None:
    """Make a collection of so many items that has learnt a little. Filters on m, not on n, need SQL."""
    sample = labelled(SERVED_FIT_ROWS, seed=1)
    collection = stillhash.open(path, SERVED_DIM, CODE_BITS, learn_rows=LOAD_CHUNK, filter_fields=["n"], init=sample)
    with collection:
        for start in range(0, items, FILL_ROWS):
            progress(f"{start:,} of {items:,} items")
            ids = range(start, min(start + FILL_ROWS, items))
            metadata = [{"n": number, "m": number % 1000} for number in ids]
            collection.add(ids, *labelled(len(ids), seed=2 + start), metadata, learn=False)
        collection.learn(*sample)


@contextmanager
def start_server(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server in a process of its own; yield it and its address once it listens."""
    command = [sys.executable, "-m", "stillhash", "serve", str(path), "--port", "0", "--log", "off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            address = ADDRESS.search(process.stdout.readline())
            if address is None:
                raise StillhashError("the server did not start")
            yield process, address[0]
        finally:
            process.terminate()


def measure_overhead(path: Path, url: str, repeats: int) -> dict[str, float]:
    """Time one search at a time: over HTTP, and by the library on the same collection."""
    Q = queries()
    with stillhash.Client(url) as client, stillhash.open(path, read_only=True) as collection:
        assert client.search(Q[0], TOP_K) == collection.search(Q[0], TOP_K)
        contenders: Contenders = {
            "http": lambda turn: client.search(Q[turn % SERVED_QUERIES], TOP_K),
            "library": lambda turn: collection.search(Q[turn % SERVED_QUERIES], TOP_K),
        }
        times = interleaved(contenders, repeats, wall=True)
    (http, http_p99), (library, library_p99) = (quantiles_ms(times[name]).values() for name in ("http", "library"))
    p99 = {"http_p99_ms": http_p99, "library_p99_ms": library_p99}
    return {"http_ms": http, "library_ms": library, "over_ms": http - library, **p99}


def measure_load(url: str, items: int, seconds: float) -> Figures:
    """Search with many clients for so long, while rows are added and learnt."""
    with stillhash.Client(url) as client, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        before = client.stats()["version"]
        searching = pool.submit(search_all, url, seconds)
        waits, failed = ingest(client, items, seconds, searching)
        times, errors = searching.result()
        versions = client.stats()["version"] - before
    errors += failed
    searches = {"searches": len(times), "per_second": len(times) / seconds, **quantiles_ms(times or [0.0])}
    added = {"rows_added": LOAD_CHUNK * len(waits), "add_p50_ms": quantiles_ms(waits or [0.0])["p50_ms"]}
    failures = {"errors": len(errors), "first_error": next(iter(errors), None)}
    return {"clients": CLIENT_THREADS, "seconds": seconds, **searches, **added, "versions": versions, **failures}


def search_all(url: str, seconds: float, key: str | None = None, Q: Floats | None = None) -> LoadOutcome:
    """Run sixteen clients, a thread each."""
    times, errors = list[float](), list[str]()
    Q = queries() if Q is None else Q
    start = threading.Barrier(CLIENT_THREADS)

    def search(turn: int) -> None:
        with stillhash.Client(url, key=key, retries=0) as client:
            client.search(Q[0], TOP_K)
            start.wait()
            end = time.perf_counter() + seconds
            while (began := time.perf_counter()) < end:
                try:
                    answer = client.search(Q[turn % len(Q)], TOP_K)
                    times.append(time.perf_counter() - began)
                    if len(answer.hits) != TOP_K:
                        errors.append(f"{len(answer.hits)} hits")
                except StillhashError as error:
                    errors.append(repr(error))
                turn += CLIENT_THREADS

    with ThreadPoolExecutor(CLIENT_THREADS) as pool:
        list(pool.map(search, range(CLIENT_THREADS)))
    return times, errors


def ingest(client: stillhash.Client, items: int, seconds: float, searching: Future[LoadOutcome]) -> LoadOutcome:
    """Add a chunk each second while the others search."""
    waits, failed = list[float](), list[str]()
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end and not searching.done():
        try:
            written = LOAD_CHUNK * len(waits)
            ids = range(items + written, items + written + LOAD_CHUNK)
            client.add(ids, *labelled(LOAD_CHUNK, seed=10**9 + written))
            waits.append(time.perf_counter() - began)
        except StillhashError as error:
            failed.append(repr(error))
        time.sleep(max(0.0, began + LOAD_INTERVAL - time.perf_counter()))
    return waits, failed


def add_until_killed(process: subprocess.Popen[str], url: str) -> list[str]:
    """Add rows as fast as possible until the server is killed; return the last ids that were acknowledged."""
    acknowledged: list[str] = []
    killer = threading.Timer(1.0, process.kill)
    with stillhash.Client(url, retries=0) as client, suppress(StillhashError):
        killer.start()
        for turn in range(10_000):
            ids = [f"late {turn} {number}" for number in range(20)]
            client.add(ids, *labelled(20, seed=turn))
            acknowledged += ids
    killer.join()
    process.wait()
    return acknowledged[-MAX_CHECKED_ROWS:]


def tables(result: Figures) -> Sections:
    one, load, killed = result["one"], result["load"], result["killed"]
    rows = [{"name": name, "p50": one[f"{name}_ms"], "p99": one[f"{name}_p99_ms"]} for name in ("library", "http")]
    columns = """searches/s: {per_second:,.0f} | p50 ms: {p50_ms:.1f} | p99 ms: {p99_ms:.1f} | errors: {errors} |
        p50 ms of an add: {add_p50_ms:.0f}"""
    title = f"One search at a time, {result['items']:,} items, D = {SERVED_DIM}, b = {CODE_BITS}, k = {TOP_K}: ms"
    meanwhile = f"{load['rows_added']:,} rows added, learnt in {load['versions']} versions"
    return [
        format_table(title, ": {name} | p50: {p50:.2f} | p99: {p99:.2f}", rows),
        format_table(f"{load['clients']} clients for {load['seconds']:g} s; meanwhile {meanwhile}", columns, [load]),
        f"Killed under ingest: of {killed['acknowledged']:,} acknowledged rows {killed['lost']} are lost; "
        f"it answers again after {killed['restart_s']:.2f} s.\n",
    ]


# ---- beside hostile clients ----


ALONE_SECONDS = 60.0  # at most
READ_KEY, HOSTILE_KEY, WRITE_KEY = (f"{role}-key-of-a-benchmark" for role in ("read", "hostile", "write"))
WRITE_ROWS, WRITE_INTERVAL = 100, 2.0  # that are added, and seconds from chunk to chunk


def run_hostile(
    quick: bool, progress: ReportProgress, items: int = 1_000_000, seconds: float = 60, folder: Path | None = None
) -> Figures:
    """Measure good clients alone, then for `seconds` beside hostile ones."""
    check_integer(items, "items", 1000)
    if quick:
        items, seconds = 2000, 2.5
    os.environ["STILLHASH_READ_KEYS"] = f"{READ_KEY},{HOSTILE_KEY}"
    os.environ["STILLHASH_WRITE_KEYS"] = WRITE_KEY
    try:
        with temporary_folder(folder) as temporary:
            path = temporary / "served"
            fill(path, items, progress)
            with start_server(path) as (process, url):
                progress("good clients alone")
                alone = measure_good_clients(url, process.pid, items, min(seconds, ALONE_SECONDS), [])
                progress(f"good clients for {seconds:g} seconds, beside hostile ones")
                beside = measure_good_clients(url, process.pid, items + 10**9, seconds, list(KINDS))
                with stillhash.Client(url, key=READ_KEY) as client:
                    served_after = len(client.search([0.5] * SERVED_DIM, TOP_K).hits) == TOP_K
    finally:
        del os.environ["STILLHASH_READ_KEYS"], os.environ["STILLHASH_WRITE_KEYS"]
    goals = [
        ("p99 of good clients beside hostile ones, over alone", "<= 3", beside["p99_ms"] / alone["p99_ms"]),
        ("errors of good clients", "<= 0", alone["errors"] + beside["errors"]),
        ("memory of the last quarter over the second", "<= 1.1", beside["memory_growth"]),
    ]
    about = {"items": items, "columns": SERVED_DIM, "bits": CODE_BITS, "k": TOP_K, "seconds": seconds}
    return {**about, "alone": alone, "beside": beside, "served_after": served_after, "goals": goals}


def measure_good_clients(url: str, pid: int, first_id: int, seconds: float, kinds: list[str]) -> Figures:
    """Search with sixteen good clients and add rows, beside hostile clients of these kinds."""
    address = urlsplit(url)
    path = "/v1/collections/served"
    target = Target(str(address.hostname), int(address.port or 0), path, SERVED_DIM, HOSTILE_KEY)
    with ProcessPoolExecutor(1 + len(kinds), get_context("spawn")) as pool:
        searching = pool.submit(search_all, url, seconds, READ_KEY)
        attacks = {kind: pool.submit(attack, kind, target, seconds) for kind in kinds}
        waits, failed, memory = write(url, pid, first_id, seconds)
        times, errors = searching.result()
        outcomes = {kind: dict(running.result()) for kind, running in attacks.items()}
    errors += failed
    quarter = max(1, len(memory) // 4)
    searches = {"searches": len(times), "per_second": len(times) / seconds, **quantiles_ms(times or [0.0])}
    return {
        **searches,
        **{"adds": len(waits), "add_p50_ms": quantiles_ms(waits or [0.0])["p50_ms"]},
        **{"errors": len(errors), "first_error": next(iter(errors), None)},
        "memory_mib": memory,
        "memory_growth": median(memory[-quarter:]) / max(1e-9, median(memory[quarter : 2 * quarter] or memory)),
        "outcomes": outcomes,
    }


def write(url: str, pid: int, first_id: int, seconds: float) -> tuple[list[float], list[str], list[float]]:
    """Add rows now and then; return their times, the errors, and the server's memory each second."""
    waits, failed, memory = list[float](), list[str](), list[float]()
    end = time.monotonic() + seconds
    with stillhash.Client(url, key=WRITE_KEY, retries=0) as client:
        due = time.monotonic()
        while (now := time.monotonic()) < end:
            memory.append(resident_mib(pid))
            if now >= due:
                due = now + WRITE_INTERVAL
                ids = range(first_id + WRITE_ROWS * len(waits), first_id + WRITE_ROWS * (len(waits) + 1))
                try:
                    client.add(ids, *labelled(WRITE_ROWS, seed=ids[0]), [{"n": number} for number in ids])
                    waits.append(time.monotonic() - now)
                except StillhashError as error:
                    failed.append(repr(error))
            time.sleep(1.0)
    return waits, failed, memory


def resident_mib(pid: int) -> float:
    """Return the memory of a process that is not shared with files: what it has allocated."""
    try:
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        )
        return int(fields["RssAnon"].split()[0]) / 1024
    except (OSError, KeyError):
        return 0.0


def hostile_tables(result: Figures) -> Sections:
    alone, beside = result["alone"], result["beside"]
    rows = [{"name": "alone", **alone}, {"name": "beside hostile clients", **beside}]
    columns = """: {name} | searches/s: {per_second:,.0f} | p50 ms: {p50_ms:.1f} | p99 ms: {p99_ms:.1f} |
        errors: {errors} | p50 ms of an add: {add_p50_ms:.0f}"""
    title = f"16 good clients, {result['items']:,} items, D = {SERVED_DIM}, b = {CODE_BITS}, k = {TOP_K}"
    outcomes = [
        {"kind": kind, "outcomes": ", ".join(f"{count:,} x {what}" for what, count in sorted(some.items()))}
        for kind, some in beside["outcomes"].items()
    ]
    memory = beside["memory_mib"]
    range_text = f"from {min(memory):,.0f} to {max(memory):,.0f} MiB, {memory[-1]:,.0f} at the end"
    return [
        format_table(title, columns, rows),
        format_table(f"Hostile clients for {result['seconds']:g} s", ": {kind} | outcomes: {outcomes}", outcomes),
        f"Memory that the server allocated: {range_text}.\n",
    ]


# ---- hostile clients ----


SLOW_CONNECTIONS, UNREAD_CONNECTIONS = 200, 20
WRONG_KEY_THREADS, WRONG_KEY_INTERVAL = 4, 0.04  # seconds from request to request
HEAVY_THREADS = 4  # each sends its next filter when the one before is answered
OVERSIZED_THREADS, OVERSIZED_INTERVAL = 2, 0.5
HEAVY_CONDITIONS = 240
TIMEOUT = 60.0

Outcomes = Counter[str]  # what came of requests or connections -> how often


class Target(NamedTuple):
    """What hostile clients know: the server, the path of a collection, its columns, and keys."""

    host: str
    port: int
    path: str
    dim: int
    read_key: str

    def head(self, verb: str, length: int) -> bytes:
        """Return the first lines of a request."""
        return (
            f"POST {self.path}/{verb} HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self.read_key}\r\ncontent-length: {length}\r\n\r\n"
        ).encode()


def slow(target: Target, until: float, outcomes: Outcomes) -> None:
    """Hold many connections, with half a request each, and send a byte every second."""
    connections: dict[socket.socket, bytes] = {}
    parts = [b"POST /v1/health HTTP/1.1\r\nhost: x\r\nx-slow: ", target.head("search", 100_000)]
    opened = 0
    while time.monotonic() < until:
        while len(connections) < SLOW_CONNECTIONS:
            try:
                connection = socket.create_connection((target.host, target.port), TIMEOUT)
            except OSError:
                outcomes["not accepted"] += 1
                break
            connection.setblocking(False)
            connections[connection] = parts[opened % 2]
            opened += 1
        for connection, part in list(connections.items()):
            try:
                connection.send(part)
                connections[connection] = b" "
                with suppress(BlockingIOError):
                    reply = connection.recv(1 << 16)
                    outcomes[reply[9:12].decode() if reply else "closed"] += 1
                    connections.pop(connection)
                    connection.close()
            except BlockingIOError:
                pass
            except OSError:
                outcomes["closed"] += 1
                connections.pop(connection, None)
                connection.close()
        time.sleep(1.0)
    for connection in connections:
        connection.close()


def unread(target: Target, until: float, outcomes: Outcomes) -> None:
    """Request large answers, and do not read them."""
    body = json.dumps({"query": [0.1] * target.dim, "k": 10_000}).encode()
    connections: list[socket.socket] = []
    while time.monotonic() < until:
        connections = [each for each in connections if not _is_closed(each, outcomes)]
        while len(connections) < UNREAD_CONNECTIONS:
            try:
                connection = socket.create_connection((target.host, target.port), TIMEOUT)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.sendall(target.head("search", len(body)) + body)
                connections.append(connection)
            except OSError:
                outcomes["not accepted"] += 1
                break
        time.sleep(1.0)
    for connection in connections:
        connection.close()


def _is_closed(connection: socket.socket, outcomes: Outcomes) -> bool:
    """Return whether the server has dropped a connection, without reading from it."""
    if sys.platform == "win32":
        raise Unsupported("poll: expected Linux or macOS, got Windows")
    poll = select.poll()
    poll.register(connection, 0)  # errors and the end are reported always
    if poll.poll(0):
        outcomes["closed"] += 1
        connection.close()
        return True
    return False


def wrong_key(target: Target, until: float, outcomes: Outcomes) -> None:
    body = json.dumps({"query": [0.1] * target.dim}).encode()
    _repeat(target, until, outcomes, [("search", body)], WRONG_KEY_INTERVAL, key="x" * 32)


def oversized(target: Target, until: float, outcomes: Outcomes) -> None:
    """Send bodies beyond the limits, or barely within, and request answers beyond the limits."""
    query = [0.123456] * target.dim
    bodies = [
        ("search", b" " * (65 << 20)),
        ("search", json.dumps({"query": [query] * 2000, "k": 2}).encode()),
        ("search", json.dumps({"query": [0.123456] * 1_000_000}).encode()),
        ("search", json.dumps({"query": [query] * 20, "k": 4000, "explain": True}).encode()),
        ("search", json.dumps({"query": query, "k": 10**9}).encode()),
        ("get", json.dumps({"ids": [0] * 10_001}).encode()),
        ("search", b'{"query": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"),
    ]
    _repeat(target, until, outcomes, bodies, OVERSIZED_INTERVAL)


def heavy_filter(target: Target, until: float, outcomes: Outcomes) -> None:
    """Search with as many conditions as are accepted, by columns, and with ones that only SQL can answer."""
    bodies = [
        ("search", json.dumps({"query": [0.1] * target.dim, "where": {"$or": conditions}}).encode())
        for field in ("n", "m")
        for conditions in [[{field: {"$gt": 10**9 + number}} for number in range(HEAVY_CONDITIONS)]]
    ]
    _repeat(target, until, outcomes, bodies, 0.0)


def _repeat(
    target: Target,
    until: float,
    outcomes: Outcomes,
    bodies: list[tuple[str, bytes]],
    interval: float,
    key: str | None = None,
) -> None:
    """Send these bodies in turn, and count the status of each reply."""
    headers = {"authorization": f"Bearer {key or target.read_key}", "content-type": "application/json"}
    with urllib3.PoolManager(timeout=TIMEOUT, retries=False) as pool:
        turn = 0
        while (began := time.monotonic()) < until:
            verb, body = bodies[turn % len(bodies)]
            address = f"http://{target.host}:{target.port}{target.path}/{verb}"
            try:
                outcomes[str(pool.request("POST", address, body=body, headers=headers).status)] += 1
            except urllib3.exceptions.HTTPError:
                outcomes["closed"] += 1
            turn += 1
            time.sleep(max(0.0, began + interval - time.monotonic()))


KINDS: dict[str, tuple[int, Callable[[Target, float, Outcomes], None]]] = {  # with the number of threads
    "slow": (1, slow),
    "unread": (1, unread),
    "wrong key": (WRONG_KEY_THREADS, wrong_key),
    "oversized": (OVERSIZED_THREADS, oversized),
    "heavy filter": (HEAVY_THREADS, heavy_filter),
}


def attack(kind: str, target: Target, seconds: float) -> Outcomes:
    """Run the clients of one kind for so long."""
    count, run = KINDS[kind]
    outcomes: list[Outcomes] = [Counter() for _ in range(count)]
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=run, args=(target, until, each)) for each in outcomes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(outcomes, Counter())


HOSTILE_BENCH = Bench(run_hostile, hostile_tables)
