"""Commands for items and search: one command per method of `Collection`, without logic."""

from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from typer import Argument, Option, Typer

import stillhash
from stillhash.cli import output
from stillhash.cli.column_options import (
    IdColumn,
    LabelColumns,
    LabelSeparator,
    MetadataColumns,
    VectorColumn,
    parse_columns,
)
from stillhash.cli.output import AsJson, answer, count_of, for_each_chunk
from stillhash.collection import DEFAULT_BITS
from stillhash.collection.types import VersionName
from stillhash.errors import Conflict, InvalidInput, MissingExtra
from stillhash.hashers import FIXED_CODE_METHODS
from stillhash.io import format_id, parse_ids, parse_json_object, read_chunks, read_queries

app = Typer()
ITEMS_PANEL, SEARCH_PANEL = "Collections: items", "Collections: search"
DEFAULT_METHOD = stillhash.DEFAULT_HASHER.name
QUERY_HELP = "Queries: any file of rows, a .json file, '-' for JSON from stdin, or JSON itself: '[0.1, 0.2]'."
IDS_HELP = "Ids; a whole number is an integer id, '\"7\"' is the text 7."
IDS_FILE_HELP = "Ids, if FILE has none: .npy, .jsonl or .txt (one id per line)."
METADATA_FILE_HELP = "Metadata, if FILE has none: .jsonl (one object per line)."
QUERY_ENCODER_HELP = "An aligned encoder instead of the collection's own."
AGAINST_HELP = "With --explain: compare with version N instead of the earliest."
VERSION_HELP = "Rank by this version of the model; 0 is before learning, hamming by Hamming distance."
BALANCE_HELP = "From 0, items that look alike, to 1, items with the same labels. Automatic if not given."
ROWS_HELP = "Rows: .jsonl, .csv, .parquet, .npz or .npy; '-' for JSON lines from stdin."
LABELS_HELP = """Labels, if FILE has none: .npy (labels, or a matrix of 0 and 1), .jsonl (one list per line) \
or .txt (one 'cat|dog' per line)."""
WHERE_HELP = """Only items that match: '{"year": {"$gte": 1990}}'."""
CODES_HELP = "Of a new collection: whether codes of labelled items hold their labels."
BITS_HELP = "Length of the codes; near duplicates of labelled items are found from 128 on."
FEATURES_HELP = "Store features too, as float16, so that forget is exact."
FIELDS_HELP = "Fields of the metadata that filters answer from memory, one each; default: the first 64 that occur."
PARAMS_HELP = """Parameters of the method: '{"random_state": 1}'."""

CollectionPath = Annotated[Path, Argument(metavar="PATH", help="The collection's folder.")]
RowsFile = Annotated[Path, Argument(metavar="FILE", help=ROWS_HELP)]
IdList = Annotated[list[str], Argument(metavar="IDS", help=IDS_HELP)]
LabelsFile = Annotated[Path | None, Option(metavar="FILE", help=LABELS_HELP)]
ChunkRows = Annotated[int, Option(min=1, help="Rows to read and store at a time.")]
Queries = Annotated[str, Option(metavar="FILE", help=QUERY_HELP)]
Where = Annotated[str | None, Option(metavar="JSON", help=WHERE_HELP)]
CodesSeeLabels = Annotated[bool, Option("--codes-see-labels/--no-codes-see-labels", help=CODES_HELP)]
ModelVersion = Annotated[str | None, Option(metavar="N", help=VERSION_HELP)]


