"""Fronts over HTTP: a real process beside the writer's server, typed clients, and what happens when either is away."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import urllib3

from stillhash import Client, Collection
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.publisher import Publisher
from stillhash.errors import Busy, Denied, Forbidden, InvalidInput, NotFound, StillhashError, Unreachable, Unsupported
from stillhash.server import Keys, Settings
from tests.cluster.shard_threads import ShardThreads
from tests.collection.fixtures import BITS, begin, some_rows
from tests.server.live_server import live_server
from tests.support.waiting import until

pytestmark = pytest.mark.slow  # each test starts a process

ROOT = Path(__file__).parents[2]
SECONDS = 60.0  # until something that should have happened is a failure


class Site(NamedTuple):
    collection: Collection
    publisher: Publisher
    shards: ShardThreads
    writer: str
    front: str


@contextmanager
def front_process(storage: Path, deadline: float = 10.0, *keys: str) -> Iterator[str]:
    """Start a front, and kill it at the end; yield its address."""
    command = [sys.executable, "-m", "tests.cluster.front_process", str(storage), str(deadline), *keys]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert url.startswith("http://"), "the front did not start"
            yield url
        finally:
            process.kill()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    collection, _ = begin(folder / "c", 320)
    shards = ShardThreads(folder / "storage")
    index = ClusterIndex(BITS, 2, storage=folder / "storage", processes=shards, lease_seconds=0.5)
    with live_server({"c": collection}) as writer, Publisher(collection, index, writer=writer.url) as publisher:
        try:
            publisher.publish()
            with front_process(folder / "storage") as url:
                until(lambda: get(url, "/v1/ready").status == 200)
                yield Site(collection, publisher, shards, writer.url, url)
        finally:
            index.close()


def get(url: str, path: str, method: str = "GET", **options: Any) -> Any:
    return urllib3.request(method, url + path, retries=False, timeout=SECONDS, **options)


def current(site: Site) -> None:
    """Wait until the front serves the latest commit."""
    number = site.publisher.publish().number
    until(lambda: get(site.front, "/v1/collections/c/stats").json()["manifest"] >= number)


def test_a_client_has_the_answers_of_the_collection(site: Site) -> None:
    current(site)
    Q = some_rows(5, seed=9).X
    with Client(site.front) as client:
        for options in ({}, {"k": 50, "where": {"odd": True}}, {"version": 0}, {"explain": True, "k": 3}):
            assert client.search(Q, **options) == site.collection.search(Q, **options)
        assert client.range_search(Q, distance=5) == site.collection.range_search(Q, distance=5)
        assert client.get([1, "absent", 2]) == site.collection.get([1, "absent", 2])
        assert client.count() == site.collection.count() and len(client) == site.collection.count()
        assert client.count({"odd": True}) == site.collection.count({"odd": True})
        assert client.ids(limit=30) == site.collection.ids(limit=30)
        assert np.allclose(client.reconstruct([1, 2]), site.collection.reconstruct([1, 2]))
        assert client.versions() == site.collection.versions() and client.quality() == site.collection.quality()
        assert client.stats()["items"] == site.collection.count()
        assert client.dim == site.collection.dim and client.bits == site.collection.bits
        with pytest.raises(InvalidInput):
            client.search(Q, version=99)
    with Client(site.front, collection="nobody") as client, pytest.raises(NotFound):
        client.search(Q)


def test_everything_else_is_sent_on_to_the_writer(site: Site) -> None:
    X = some_rows(3, seed=21).X
    with Client(site.front) as client:
        assert client.add(["sent1", "sent2"], X[:2], [["a"], []], [{"n": 1}, None]) == 2
        assert (
            client.ingest({"id": f"stream{n}", "features": x} for n, x in enumerate(some_rows(2500, seed=3).X)) == 2500
        )
        with pytest.raises(StillhashError, match="already exist"):
            client.add(["sent1"], X[:1])
        assert client.feedback(X[0], "sent2", "up") >= 1
        current(site)
        assert client.get(["sent1", "sent2"]) == site.collection.get(["sent1", "sent2"])
        assert client.search(X[0], 3) == site.collection.search(X[0], 3)
        assert client.search(X[0], 3).hits[0].placed == "liked"
        assert len(list(client.items())) == site.collection.count()  # a long answer, in pages of the writer
        assert client.delete(["sent1"]) == 1
        assert client.audit(limit=1)[0].what == "delete"
    page = get(site.front, "/c/c")
    assert page.status == 200 and b"<html" in page.data.lower()
    assert get(site.front, "/v1/openapi.json").json()["paths"]
    assert get(site.front, "/nothing/here").status == 404


def test_headers_and_status(site: Site) -> None:
    reply = get(site.front, "/v1/collections/c/audit", headers={"x-request-id": "mine"})
    assert reply.headers["x-request-id"] == "mine" and len(reply.headers.getlist("x-request-id")) == 1
    reply = get(site.front, "/v1/collections/c/audit", headers={"x-stillhash-forwarded": "1"})
    assert (reply.status, reply.json()["error"]) == (502, "Unreachable")
    health = get(site.front, "/v1/health").json()
    assert health["status"] == "ok" and "c" in health["collections"]
    assert get(site.front, "/v1/collections").json()["collections"] == ["c"]
    metrics = get(site.front, "/v1/metrics").data.decode()
    assert 'stillhash_rows{collection="c"}' in metrics and 'stillhash_shards_missing{collection="c"} 0.0' in metrics
    assert "stillhash_request_seconds_count" in metrics and 'stillhash_manifest{collection="c"}' in metrics
    crossing = get(site.front, "/v1/collections/c/delete", "POST", headers={"origin": "http://elsewhere.example"})
    assert crossing.status == 403


def test_a_writer_that_is_away_stops_no_search(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    shards = ShardThreads(tmp_path / "storage")
    index = ClusterIndex(BITS, 2, storage=tmp_path / "storage", processes=shards, lease_seconds=0.5)
    with collection, Publisher(collection, index) as publisher:
        try:
            publisher.publish()
            with front_process(tmp_path / "storage", deadline=1.0) as url, Client(url, retries=0) as client:
                until(lambda: get(url, "/v1/ready").status == 200)
                check_away(client, collection, "no server")
                with Publisher(collection, index, writer="http://127.0.0.1:1") as other:  # a port nobody listens on
                    other.publish()
                until(lambda: "127.0.0.1:1" in get(url, "/v1/collections/c/audit").json()["message"])
                check_away(client, collection, "does not answer")
                shards.ensure([1], 1)  # the shard with all rows is gone
                until(lambda: get(url, "/v1/ready").status == 503)
                assert "none of 0" in get(url, "/v1/ready").json()["message"]
                assert get(url, "/v1/health").status == 200
                with pytest.raises(Unreachable):
                    client.search(some_rows(1).X)
                shards.ensure([0, 1], 1)
                until(lambda: get(url, "/v1/ready").status == 200)
                assert client.search(some_rows(2).X) == collection.search(some_rows(2).X)
        finally:
            index.close()


def check_away(client: Client, collection: Collection, reason: str) -> None:
    assert client.search(some_rows(2).X) == collection.search(some_rows(2).X)
    with pytest.raises(Busy, match=reason):
        client.delete([1])
    assert collection.get(1) is not None


def test_what_a_front_refuses_names_the_writer(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    shards = ShardThreads(tmp_path / "storage")
    index = ClusterIndex(BITS, 1, storage=tmp_path / "storage", processes=shards, lease_seconds=0.5)
    with collection, Publisher(collection, index) as publisher:
        try:
            publisher.publish()
            with front_process(tmp_path / "storage") as url, Client(url, retries=0) as client:
                assert client.count() == 20
                with pytest.raises(Unsupported, match="writes"):
                    client.search(some_rows(1).X)
        finally:
            index.close()


def test_keys_are_checked_by_the_front_and_by_the_writer(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    shards, read, write = ShardThreads(tmp_path / "storage"), "a key that may read", "a key that may write"
    index = ClusterIndex(BITS, 1, storage=tmp_path / "storage", processes=shards, lease_seconds=0.5)
    settings = Settings(keys=Keys(read=[read], write=[write]))
    with (
        live_server({"c": collection}, settings) as writer,
        Publisher(collection, index, writer=writer.url) as publisher,
    ):
        try:
            publisher.publish()
            with front_process(tmp_path / "storage", 10.0, read) as url:
                until(lambda: get(url, "/v1/ready").status == 200)
                for key, error in ((None, Denied), ("another key, of nobody", Denied), (write, Denied)):
                    with Client(url, collection="c", key=key, retries=0) as client, pytest.raises(error):
                        client.search(some_rows(1).X)  # this front has only the key that may read
                with Client(url, collection="c", key=read, retries=0) as client:
                    assert client.search(some_rows(2).X) == collection.search(some_rows(2).X)
                    with pytest.raises(Forbidden):
                        client.delete([1])
                with Client(url, collection="c", key=write, retries=0) as client:
                    assert client.delete([1]) == 1
        finally:
            index.close()
