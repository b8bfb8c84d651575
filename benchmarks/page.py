"""Time the pages of a server over a large collection, one request at a time.

Items have labels, a year and a text of few values. Each page is requested again and again, with another item, label or
text each time, and must be a whole page; a single search over the HTTP API takes turns with them. By the clock: from
the request to the last byte of the HTML, which a busy machine prolongs; and in CPU time of the server's process.
"""

import http.client
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np

import stillhash
from benchmarks.fixtures import labelled_features
from benchmarks.serve import start_server
from benchmarks.timing import CODE_BITS, Figures, Sections, quantiles_ms, temporary_folder
from stillhash.errors import StillhashError
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.validation import check_integer

PAGE_DIM, PAGE_LABEL_COUNT = 64, 40
PAGE_ROWS = 20_000  # of an `add`
MAX_PAGE_MS = 150.0  # of a search page, by the clock
CLOCK_TICKS = 100  # a second, in files of Linux
COLOURS = ("red", "green", "blue", "black", "white")

Address = Callable[[int], str]  # of the page in a round


def run(
    quick: bool, progress: ReportProgress, repeats: int = 50, items: int = 1_000_000, folder: Path | None = None
) -> Figures:
    """Request each page so many times, over a collection of `items`."""
    check_integer(items, "items", 1000)
    items = 2000 if quick else items
    with temporary_folder(folder) as temporary:
        fill_pages(temporary / "pages", items, progress)
        with start_server(temporary / "pages") as (process, url):
            rows = []
            for name, address in page_addresses(items).items():
                progress(name)
                rows.append({"page": name, **measure_page(url, process.pid, address, repeats)})
    searches = [row["p50_ms"] for row in rows if row["page"].startswith("search")]
    goals = [("the slowest search page, p50, ms", f"<= {MAX_PAGE_MS:g}", max(searches))]
    return {"items": items, "columns": PAGE_DIM, "bits": CODE_BITS, "rows": rows, "goals": goals}


def fill_pages(path: Path, items: int, progress: ReportProgress) -> None:
    """Make a collection of so many items with labels and metadata that has learnt from some of them."""
    features, labels = labelled_features(3000, PAGE_DIM, seed=1, labels=PAGE_LABEL_COUNT)
    with stillhash.open(path, PAGE_DIM, CODE_BITS, init=(features, [[f"label {one}"] for one in labels])) as collection:
        for start in range(0, items, PAGE_ROWS):
            progress(f"{start:,} of {items:,} items")
            ids = range(start, min(start + PAGE_ROWS, items))
            features, labels = labelled_features(len(ids), PAGE_DIM, seed=2 + start, labels=PAGE_LABEL_COUNT)
            metadata = [{"year": 1900 + row % 120, "colour": COLOURS[row % len(COLOURS)]} for row in ids]
            names = [f"item {row:07}" for row in ids]
            collection.add(names, features, [[f"label {one}"] for one in labels], metadata, learn=start == 0)


def page_addresses(items: int) -> dict[str, Address]:
    """Return the address of each page, by the number of the round."""
    numbers = np.random.default_rng(0).permutation(items)

    def item(turn: int) -> str:
        return f"item {numbers[turn % items]:07}"

    def search(**params: Callable[[int], str]) -> Address:
        return lambda turn: "/c/pages?" + urlencode({name: text(turn) for name, text in params.items()})

    return {
        "start": lambda _: "/c/pages",
        "search: similar to an item": search(like=lambda turn: f'"{item(turn)}"'),
        "search: an id is typed": search(search=item),
        "search: a label is typed": search(search=lambda turn: f"label {turn % PAGE_LABEL_COUNT}"),
        "search: a value is typed": search(search=lambda turn: COLOURS[turn % len(COLOURS)]),
        "search: nothing is found": search(search=lambda turn: f"nothing {turn}"),
        "search: with a filter": search(
            like=lambda turn: f'"{item(turn)}"', filter=lambda turn: f'{{"year": {1900 + turn % 120}}}'
        ),
        "search: 60 hits": search(like=lambda turn: f'"{item(turn)}"', hits=lambda _: "60"),
        "suggestions": lambda turn: "/c/pages/suggest?" + urlencode({"search": f"item {turn % 10}"}),
        "teach": lambda _: "/c/pages/teach",
        "learning": lambda _: "/c/pages/learning",
        "collection": lambda _: "/c/pages/collection",
    }


def measure_page(url: str, process: int, address: Address, repeats: int) -> Figures:
    """Request a page, after one time that is not counted; return quantiles by the clock, CPU time and size."""
    times, size = [], 0
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    first = time.perf_counter()
    request(connection, address(0))
    first_ms = 1000 * (time.perf_counter() - first)
    cpu = cpu_seconds(process)
    for turn in range(1, repeats + 1):
        began = time.perf_counter()
        size = len(request(connection, address(turn)))
        times.append(time.perf_counter() - began)
    used = cpu_seconds(process) - cpu
    connection.close()
    return {**quantiles_ms(times), "first_ms": first_ms, "cpu_ms": 1000 * used / repeats, "bytes": size}


def request(connection: http.client.HTTPConnection, address: str) -> bytes:
    connection.request("GET", address)
    response = connection.getresponse()
    body = response.read()
    if response.status == 303:
        return request(connection, response.headers["location"])
    if response.status != 200:
        raise StillhashError(f"{address}: expected status 200, got {response.status}")
    return body


def cpu_seconds(process: int) -> float:
    """Return the CPU time of all threads of a process so far; 0 where the system has no such file."""
    file = Path(f"/proc/{process}/stat")
    if not file.exists():
        return 0.0
    fields = file.read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def tables(result: Figures) -> Sections:
    title = f"{result['items']:,} items of {result['bits']} bits with labels and two fields, one request at a time"
    columns = "page: {page} | p50 ms: {p50_ms:.1f} | p99 ms: {p99_ms:.1f} | first ms: {first_ms:.1f} | "
    columns += "CPU ms: {cpu_ms:.1f} | kB: {kilobytes:.0f}"
    return [format_table(title, columns, ({**row, "kilobytes": row["bytes"] / 1000} for row in result["rows"]))]
