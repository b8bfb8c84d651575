"""A collection that is published to S3: shards and fronts work with copies of what they need."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'stillhash[s3]'")
pytest.importorskip("moto", reason="moto is not installed: pip install 'stillhash[dev]'")

import fsspec

from stillhash.cluster import publisher as publisher_module
from stillhash.cluster.front import FrontCollection
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.publisher import Publisher
from tests.cluster.shard_threads import ShardThreads
from tests.collection.fixtures import BITS, begin, some_rows
from tests.support.s3_server import SETTINGS, running_s3


@pytest.mark.slow
def test_a_collection_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    with running_s3() as way, collection:
        for name, value in {**SETTINGS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{way.port}"}.items():
            monkeypatch.setenv(name, value)
        bucket = fsspec.filesystem("s3", use_listings_cache=False)
        bucket.mkdir("items")
        url = f"s3://items/{uuid.uuid4().hex}"
        shards = ShardThreads(url)
        index = ClusterIndex(BITS, 2, storage=url, processes=shards, cache=tmp_path / "cache")
        with closing(index), Publisher(collection, index) as publisher:
            publisher.publish()
            with FrontCollection(url, cache=tmp_path / "front") as front:
                front.wait_ready()
                check_equal(front, collection)
                collection.relabel([5, 6], [["z"], []], learn=False)
                collection.delete([7])
                collection.upsert(["new"], some_rows(1, seed=4).X, [["a"]], [{"odd": True, "owner": "s3-secret"}])
                collection.feedback(some_rows(1).X[0], 9, "up")
                publisher.publish()
                front.refresh()
                check_equal(front, collection)
                index.compact()
                front.refresh()
                check_equal(front, collection)
                assert any(b"s3-secret" in bucket.cat_file(name) for name in bucket.find("items"))
                monkeypatch.setattr(publisher_module, "FORGET_SECONDS", -1.0)
                collection.forget(["new"])
                publisher.publish()
                front.refresh()
                check_equal(front, collection)
                assert not any(b"s3-secret" in bucket.cat_file(name) for name in bucket.find("items"))


def check_equal(front: FrontCollection, collection: object) -> None:
    Q = some_rows(3).X
    for options in ({}, {"k": 400}, {"where": {"odd": True}, "k": 50}):
        assert front.search(Q, **options) == collection.search(Q, **options)
    assert front.ids() == collection.ids()
