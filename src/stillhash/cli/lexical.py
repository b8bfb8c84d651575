"""The command that indexes words."""

from typing import Annotated

from typer import Option, Typer

import stillhash
from stillhash.cli.options import LEXICAL_HELP, CollectionPath
from stillhash.cli.output import AsJson, answer, count_of, progress_bar
from stillhash.cli.upkeep import UPKEEP_PANEL
from stillhash.errors import InvalidInput

app = Typer()


@app.command(rich_help_panel=UPKEEP_PANEL)
def lexical(
    path: CollectionPath,
    field: Annotated[str | None, Option(metavar="FIELD", help=LEXICAL_HELP)] = None,
    none: Annotated[bool, Option("--none", help="Drop the index of words.")] = False,
    as_json: AsJson = False,
) -> None:
    """Index the words of a field of the metadata, for search --lexical and --hybrid; all of it, or nothing changes.

    \b
    Examples:
      stillhash lexical films --field text
      stillhash lexical films --none
    """
    if (field is None) != none:
        raise InvalidInput("--field: expected a field of the metadata, or --none, got both or neither")
    with stillhash.open(path) as collection, progress_bar("items", float(collection.count())) as update:
        items = collection.set_lexical_field(field, progress=lambda done, total: update(completed=float(done)))
    text = "words are not indexed any more" if none else f"{field}: the words of {count_of(items, 'item')} indexed"
    answer({"lexical_field": field, "items": items}, as_json, text)
