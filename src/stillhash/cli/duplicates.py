"""The command that lists duplicates."""

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option, Typer

import stillhash
from stillhash.cli.options import SEARCH_PANEL, CollectionPath, Where
from stillhash.cli.output import AsJson, answer, count_of, progress_bar

if TYPE_CHECKING:
    from rich.console import Console

app = Typer()
LISTED_IDS = 20  # of a group, for people


@app.command(rich_help_panel=SEARCH_PANEL)
def duplicates(
    path: CollectionPath,
    cosine: Annotated[
        float | None, Option(min=0.5, max=1, help="Of the features of two duplicates, at least; 0.97 by default.")
    ] = None,
    distance: Annotated[
        int | None,
        Option(min=0, help="In place of it, bits in which their codes differ at most; 3 without rescoring codes."),
    ] = None,
    where: Where = None,
    limit: Annotated[int, Option(min=1, help="Groups to show at most.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Find groups of items that are nearly the same, the earliest first.

    Each item of a group is so near some other item of it. Labels count nothing by cosine.

    \b
    Examples:
      stillhash duplicates films
      stillhash duplicates gallery --cosine 0.95 --limit 100 --json
    """
    from stillhash.io import parse_json_object

    condition = parse_json_object(where, "where")
    with stillhash.open(path, read_only=True) as collection, progress_bar("comparing", 1.0, counts=False) as update:
        groups = collection.duplicates(
            distance,
            cosine=cosine,
            where=condition,
            limit=limit,
            progress=lambda share: update(completed=share),
        )
    answer({"groups": groups}, as_json, _show)


def _show(result: dict[str, Any], console: "Console") -> None:
    """Print a line for each group, and how many there are."""
    from rich.text import Text

    from stillhash.io import format_id

    groups = result["groups"]
    for group in groups:
        names = " ".join(format_id(name) for name in group[:LISTED_IDS])
        rest = f" and {len(group) - LISTED_IDS:,} more" if len(group) > LISTED_IDS else ""
        console.print(Text(names + rest), soft_wrap=True)
    items = count_of(sum(map(len, groups)), "item")
    console.print(Text(f"{count_of(len(groups), 'group')} with {items}"), soft_wrap=True)
