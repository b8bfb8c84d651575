"""The exit codes of the command: one for each kind of error, the same in every command."""

from typing import NamedTuple

OK, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130


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


def help_text() -> str:
    """Return the codes as one paragraph, for the end of the help."""
    return "Exit codes: " + ", ".join(f"{each.code} {each.error or 'success'}" for each in EXIT_CODES) + "."
