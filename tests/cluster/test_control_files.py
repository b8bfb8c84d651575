"""What a controller reads and writes on the storage, against a real server of a shard."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from stillhash.cluster.control_files import ask_status, delete_endpoints, read_drained, write_drained
from stillhash.cluster.endpoints import Endpoint
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.storage import Storage
from tests.cluster.search_load import wait_until
from tests.cluster.shard_children import ShardChildren


def test_a_shard_is_asked_by_its_endpoint(tmp_path: Path) -> None:
    processes = ShardChildren(tmp_path)
    with closing(ClusterIndex(64, 1, storage=tmp_path, processes=processes)) as index:
        wait_until(lambda: ask_status(index.storage, "0-0") is not None, "status")
        status = ask_status(index.storage, "0-0")
        assert status is not None and status["pid"] == processes.children[0, 0].pid and status["shard"] == 0
        assert ask_status(index.storage, "1-0") is None
        processes.children[0, 0].kill()
        processes.children[0, 0].wait()
        assert ask_status(index.storage, "0-0") is None


def test_endpoints_without_an_actor_are_deleted(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for name in ("key.shard-0.a", "key.shard-0.b", "other.shard-0.a"):
        endpoint = Endpoint(name, "shard", 0, "tcp://127.0.0.1:1", 1, "")
        storage.replace(endpoint.file, endpoint.to_json())
    delete_endpoints(storage, "key", lambda name: name.endswith("b"))
    assert storage.list("endpoints") == ["endpoints/key.shard-0.b.json", "endpoints/other.shard-0.a.json"]


def test_drained_nodes_are_remembered(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    assert read_drained(storage) == set()
    write_drained(storage, {"a", "b"})
    write_drained(storage, {"b"})
    assert read_drained(Storage(tmp_path)) == {"b"}
