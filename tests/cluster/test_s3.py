"""The durable layer on S3: exclusive creation, commits, and storage that is away, hangs or is full, and returns."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'stillhash[s3]'")
pytest.importorskip("moto", reason="moto is not installed: pip install 'stillhash[dev]'")

import fsspec

from stillhash.cluster.deletions import existing_ids, without_ids
from stillhash.cluster.garbage import collect_garbage
from stillhash.cluster.lease import WriterLease, fence
from stillhash.cluster.manifest import commit_manifest, first_manifest, latest_number, read_latest
from stillhash.cluster.placement import place
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.segment_files import write_segments
from stillhash.cluster.storage import Storage
from stillhash.errors import BadState, NotFound, StoreFailed
from tests.cluster.manifests import BITS, codes_of, content, entry, expected
from tests.cluster.storage_writer import check, take_step
from tests.support.s3_server import SETTINGS, Forwarder, running_s3

AWAY_MODES = ("away", "silent", "full")


@pytest.fixture(scope="module")
def s3() -> Iterator[Forwarder]:
    with running_s3() as way, pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{way.port}"}.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("codes")
        yield way


@pytest.fixture
def storage(s3: Forwarder) -> Iterator[Storage]:
    s3.change("open")
    yield Storage(f"s3://codes/{uuid.uuid4().hex}", timeout=3)
    s3.change("open")


def test_files_of_a_bucket(storage: Storage, tmp_path: Path) -> None:
    assert storage.list("manifests") == [] and storage.local_path("manifests/1") is None
    with pytest.raises(NotFound, match="manifests/1"):
        storage.read("manifests/1")
    assert storage.create("manifests/1", b"one") and not storage.create("manifests/1", b"two")
    assert storage.read("manifests/1") == b"one" and storage.read_start("manifests/1", 2) == b"on"
    storage.replace("manifests/1", b"three")
    assert storage.size("manifests/1") == 5 and storage.list("manifests") == ["manifests/1"]
    (tmp_path / "file").write_bytes(bytes(range(256)) * 1000)
    checksum = storage.put_file(tmp_path / "file", "catalogs/c.db")
    cache = SegmentCache(storage, tmp_path / "cache")
    assert cache.fetch("catalogs/c.db", checksum).read_bytes() == (tmp_path / "file").read_bytes()
    with pytest.raises(BadState, match=r"c\.db"):
        cache.fetch("catalogs/c.db", 16 * "0")
    storage.delete("manifests/1")
    storage.delete("manifests/1")
    assert storage.list("manifests") == [] and storage.now() > 1e9
    assert Storage(storage.url, create=False).id == storage.id
    with pytest.raises(StoreFailed):
        Storage("s3://nothing/here", create=False)
    with pytest.raises(StoreFailed):
        Storage("s3://nothing/here")


def test_one_of_many_creates_a_name(storage: Storage) -> None:
    for number in range(5):
        name = f"manifests/{number}"
        with ThreadPoolExecutor(6) as pool:
            replies = list(pool.map(lambda n, name=name: storage.create(name, b"%d" % n), range(6)))
        assert sum(replies) == 1 and storage.read(name) == b"%d" % replies.index(True)


def test_commits_deletions_and_copies(storage: Storage, tmp_path: Path) -> None:
    for number in range(1, 5):
        assert take_step(storage).number == number
    assert check(storage) == 4
    cache, manifest = SegmentCache(storage, tmp_path / "cache"), read_latest(storage)
    held = existing_ids(cache, manifest, np.arange(2000))
    after, removed = without_ids(cache, manifest, held[::2])
    commit_manifest(storage, after.next(1))
    assert removed == len(held[::2]) and content(storage, read_latest(storage), cache) == expected(held[1::2].tolist())


@pytest.mark.slow
@pytest.mark.parametrize("mode", AWAY_MODES)
def test_storage_that_goes_away_returns(storage: Storage, s3: Forwarder, tmp_path: Path, mode: str) -> None:
    for _ in range(3):
        take_step(storage)
    cache, ids = SegmentCache(storage, tmp_path / "cache"), np.arange(100)
    entry = read_latest(storage).segments[0]
    s3.change(mode)
    for call in (
        lambda: storage.create("manifests/x", b"x"),
        lambda: write_segments(storage, codes_of(ids), ids, BITS, shards=1),
        lambda: storage.list("manifests"),
        lambda: storage.read("manifests/x"),
        lambda: cache.open(entry, BITS),
        lambda: Storage(storage.url, timeout=1),
    ):
        with pytest.raises(StoreFailed):
            call()
    assert not list((tmp_path / "cache").glob("[0-9a-f]*")) and not list((tmp_path / "cache").glob(".*"))
    s3.change("open")
    assert storage.list("manifests")[-1].endswith("3") and check(storage) == 3  # nothing of the calls above
    assert take_step(storage).number == 4 and check(storage) == 4
    assert cache.open(entry, BITS).rows == entry.rows


def test_servers_refuse_a_name_that_exists_in_their_own_words(storage: Storage, s3: Forwarder) -> None:
    s3.change("exists")  # without the name of the condition
    assert storage.create("manifests/1", b"") is False
    s3.change("conflict")
    before = s3.refused
    with pytest.raises(StoreFailed):
        storage.create("manifests/1", b"")
    assert s3.refused - before >= 4  # tried again, as S3 says
    s3.change("open")
    assert storage.create("manifests/1", b"")


@pytest.mark.parametrize("replies", [1, 100])
def test_a_commit_whose_reply_is_lost_is_made_once(storage: Storage, s3: Forwarder, replies: int) -> None:
    first = first_manifest(BITS, [0])
    commit_manifest(storage, first)
    ours = place(first, [entry(1)]).next(1)
    s3.lost_replies = replies
    try:
        if replies == 1:
            commit_manifest(storage, ours)  # the client tries again by itself
        else:
            with pytest.raises(StoreFailed):
                commit_manifest(storage, ours)
    finally:
        assert s3.lost_replies < replies
        s3.lost_replies = 0
    commit_manifest(storage, ours)
    assert latest_number(storage) == 2 and read_latest(storage) == ours


def test_a_lease_over_s3(storage: Storage, s3: Forwarder) -> None:
    with WriterLease(storage, "first", 1.0) as first:
        fence(storage, first.acquire(), first_manifest(BITS, [0]))
        s3.change("away")
        with pytest.raises(StoreFailed):
            first.renew()
        s3.change("open")
        first.renew()
        assert not first.lost
    with WriterLease(storage, "second", 1.0) as second:
        assert fence(storage, second.acquire(wait=0)).epoch == 2 and latest_number(storage) == 2


@pytest.mark.medium
def test_garbage_is_collected(storage: Storage) -> None:
    for _ in range(4):
        take_step(storage)
    ids = np.arange(10)
    (orphan,) = write_segments(storage, codes_of(ids), ids, BITS, shards=1)
    assert orphan.name not in collect_garbage(storage, keep=2, older_than=3600)
    assert orphan.name in collect_garbage(storage, keep=2, older_than=-5) and check(storage) == 4
