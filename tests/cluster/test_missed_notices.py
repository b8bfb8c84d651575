"""A replica follows the commits on storage by itself, whether or not anyone names them to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stillhash.cluster import shard_server
from stillhash.cluster.manifest import commit_manifest, first_manifest
from stillhash.cluster.shard_server import ShardServer
from stillhash.cluster.storage import Storage
from tests.cluster.search_load import wait_until


def test_a_commit_without_a_notice_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_server, "FOLLOW_SECONDS", 0.05, raising=False)
    storage, manifest = Storage(tmp_path), first_manifest(64, [0])
    commit_manifest(storage, manifest)
    server = ShardServer(storage.url, 0, "0-0")
    try:
        wait_until(lambda: server.status()["number"] == 1, "first commit")
        for number in (2, 3):
            commit_manifest(storage, manifest := manifest.next(0))
            wait_until(lambda number=number: server.status()["number"] == number, "next commit")  # type: ignore[misc]
        away = tmp_path.rename(tmp_path.with_name("away"))
        wait_until(lambda: server.status()["failure"], "notice of the failing storage")
        assert server.status()["number"] == 3
        away.rename(tmp_path)
        commit_manifest(storage, manifest.next(0))
        wait_until(lambda: server.status()["number"] == 4, "commit after the failure")
    finally:
        server.stop()
