"""The command line: a thin skin. Results go to stdout, progress and errors to stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

import stillhash
from stillhash.cli import cluster, collection, images, learning, serve
from stillhash.cli.collection import optional_module
from stillhash.cli.output import AsJson, answer, pairs
from stillhash.cli.serve import PORT, announce
from stillhash.errors import InvalidInput, StillhashError

app = typer.Typer(
    help="Vector search over compact binary codes whose similarity keeps learning.",
    epilog="To begin: stillhash demo. Or: stillhash index PHOTOS gallery, then stillhash serve gallery.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for part in (collection, images, learning, serve):
    app.registered_commands += part.app.registered_commands
app.add_typer(cluster.app, name="cluster")
bench = typer.Typer(help="Measure speed, as ratios between contenders in one run.", no_args_is_help=True)
app.add_typer(bench, name="bench")
experiment = typer.Typer(help="Run the paper's experiments, and make its tables and figures.", no_args_is_help=True)
app.add_typer(experiment, name="experiment")


def run() -> None:
    """Runs the command; errors of ours end it with their own exit code and one line."""
    try:
        app()
    except StillhashError as error:
        told = Text.assemble((type(error).__name__, "bold red"), f": {error}")
        Console(stderr=True).print(told, soft_wrap=True)
        sys.exit(error.exit_code)


def _experiments(name: str, extra: str = "experiments") -> Any:
    return optional_module(f"experiments.{name}", extra)


@app.command()
def info(as_json: AsJson = False) -> None:
    """Say which kernels serve on this machine, and the versions."""
    answer(stillhash.info(), as_json, pairs)


@app.command()
def demo(
    scenes: Annotated[int, typer.Option(min=2000, help="How many digit scenes to make.")] = 20_000,
    bits: Annotated[int, typer.Option(min=8, max=512, help="Code length.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the scenes and the model.")] = 0,
    method: Annotated[str, typer.Option(help="Who learns: tally, the default, or the paper's ohsl.")] = "tally",
    serve: Annotated[bool, typer.Option("--serve/--no-serve", help="The page, or the terminal only.")] = True,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0 takes one that is free.")] = PORT,
    path: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the collection is kept; gone afterwards if not given."),
    ] = None,
    plot: Annotated[Path, typer.Option(help="With --no-serve: where the learning curve goes (PNG).")] = Path(
        "stillhash-demo.png"
    ),
    as_json: AsJson = False,
) -> None:
    """Watch the similarity learn, offline: scenes of handwritten digits, codes that never change.

    A page is served while they stream in. With --no-serve all happens in the terminal, and a curve is drawn.
    """
    if not serve:
        module = optional_module("demo.terminal", "experiments")
        answer(module.run(scenes, bits, seed, plot, Console(stderr=True), method), as_json, module.show)
    elif as_json:
        raise InvalidInput("--json is for a result, which there is with --no-serve only")
    else:
        live = optional_module("demo.page", "demo")
        live.run(scenes, bits, seed, method, port, path, Console(stderr=True), announce)


Repeats = Annotated[int, typer.Option(min=1, help="Timed rounds of each contender.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes, a few seconds; ratios mean little.")]


def _bench(name: str, as_json: bool, **options: Any) -> None:
    """Runs one bench; progress goes to stderr."""
    module = optional_module(f"bench.{name}", "bench")
    with Console(stderr=True).status(f"bench {name}") as status:
        result = module.run(progress=lambda now: status.update(f"bench {name}: {now}"), **options)
    answer(result, as_json, module.show)


@bench.command()
def learn(repeats: Repeats = 15, quick: Quick = False, as_json: AsJson = False) -> None:
    """A chunk of 1000 x 4096 learnt: against the bare matrix products, and against loops."""
    _bench("learn", as_json, repeats=repeats, quick=quick)


@bench.command()
def encode(repeats: Repeats = 15, quick: Quick = False, as_json: AsJson = False) -> None:
    """Rows hashed to codes: against the bare matrix product."""
    _bench("encode", as_json, repeats=repeats, quick=quick)


@bench.command()
def scan(
    repeats: Repeats = 15,
    quick: Quick = False,
    codes: Annotated[int, typer.Option(min=1000, help="Random codes to search.")] = 10_000_000,
    as_json: AsJson = False,
) -> None:
    """The exact scan: against a bare read of the same bytes, and against FAISS."""
    _bench("scan", as_json, repeats=repeats, quick=quick, codes=codes)


@bench.command()
def miwq(
    repeats: Repeats = 15,
    quick: Quick = False,
    codes: Annotated[str, typer.Option(help="Numbers of codes to search, with commas between.")] = "1000000,10000000",
    cases: Annotated[int, typer.Option(min=1, help="Random queries compared with brute force.")] = 20_000,
    plot: Annotated[Path | None, typer.Option(help="Where a picture of the crossover goes (PNG).")] = None,
    as_json: AsJson = False,
) -> None:
    """Multi-index tables, and the index that chooses: against the scan."""
    if not all(count.isdigit() for count in codes.split(",")):
        raise InvalidInput(f"codes is {codes!r}; whole numbers with commas between are wanted")
    sizes = tuple(map(int, codes.split(",")))
    _bench("miwq", as_json, repeats=repeats, quick=quick, codes=sizes, cases=cases, plot=plot)


@bench.command()
def store(
    repeats: Annotated[int, typer.Option(min=1, help="One-row commits of each contender.")] = 200,
    quick: Quick = False,
    items: Annotated[int, typer.Option(min=1000, help="Items of the collection that is opened.")] = 1_000_000,
    folder: Annotated[
        Path | None, typer.Option(help="A folder on the disk to measure; the current one if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Durable writes against bare SQLite, opening a large collection, and compacting."""
    _bench("store", as_json, repeats=repeats, quick=quick, items=items, folder=folder)


