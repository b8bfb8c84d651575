from __future__ import annotations

import pytest
import ray

from stillhash.cluster import LocalCluster
from stillhash.errors import InvalidInput

pytestmark = pytest.mark.cluster


def test_all_nodes_run_on_loopback(cluster: LocalCluster) -> None:
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    assert set(cluster.nodes) < alive and len(alive) == len(cluster.nodes) + 1
    assert all(node["NodeManagerAddress"].startswith("127.") for node in ray.nodes())
    with pytest.raises(InvalidInput, match=r"^node"):
        cluster.remove_node("x")
    with pytest.raises(InvalidInput, match="connected"):
        LocalCluster(0)
