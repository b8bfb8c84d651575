"""The tables of `cluster status`: every node, actor and move has a line, and nothing needs all fields."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from stillhash.cli.cluster_tables import actor_state, progress, show_cluster

ACTOR: dict[str, Any] = {
    "shard": 3,
    "node": "a" * 56,
    "pid": 7,
    "number": 5,
    "rows": 1200,
    "plan": "scan",
    "ready": True,
}
STATUS: dict[str, Any] = {
    "nodes": ["a" * 56, "b" * 56],
    "addresses": {"a" * 56: "10.0.0.1", "b" * 56: "10.0.0.2"},
    "drained": ["b" * 56],
    "shards": [{"shard": 3, "rows": 1200, "segments": 2}, {"shard": 4, "rows": 9, "segments": 1, "leaving": True}],
    "segment_moves": {"segments": 2, "of_segments": 8, "rows": 500, "of_rows": 2000, "seconds": 3.2},
    "actors": [ACTOR, {**ACTOR, "shard": None, "role": "aggregator", "ready": False, "failure": "[red]gone"}],
    "moves": [{"group": "shard-3", "from": "b" * 56, "to": "a" * 56, "rows": 300, "of": 1200, "seconds": 4.2}],
    "problems": ["shard-9: 1 of 2 replicas are missing: [bold]no node has room for it"],
    "ready": False,
}


def printed(status: dict[str, Any]) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        show_cluster(status, console)
    return capture.get()


def test_everything_has_a_line() -> None:
    lines = printed(STATUS).splitlines()
    assert any("10.0.0.2" in line and "drained" in line and " 0 " in line for line in lines)
    assert any(line.startswith("3") and "1,200" in line and "ready" in line for line in lines)
    assert any("aggregator" in line and "[red]gone" in line for line in lines)
    assert any("shard-3" in line and "300 of 1,200 (25%)" in line for line in lines)
    assert any(line.startswith("4") and "being removed" in line for line in lines)
    assert any("2 of 8 segments, 500 of 2,000 (25%) rows, for 3 s" in line for line in lines)
    assert any("[bold]no node" in line for line in lines) and lines[-1].strip() == "not ready"


def test_an_empty_status_is_shown() -> None:
    assert "not ready" in printed({})


def test_states_and_progress() -> None:
    assert actor_state(ACTOR | {"moving": True}) == "arriving"
    assert actor_state(ACTOR | {"merging": True}) == "merging"
    assert actor_state(ACTOR | {"ready": False}) == "does not answer"
    assert progress({"rows": 0, "of": 0}) == "0 of 0"
