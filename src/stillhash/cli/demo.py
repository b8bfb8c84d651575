"""Commands that need no collection: facts about the installation, and the demo."""

from pathlib import Path
from typing import Annotated

from typer import Option, Typer

import stillhash
from stillhash.cli.completion import DEFAULT_METHOD, PORT, one_of
from stillhash.cli.options import optional_module
from stillhash.cli.output import AsJson, answer
from stillhash.cli.serve import announce
from stillhash.errors import InvalidInput

app = Typer()
DEMO_PLOT = Path("stillhash-demo.png")
DEMO_METHOD_HELP = "Learning method: tally, the default, or the paper's ohsl."
DEMO_FOLDER_HELP = "Folder to keep; otherwise temporary and deleted."


@app.command()
def info(as_json: AsJson = False) -> None:
    """Show version and CPU kernels.

    \b
    Examples:
      stillhash info
      stillhash info --json
    """
    from stillhash.cli import result_tables

    answer(stillhash.info(), as_json, result_tables.pairs)


@app.command()
def demo(
    scenes: Annotated[int, Option(min=2000, help="How many digit scenes to make.")] = 20_000,
    bits: Annotated[int, Option(min=8, max=512, help="Code length.")] = 64,
    seed: Annotated[int, Option(min=0, help="Seed of the scenes and the model.")] = 0,
    method: Annotated[str, Option(help=DEMO_METHOD_HELP, autocompletion=one_of("tally", "ohsl"))] = DEFAULT_METHOD,
    serve: Annotated[bool, Option("--serve/--no-serve", help="Serve a page, or use the terminal only.")] = True,
    port: Annotated[int, Option(min=0, max=65535, help="Port of the page; 0 picks a free port.")] = PORT,
    path: Annotated[Path | None, Option(metavar="FOLDER", help=DEMO_FOLDER_HELP)] = None,
    plot: Annotated[Path, Option(help="With --no-serve: file for the learning curve (PNG).")] = DEMO_PLOT,
    as_json: AsJson = False,
) -> None:
    """Watch the similarity learn, offline: scenes of handwritten digits, codes that never change.

    A page is served while scenes stream in, which are labelled later. With --no-serve, it is all in the terminal.

    \b
    Examples:
      stillhash demo
      stillhash demo --no-serve --scenes 5000 --plot curve.png
    """
    if serve and as_json:
        raise InvalidInput("json: expected --no-serve with it, got --serve; only the terminal demo has a result")
    module = optional_module("demo", "demo")
    from rich.console import Console

    if serve:
        module.run_page(scenes, bits, seed, method, port, path, Console(stderr=True), announce)
    else:
        answer(module.run_terminal(scenes, bits, seed, plot, Console(stderr=True), method), as_json, module.show)
