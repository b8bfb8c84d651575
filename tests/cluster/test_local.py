from __future__ import annotations

import pytest
import ray

from stillhash.cluster import LocalCluster
from stillhash.errors import InvalidInput


def test_the_nodes_are_there(cluster: LocalCluster) -> None:
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    assert set(cluster.nodes) < alive and len(alive) == len(cluster.nodes) + 1
    assert all(node["NodeManagerAddress"].startswith("127.") for node in ray.nodes())
    with pytest.raises(InvalidInput, match="node is 'x'"):
        cluster.remove_node("x")
    with pytest.raises(InvalidInput, match="connected"):
        LocalCluster(0)
