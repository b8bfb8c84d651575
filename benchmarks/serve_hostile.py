"""Time good clients of a server alone, and beside hostile ones; and the server's memory meanwhile."""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import stillhash
from benchmarks import timing
from benchmarks.hostile_clients import KINDS, Target, attack
from benchmarks.serve import SERVED_DIM, fill, labelled, search_all, start_server
from benchmarks.timing import CODE_BITS, TOP_K, Figures, Sections, quantiles_ms
from stillhash.errors import StillhashError
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.validation import check_integer

ALONE_SECONDS = 60.0  # at most
READ_KEY, HOSTILE_KEY, WRITE_KEY = (f"{role}-key-of-a-benchmark" for role in ("read", "hostile", "write"))
WRITE_ROWS, WRITE_INTERVAL = 100, 2.0  # that are added, and seconds from chunk to chunk


def run(quick: bool, progress: ReportProgress, items: int, seconds: float, folder: Path | None = None) -> Figures:
    """Measure good clients alone, then for `seconds` beside hostile ones."""
    check_integer(items, "items", 1000)
    if quick:
        items, seconds = 2000, 2.5
    os.environ["STILLHASH_READ_KEYS"] = f"{READ_KEY},{HOSTILE_KEY}"
    os.environ["STILLHASH_WRITE_KEYS"] = WRITE_KEY
    try:
        with timing.temporary_folder(folder) as temporary:
            path = temporary / "served"
            fill(path, items, progress)
            with start_server(path) as (process, url):
                progress("good clients alone")
                alone = measure(url, process.pid, items, min(seconds, ALONE_SECONDS), [])
                progress(f"good clients for {seconds:g} seconds, beside hostile ones")
                beside = measure(url, process.pid, items + 10**9, seconds, list(KINDS))
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


def measure(url: str, pid: int, first_id: int, seconds: float, kinds: list[str]) -> Figures:
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


def tables(result: Figures) -> Sections:
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
