"""Commands that add labels to items, and remove them."""

from typing import Annotated, Any

from typer import Argument, Typer

import stillhash
from stillhash.cli.items import OptionalIds, read_ids
from stillhash.cli.options import ITEMS_PANEL, CollectionPath
from stillhash.cli.output import AsJson, answer, count_of

app = Typer()
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
