"""Where replicas should run: pure functions of nodes and of what runs on them."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stillhash.cluster.local import Node
from stillhash.errors import Unreachable


class Placed(NamedTuple):
    """A replica and its node. Replicas of one group, such as a shard, hold the same."""

    name: str
    group: str
    node: str


class PlannedMove(NamedTuple):
    """A replica that should run on another node."""

    name: str
    node: str


def usable_nodes(nodes: Iterable[Node], cpus: float, excluded: Iterable[str], last: str = "") -> dict[str, int]:
    """Return how many replicas each node can hold that is large enough and not excluded; the node `last` comes last."""
    left_out = set(excluded)
    slots = {node.id: math.floor(node.resources.get("CPU", 0.0) / cpus + 1e-9) for node in nodes}
    names = sorted((name for name in slots if slots[name] and name not in left_out), key=lambda n: (n == last, n))
    return {name: slots[name] for name in names}


def best_node(group: str, placed: Sequence[Placed], slots: dict[str, int]) -> str | None:
    """Return the node with fewest replicas of the group, then with fewest of all; None if all are full."""
    load = Counter(replica.node for replica in placed)
    twins = Counter(replica.node for replica in placed if replica.group == group)
    free = [name for name in slots if load[name] < slots[name]]
    return min(free, key=lambda name: (twins[name], load[name]), default=None)


def next_move(placed: Sequence[Placed], slots: dict[str, int], fixed: Iterable[str] = ()) -> PlannedMove | None:
    """Return a replica to move and its new node: off an unusable node, one with two of its group, or the fullest.

    Groups with a replica in `fixed`, which moves already, wait.
    """
    load = Counter(replica.node for replica in placed)
    busy = {replica.group for replica in placed if replica.name in set(fixed)}
    for moving in placed:
        if moving.group in busy:
            continue
        others = [replica for replica in placed if replica is not moving]
        best = best_node(moving.group, others, slots)
        if best is None or best == moving.node:
            continue
        twins = {replica.node for replica in others if replica.group == moving.group}
        crowded = moving.node in twins and best not in twins
        if moving.node not in slots or crowded or (best not in twins and load[moving.node] - load[best] > 1):
            return PlannedMove(moving.name, best)
    return None


def check_capacity(count: int, cpus: float, slots: dict[str, int], free_cpus: float) -> None:
    """Raise Unreachable, with what is needed and what there is, unless so many more replicas can be placed."""
    if count <= 0:
        return
    need = f"{count} replicas of {cpus:g} CPUs each, {count * cpus:g} in all"
    capacity = sum(slots.values())
    if capacity < count:
        sizes = f"{len(slots)} nodes that can hold {capacity}" if slots else "no node that can hold one"
        raise Unreachable(f"capacity: expected {need}; got {sizes}. Add nodes, or claim fewer CPUs")
    if free_cpus + 1e-9 < count * cpus:
        raise Unreachable(
            f"capacity: expected {need}; got {free_cpus:g} that are free. Stop other actors, or add nodes"
        )
