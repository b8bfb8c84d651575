"""The commands of collections, items and search: the verbs of `Collection`, one command each, and no logic."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import stillhash
from stillhash.cli import output
from stillhash.cli.output import AsJson, answer, sentence
from stillhash.errors import Conflict, InvalidInput, MissingExtra, StillhashError
from stillhash.io import Chunk, parse_ids, parse_json_object, read_chunks, read_queries

app = typer.Typer()
STILL = [name for name, method in stillhash.METHODS.items() if method.fixed_codes]  # their codes never change
ITEMS, SEARCH = "Collections: items", "Collections: search"

At = Annotated[Path, typer.Argument(metavar="PATH", help="The collection's folder.", show_default=False)]
Rows = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Rows: .jsonl, .csv, .parquet, .npz or .npy; '-' for JSON lines from stdin.",
        show_default=False,
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="IDS", help="Whole numbers are integers, '\"7\"' is text; '-' for stdin.", show_default=False
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Labels, if FILE has none: .npy (labels, or a matrix of 0 and 1), .jsonl (a list a line) "
        "or .txt ('cat|dog' a line).",
    ),
]
Size = Annotated[int, typer.Option(min=1, help="Rows read, and stored, at a time.")]
Vector = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="The queries: any file of rows, a .json file, '-' for JSON from stdin, or JSON itself: '[0.1, 0.2]'.",
        show_default=False,
    ),
]
Where = Annotated[
    str | None, typer.Option(metavar="JSON", help="""Only items that meet this: '{"year": {"$gte": 1990}}'.""")
]
Version = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Rank by this version of the model; 0 is Hamming distance."),
]


def optional_module(name: str, extra: str) -> Any:
    """A module that needs an extra; only commands that use it load it."""
    try:
        return import_module(f"stillhash.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"this command needs {error.name}: pip install 'stillhash[{extra}]'") from None


def opened(path: Path, *, write: bool = False, **settings: Any) -> stillhash.Collection:
    return stillhash.open(path, read_only=not write, **settings)


def each(found: Iterator[Chunk], work: Callable[[Chunk], Any], done: str) -> int:
    """Does the work on chunk after chunk. Whatever ends it early, how far it came is said."""
    rows, console = 0, Console(stderr=True)
    parts = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*parts, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(f"0 rows {done}", total=1.0)
        try:
            for chunk in found:
                try:
                    work(chunk)
                except StillhashError as error:
                    raise type(error)(f"{chunk.place}: {error}") from error
                rows += len(chunk.features)
                progress.update(task, completed=chunk.progress, description=f"{output.rows(rows)} {done}")
        except StillhashError as error:
            so_far = f"rows {done} before, and safe on disk: {rows:,}" if rows else f"nothing is {done}"
            raise type(error)(f"{error} ({so_far})") from error
        except KeyboardInterrupt:
            console.print(f"stopped; rows {done} before, and safe on disk: {rows:,}", highlight=False)
            raise
    return rows


def current_version(collection: stillhash.Collection) -> int:
    return next((told["version"] for told in collection.versions() if told["current"]), 0)


# ---- items ----


@app.command(rich_help_panel=ITEMS)
def create(
    path: At,
    dim: Annotated[int, typer.Option(min=1, help="Length of the feature vectors.", show_default=False)],
    bits: Annotated[int, typer.Option(min=8, max=512, help="Length of the codes.")] = 64,
    method: Annotated[str, typer.Option(help=f"What learns: {', '.join(STILL)}.")] = stillhash.DEFAULT_HASHER.name,
    params: Annotated[
        str | None, typer.Option(metavar="JSON", help="""Parameters of the method: '{"random_state": 1}'.""")
    ] = None,
    init_rows: Annotated[int, typer.Option(help="Rows the hash functions are fitted on, at least 300.")] = 3000,
    learn_rows: Annotated[int, typer.Option(help="Labelled rows that make a step of learning.")] = 1000,
    keep_versions: Annotated[int, typer.Option(help="Versions of the model that are kept.")] = 32,
    source_cap: Annotated[float, typer.Option(help="Thumbs that one source counts for at most.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Make a new collection in a folder that is not there yet, or is empty."""
    if (path / "store.db").exists():
        raise Conflict(f"{path} holds a collection already")
    with opened(
        path,
        write=True,
        dim=dim,
        bits=bits,
        method=method,
        params=parse_json_object(params, "params"),
        init_rows=init_rows,
        learn_rows=learn_rows,
        keep_versions=keep_versions,
        source_cap=source_cap,
    ) as collection:
        told = f"{path} is ready for vectors of {dim} numbers, as codes of {bits} bits"
        answer({"path": str(path), "dim": collection.dim, "bits": collection.bits}, as_json, sentence(told))


