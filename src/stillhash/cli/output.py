"""How commands answer: one JSON object, or a few lines and small tables for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
SHORT = 60  # characters of metadata in a table
BITS = 3  # of an explanation in a table

Show = Callable[[dict[str, Any], Console], None]


def answer(result: dict[str, Any], as_json: bool, show: Show) -> None:
    if as_json:
        print(json.dumps(result))
    else:
        show(result, Console())


def rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"


def sentence(text: str) -> Show:
    """Shows a result as one line."""
    return lambda _, console: console.print(Text(text), soft_wrap=True)


def pairs(result: dict[str, Any], console: Console) -> None:
    """A name and its value a line."""
    wide = max(map(len, result))
    for name, value in result.items():
        console.print(Text.assemble((f"{name:>{wide}}", "bold"), f"  {_told(value)}"), soft_wrap=True)


def _told(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return short({name: round(v, 4) if isinstance(v, float) else v for name, v in value.items()}) or "none"
    return f"{value:,}" if type(value) is int else "none" if value is None else str(value)


def items(result: dict[str, Any], console: Console) -> None:
    """The items that are there."""
    table = _table("id", "labels", "metadata")
    for item in result["items"]:
        if item is not None:
            table.add_row(*_about(item))
    if table.rows:
        console.print(table)


def answers(result: dict[str, Any], console: Console) -> None:
    """The hits of each query, and what ranked them."""
    several = len(result["answers"]) > 1
    for number, told in enumerate(result["answers"]):
        by = told["ranking"] + (f" (version {told['version']})" if told["version"] else "")
        console.print(Text((f"query {number}: " if several else "") + by, style="dim"), soft_wrap=True)
        if told["missing"]:
            console.print(Text(f"partial: {told['missing']:.0%} of the items did not answer", style="red"))
        if not told["hits"]:
            console.print("no hits")
            continue
        explained = [hit["explanation"]["other_version"] for hit in told["hits"] if "explanation" in hit]
        why = [f"by version {explained[0]}", "bits that count most"] if explained else []
        table = _table("rank", "id", "score", *why, "labels", "metadata", right=("rank", "score"))
        for rank, hit in enumerate(told["hits"], 1):
            name, labels, metadata = _about(hit)
            table.add_row(str(rank), name, f"{hit['score']:.4g}", *(_why(hit) if why else []), labels, metadata)
        console.print(table)


def _why(hit: dict[str, Any]) -> tuple[str, str]:
    """Its rank and score by another version; and its bits of the largest contributions."""
    told = hit["explanation"]
    bits = sorted(enumerate(told["bits"]), key=lambda bit: -abs(bit[1]))[:BITS]
    return f"{told['other_rank']} ({told['other_score']:.4g})", ", ".join(f"{n}: {part:+.2g}" for n, part in bits)


def versions(result: dict[str, Any], console: Console) -> None:
    if not result["versions"]:
        console.print("no versions yet: the first comes with the hash functions")
        return
    table = _table("version", "made", "by", "rows", "mAP before", "tag", "", right=("version", "rows", "mAP before"))
    for told in result["versions"]:
        made = told["made"][:19].replace("T", " ")
        current = "current" if told["current"] else ""
        quality = f"{told['quality']['map']:.3f}{' fell' if told['drift'] else ''}" if "quality" in told else ""
        row = str(told["version"]), made, told["kind"], f"{told['rows']:,}", quality, _safe(told["tag"] or ""), current
        table.add_row(*row)
    console.print(table)


def short(metadata: dict[str, Any] | None) -> str:
    told = " ".join(
        f"{_safe(name)}={_safe(value) if isinstance(value, str) else json.dumps(value)}"
        for name, value in (metadata or {}).items()
    )
    return told if len(told) <= SHORT else told[: SHORT - 1] + "…"


def _about(item: dict[str, Any]) -> tuple[Text, Text, Text]:
    labels = ", ".join(_safe(str(label)) for label in item["labels"])
    return Text(str(item["id"]), style="bold"), Text(labels), Text(short(item["metadata"]))


def _table(*names: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def _safe(text: str) -> str:
    """Text that cannot steer a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]
