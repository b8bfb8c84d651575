"""The command line: a thin skin. Results go to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import sys
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
