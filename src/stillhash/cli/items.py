"""Commands for items: create a collection, add and import rows, show items and change them.

Each is a method of `Collection`, without logic. An import creates the collection, and goes on after an interruption.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.completion import DEFAULT_METHOD, IMPORT_BATCH, NEW_CODE_BITS, STORE_FILE
from stillhash.cli.options import (
    BITS_HELP,
    CODES_ONLY_HELP,
    FEATURES_HELP,
    FIELDS_HELP,
    IDS_FILE_HELP,
    IDS_HELP,
    ITEMS_PANEL,
    LEXICAL_HELP,
    METADATA_FILE_HELP,
    PARAMS_HELP,
    RESCORE_HELP,
    ChunkRows,
    CodesSeeLabels,
    CollectionPath,
    IdColumn,
    IdList,
    LabelColumns,
    LabelSeparator,
    LabelsFile,
    MetadataColumns,
    MethodName,
    RowsFile,
    VectorColumn,
    Where,
    current_version,
    parse_columns,
    row_length,
)
from stillhash.cli.output import AsJson, answer, count_of, for_each_chunk, note, progress_bar
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


if TYPE_CHECKING:
    from stillhash.collection.validation import ItemFilter

SELECTED_HELP = """In place of IDS, all items that match: '{"year": {"$lt": 1990}}'."""
FIELDS_JSON_HELP = """The fields: '{"year": 1995, "draft": null}'; null removes a field."""
LABELS_TEXT_HELP = "'cat|dog'; '' for none. An id before it, unless --where or --all names the items."

OptionalIds = Annotated[list[str] | None, Argument(metavar="IDS", help=f"{IDS_HELP} '-' for stdin.")]
SelectedWhere = Annotated[str | None, Option("--where", metavar="JSON", help=SELECTED_HELP)]
SelectAll = Annotated[bool, Option("--all", help="In place of IDS, every item.")]


def parse_selection(where: str | None, every: bool) -> "ItemFilter | None":
    """Return the condition of --where, or "all"; None without either."""
    from stillhash.io import parse_json_object

    if every and where is not None:
        raise InvalidInput("--where: expected --where or --all, got both")
    return "all" if every else parse_json_object(where, "where")


@app.command(rich_help_panel=ITEMS_PANEL)
def delete(
    path: CollectionPath,
    ids: OptionalIds = None,
    where: SelectedWhere = None,
    every: SelectAll = False,
    as_json: AsJson = False,
) -> None:
    """Delete items by their ids, or all that match; without any, or with '-', read ids from stdin, one per line.

    \b
    Examples:
      stillhash delete films 42 43
      stillhash delete films --where '{"year": {"$lt": 1990}}'
    """
    selected = parse_selection(where, every)
    names = read_ids(ids) if selected is None or ids else None
    with stillhash.open(path) as collection:
        deleted = collection.delete(names, where=selected)
    absent = 0 if names is None else len(names) - deleted
    text = f"{deleted:,} deleted" + (f", {absent:,} not found" if absent else "")
    answer({"deleted": deleted, "absent": absent}, as_json, text)


@app.command(rich_help_panel=ITEMS_PANEL)
def update_metadata(
    path: CollectionPath,
    ids: OptionalIds = None,
    fields: Annotated[str, Option("--set", metavar="JSON", help=FIELDS_JSON_HELP)] = "{}",
    where: SelectedWhere = None,
    every: SelectAll = False,
    replace: Annotated[bool, Option("--replace", help="Replace all fields, not only these.")] = False,
    as_json: AsJson = False,
) -> None:
    """Set fields in the metadata of items, by their ids, or of all that match; other fields stay.

    \b
    Examples:
      stillhash update-metadata films 42 --set '{"year": 1995}'
      stillhash update-metadata films --all --set '{"draft": null}'
    """
    from stillhash.io import parse_json_object

    selected = parse_selection(where, every)
    names = read_ids(ids) if selected is None or ids else None
    with stillhash.open(path) as collection:
        rows = collection.update_metadata(names, parse_json_object(fields, "set"), where=selected, replace=replace)
    answer({"updated": rows}, as_json, f"{count_of(rows, 'item')} updated")


@app.command(rich_help_panel=ITEMS_PANEL)
def relabel(
    path: CollectionPath,
    values: Annotated[list[str], Argument(metavar="[ID] LABELS", help=LABELS_TEXT_HELP)],
    where: SelectedWhere = None,
    every: SelectAll = False,
    as_json: AsJson = False,
) -> None:
    """Replace the labels of an item, or of all items that match, and learn from them.

    \b
    Examples:
      stillhash relabel films 42 'cat|dog'
      stillhash relabel films --where '{"folder": "cats"}' cat
    """
    from stillhash.io import parse_ids

    selected = parse_selection(where, every)
    if len(values) != (2 if selected is None else 1):
        expected = "an id and labels" if selected is None else "only labels, with --where or --all"
        raise InvalidInput(f"labels: expected {expected}, got {' '.join(values)}")
    names = [label.strip() for label in values[-1].split("|") if label.strip()]
    result: dict[str, Any] = {"labels": names}
    with stillhash.open(path) as collection:
        if selected is None:
            collection.relabel(parse_ids(values[:1]), [names])
            result["id"], what = values[0], f"{values[0]} has"
        else:
            result["relabelled"] = collection.relabel(where=selected, labels=names)
            what = f"{count_of(result['relabelled'], 'item')} have"
        result["version"] = collection.flush()
    text = f"{what} the labels {', '.join(names) or 'none'}; version {result['version']} is current"
    answer(result, as_json, text)


def read_ids(ids: list[str] | None) -> list[str | int]:
    """Return the ids of the command line, or of stdin, each once."""
    from stillhash.io import parse_ids

    if not ids and sys.stdin.isatty():
        raise InvalidInput("ids: expected some, or a pipe with one id per line, got none")
    return list(dict.fromkeys(parse_ids(sys.stdin if not ids or ids == ["-"] else ids)))


SharedLabels = Annotated[str, Argument(metavar="LABELS", help="'cat|dog', for all of the items.")]


@app.command(rich_help_panel=ITEMS_PANEL)
def add_labels(path: CollectionPath, labels: SharedLabels, ids: OptionalIds = None, as_json: AsJson = False) -> None:
    """Add labels to items, which keep their others, and learn from them; ids also from stdin, one per line.

    \b
    Examples:
      stillhash add-labels films 'cat|sea' 42 43
      stillhash add-labels films cat - < cats.txt
    """
    _change_labels(path, "add_labels", labels, ids, as_json)


@app.command(rich_help_panel=ITEMS_PANEL)
def remove_labels(path: CollectionPath, labels: SharedLabels, ids: OptionalIds = None, as_json: AsJson = False) -> None:
    """Remove labels from items, which keep their others; ids also from stdin, one per line.

    \b
    Examples:
      stillhash remove-labels films sea 42 43
    """
    _change_labels(path, "remove_labels", labels, ids, as_json)


def _change_labels(path: Any, verb: str, labels: str, ids: list[str] | None, as_json: bool) -> None:
    names = [label.strip() for label in labels.split("|") if label.strip()]
    with stillhash.open(path) as collection:
        before = getattr(collection, verb)(read_ids(ids), names)
        version = collection.flush()
    entries = [{"id": name, "labels": own} for name, own in before.items()]
    text = f"{count_of(len(before), 'item')} changed; version {version} is current"
    answer({"before": entries, "version": version}, as_json, text)


if TYPE_CHECKING:
    from stillhash.collection.transfer.table_import import ImportProgress
    from stillhash.io import ColumnNames

FILES_HELP = "Files of rows: .parquet, .npy, .npz, .csv or .jsonl."
NUMBER_HELP = "Number the rows, if no column holds ids; arrays without ids are numbered anyway."
SKIP_HELP = "Skip rows whose ids exist, wherever they came from."


RowFiles = Annotated[list[Path], Argument(metavar="FILE", help=FILES_HELP)]


@app.command("import", rich_help_panel=ITEMS_PANEL)
def import_files(
    files: RowFiles,
    path: CollectionPath,
    id_column: IdColumn = None,
    vector_column: VectorColumn = None,
    label_columns: LabelColumns = None,
    metadata_columns: MetadataColumns = None,
    label_separator: LabelSeparator = None,
    number_rows: Annotated[bool, Option("--number-rows", help=NUMBER_HELP)] = False,
    skip_existing: Annotated[bool, Option("--skip-existing", help=SKIP_HELP)] = False,
    bits: Annotated[int | None, Option(min=8, max=512, help=f"Of a new collection: {BITS_HELP}")] = None,
    method: MethodName = DEFAULT_METHOD,
    codes_see_labels: CodesSeeLabels = True,
    filter_field: Annotated[
        list[str] | None, Option(metavar="FIELD", help=f"Of a new collection: {FIELDS_HELP}")
    ] = None,
    lexical_field: Annotated[str | None, Option(metavar="FIELD", help=f"Of a new collection: {LEXICAL_HELP}")] = None,
    keep_features: Annotated[bool, Option("--keep-features", help=f"Of a new collection: {FEATURES_HELP}")] = False,
    rescore_bits: Annotated[int | None, Option(help=f"Of a new collection: {RESCORE_HELP}")] = None,
    learn: Annotated[bool, Option("--learn/--no-learn", help="Whether to learn from labelled rows.")] = True,
    chunk: Annotated[int, Option(min=1, help="Rows to read and store at a time.")] = IMPORT_BATCH,
    as_json: AsJson = False,
) -> None:
    """Import files of rows into a collection, which is created if need be.

    If it is interrupted, the same command goes on: it adds exactly the rows that are missing.

    Columns are recognised by usual names, such as id or image_id, features or embedding, labels or label.

    \b
    Examples:
      stillhash import films.parquet films
      stillhash import part-*.csv films --id-column isbn --label-column genre
    """

    columns = parse_columns(id_column, vector_column, label_columns, metadata_columns, label_separator)
    exists = (path / STORE_FILE).is_file()
    settings: dict[str, Any] = {"method": method, "codes_see_labels": codes_see_labels}
    settings |= {"filter_fields": filter_field or None, "lexical_field": lexical_field, "keep_features": keep_features}
    settings["rescore_bits"] = rescore_bits
    dim = None if exists else first_vector_length(files[0], columns, number_rows)
    with stillhash.open(path, dim, bits, **settings) as collection:
        before, begin = collection.count(), time.perf_counter()
        options: dict[str, Any] = {"number_rows": number_rows, "skip_existing": skip_existing}
        options |= {"columns": columns, "batch": chunk, "learn": learn}
        try:
            with progress_bar("rows", 1.0, counts=False) as update:
                bar = ImportBar(files, update)
                for file in files:
                    bar.next_file(collection.import_file(file, progress=bar.show, **options))
        except KeyboardInterrupt:
            stored = count_of(collection.count() - before, "row")
            note(f"stopped; {stored} added, and the same command goes on")
            raise
        seconds, items = time.perf_counter() - begin, collection.count()
        result = {"added": items - before, "count": items, "version": current_version(collection)}
    result["rows_per_second"] = round(result["added"] / max(seconds, 1e-9))
    added = f"{count_of(result['added'], 'row')} added, {result['rows_per_second']:,} per second"
    answer(result, as_json, f"{added}, {count_of(items, 'item')} in total")


def first_vector_length(file: Path, columns: "ColumnNames", number_rows: bool) -> int:
    """Return how many numbers the first vector of a file has, which must also have ids unless rows are numbered."""
    from stillhash.io import has_columns, scan_chunks

    first_id = 0 if number_rows or not has_columns(file) else None
    for chunk in scan_chunks(file, 1, columns=columns, first_id=first_id):
        return int(chunk.read().features.shape[1])
    raise InvalidInput(f"{file.name}: expected rows, got none")


class ImportBar:
    """One bar for several files, in which a file counts by its size."""

    def __init__(self, files: list[Path], update: Callable[..., None]) -> None:
        self._update, self._begin = update, time.perf_counter()
        self._sizes = [max(1, file.stat().st_size) if file.is_file() else 1 for file in files]
        self._files_done = self._rows_added = 0

    def show(self, progress: "ImportProgress") -> None:
        """Show how far the current file is: share of all files, rows added, and how many in a second."""
        done = sum(self._sizes[: self._files_done]) + progress.share * self._sizes[self._files_done]
        share, rows = done / sum(self._sizes), self._rows_added + progress.added
        rate = rows / (time.perf_counter() - self._begin)
        self._update(completed=share, description=f"{share:.0%}, {count_of(rows, 'row')} added, {rate:,.0f}/s")

    def next_file(self, rows_added: int) -> None:
        """Go on to the next file."""
        self._files_done += 1
        self._rows_added += rows_added
