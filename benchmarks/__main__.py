"""The commands `python -m benchmarks`."""

import sys
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from stillhash.cli.output import AsJson, answer, print_error, status_line
from stillhash.errors import InvalidInput, MissingExtra, StillhashError

BENCH_GROUP_HELP = """Measure speed, as ratios between contenders in one run.

\b
Examples:
  python -m benchmarks scan --quick
"""
app = typer.Typer(help=BENCH_GROUP_HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Repeats = Annotated[int, typer.Option(min=1, help="Timed rounds of each contender.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes, a few seconds; ratios mean little.")]
DiskFolder = Annotated[Path | None, typer.Option(help="Folder on the disk to measure; default: the current one.")]


def _bench(name: str, as_json: bool, part: str = "", **options: Any) -> None:
    """Run a bench, or a part of it; stdout has the result alone, and not what Ray prints when a node dies."""
    try:
        module, timing = (import_module(f"benchmarks.{each}") for each in (name, "timing"))
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{name} needs {error.name}: pip install -e '.[bench,experiments,cluster]'") from None
    bench = getattr(module, part) if part else module
    with redirect_stdout(sys.stderr), status_line(name) as update:
        result = timing.run_bench(bench, progress=lambda now: update(f"{name}: {now}"), **options)
    answer(result, as_json, partial(timing.print_bench, bench))


def _numbers(text: str, name: str) -> tuple[int, ...]:
    if not all(number.isdigit() for number in text.split(",")):
        raise InvalidInput(f"{name}: expected whole numbers separated by commas, got {text!r}")
    return tuple(map(int, text.split(",")))


@app.command()
def learn(repeats: Repeats = 15, quick: Quick = False, as_json: AsJson = False) -> None:
    """Learn a chunk of 1000 x 4096, against the bare matrix products and against loops.

    \b
    Examples:
      python -m benchmarks learn --quick
    """
    _bench("learn", as_json, repeats=repeats, quick=quick)


@app.command()
def encode(repeats: Repeats = 15, quick: Quick = False, as_json: AsJson = False) -> None:
    """Hash rows to codes, against the bare matrix product.

    \b
    Examples:
      python -m benchmarks encode --repeats 30
    """
    _bench("encode", as_json, repeats=repeats, quick=quick)


@app.command()
def scan(
    repeats: Repeats = 15,
    quick: Quick = False,
    codes: Annotated[int, typer.Option(min=1000, help="Random codes to search.")] = 10_000_000,
    as_json: AsJson = False,
) -> None:
    """Scan codes exactly, against a bare read of the same bytes and against FAISS.

    \b
    Examples:
      python -m benchmarks scan --codes 1000000
    """
    _bench("scan", as_json, repeats=repeats, quick=quick, codes=codes)


@app.command()
def gpu(
    repeats: Repeats = 31,
    quick: Quick = False,
    codes: Annotated[str, typer.Option(help="Numbers of codes, separated by commas.")] = "16777216,134217728",
    bits: Annotated[str, typer.Option(help="Code lengths, separated by commas.")] = "32,64,128,256",
    orders: Annotated[bool, typer.Option("--orders", help="Sorted codes too; 100 queries are checked.")] = False,
    http: Annotated[bool, typer.Option("--http", help="A server with 64 clients; --repeats is then seconds.")] = False,
    folder: DiskFolder = None,
    as_json: AsJson = False,
) -> None:
    """Search on a GPU, against a bare read of the same codes, the CPU's scan, and FAISS on the GPU.

    --orders compares 100 queries with a product of matrices, loads codes from a file,
    and searches sorted ones. --http searches a server, beside one that scans on the CPU.

    \b
    Examples:
      python -m benchmarks gpu --codes 1073741824 --bits 64
      python -m benchmarks gpu --codes 1073741824 --bits 64 --orders
      python -m benchmarks gpu --codes 100000000 --http --repeats 10
    """
    counts, lengths = _numbers(codes, "codes"), _numbers(bits, "bits")
    if http:
        _bench("gpu", as_json, "SERVED_BENCH", repeats=repeats, quick=quick, codes=counts[0], folder=folder)
    elif orders:
        _bench("gpu", as_json, "ORDERS_BENCH", repeats=repeats, quick=quick, codes=counts, bits=lengths, folder=folder)
    else:
        _bench("gpu", as_json, repeats=repeats, quick=quick, codes=counts, bits=lengths)


@app.command()
def miwq(
    repeats: Repeats = 15,
    quick: Quick = False,
    codes: Annotated[str, typer.Option(help="Numbers of codes to search, separated by commas.")] = "1000000,10000000",
    cases: Annotated[int, typer.Option(min=1, help="Random queries compared with brute force.")] = 20_000,
    plot: Annotated[Path | None, typer.Option(help="File for a picture of the crossover (PNG).")] = None,
    as_json: AsJson = False,
) -> None:
    """Search multi-index tables, and the index that chooses, against the scan.

    \b
    Examples:
      python -m benchmarks miwq --codes 1000000 --plot crossover.png
    """
    _bench("miwq", as_json, repeats=repeats, quick=quick, codes=_numbers(codes, "codes"), cases=cases, plot=plot)


@app.command()
def store(
    repeats: Annotated[int, typer.Option(min=1, help="One-row commits of each contender.")] = 200,
    quick: Quick = False,
    items: Annotated[int, typer.Option(min=1000, help="Items of the collection that is opened.")] = 1_000_000,
    folder: DiskFolder = None,
    as_json: AsJson = False,
) -> None:
    """Write durably, against bare SQLite; open a large collection; compact.

    \b
    Examples:
      python -m benchmarks store --items 100000 --folder /data
    """
    _bench("store", as_json, repeats=repeats, quick=quick, items=items, folder=folder)


@app.command()
def filters(
    repeats: Repeats = 40,
    quick: Quick = False,
    items: Annotated[int, typer.Option(min=1000, help="Items of the collection that is searched.")] = 1_000_000,
    folder: DiskFolder = None,
    as_json: AsJson = False,
) -> None:
    """Search with filters, against the same search without, and against SQL.

    \b
    Examples:
      python -m benchmarks filters --quick
    """
    _bench("filters", as_json, repeats=repeats, quick=quick, items=items, folder=folder)


@app.command()
def ingest(
    repeats: Annotated[int, typer.Option(min=1, help="Chunks of 1,000 rows.")] = 40,
    quick: Quick = False,
    folder: DiskFolder = None,
    as_json: AsJson = False,
) -> None:
    """Add labelled rows to a collection that learns them, against the hasher alone.

    \b
    Examples:
      python -m benchmarks ingest --repeats 20
    """
    _bench("ingest", as_json, repeats=repeats, quick=quick, folder=folder)


@app.command()
def serve(
    repeats: Annotated[int, typer.Option(min=1, help="Single searches of each contender.")] = 500,
    quick: Quick = False,
    items: Annotated[int, typer.Option(min=1000, help="Items of the collection that is served.")] = 1_000_000,
    seconds: Annotated[float, typer.Option(min=1, help="How long sixteen clients search.")] = 60.0,
    hostile: Annotated[bool, typer.Option("--hostile", help="Good clients alone, then beside hostile ones.")] = False,
    folder: DiskFolder = None,
    as_json: AsJson = False,
) -> None:
    """Search over HTTP, against the library; with many clients beside learning; and kill the server.

    \b
    Examples:
      python -m benchmarks serve --seconds 10
      python -m benchmarks serve --hostile --quick
    """
    if hostile:
        _bench("serve", as_json, "HOSTILE_BENCH", quick=quick, items=items, seconds=seconds, folder=folder)
        return
    _bench("serve", as_json, repeats=repeats, quick=quick, items=items, seconds=seconds, folder=folder)


@app.command()
def page(
    repeats: Annotated[int, typer.Option(min=1, help="Requests of each page.")] = 50,
    quick: Quick = False,
    items: Annotated[int, typer.Option(min=1000, help="Items of the collection that is served.")] = 1_000_000,
    folder: DiskFolder = None,
    as_json: AsJson = False,
) -> None:
    """Request each page of a server over a large collection, one at a time.

    \b
    Examples:
      python -m benchmarks page --items 100000
    """
    _bench("page", as_json, repeats=repeats, quick=quick, items=items, folder=folder)


@app.command()
def peers(
    repeats: Annotated[int, typer.Option(min=1, help="Queries, searched one at a time.")] = 300,
    quick: Quick = False,
    rows: Annotated[int, typer.Option(min=4000, help="Rows that each database gets.")] = 20_000,
    data: Annotated[str | None, typer.Option(help="Feature folder; default: rows that are made up.")] = None,
    folder: DiskFolder = None,
    markdown: Annotated[Path | None, typer.Option(help="File for the table as Markdown.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add, search and filter the same rows as Chroma and LanceDB, each in a process of its own.

    \b
    Examples:
      python -m benchmarks peers --rows 20000 --markdown peers.md
    """
    _bench("peers", as_json, repeats=repeats, quick=quick, rows=rows, data=data, folder=folder, markdown=markdown)


@app.command()
def cluster(
    repeats: Annotated[int, typer.Option(min=1, help="Searches of each kind.")] = 800,
    quick: Quick = False,
    codes: Annotated[int, typer.Option(min=1000, help="Random codes over all shards.")] = 3_000_000,
    as_json: AsJson = False,
) -> None:
    """Search shards in processes of their own, against one index; by shards, and through aggregators.

    \b
    Examples:
      python -m benchmarks cluster --quick
    """
    _bench("cluster", as_json, repeats=repeats, quick=quick, codes=codes)


@app.command()
def cluster_faults(
    quick: Quick = False,
    codes: Annotated[int, typer.Option(min=1000, help="Random codes over all shards.")] = 600_000,
    plot: Annotated[Path | None, typer.Option(help="File for a picture of the rates (PNG or SVG).")] = None,
    as_json: AsJson = False,
) -> None:
    """Kill actors, a node, Ray's head, a front and the writer of a cluster while clients search.

    \b
    Examples:
      python -m benchmarks cluster-faults --plot faults.png
    """
    _bench("cluster_faults", as_json, quick=quick, codes=codes, plot=plot)


@app.command()
def bulk_encode(quick: Quick = False, folder: DiskFolder = None, as_json: AsJson = False) -> None:
    """Encode, learn and publish a dataset by several nodes, against one process; and kill the driver.

    \b
    Examples:
      python -m benchmarks bulk-encode --quick
    """
    _bench("bulk_encode", as_json, quick=quick, folder=folder)


def main() -> None:
    """Run a benchmark; an error of stillhash is one line, and its exit code."""
    try:
        app()
    except StillhashError as error:
        print_error(type(error).__name__, str(error), "--json" in sys.argv)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
