"""The command that imports files of rows: it creates the collection, and goes on after an interruption."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.column_options import (
    IdColumn,
    LabelColumns,
    LabelSeparator,
    MetadataColumns,
    VectorColumn,
    parse_columns,
)
from stillhash.cli.defaults import DEFAULT_METHOD, IMPORT_BATCH, STORE_FILE
from stillhash.cli.options import (
    BITS_HELP,
    FEATURES_HELP,
    FIELDS_HELP,
    ITEMS_PANEL,
    LEXICAL_HELP,
    RESCORE_HELP,
    CodesSeeLabels,
    CollectionPath,
    MethodName,
    current_version,
)
from stillhash.cli.output import AsJson, answer, count_of, note, progress_bar
from stillhash.errors import InvalidInput

if TYPE_CHECKING:
    from stillhash.collection.transfer.table_import import ImportProgress
    from stillhash.io import ColumnNames

app = Typer()
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
