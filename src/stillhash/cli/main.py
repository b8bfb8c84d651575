"""The command line, a thin layer over the library. Results go to stdout, progress and errors to stderr."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import stillhash
from stillhash.cli import (
    bench,
    cluster,
    collection,
    duplicates,
    experiment,
    exporting,
    forgetting,
    images,
    importing,
    items,
    keys,
    learning,
    serve,
)
from stillhash.cli.collection import optional_module
from stillhash.cli.output import AsJson, answer, pairs
from stillhash.cli.serve import PORT, announce
from stillhash.errors import InvalidInput, StillhashError, report_shortages

DEMO_PLOT = Path("stillhash-demo.png")

app = typer.Typer(
    help="Vector search over compact binary codes whose similarity keeps learning.",
    epilog="To begin: stillhash demo. Or: stillhash index PHOTOS gallery, then stillhash serve gallery.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (collection, items, importing, exporting, duplicates, images, learning, forgetting, serve):
    app.registered_commands += module.app.registered_commands
for name, group in (("keys", keys), ("cluster", cluster), ("bench", bench), ("experiment", experiment)):
    app.add_typer(group.app, name=name)


def run() -> None:
    """Run the command; an error of ours ends it with one line and its own exit code."""
    try:
        report_shortages(app)()
    except StillhashError as error:
        Console(stderr=True).print(Text.assemble((type(error).__name__, "bold red"), f": {error}"), soft_wrap=True)
        sys.exit(error.exit_code)


@app.command()
def info(as_json: AsJson = False) -> None:
    """Show version and CPU kernels."""
    answer(stillhash.info(), as_json, pairs)


@app.command()
def demo(
    scenes: Annotated[int, typer.Option(min=2000, help="How many digit scenes to make.")] = 20_000,
    bits: Annotated[int, typer.Option(min=8, max=512, help="Code length.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the scenes and the model.")] = 0,
    method: Annotated[str, typer.Option(help="Learning method: tally, the default, or the paper's ohsl.")] = "tally",
    serve: Annotated[bool, typer.Option("--serve/--no-serve", help="Serve a page, or use the terminal only.")] = True,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 picks a free port.")] = PORT,
    path: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder to keep; otherwise temporary and deleted.")
    ] = None,
    plot: Annotated[Path, typer.Option(help="With --no-serve: file for the learning curve (PNG).")] = DEMO_PLOT,
    as_json: AsJson = False,
) -> None:
    """Watch the similarity learn, offline: scenes of handwritten digits, codes that never change.

    A page is served while the scenes stream in. With --no-serve everything happens in the terminal.
    """
    if not serve:
        module = optional_module("demo.terminal", "experiments")
        answer(module.run(scenes, bits, seed, plot, Console(stderr=True), method), as_json, module.show)
    elif as_json:
        raise InvalidInput("json: expected --no-serve with it, got --serve; only the terminal demo has a result")
    else:
        page = optional_module("demo.page", "demo")
        page.run(scenes, bits, seed, method, port, path, Console(stderr=True), announce)