@bench.command()
def ingest(
    repeats: Annotated[int, typer.Option(min=1, help="Chunks of 1,000 rows.")] = 40,
    quick: Quick = False,
    folder: Annotated[Path | None, typer.Option(help="Folder on the disk to measure; default: current.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add labelled rows to a collection that learns them, against the hasher alone."""
    _bench("ingest", as_json, repeats=repeats, quick=quick, folder=folder)


@bench.command(name="serve")
def serve_(
    repeats: Annotated[int, typer.Option(min=1, help="Single searches of each contender.")] = 500,
    quick: Quick = False,
    items: Annotated[int, typer.Option(min=1000, help="Items of the collection that is served.")] = 1_000_000,
    seconds: Annotated[float, typer.Option(min=1, help="How long sixteen clients search.")] = 60.0,
    folder: Annotated[
        Path | None, typer.Option(help="A folder for the collection; the current one if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Searches over HTTP against the library, many clients beside ingest and learning, and a server that is killed."""
    _bench("serve", as_json, repeats=repeats, quick=quick, items=items, seconds=seconds, folder=folder)


@bench.command(name="cluster")
def cluster_(
    repeats: Annotated[int, typer.Option(min=1, help="Searches of each kind.")] = 200,
    quick: Quick = False,
    codes: Annotated[int, typer.Option(min=1000, help="Random codes over all shards.")] = 20_000_000,
    as_json: AsJson = False,
) -> None:
    """Shards on several nodes against one index: equal answers, the price of asking many, killed actors and nodes."""
    _bench("cluster", as_json, repeats=repeats, quick=quick, codes=codes)


@bench.command(name="encoding")
def encoding_(
    quick: Quick = False,
    folder: Annotated[Path | None, typer.Option(help="A folder for the data; the current one if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """A dataset encoded, learnt and published by several nodes, killed on the way: against one process."""
    _bench("bulk_encoding", as_json, quick=quick, folder=folder)


Data = Annotated[
    str,
    typer.Option(
        help="A feature folder, 'simulated:FOLDER' if it has labels only, or 'scenes', the built-in digits; "
        "'drift:SCENARIO:' before any of them makes a stream that changes."
    ),
]
Results = Annotated[Path, typer.Option(help="Folder of result files, one a job.")]


@experiment.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """Say which methods and presets there are."""
    presets = _experiments("presets").PRESETS

    def first_line(thing: Any) -> str:
        return (thing.__doc__ or "").strip().splitlines()[0]

    result = {
        "methods": {name: first_line(method) for name, method in stillhash.METHODS.items()},
        "presets": {name: first_line(preset) for name, preset in presets.items()},
    }

    def show(result: dict[str, Any], console: Console) -> None:
        for kind, things in result.items():
            console.print(f"[bold]{kind}[/]", highlight=False)
            for name, about in things.items():
                console.print(f"  {name:<9} {about}", highlight=False, soft_wrap=True)

    answer(result, as_json, show)


@experiment.command(name="run")
def run_(
    data: Data = "scenes",
    preset: Annotated[str, typer.Option(help="Which experiments: see 'stillhash experiment list'.")] = "paper",
    quick: Annotated[bool, typer.Option("--quick", help="The preset quick: a few minutes on the scenes.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, with random_state 0, 1, ...")] = 1,
    methods: Annotated[str, typer.Option(help="Only these, with commas between.")] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Jobs at a time; one for each core if not given.")] = None,
    results: Results = Path("results"),
) -> None:
    """Run experiments into result files. Jobs whose file is there are skipped, so a stopped run goes on."""
    presets, runner = _experiments("presets").PRESETS, _experiments("run")
    name = "quick" if quick else preset
    chosen = tuple(filter(None, methods.split(",")))
    for wanted, known, what in ((name, presets, "preset"), *((m, stillhash.METHODS, "methods") for m in chosen)):
        if wanted not in known:
            raise InvalidInput(f"{what} is {wanted!r}; known are {', '.join(known)}")
    jobs = presets[name](data, seeds, chosen)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"experiment {name}", total=len(jobs))
        progress.update(task, completed=sum((results / job.file).exists() for job in jobs))
        ran = runner.run(jobs, results, workers, lambda job: progress.advance(task))
    console.print(f"{ran} of {len(jobs)} jobs run, the others were there; results in {results}", highlight=False)


@experiment.command()
def repeat(
    out: Annotated[Path, typer.Argument(help="The feature folder to write.")],
    data: Data = "scenes",
    rows: Annotated[int, typer.Option(min=1, help="Rows of the stream.")] = 60_000,
) -> None:
    """Write a feature folder that repeats a dataset's stream, as float32 on disk: for experiments with time."""
    module = _experiments("data")
    with Console(stderr=True).status(f"{rows} rows of {data}"):
        module.repeat(module.open_dataset(data), rows, out)
    print(out)


@experiment.command()
def feedback(
    data: Data = "scenes",
    bits: Annotated[int, typer.Option(min=8, max=512, help="Length of the codes.")] = 64,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of the queries.")] = 5,
    queries: Annotated[int, typer.Option(min=1, help="Queries that get ten thumbs each.")] = 20,
    others: Annotated[int, typer.Option(min=1, help="Queries that get none.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Give thumbs to a few queries, and measure what that does to them and to others."""
    module = _experiments("feedback_study")
    with Console(stderr=True).status("feedback") as status:
        stream = _experiments("drift").open_stream(data)
        result = module.run(stream, bits, seeds, queries, others, lambda now: status.update(f"feedback: {now}"))
    answer(result, as_json, module.show)


@experiment.command(name="images")
def images_(
    count: Annotated[int, typer.Option(min=400, help="Images to make and index.")] = 5000,
    queries: Annotated[int, typer.Option(min=1, help="Other images to search for.")] = 500,
    size: Annotated[int, typer.Option(min=16, max=4096, help="Pixels of a side.")] = 96,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one for each core if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Index a folder of made images, kill that and begin again, and measure speed, memory and what learning gains."""
    module = _experiments("image_ingest_study", extra="demo")
    with Console(stderr=True).status("images") as status:
        result = module.run(count, queries, size, 0, workers, lambda now: status.update(f"images: {now}"))
    answer(result, as_json, module.show)


@experiment.command()
def bridge(
    old: Annotated[str, typer.Argument(help="A feature folder: the encoder that made the codes.")],
    new: Annotated[str, typer.Argument(help="A feature folder of the same images: the encoder that asks.")],
    bits: Annotated[int, typer.Option(min=8, max=512, help="Length of the codes.")] = 64,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Ask old codes with a new encoder over a bridge, and measure what that keeps of encoding all anew."""
    module, data = _experiments("alignment_study"), _experiments("data")
    with Console(stderr=True).status("bridge") as status:
        folders = data.open_dataset(old), data.open_dataset(new)
        result = module.run(*folders, bits, seeds, lambda now: status.update(f"bridge: {now}"))
    answer(result, as_json, module.show)


@experiment.command()
def report(
    results: Results = Path("results"),
    out: Annotated[Path, typer.Option(help="Folder the report goes to.")] = Path("report"),
) -> None:
    """Make the tables and figures from result files: Markdown, one HTML page, PNG and SVG."""
    for path in _experiments("report").report(results, out):
        print(path)
