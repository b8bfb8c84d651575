"""Complete words on the command line: collections, versions of a model, names from short lists.

Completion runs at every press of Tab, so nothing here imports numpy. Names and defaults of the library, which help has
too, are plain values here; a test compares each with the library. Where there is nothing to offer, the shell itself
completes names of files.
"""

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import typer

NEW_CODE_BITS = 128
DEFAULT_METHOD = "tally"
FIXED_CODE_NAMES = ("tally", "ohsl", "ohsl-sym", "oasis", "lego", "pca-itq", "lsh")
OTHER_METHOD_NAMES = ("ohweu", "hmoh", "bsodh", "mihash", "osuph", "okh", "osh", "lemon", "oesh")
PRESET_NAMES = (
    *("paper", "tables", "labelled-init", "ablation", "sweeps", "times", "quick", "drift"),
    *("few-labels", "labelled-share", "label-noise", "label-delay", "preprocessing", "text"),
)
CORPUS_NAMES = ("reuters", "debian")  # of texts
ROLE_NAMES = ("read", "feedback", "write", "admin")
LOG_FORMATS = ("json", "text", "off")
ENCODER_PREFIXES = ("classic", "onnx:", "timm:", "clip:", "words", "static:", "sentence:", "onnx-text:", "vectors:")
LABEL_SOURCES = ("auto", "folders", "sidecar", "tags", "none")
INDEX_KINDS = ("images", "texts")
TEXT_ENCODING_NAMES = ("utf-8", "latin-1")
CHUNK_WORDS = 200
MAX_TEXT_MIB = 16
MAX_AUDIT_ENTRIES = 100_000
MAX_VOTE_ENTRIES = 10_000
IMPORT_BATCH = 10_000  # rows
PORT = 8000
MCP_PORT = 8765
STORE_FILE = "store.db"  # a folder with this file is a collection
COMPLETION_VARIABLE = "_STILLHASH_COMPLETE"  # in it the script of the shell names what it needs
MAX_COMPLETIONS = 200
MAX_FOLDER_ENTRIES = 10_000  # of one folder that are looked at


Completions = list[str | tuple[str, str]]  # words, or words with their meaning


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Return a function that completes one of these names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def some_of(*names: str) -> Callable[[str], list[str]]:
    """Return a function that completes the last of several names with commas between."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        used = before.split(",")
        return [before + comma + name for name in names if name.startswith(last) and name not in used]

    return complete


def collections(incomplete: str) -> list[str]:
    """Return the collections in the folder that the word names so far; none if it cannot be read."""
    parent, last = os.path.split(incomplete)
    folders = []
    try:
        with os.scandir(Path(parent or ".").expanduser()) as entries:
            for _, entry in zip(range(MAX_FOLDER_ENTRIES), entries, strict=False):
                if entry.name.startswith(last) and (Path(entry.path) / STORE_FILE).is_file():
                    folders.append(os.path.join(parent, entry.name))  # noqa: PTH118 as typed, with ./ and ~
    except OSError:
        return []
    return sorted(folders)[:MAX_COMPLETIONS]


def versions(ctx: typer.Context, incomplete: str) -> Completions:
    """Return the latest versions of the collection on the command line, with how they came about."""
    import sqlite3

    path = ctx.params.get("path") or next(iter(ctx.args), "")  # arguments are not assigned yet after an open option
    store = Path(path) / STORE_FILE
    query = "SELECT version, kind, rows, tag FROM versions ORDER BY version DESC LIMIT ?"
    try:
        with closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True, timeout=0.2)) as connection:
            rows = connection.execute(query, (MAX_COMPLETIONS,)).fetchall()
    except (sqlite3.Error, ValueError):
        return []
    meanings = {str(number): f"{tag or kind}, {count:,} rows" for number, kind, count, tag in rows}
    return [(number, meaning) for number, meaning in meanings.items() if number.startswith(incomplete)]


def versions_or_hamming(ctx: typer.Context, incomplete: str) -> Completions:
    """Return what may rank hits: a version, or the Hamming distance."""
    hamming: Completions = [("hamming", "by Hamming distance")] if "hamming".startswith(incomplete) else []
    return versions(ctx, incomplete) + hamming


def skip_conversion(command: Any) -> None:
    """Leave the words of a line that is being completed as they are: conversion may import pydantic, and can fail."""
    for parameter in command.params:
        parameter.process_value = _unchanged
    command.get_help_option = partial(_unconverted_help_option, command.get_help_option)
    for below in getattr(command, "commands", {}).values():
        skip_conversion(below)


def _unconverted_help_option(get_help_option: Callable[[typer.Context], Any], ctx: typer.Context) -> Any:
    option = get_help_option(ctx)
    if option is not None:
        option.process_value = _unchanged
    return option


def _unchanged(_: typer.Context, value: Any) -> Any:
    return value
