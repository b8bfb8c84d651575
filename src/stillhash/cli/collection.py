"""Commands for items and search: one command per method of `Collection`, without logic."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import stillhash
from stillhash.cli import output
from stillhash.cli.output import AsJson, answer, count_of, sentence
from stillhash.errors import Conflict, InvalidInput, MissingExtra, StillhashError
from stillhash.hashers import FIXED_CODE_METHODS
from stillhash.io import Chunk, parse_ids, parse_json_object, read_chunks, read_queries

app = typer.Typer()
ITEMS_PANEL, SEARCH_PANEL = "Collections: items", "Collections: search"
QUERY_HELP = "Queries: any file of rows, a .json file, '-' for JSON from stdin, or JSON itself: '[0.1, 0.2]'."
IDS_HELP = "Ids; a whole number is an integer id, '\"7\"' is the text 7."

PathArgument = Annotated[Path, typer.Argument(metavar="PATH", help="The collection's folder.", show_default=False)]
RowsArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Rows: .jsonl, .csv, .parquet, .npz or .npy; '-' for JSON lines from stdin.",
        show_default=False,
    ),
]
IdsArgument = Annotated[list[str], typer.Argument(metavar="IDS", help=IDS_HELP, show_default=False)]
LabelsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Labels, if FILE has none: .npy (labels, or a matrix of 0 and 1), .jsonl (one list per line) "
        "or .txt (one 'cat|dog' per line).",
    ),
]
ChunkOption = Annotated[int, typer.Option(min=1, help="Rows to read and store at a time.")]
VectorOption = Annotated[str, typer.Option(metavar="FILE", help=QUERY_HELP, show_default=False)]
WhereOption = Annotated[
    str | None, typer.Option(metavar="JSON", help="""Only items that match: '{"year": {"$gte": 1990}}'.""")
]
VersionOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Rank by this version of the model; 0 is Hamming distance."),
]


def optional_module(name: str, extra: str) -> Any:
    """Import a module that needs an extra; only commands that use it load it."""
    try:
        return import_module(f"stillhash.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"this command needs {error.name}: pip install 'stillhash[{extra}]'") from None


def open_collection(path: Path, *, write: bool = False) -> stillhash.Collection:
    return stillhash.open(path, read_only=not write)


def for_each_chunk(chunks: Iterator[Chunk], function: Callable[[Chunk], object], verb: str) -> int:
    """Call the function on every chunk; return the number of rows, which an error or Ctrl-C also reports."""
    rows, console = 0, Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(f"0 rows {verb}", total=1.0)
        try:
            for chunk in chunks:
                try:
                    function(chunk)
                except StillhashError as error:
                    raise type(error)(f"{chunk.place}: {error}") from error
                rows += len(chunk.features)
                progress.update(task, completed=chunk.progress, description=f"{count_of(rows, 'row')} {verb}")
        except StillhashError as error:
            raise type(error)(f"{error} ({count_of(rows, 'row')} {verb} before)") from error
        except KeyboardInterrupt:
            console.print(f"stopped; {count_of(rows, 'row')} {verb} before", highlight=False)
            raise
    return rows


def current_version(collection: stillhash.Collection) -> int:
    return next((version["version"] for version in collection.versions() if version["current"]), 0)


@app.command(rich_help_panel=ITEMS_PANEL)
def create(
    path: PathArgument,
    dim: Annotated[int, typer.Option(min=1, help="Length of the feature vectors.", show_default=False)],
    bits: Annotated[int, typer.Option(min=8, max=512, help="Length of the codes.")] = 64,
    method: Annotated[
        str, typer.Option(help=f"Learning method: {', '.join(FIXED_CODE_METHODS)}.")
    ] = stillhash.DEFAULT_HASHER.name,
    params: Annotated[
        str | None, typer.Option(metavar="JSON", help="""Parameters of the method: '{"random_state": 1}'.""")
    ] = None,
    init_rows: Annotated[int, typer.Option(help="Rows to fit the hash functions on, at least 300.")] = 3000,
    learn_rows: Annotated[int, typer.Option(help="Labelled rows to learn in one step.")] = 1000,
    keep_versions: Annotated[int, typer.Option(help="Versions of the model to keep.")] = 32,
    source_cap: Annotated[float, typer.Option(help="Most votes that one source of feedback counts for.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Create a collection in a new or empty folder."""
    if (path / "store.db").exists():
        raise Conflict(f"path: expected a new folder, got {path}, which holds a collection")
    with stillhash.open(
        path,
        dim=dim,
        bits=bits,
        method=method,
        params=parse_json_object(params, "params"),
        init_rows=init_rows,
        learn_rows=learn_rows,
        keep_versions=keep_versions,
        source_cap=source_cap,
    ) as collection:
        text = f"{path} created, for vectors of {dim} numbers and codes of {bits} bits"
        answer({"path": str(path), "dim": collection.dim, "bits": collection.bits}, as_json, sentence(text))


