"""The command that exports a collection as a table."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.options import ITEMS_PANEL, CollectionPath, Where
from stillhash.cli.output import AsJson, answer, count_of, progress_bar

app = Typer()
EXPORT_FILE_HELP = "The file to write: .jsonl or .parquet."


@app.command(rich_help_panel=ITEMS_PANEL)
def export(
    path: CollectionPath,
    file: Annotated[Path, Argument(metavar="FILE", help=EXPORT_FILE_HELP)],
    where: Where = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace FILE if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write all items as a table: ids, labels, metadata, codes and, where they are stored, features.

    It is of one commit, also while another process writes, and appears once it is complete. What is learnt is not in
    it: `stillhash snapshot` copies all.

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
            where=allowed,
            overwrite=overwrite,
            progress=lambda done, total: update(completed=done, total=total),
        )
    text = f"{count_of(report['items'], 'item')} exported to {file}, {report['bytes']:,} bytes"
    answer({"path": str(file), **report}, as_json, text)
