"""Plans of nodes for replicas: they end, keep replicas of a shard apart, and say what is missing."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash.cluster.local import Node
from stillhash.cluster.node_choice import Placed, best_node, check_capacity, next_move, usable_nodes
from stillhash.errors import Unreachable

NODES = [f"n{number}" for number in range(6)]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Placed], dict[str, int], int]:
    """Return replicas on any nodes, also lost ones, and nodes that can hold all of them."""
    replicas, shards = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    nodes = draw(st.lists(st.sampled_from(NODES), min_size=1, unique=True))
    placed = [
        Placed(f"{shard}-{number}", f"shard-{shard}", draw(st.sampled_from(NODES)))
        for shard in range(shards)
        for number in range(replicas)
    ]
    return placed, dict.fromkeys(nodes, len(placed)), replicas


@given(clusters())
def test_moves_end_with_replicas_apart_and_nodes_even(cluster: tuple[list[Placed], dict[str, int], int]) -> None:
    placed, slots, replicas = cluster
    for _ in range(10 * len(placed)):
        move = next_move(placed, slots)
        if move is None:
            break
        assert move.node in slots
        placed = [p._replace(node=move.node) if p.name == move.name else p for p in placed]
    else:
        pytest.fail("the moves do not end")
    assert {p.node for p in placed} <= set(slots)
    for group in {p.group for p in placed}:
        nodes = {p.node for p in placed if p.group == group}
        assert len(nodes) == min(replicas, len(slots))
    if replicas == 1:
        load = Counter(dict.fromkeys(slots, 0))
        load.update(p.node for p in placed)
        assert max(load.values()) - min(load.values()) <= 1


@given(clusters(), st.integers(0, 4))
def test_the_best_node_is_the_first_of_a_sorted_list(
    cluster: tuple[list[Placed], dict[str, int], int], most: int
) -> None:
    placed, slots, _ = cluster
    slots = dict.fromkeys(slots, most)

    def rank(node: str) -> tuple[int, int, int]:
        there = [p for p in placed if p.node == node]
        return sum(p.group == "shard-0" for p in there), len(there), list(slots).index(node)

    free = [node for node in slots if sum(p.node == node for p in placed) < most]
    assert best_node("shard-0", placed, slots) == (sorted(free, key=rank)[0] if free else None)


def test_groups_that_move_already_wait() -> None:
    placed = [Placed("a", "shard-0", "lost"), Placed("b", "shard-1", "lost")]
    assert next_move(placed, {"n": 2}, fixed=["a"]) == ("b", "n")
    assert next_move(placed, {"n": 2}, fixed=["a", "b"]) is None


def test_nodes_that_are_too_small_or_excluded_are_left_out() -> None:
    nodes = [Node("a", "127.0.0.2", {"CPU": 1.0}), Node("b", "127.0.0.3", {"CPU": 0.3}), Node("c", "", {"CPU": 4.0})]
    assert usable_nodes(nodes, 0.1, ["c"]) == {"a": 10, "b": 3}
    assert list(usable_nodes(nodes, 0.3, [], last="a")) == ["b", "c", "a"]
    assert usable_nodes(nodes, 8, []) == {}


def test_a_lack_of_capacity_names_what_is_needed_and_what_there_is() -> None:
    check_capacity(0, 1.0, {}, 0.0)
    check_capacity(3, 0.1, {"a": 3}, 0.3)
    with pytest.raises(Unreachable, match=r"^capacity.*12 replicas.*2"):
        check_capacity(12, 1.0, {"a": 1, "b": 1}, 2.0)
    with pytest.raises(Unreachable, match=r"^capacity.*no node"):
        check_capacity(1, 1.0, {}, 0.0)
    with pytest.raises(Unreachable, match=r"^capacity.*0\.5"):
        check_capacity(2, 1.0, {"a": 4}, 0.5)
