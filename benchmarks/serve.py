"""Time searches over HTTP against the same call in a process, then many clients at once.

The server is a process of its own, as `stillhash serve` starts it, on this machine's loopback. Under load it also
takes in labelled rows and learns, and at the end it is killed in the middle of that, started again, and queried for
everything that it had acknowledged.
"""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path

import stillhash
from benchmarks import timing
from benchmarks.fixtures import labelled_features, random_features
from benchmarks.timing import CODE_BITS, TOP_K, Contenders, Figures, Sections, interleaved, quantiles_ms
from stillhash.errors import StillhashError
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
    repeats: int, quick: bool, progress: ReportProgress, items: int, seconds: float, folder: Path | None = None
) -> Figures:
    """Time so many single searches, then `seconds` of load, over a collection of `items`."""
    check_integer(items, "items", 1000)
    if quick:
        items, seconds = 2000, 1.0
    with timing.temporary_folder(folder) as temporary:
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
