"""Print results to stdout, as one JSON object or for people; notes, progress and errors to stderr; exit codes.

rich is imported only where a table or a progress bar is drawn, so that most commands do without.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stillhash.errors import StillhashError

if TYPE_CHECKING:
    from rich.console import Console

    from stillhash.io import Chunk

OK, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
UpdateProgress = Callable[..., None]
Show = Callable[[dict[str, Any], "Console"], None]


def answer(result: dict[str, Any], as_json: bool, show: Show | str) -> None:
    """Print a result as JSON, or for people: by a function, or as a text."""
    if as_json:
        typer.echo(dump_json(result))
    elif isinstance(show, str):
        typer.echo(show)
    else:
        from rich.console import Console

        show(result, Console())


def dump_json(result: dict[str, Any]) -> str:
    """Return one line of JSON; NaN and infinity, which JSON lacks, become null."""
    try:
        return json.dumps(result, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(result), allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def note(text: str, *, color: str | None = None) -> None:
    """Print a line to stderr that is no part of the result; in color on a terminal."""
    typer.secho(text, fg=color, err=True)


def print_error(name: str, message: str, as_json: bool) -> None:
    """Print an error to stderr: its type and its message, as one line or as a JSON object."""
    if as_json:
        typer.echo(json.dumps({"error": name, "message": message}), err=True)
    else:
        typer.echo(f"{typer.style(name, fg='red', bold=True)}: {message}", err=True)


@contextmanager
def progress_bar(description: str, total: float | None, *, counts: bool = True) -> Iterator[UpdateProgress]:
    """Show a progress bar if stderr is a terminal, with counts or only a bar; yield the function that updates it."""
    if not sys.stderr.isatty():
        yield lambda **_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

    numbers: list[ProgressColumn] = [MofNCompleteColumn()] if counts else []
    columns = TextColumn("{task.description}"), BarColumn(), *numbers, TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield partial(progress.update, progress.add_task(description, total=total))


@contextmanager
def status_line(text: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done if stderr is a terminal; yield the function that changes the text."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update


def for_each_chunk(chunks: "Iterator[Chunk]", function: "Callable[[Chunk], object]", verb: str) -> int:
    """Call the function on every chunk; return the number of rows, which an error or Ctrl-C also reports."""
    rows = 0
    try:
        with progress_bar(f"0 rows {verb}", 1.0, counts=False) as update:
            for chunk in chunks:
                try:
                    function(chunk)
                except StillhashError as error:
                    raise type(error)(f"{chunk.place}: {error}") from error
                rows += len(chunk.features)
                update(completed=chunk.progress, description=f"{count_of(rows, 'row')} {verb}")
    except StillhashError as error:
        raise type(error)(f"{error} ({count_of(rows, 'row')} {verb} before)") from error
    except KeyboardInterrupt:
        note(f"stopped; {count_of(rows, 'row')} {verb} before")
        raise
    return rows


def count_of(number: int, noun: str) -> str:
    """Return '1 row' or '2,000 rows'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class ExitCode(NamedTuple):
    """An exit code: the error that leads to it, and what it means."""

    code: int
    error: str
    meaning: str


EXIT_CODES = (
    ExitCode(OK, "", "success"),
    ExitCode(FAILURE, "StillhashError", "any other failure; the reader of stdout went away"),
    ExitCode(USAGE, "InvalidInput", "usage: an option, an argument or an input file is wrong"),
    ExitCode(3, "NotFitted", "the hash functions are not fitted yet"),
    ExitCode(4, "Conflict", "contradicts what is stored: an id exists, another process writes"),
    ExitCode(5, "BadState", "the stored data is damaged, or of an unknown format"),
    ExitCode(6, "MissingExtra", "an optional package is not installed; the message names the extra"),
    ExitCode(7, "StoreFailed", "the disk refused a write, or returned an error"),
    ExitCode(8, "NotFound", "nothing with this name exists"),
    ExitCode(9, "Denied", "the server refuses the key, or needs one"),
    ExitCode(10, "Busy", "the server's queue is full, or file handles or threads lack: try again"),
    ExitCode(11, "Unreachable", "the server does not answer, or is not a stillhash server"),
    ExitCode(12, "Closed", "the collection was closed meanwhile"),
    ExitCode(13, "OutOfMemory", "there is not enough memory"),
    ExitCode(14, "Unsupported", "this operating system lacks what the command needs"),
    ExitCode(INTERRUPTED, "Interrupted", "stopped by Ctrl-C"),
)


def exit_code_help() -> str:
    """Return the codes as one paragraph, for the end of the help."""
    return "Exit codes: " + ", ".join(f"{each.code} {each.error or 'success'}" for each in EXIT_CODES) + "."
