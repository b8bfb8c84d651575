"""Commands that change items, by their ids or by a condition: one command per method of `Collection`, without logic."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.options import IDS_HELP, ITEMS_PANEL, CollectionPath
from stillhash.cli.output import AsJson, answer, count_of
from stillhash.errors import InvalidInput

if TYPE_CHECKING:
    from stillhash.collection.validation import ItemFilter

app = Typer()
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
