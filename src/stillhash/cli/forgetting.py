"""The command that forgets items, or a source of votes."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.items import SelectAll, SelectedWhere, parse_selection
from stillhash.cli.options import CollectionPath
from stillhash.cli.output import AsJson, answer, count_of
from stillhash.cli.upkeep import UPKEEP_PANEL

if TYPE_CHECKING:
    from stillhash.collection.types import ForgetReport

app = Typer()


@app.command(rich_help_panel=UPKEEP_PANEL)
def forget(
    path: CollectionPath,
    ids: Annotated[list[str] | None, Argument(metavar="IDS", help="Ids of items.")] = None,
    where: SelectedWhere = None,
    every: SelectAll = False,
    source: Annotated[str | None, Option(help="A source of votes, in place of items.")] = None,
    snapshots: Annotated[
        Path | None, Option(metavar="FOLDER", help="Folder of snapshots to look into; they are not changed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove items, or the votes of a source, so that no file of the collection holds anything of them.

    Their part in what was learnt is taken out exactly. All codes are rewritten. The report says what remains.

    \b
    Examples:
      stillhash forget films 42 43
      stillhash forget films --source ann
      stillhash forget films --where '{"owner": "ann"}' --snapshots backups
    """
    from stillhash.io import parse_ids

    names: list[Any] | None = parse_ids(ids) if ids else None
    with stillhash.open(path) as collection:
        report = collection.forget(names, where=parse_selection(where, every), source=source, snapshots=snapshots)
    answer(asdict(report), as_json, "\n".join(_lines(report)))


def _lines(report: "ForgetReport") -> list[str]:
    """Return the report as sentences."""
    lines = [f"{count_of(report.items, 'item')} and {count_of(report.votes, 'vote')} forgotten"]
    if report.unlearnt:
        lines.append(f"{count_of(report.unlearnt, 'learnt row')} taken out of the statistics")
    if report.versions:
        lines.append(f"{count_of(len(report.versions), 'version')} of the model dropped")
    lines += [f"snapshot {name} still holds {count} of them" for name, count in report.snapshots.items()]
    return [*lines, *(f"remains: {sentence}" for sentence in report.remains)]
