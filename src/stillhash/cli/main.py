"""The command line, a thin layer over the library. Results go to stdout, progress and errors to stderr.

No module of this package imports numpy, rich or a server before a command runs: help, --version and completion are
quick. The order of the modules is that of the help.
"""

import os
import sys
from typing import Annotated

import typer
import typer.main

from stillhash.cli import (
    cluster,
    completion,
    demo,
    experiment,
    indexing,
    items,
    keys,
    learning,
    searching,
    serve,
    upkeep,
)
from stillhash.cli.output import FAILURE, INTERRUPTED, USAGE, exit_code_help, print_error
from stillhash.errors import StillhashError, report_shortages

BEGIN = "To begin: stillhash demo. Or: stillhash index PHOTOS gallery, then stillhash serve gallery."
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # of click, or of typer's own copy of it

app = typer.Typer(epilog=f"{BEGIN}\n\n{exit_code_help()}", no_args_is_help=True, pretty_exceptions_enable=False)
COMMAND_GROUPS = {"keys": keys, "cluster": cluster, "experiment": experiment}
for module in (demo, items, searching, indexing, learning, upkeep, serve):
    app.registered_commands += module.app.registered_commands
for name, group in COMMAND_GROUPS.items():
    app.add_typer(group.app, name=name)


def print_version(requested: bool) -> None:
    """Print the version and end."""
    if requested:
        import stillhash

        typer.echo(f"stillhash {stillhash.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Vector search over compact binary codes whose similarity keeps learning.

    \b
    Examples:
      stillhash create films --dim 512
      stillhash import films.parquet films
      stillhash search films --like 42 -k 5 --json
    """


def run() -> None:
    """Run the command; an error of ours ends it with one line, or one JSON object, and its own exit code."""
    if completion.COMPLETION_VARIABLE in os.environ:
        command = typer.main.get_command(app)
        completion.skip_conversion(command)
        command()
    as_json = "--json" in sys.argv[1:]
    try:
        code = report_shortages(app)(standalone_mode=not as_json)  # otherwise it prints usage errors itself, and exits
    except StillhashError as error:
        print_error(type(error).__name__, str(error), as_json)
        code = error.exit_code
    except USAGE_ERROR as error:
        print_error("UsageError", getattr(error, "format_message", error.__str__)(), as_json)
        code = USAGE
    except typer.Abort:
        print_error("Interrupted", "stopped at a question", as_json)
        code = FAILURE
    if code == INTERRUPTED and as_json:
        print_error("Interrupted", "stopped by Ctrl-C", as_json)
    sys.exit(code)