@app.command(rich_help_panel=ITEMS)
def add(
    path: At,
    file: Rows,
    ids: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ids, if FILE has none: .npy, .jsonl or .txt (an id a line)."),
    ] = None,
    labels: Labels = None,
    metadata: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Metadata, if FILE has none: .jsonl (an object a line).")
    ] = None,
    learn: Annotated[bool, typer.Option("--learn/--no-learn", help="Whether labelled rows are learnt from.")] = True,
    upsert: Annotated[bool, typer.Option("--upsert", help="Replace items whose ids are there already.")] = False,
    chunk: Size = 1000,
    as_json: AsJson = False,
) -> None:
    """Add items from a file. Each chunk is on disk before the next is read.

    JSON lines have id, features, and perhaps labels and metadata.

    CSV and Parquet have columns id, features or f0, f1, ..., perhaps labels ('cat|dog'); all others are metadata.

    Arrays are called ids, features, labels, metadata; without ids, rows are numbered, from the count of items.
    """
    with opened(path, write=True) as collection:
        put = collection.upsert if upsert else collection.add
        first = None if upsert else collection.count()
        found = read_chunks(
            file, collection.dim, chunk, ids=ids, labels=labels, metadata=metadata, require_ids=True, first_id=first
        )
        rows = each(found, lambda c: put(c.ids, c.features, c.labels, c.metadata, learn=learn), "added")
        result = {"added": rows, "count": collection.count(), "version": current_version(collection)}
    answer(result, as_json, sentence(f"{output.rows(rows)} added, {result['count']:,} items in all"))


@app.command(rich_help_panel=ITEMS)
def delete(path: At, ids: Names = None, as_json: AsJson = False) -> None:
    """Delete items by their ids; without ids, or with '-', they come from stdin, one a line."""
    if ids == ["-"] or (not ids and not sys.stdin.isatty()):
        names = parse_ids(sys.stdin)
    elif ids:
        names = parse_ids(ids)
    else:
        raise InvalidInput("no ids are given; name some, or pipe them in, one a line")
    names = list(dict.fromkeys(names))
    with opened(path, write=True) as collection:
        gone = collection.delete(names)
    absent = len(names) - gone
    told = f"{gone:,} deleted" + (f", {absent:,} were not there" if absent else "")
    answer({"deleted": gone, "absent": absent}, as_json, sentence(told))


@app.command(rich_help_panel=ITEMS)
def get(
    path: At,
    ids: Annotated[list[str], typer.Argument(metavar="IDS", help="Whole numbers are integers, '\"7\"' is text.")],
    as_json: AsJson = False,
) -> None:
    """Show items: their labels and metadata. JSON has null where there is no such item."""
    names = parse_ids(ids)
    with opened(path) as collection:
        found = collection.get(names)
    absent = [str(name) for name, item in zip(names, found, strict=True) if item is None]
    answer({"items": [None if item is None else asdict(item) for item in found]}, as_json, output.items)
    if absent:
        Console(stderr=True).print(f"not there: {', '.join(absent)}", highlight=False, markup=False, soft_wrap=True)


@app.command(rich_help_panel=ITEMS)
def count(path: At, as_json: AsJson = False) -> None:
    """Say how many items there are."""
    with opened(path) as collection:
        found = collection.count()
    answer({"count": found}, as_json, sentence(str(found)))


# ---- search ----


@app.command(rich_help_panel=SEARCH)
def search(
    path: At,
    vector: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The queries: any file of rows, a .json file, '-' for JSON from stdin, or JSON itself: '[0.1, 0.2]'.",
        ),
    ] = None,
    image: Annotated[Path | None, typer.Option(metavar="FILE", help="An image, described by the encoder.")] = None,
    text: Annotated[str | None, typer.Option(metavar="WORDS", help="Words, if the encoder knows words.")] = None,
    like: Annotated[str | None, typer.Option(metavar="ID", help="More like this item.")] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another encoder than the collection's own, over a bridge.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many items to find for each query.")] = 10,
    where: Where = None,
    version: Version = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say which bits made the score of each hit.")] = False,
    against: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="With --explain, compare with version N, not with the earliest."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best items for query vectors, an image, words, or an item."""
    if against is not None and not explain:
        raise InvalidInput("--against is given without --explain")
    with opened(path) as collection:
        asked = _asked(collection, vector, image, text, like, encoder)
        told = against if against is not None else explain
        found = collection.search(asked, k, where=parse_json_object(where, "where"), version=version, explain=told)
    answer({"answers": [_plain(one) for one in found]}, as_json, output.answers)


def _asked(
    collection: stillhash.Collection,
    vector: str | None,
    image: Path | None,
    text: str | None,
    like: str | None,
    encoder: str | None,
) -> Any:
    """The features of what is looked for."""
    if sum(given is not None for given in (vector, image, text, like)) != 1:
        raise InvalidInput("one of --vector, --image, --text and --like is wanted")
    if vector is not None:
        return read_queries(vector, collection.dim)
    if like is not None:
        return collection.reconstruct(parse_ids([like]))
    eyes = optional_module("images", "images").open_query_encoder(collection, encoder)
    if text is not None:
        return eyes.text(text)[None]
    assert image is not None
    return eyes.image(optional_module("encoders.pixels", "images").read_bytes(image), image.name)[None]


@app.command(rich_help_panel=SEARCH)
def range_search(
    path: At,
    vector: Vector,
    threshold: Annotated[float, typer.Option(help="The least score of a hit.", show_default=False)],
    where: Where = None,
    version: Version = None,
    as_json: AsJson = False,
) -> None:
    """Find all items of at least this score."""
    with opened(path) as collection:
        asked = read_queries(vector, collection.dim)
        found = collection.range_search(asked, threshold, where=parse_json_object(where, "where"), version=version)
    answer({"answers": [_plain(one) for one in found]}, as_json, output.answers)


def _plain(found: stillhash.Answer) -> dict[str, Any]:
    """As JSON; without the place for an explanation where there is none."""
    told = asdict(found)
    for hit in told["hits"]:
        if hit["explanation"] is None:
            del hit["explanation"]
    return told
