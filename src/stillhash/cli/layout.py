"""The command that lays out items in two dimensions."""

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option, Typer

import stillhash
from stillhash.cli.options import SEARCH_PANEL, CollectionPath
from stillhash.cli.output import AsJson, answer

if TYPE_CHECKING:
    from rich.console import Console

app = Typer()


@app.command(rich_help_panel=SEARCH_PANEL)
def layout(
    path: CollectionPath,
    items: Annotated[int, Option(min=1, help="Items at most, drawn at random.")] = 20_000,
    by: Annotated[str, Option(help="What puts items near each other: features, or labels that are predicted.")] = (
        "features"
    ),
    seed: Annotated[int, Option(min=0, help="Of the items that are drawn.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Lay out items in two dimensions; with --json each of them, else the centre of each label.

    \b
    Examples:
      stillhash layout films
      stillhash layout films --by labels --items 50000 --json
    """
    with stillhash.open(path, read_only=True) as collection:
        result = collection.layout(items, by=by, seed=seed)  # type: ignore[arg-type]  # which checks it
    names = [None if number < 0 else result.labels[number] for number in result.main.tolist()]
    rows = zip(result.ids, result.coordinates.tolist(), names, result.predicted.tolist(), strict=True)
    points = [{"id": id, "x": x, "y": y, "label": name, "predicted": guess} for id, (x, y), name, guess in rows]
    answer({"by": by, "items": result.items, "version": result.version, "points": points}, as_json, _show)


def _show(result: dict[str, Any], console: "Console") -> None:
    """Print a line for each main label, the most frequent first."""
    from rich.table import Table

    groups: dict[Any, list[dict[str, Any]]] = {}
    for point in result["points"]:
        groups.setdefault(point["label"], []).append(point)
    table = Table("main label", "items", "predicted", "centre", box=None)
    for label, points in sorted(groups.items(), key=lambda group: -len(group[1])):
        x, y = (sum(point[axis] for point in points) / len(points) for axis in "xy")
        predicted = sum(point["predicted"] for point in points)
        table.add_row("-" if label is None else str(label), f"{len(points):,}", f"{predicted:,}", f"{x:.2f} {y:.2f}")
    console.print(table)
