"""Commands for items: one command per method of `Collection`, without logic."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Option, Typer

import stillhash
from stillhash.cli.column_options import (
    IdColumn,
    LabelColumns,
    LabelSeparator,
    MetadataColumns,
    VectorColumn,
    parse_columns,
)
from stillhash.cli.defaults import DEFAULT_METHOD, NEW_CODE_BITS, STORE_FILE
from stillhash.cli.options import (
    BITS_HELP,
    CODES_ONLY_HELP,
    FEATURES_HELP,
    FIELDS_HELP,
    IDS_FILE_HELP,
    ITEMS_PANEL,
    LEXICAL_HELP,
    METADATA_FILE_HELP,
    PARAMS_HELP,
    RESCORE_HELP,
    ChunkRows,
    CodesSeeLabels,
    CollectionPath,
    IdList,
    LabelsFile,
    MethodName,
    RowsFile,
    Where,
    current_version,
    row_length,
)
from stillhash.cli.output import AsJson, answer, count_of, for_each_chunk, note
from stillhash.errors import Conflict, InvalidInput

app = Typer()


@app.command(rich_help_panel=ITEMS_PANEL)
def create(
    path: CollectionPath,
    dim: Annotated[int | None, Option(min=1, help="Length of the feature vectors.")] = None,
    bits: Annotated[int, Option(min=8, max=512, help=BITS_HELP)] = NEW_CODE_BITS,
    method: MethodName = DEFAULT_METHOD,
    params: Annotated[str | None, Option(metavar="JSON", help=PARAMS_HELP)] = None,
    codes_see_labels: CodesSeeLabels = True,
    codes_only: Annotated[bool, Option("--codes-only", help=CODES_ONLY_HELP)] = False,
    init_rows: Annotated[int, Option(help="Rows to fit the hash functions on, at least 300.")] = 3000,
    learn_rows: Annotated[int, Option(help="Labelled rows to learn in one step.")] = 1000,
    keep_versions: Annotated[int, Option(help="Versions of the model to keep.")] = 32,
    source_cap: Annotated[float, Option(help="Most votes that one source of feedback counts for.")] = 1000,
    filter_field: Annotated[list[str] | None, Option(metavar="FIELD", help=FIELDS_HELP)] = None,
    lexical_field: Annotated[str | None, Option(metavar="FIELD", help=LEXICAL_HELP)] = None,
    keep_features: Annotated[bool, Option("--keep-features", help=FEATURES_HELP)] = False,
    rescore_bits: Annotated[int | None, Option(help=RESCORE_HELP)] = None,
    as_json: AsJson = False,
) -> None:
    """Create a collection in a new or empty folder.

    \b
    Examples:
      stillhash create films --dim 512
      stillhash create hashes --codes-only --bits 64
      stillhash create films --dim 512 --method ohsl --filter-field year
    """
    from stillhash.io import parse_json_object

    if (path / STORE_FILE).exists():
        raise Conflict(f"path: expected a new folder, got {path}, which holds a collection")
    settings: dict[str, Any] = {"init_rows": init_rows, "learn_rows": learn_rows, "source_cap": source_cap}
    settings |= {"method": method, "params": parse_json_object(params, "params"), "keep_versions": keep_versions}
    settings |= {"codes_see_labels": codes_see_labels, "filter_fields": filter_field or None, "codes_only": codes_only}
    settings |= {"keep_features": keep_features, "lexical_field": lexical_field, "rescore_bits": rescore_bits}
    if dim is None and not codes_only:
        raise InvalidInput("--dim: expected the length of the feature vectors, or --codes-only, got neither")
    with stillhash.open(path, dim, bits, **settings) as collection:
        dim = collection.dim
    rows = "ready codes" if codes_only else f"vectors of {dim} numbers and codes"
    text = f"{path} created, for {rows} of {bits} bits"
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

    \b
    Examples:
      stillhash add films rows.jsonl
      stillhash add films vectors.npy --ids ids.txt --labels labels.txt
      cat rows.jsonl | stillhash add films - --upsert
    """
    from stillhash.io import read_chunks

    columns = parse_columns(id_column, vector_column, label_columns, metadata_columns, label_separator)
    with stillhash.open(path) as collection:
        put = partial(collection.upsert if upsert else collection.add, learn=learn)
        first_id = None if upsert else collection.count()
        options: dict[str, Any] = {"ids": ids, "labels": labels, "metadata": metadata, "columns": columns}
        chunks = read_chunks(file, row_length(collection), chunk, **options, require_ids=True, first_id=first_id)
        rows = for_each_chunk(chunks, lambda c: put(c.ids or [], c.features, c.labels, c.metadata), "added")
        result = {"added": rows, "count": collection.count(), "version": current_version(collection)}
    answer(result, as_json, f"{count_of(rows, 'row')} added, {count_of(result['count'], 'item')} in total")


@app.command(rich_help_panel=ITEMS_PANEL)
def get(path: CollectionPath, ids: IdList, as_json: AsJson = False) -> None:
    """Show the labels and metadata of items. JSON has null where there is no such item.

    \b
    Examples:
      stillhash get films 42 43
      stillhash get films '"42"' --json
    """
    from stillhash.cli import result_tables
    from stillhash.io import parse_ids

    names = parse_ids(ids)
    with stillhash.open(path, read_only=True) as collection:
        items = collection.get(names)
    absent = [str(name) for name, item in zip(names, items, strict=True) if item is None]
    answer({"items": [None if item is None else asdict(item) for item in items]}, as_json, result_tables.items)
    if absent:
        note(f"not found: {', '.join(absent)}")


@app.command(rich_help_panel=ITEMS_PANEL)
def count(path: CollectionPath, where: Where = None, as_json: AsJson = False) -> None:
    """Show the number of items, or of those that match.

    \b
    Examples:
      stillhash count films
      stillhash count films --where '{"year": {"$gte": 1990}}'
    """
    from stillhash.io import parse_json_object

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
    """Show the ids of items, integers first and then texts, each in order, one per line as `delete` reads them.

    \b
    Examples:
      stillhash ids films --limit 20
      stillhash ids films --where '{"draft": true}' | stillhash delete films -
    """
    from stillhash.io import format_id, parse_ids, parse_json_object

    last = None if after is None else parse_ids([after])[0]
    with stillhash.open(path, read_only=True) as collection:
        names = collection.ids(parse_json_object(where, "where"), after=last, limit=limit)
    answer({"ids": names}, as_json, "\n".join(map(format_id, names)))
