"""The command line: a thin skin. Results go to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import stillhash
from stillhash.errors import MissingExtra, StillhashError

app = typer.Typer(
    help="Vector search over compact binary codes whose similarity keeps learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure speed, as ratios between contenders in one run.", no_args_is_help=True)
app.add_typer(bench, name="bench")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def run() -> None:
    """Runs the command; errors of ours end it with their own exit code and one line."""
    try:
        app()
    except StillhashError as error:
        Console(stderr=True).print(f"[bold red]{type(error).__name__}[/]: {error}", highlight=False)
        sys.exit(error.exit_code)


def _extra(name: str, error: ModuleNotFoundError) -> MissingExtra:
    return MissingExtra(f"this command needs {error.name}: pip install 'stillhash[{name}]'")


def _answer(result: dict[str, Any], as_json: bool, show: Any) -> None:
    if as_json:
        print(json.dumps(result))
    else:
        show(result, Console())


@app.command()
def info(as_json: AsJson = False) -> None:
    """Say which kernels serve on this machine, and the versions."""

    def show(result: dict[str, Any], console: Console) -> None:
        for key, value in result.items():
            console.print(
                f"[bold]{key:>10}[/]  {', '.join(value) if isinstance(value, list) else value}", highlight=False
            )

    _answer(stillhash.info(), as_json, show)


@app.command()
def demo(
    scenes: Annotated[int, typer.Option(min=2000, help="How many digit scenes to make.")] = 20_000,
    bits: Annotated[int, typer.Option(min=8, max=512, help="Code length.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the scenes and the model.")] = 0,
    plot: Annotated[Path, typer.Option(help="Where the learning curve goes (PNG).")] = Path("stillhash-demo.png"),
    as_json: AsJson = False,
) -> None:
    """Watch the similarity learn, offline: scenes of handwritten digits, codes that never change."""
    try:
        from stillhash.experiments import demo as room
    except ModuleNotFoundError as error:
        raise _extra("experiments", error) from None
    _answer(room.run(scenes, bits, seed, plot, Console(stderr=True)), as_json, room.show)


Repeats = Annotated[int, typer.Option(min=1, help="Timed rounds of each contender.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes, a few seconds; ratios mean little.")]


def _bench(name: str, as_json: bool, **options: Any) -> None:
    """Runs one bench; progress goes to stderr."""
    try:
        room = import_module(f"stillhash.experiments.bench.{name}")
    except ModuleNotFoundError as error:
        raise _extra("bench", error) from None
    with Console(stderr=True).status(f"bench {name}") as status:
        result = room.run(progress=lambda now: status.update(f"bench {name}: {now}"), **options)
    _answer(result, as_json, room.show)


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
