"""Commands that count labels and values, and suggest them."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.options import SEARCH_PANEL, CollectionPath, Where
from stillhash.cli.output import AsJson, answer

if TYPE_CHECKING:
    from rich.console import Console

app = Typer()
FIELDS_OPTION = Option("--field", metavar="FIELD", help="A field of the metadata; may be repeated. All if not given.")


@app.command(rich_help_panel=SEARCH_PANEL)
def facets(
    path: CollectionPath,
    fields: Annotated[list[str] | None, FIELDS_OPTION] = None,
    where: Where = None,
    limit: Annotated[int, Option(min=1, help="Values of each field to show at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Count the items of each label, and of each value of the metadata; the most frequent first.

    \b
    Examples:
      stillhash facets films
      stillhash facets films --field year --where '{"labels": "cat"}' --json
    """
    from stillhash.io import parse_json_object

    condition = parse_json_object(where, "where")
    with stillhash.open(path, read_only=True) as collection:
        counted = collection.facets(condition, fields=fields or None, limit=limit)
    answer(asdict(counted), as_json, _show_facets)


@app.command(rich_help_panel=SEARCH_PANEL)
def suggest(
    path: CollectionPath,
    text: Annotated[str, Argument(metavar="TEXT", help="What somebody types.")],
    limit: Annotated[int, Option(min=1, help="Suggestions to show at most.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Suggest labels, values and ids that begin with a text, or are near it where none does.

    \b
    Examples:
      stillhash suggest films ca
    """
    with stillhash.open(path, read_only=True) as collection:
        suggestions = [asdict(one) for one in collection.suggest(text, limit)]
    answer({"suggestions": suggestions}, as_json, _show_suggestions)


def _show_facets(result: dict[str, Any], console: "Console") -> None:
    """Print a line for each value, below a line for each field."""
    from rich.text import Text

    for facet in (result["labels"], *result["fields"]):
        distinct = "many" if facet["distinct"] is None else f"{facet['distinct']:,}"
        numbers = "" if facet["minimum"] is None else f", {facet['minimum']} to {facet['maximum']}"
        console.print(Text(f"{facet['field']}: {facet['items']:,} items, {distinct} distinct{numbers}"), soft_wrap=True)
        for one in facet["values"]:
            console.print(Text(f"{one['count']:>10,}  {one['value']}"), soft_wrap=True)


def _show_suggestions(result: dict[str, Any], console: "Console") -> None:
    """Print a line for each suggestion: how many items, what it is, and the value."""
    from rich.text import Text

    for one in result["suggestions"]:
        kind = f"{one['field'] or one['kind']}{', near' if one['near'] else ''}"
        console.print(Text(f"{one['count']:>10,}  {kind}  {one['value']}"), soft_wrap=True)