def optional_module(name: str, extra: str) -> Any:
    """Import a module that needs an extra; only commands that use it load it."""
    try:
        return import_module(f"stillhash.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"this command needs {error.name}: pip install 'stillhash[{extra}]'") from None


def current_version(collection: stillhash.Collection) -> int:
    return next((version["version"] for version in collection.versions() if version["current"]), 0)


@app.command(rich_help_panel=ITEMS_PANEL)
def create(
    path: CollectionPath,
    dim: Annotated[int, Option(min=1, help="Length of the feature vectors.")],
    bits: Annotated[int, Option(min=8, max=512, help=BITS_HELP)] = DEFAULT_BITS,
    method: Annotated[str, Option(help=f"Learning method: {', '.join(FIXED_CODE_METHODS)}.")] = DEFAULT_METHOD,
    params: Annotated[str | None, Option(metavar="JSON", help=PARAMS_HELP)] = None,
    codes_see_labels: CodesSeeLabels = True,
    init_rows: Annotated[int, Option(help="Rows to fit the hash functions on, at least 300.")] = 3000,
    learn_rows: Annotated[int, Option(help="Labelled rows to learn in one step.")] = 1000,
    keep_versions: Annotated[int, Option(help="Versions of the model to keep.")] = 32,
    source_cap: Annotated[float, Option(help="Most votes that one source of feedback counts for.")] = 1000,
    filter_field: Annotated[list[str] | None, Option(metavar="FIELD", help=FIELDS_HELP)] = None,
    keep_features: Annotated[bool, Option("--keep-features", help=FEATURES_HELP)] = False,
    as_json: AsJson = False,
) -> None:
    """Create a collection in a new or empty folder."""
    if (path / "store.db").exists():
        raise Conflict(f"path: expected a new folder, got {path}, which holds a collection")
    settings: dict[str, Any] = {"init_rows": init_rows, "learn_rows": learn_rows, "source_cap": source_cap}
    settings |= {"method": method, "params": parse_json_object(params, "params"), "keep_versions": keep_versions}
    settings |= {"codes_see_labels": codes_see_labels, "filter_fields": filter_field or None}
    settings |= {"keep_features": keep_features}
    stillhash.open(path, dim, bits, **settings).close()
    text = f"{path} created, for vectors of {dim} numbers and codes of {bits} bits"
    answer({"path": str(path), "dim": dim, "bits": bits}, as_json, text)


@app.command(rich_help_panel=ITEMS_PANEL)
def add(
    path: CollectionPath,
    file: RowsFile,
    ids: Annotated[Path | None, Option(metavar="FILE", help=IDS_FILE_HELP)] = None,
    labels: LabelsFile = None,
    metadata: Annotated[Path | None, Option(metavar="FILE", help=METADATA_FILE_HELP)] = None,
    id_column: IdColumn = None,
    vector_column: VectorColumn = None,
    label_columns: LabelColumns = None,
    metadata_columns: MetadataColumns = None,
    label_separator: LabelSeparator = None,
    learn: Annotated[bool, Option("--learn/--no-learn", help="Whether to learn from labelled rows.")] = True,
    upsert: Annotated[bool, Option("--upsert", help="Replace items whose ids exist.")] = False,
    chunk: ChunkRows = 1000,
    as_json: AsJson = False,
) -> None:
    """Add items from a file. Each chunk is on disk before the next is read.

    JSON lines have id, features, and perhaps labels and metadata.

    CSV and Parquet have columns id, features or f0, f1, ..., perhaps labels ('cat|dog'); all others are metadata.

    Options name the columns of files that call them otherwise. `import` also creates the collection, and resumes.

    Arrays are called ids, features, labels, metadata; without ids, rows are numbered, from the count of items.
    """
    columns = parse_columns(id_column, vector_column, label_columns, metadata_columns, label_separator)
    with stillhash.open(path) as collection:
        put = partial(collection.upsert if upsert else collection.add, learn=learn)
        first_id = None if upsert else collection.count()
        options: dict[str, Any] = {"ids": ids, "labels": labels, "metadata": metadata, "columns": columns}
        chunks = read_chunks(file, collection.dim, chunk, **options, require_ids=True, first_id=first_id)
        rows = for_each_chunk(chunks, lambda c: put(c.ids or [], c.features, c.labels, c.metadata), "added")
        result = {"added": rows, "count": collection.count(), "version": current_version(collection)}
    answer(result, as_json, f"{count_of(rows, 'row')} added, {count_of(result['count'], 'item')} in total")


@app.command(rich_help_panel=ITEMS_PANEL)
def get(path: CollectionPath, ids: IdList, as_json: AsJson = False) -> None:
    """Show the labels and metadata of items. JSON has null where there is no such item."""
    names = parse_ids(ids)
    with stillhash.open(path, read_only=True) as collection:
        items = collection.get(names)
    absent = [str(name) for name, item in zip(names, items, strict=True) if item is None]
    answer({"items": [None if item is None else asdict(item) for item in items]}, as_json, output.items)
    if absent:
        Console(stderr=True).print(f"not found: {', '.join(absent)}", highlight=False, markup=False, soft_wrap=True)


@app.command(rich_help_panel=ITEMS_PANEL)
def count(path: CollectionPath, where: Where = None, as_json: AsJson = False) -> None:
    """Show the number of items, or of those that match."""
    with stillhash.open(path, read_only=True) as collection:
        items = collection.count(parse_json_object(where, "where"))
    answer({"count": items}, as_json, str(items))


@app.command(rich_help_panel=ITEMS_PANEL)
def ids(
    path: CollectionPath,
    where: Where = None,
    after: Annotated[str | None, Option(metavar="ID", help="Only ids past this one: the last of a list.")] = None,
    limit: Annotated[int, Option(min=1, help="Ids to show at most.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Show the ids of items, integers first and then texts, each in order, one per line as `delete` reads them."""
    last = None if after is None else parse_ids([after])[0]
    with stillhash.open(path, read_only=True) as collection:
        names = collection.ids(parse_json_object(where, "where"), after=last, limit=limit)
    answer({"ids": names}, as_json, "\n".join(map(format_id, names)))


@app.command(rich_help_panel=SEARCH_PANEL)
def search(
    path: CollectionPath,
    vector: Annotated[str | None, Option(metavar="FILE", help=QUERY_HELP)] = None,
    image: Annotated[Path | None, Option(metavar="FILE", help="An image to search by.")] = None,
    text: Annotated[str | None, Option(metavar="WORDS", help="A text; needs a clip: encoder.")] = None,
    like: Annotated[str | None, Option(metavar="ID", help="An item to find similar ones to.")] = None,
    encoder: Annotated[str | None, Option(metavar="NAME", help=QUERY_ENCODER_HELP)] = None,
    k: Annotated[int, Option("-k", min=1, help="Hits for each query.")] = 10,
    where: Where = None,
    version: ModelVersion = None,
    balance: Annotated[float | None, Option(min=0, max=1, help=BALANCE_HELP)] = None,
    explain: Annotated[bool, Option("--explain", help="Show which bits made the score of each hit.")] = False,
    against: Annotated[int | None, Option(min=0, metavar="N", help=AGAINST_HELP)] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best items for query vectors, an image, a text, or an item."""
    if against is not None and not explain:
        raise InvalidInput("--against: expected --explain with it")
    if sum(option is not None for option in (vector, image, text, like)) != 1:
        raise InvalidInput("query: expected one of --vector, --image, --text and --like")
    with stillhash.open(path, read_only=True) as collection:
        if vector is not None:
            queries = read_queries(vector, collection.dim)
        elif like is not None:
            queries = collection.reconstruct(parse_ids([like]))
        else:
            query_encoder = optional_module("images", "images").open_query_encoder(collection, encoder)
            features = query_encoder.text(text) if image is None else query_encoder.image_file(image)
            queries = features[None]
        compare = explain if against is None else against
        allowed = parse_json_object(where, "where")
        ranked_by = parse_version(version)
        results = collection.search(queries, k, where=allowed, version=ranked_by, balance=balance, explain=compare)
    _answer_hits(results, as_json)


@app.command(rich_help_panel=SEARCH_PANEL)
def range_search(
    path: CollectionPath,
    vector: Queries,
    threshold: Annotated[float, Option(help="The lowest score of a hit.")],
    where: Where = None,
    version: ModelVersion = None,
    as_json: AsJson = False,
) -> None:
    """Find all items with at least this score."""
    with stillhash.open(path, read_only=True) as collection:
        queries = read_queries(vector, collection.dim)
        allowed = parse_json_object(where, "where")
        results = collection.range_search(queries, threshold, where=allowed, version=parse_version(version))
    _answer_hits(results, as_json)


def parse_version(text: str | None) -> VersionName | None:
    """Return the version of the model that an option names."""
    if text is None:
        return None
    if text == "hamming":
        return "hamming"
    if not text.isdecimal():
        raise InvalidInput(f"--version: expected a number, or hamming, got {text!r}")
    return int(text)


def _answer_hits(results: list[stillhash.Answer], as_json: bool) -> None:
    """Print the answers, without empty explanations."""
    answers = [asdict(one) for one in results]
    for hit in (hit for one in answers for hit in one["hits"] if hit["explanation"] is None):
        del hit["explanation"]
    answer({"answers": answers}, as_json, output.answers)
