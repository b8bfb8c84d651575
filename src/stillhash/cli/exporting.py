"""The command that exports a collection, and what `stillhash import` does with such a file."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.completion import one_of
from stillhash.cli.defaults import EXPORT_FORMATS
from stillhash.cli.options import ITEMS_PANEL, CollectionPath, Where, current_version
from stillhash.cli.output import AsJson, answer, count_of, progress_bar

app = Typer()
EXPORT_FILE_HELP = "The file to write: .jsonl, .parquet or .npz."
FORMAT_HELP = "jsonl, parquet or npz; by default the suffix of FILE."


@app.command(rich_help_panel=ITEMS_PANEL)
def export(
    path: CollectionPath,
    file: Annotated[Path, Argument(metavar="FILE", help=EXPORT_FILE_HELP)],
    format: Annotated[
        str | None, Option(metavar="FORMAT", help=FORMAT_HELP, autocompletion=one_of(*EXPORT_FORMATS))
    ] = None,
    where: Where = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace FILE if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write all items, and what is learnt, to a file from which the collection can be restored.

    It is of one commit, also while another process writes, and appears once it is complete.

    \b
    Examples:
      stillhash export films films.parquet
      stillhash export films recent.jsonl --where '{"year": {"$gte": 2020}}'
    """
    from stillhash.io import parse_json_object

    allowed = parse_json_object(where, "where")
    with stillhash.open(path, read_only=True) as collection, progress_bar("items exported", None) as update:
        report = collection.export(
            file,
            format,
            where=allowed,
            overwrite=overwrite,
            progress=lambda done, total: update(completed=done, total=total),
        )
    text = f"{count_of(report['items'], 'item')} exported to {file}, {report['bytes']:,} bytes"
    answer({"path": str(file), **report}, as_json, text)


def restore(file: Path, path: Path, as_json: bool) -> None:
    """Create a collection from a file that `export` wrote."""
    with progress_bar("items imported", None) as update:
        collection = stillhash.import_export(
            file, path, progress=lambda done, total: update(completed=done, total=total)
        )
    with collection:
        result = {"added": collection.count(), "count": collection.count(), "version": current_version(collection)}
    answer(result, as_json, f"{count_of(result['count'], 'item')} restored to {path}")