@app.command(rich_help_panel=ITEMS_PANEL)
def add(
    path: PathArgument,
    file: RowsArgument,
    ids: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ids, if FILE has none: .npy, .jsonl or .txt (one id per line)."),
    ] = None,
    labels: LabelsOption = None,
    metadata: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Metadata, if FILE has none: .jsonl (one object per line).")
    ] = None,
    learn: Annotated[bool, typer.Option("--learn/--no-learn", help="Whether to learn from labelled rows.")] = True,
    upsert: Annotated[bool, typer.Option("--upsert", help="Replace items whose ids exist.")] = False,
    chunk: ChunkOption = 1000,
    as_json: AsJson = False,
) -> None:
    """Add items from a file. Each chunk is on disk before the next is read.

    JSON lines have id, features, and perhaps labels and metadata.

    CSV and Parquet have columns id, features or f0, f1, ..., perhaps labels ('cat|dog'); all others are metadata.

    Arrays are called ids, features, labels, metadata; without ids, rows are numbered, from the count of items.
    """
    with open_collection(path, write=True) as collection:
        put = collection.upsert if upsert else collection.add
        first_id = None if upsert else collection.count()
        files = {"ids": ids, "labels": labels, "metadata": metadata}
        chunks = read_chunks(file, collection.dim, chunk, **files, require_ids=True, first_id=first_id)
        rows = for_each_chunk(
            chunks, lambda c: put(c.ids or [], c.features, c.labels, c.metadata, learn=learn), "added"
        )
        result = {"added": rows, "count": collection.count(), "version": current_version(collection)}
    text = f"{count_of(rows, 'row')} added, {count_of(result['count'], 'item')} in total"
    answer(result, as_json, sentence(text))


@app.command(rich_help_panel=ITEMS_PANEL)
def delete(
    path: PathArgument,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="IDS", help=f"{IDS_HELP} '-' for stdin.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete items by their ids; without IDS, or with '-', read them from stdin, one id per line."""
    if not ids and sys.stdin.isatty():
        raise InvalidInput("ids: expected some, or a pipe with one id per line, got none")
    names = list(dict.fromkeys(parse_ids(sys.stdin if not ids or ids == ["-"] else ids)))
    with open_collection(path, write=True) as collection:
        deleted = collection.delete(names)
    absent = len(names) - deleted
    text = f"{deleted:,} deleted" + (f", {absent:,} not found" if absent else "")
    answer({"deleted": deleted, "absent": absent}, as_json, sentence(text))


@app.command(rich_help_panel=ITEMS_PANEL)
def get(path: PathArgument, ids: IdsArgument, as_json: AsJson = False) -> None:
    """Show the labels and metadata of items. JSON has null where there is no such item."""
    names = parse_ids(ids)
    with open_collection(path) as collection:
        items = collection.get(names)
    absent = [str(name) for name, item in zip(names, items, strict=True) if item is None]
    answer({"items": [None if item is None else asdict(item) for item in items]}, as_json, output.items)
    if absent:
        Console(stderr=True).print(f"not found: {', '.join(absent)}", highlight=False, markup=False, soft_wrap=True)


@app.command(rich_help_panel=ITEMS_PANEL)
def count(path: PathArgument, as_json: AsJson = False) -> None:
    """Show the number of items."""
    with open_collection(path) as collection:
        items = collection.count()
    answer({"count": items}, as_json, sentence(str(items)))


@app.command(rich_help_panel=SEARCH_PANEL)
def search(
    path: PathArgument,
    vector: Annotated[str | None, typer.Option(metavar="FILE", help=QUERY_HELP)] = None,
    image: Annotated[Path | None, typer.Option(metavar="FILE", help="An image to search by.")] = None,
    text: Annotated[str | None, typer.Option(metavar="WORDS", help="A text; needs a clip: encoder.")] = None,
    like: Annotated[str | None, typer.Option(metavar="ID", help="An item to find similar ones to.")] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="NAME", help="An aligned encoder instead of the collection's own.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits for each query.")] = 10,
    where: WhereOption = None,
    version: VersionOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show which bits made the score of each hit.")] = False,
    against: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="With --explain: compare with version N instead of the earliest."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best items for query vectors, an image, a text, or an item."""
    if against is not None and not explain:
        raise InvalidInput("--against: expected --explain with it")
    with open_collection(path) as collection:
        queries = _encode_queries(collection, vector, image, text, like, encoder)
        compare = against if against is not None else explain
        results = collection.search(
            queries, k, where=parse_json_object(where, "where"), version=version, explain=compare
        )
    answer({"answers": [_answer_json(one) for one in results]}, as_json, output.answers)


@app.command(rich_help_panel=SEARCH_PANEL)
def range_search(
    path: PathArgument,
    vector: VectorOption,
    threshold: Annotated[float, typer.Option(help="The lowest score of a hit.", show_default=False)],
    where: WhereOption = None,
    version: VersionOption = None,
    as_json: AsJson = False,
) -> None:
    """Find all items with at least this score."""
    with open_collection(path) as collection:
        queries = read_queries(vector, collection.dim)
        results = collection.range_search(queries, threshold, where=parse_json_object(where, "where"), version=version)
    answer({"answers": [_answer_json(one) for one in results]}, as_json, output.answers)


def _encode_queries(
    collection: stillhash.Collection,
    vector: str | None,
    image: Path | None,
    text: str | None,
    like: str | None,
    encoder: str | None,
) -> NDArray[Any]:
    """Return the features (m, D) to search for."""
    if sum(option is not None for option in (vector, image, text, like)) != 1:
        raise InvalidInput("query: expected one of --vector, --image, --text and --like")
    if vector is not None:
        return read_queries(vector, collection.dim)
    if like is not None:
        return collection.reconstruct(parse_ids([like]))
    query_encoder = optional_module("images", "images").open_query_encoder(collection, encoder)
    if image is not None:
        data = optional_module("encoders.pixels", "images").read_bytes(image)
        features: NDArray[Any] = query_encoder.image(data, image.name)
    else:
        features = query_encoder.text(text)
    return features[None]


def _answer_json(one: stillhash.Answer) -> dict[str, Any]:
    """Return an answer as JSON, without empty explanations."""
    result = asdict(one)
    for hit in result["hits"]:
        if hit["explanation"] is None:
            del hit["explanation"]
    return result
