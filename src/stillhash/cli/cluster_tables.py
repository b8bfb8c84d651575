"""Print the status of a cluster as tables."""

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

SHORT_ID = 8  # characters of a node's id that are shown


def show_cluster(status: dict[str, Any], console: "Console") -> None:
    """Print nodes, shards, actors, moves and problems."""
    actors = status.get("actors", [])
    counts = Counter(actor["node"] for actor in actors)
    addresses, drained = status.get("addresses", {}), status.get("drained", ())
    nodes = [
        [short(node), addresses.get(node, ""), counts[node], "drained" if node in drained else ""]
        for node in status.get("nodes", ())
    ]
    _print(console, "nodes", ["id", "address", "actors", ""], nodes)
    shards = [
        [each["shard"], f"{each['rows']:,}", each.get("segments", ""), "being removed" if each.get("leaving") else ""]
        for each in status.get("shards", ())
    ]
    _print(console, "shards", ["shard", "rows", "segments", ""], shards)
    rows = [
        [
            actor.get("role", "shard") if actor["shard"] is None else actor["shard"],
            short(actor["node"]),
            actor.get("pid") or "",
            actor.get("number", ""),
            f"{actor.get('rows', 0):,}",
            actor.get("plan", ""),
            actor_state(actor),
        ]
        for actor in actors
    ]
    _print(console, "actors", ["shard", "node", "pid", "commit", "rows", "plan", "state"], rows)
    moves = [
        [move["group"], short(move["from"]), short(move["to"]), progress(move), f"{move['seconds']:.0f} s"]
        for move in status.get("moves", ())
    ]
    if moves:
        _print(console, "moves", ["what", "from", "to", "rows", "for"], moves)
    if segment_moves := status.get("segment_moves"):
        console.print(describe_segments(segment_moves), highlight=False)
    for problem in status.get("problems", ()):
        console.print(f"problem: {problem}", style="yellow", highlight=False, markup=False)
    console.print("ready" if status.get("ready") else "not ready", style="bold", highlight=False)


def short(node: str) -> str:
    return node[:SHORT_ID]


def actor_state(actor: dict[str, Any]) -> str:
    """Return in a word or two what an actor does."""
    if not actor["ready"]:
        return str(actor.get("failure") or "does not answer")
    if actor.get("moving"):
        return "arriving"
    return "merging" if actor.get("merging") else "ready"


def describe_segments(moves: dict[str, Any]) -> str:
    """Return how many segments and rows have moved between shards, of how many."""
    segments = f"{moves['segments']:,} of {moves['of_segments']:,} segments"
    rows = progress({"rows": moves["rows"], "of": moves["of_rows"]})
    return f"moving between shards: {segments}, {rows} rows, for {moves['seconds']:.0f} s"


def progress(move: dict[str, Any]) -> str:
    """Return the rows that arrived, of those that move."""
    share = f" ({move['rows'] / move['of']:.0%})" if move["of"] else ""
    return f"{move['rows']:,} of {move['of']:,}{share}"


def _print(console: "Console", title: str, heads: list[str], rows: list[list[Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, title=Text(title, style="bold"), title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table)
    console.print()
