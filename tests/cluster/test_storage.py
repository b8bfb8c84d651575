"""Segments from disks and URLs: copied once, verified, fetched again when damaged, and never confused."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest

from stillhash import Index
from stillhash.cluster.manifest import SegmentEntry
from stillhash.cluster.segment_cache import SegmentCache, url_checksum
from stillhash.cluster.segment_files import write_segments
from stillhash.cluster.storage import Storage
from stillhash.collection.storage.segments import CodedRows, write_segment
from stillhash.errors import BadState, Conflict, InvalidInput, NotFound, StoreFailed, Unsupported
from tests.cluster.shard_threads import thread_index
from tests.contracts.searchers import random_codes

CODES = random_codes(np.random.default_rng(3), 500, 64, 60)
WEIGHTS = np.random.default_rng(4).integers(-2, 3, (4, 64)).astype(np.float32)


def flip(path: Path, at: int = 5000) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(bytes(data))


def copies(cache: SegmentCache) -> list[Path]:
    return sorted(cache.folder.glob("*.seg"))


@pytest.fixture
def memory() -> Iterator[Storage]:
    """Return a storage behind a URL, in the memory of this process."""
    url = f"memory://{uuid.uuid4().hex}"
    yield Storage(url)
    fsspec.filesystem("memory").rm(url, recursive=True)


def written(storage: Storage) -> SegmentEntry:
    (entry,) = write_segments(storage, CODES, np.arange(500), 64, shards=1)
    return entry


def damage(storage: Storage, entry: SegmentEntry) -> None:
    data = bytearray(storage.read(entry.name))
    data[5000] ^= 4
    storage.replace(entry.name, bytes(data))


def test_files_of_a_storage(tmp_path: Path, memory: Storage) -> None:
    for storage in (Storage(tmp_path / "new"), memory):
        assert storage.list("segments") == []
        with pytest.raises(NotFound, match="segments/a"):
            storage.read("segments/a")
        with pytest.raises(NotFound, match="segments/a"):
            storage.size("segments/a")
        assert storage.create("segments/a", b"one") and not storage.create("segments/a", b"two")
        assert storage.read("segments/a") == b"one" and storage.read_start("segments/a", 2) == b"on"
        storage.replace("segments/a", b"three")
        storage.replace("segments/b", b"")
        assert storage.list("segments") == ["segments/a", "segments/b"] and storage.size("segments/a") == 5
        (tmp_path / "file").write_bytes(b"content")
        checksum = storage.put_file(tmp_path / "file", "catalogs/c.db")
        cache = SegmentCache(storage, tmp_path / "cache")
        assert cache.fetch("catalogs/c.db", checksum).read_bytes() == b"content"
        with pytest.raises(BadState, match=r"c\.db"):
            SegmentCache(storage, tmp_path / "cache").fetch("catalogs/c.db", 16 * "0")
        storage.delete("segments/a")
        storage.delete("segments/a")
        assert storage.list("segments") == ["segments/b"] and not storage.exists("segments/a")
        assert abs(storage.now() - storage.now()) < 60 and storage.list("clock") == []


def test_names_are_plain(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for name in ("", "/etc/x", "../x", "a/../x", "a//b", ".x", "a/.x", "a\0", "a/b/c/d/e", "x" * 200):
        with pytest.raises(InvalidInput, match="name"):
            storage.create(name, b"")
    with pytest.raises(InvalidInput, match="storage"):
        Storage("")


def test_one_of_many_threads_creates_a_name(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for number in range(20):
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda n, at=number: storage.create(f"manifests/{at}", b"%d" % n), range(8)))
        assert sum(replies) == 1 and storage.read(f"manifests/{number}") == b"%d" % replies.index(True)
    assert not list(tmp_path.rglob(".*"))


def test_storage_that_is_away_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    folder, away = tmp_path / "storage", tmp_path / "away"
    storage = Storage(folder)
    ref, cache = written(storage), SegmentCache(storage)
    storage.create("manifests/1", b"one")
    for empty in (False, True):  # renamed, or no longer mounted
        folder.rename(away)
        if empty:
            folder.mkdir()
        calls: list[Callable[[], object]] = [
            lambda: storage.list("manifests"),
            lambda: storage.read("manifests/1"),
            lambda: storage.size("manifests/1"),
            lambda: storage.create("manifests/2", b"two"),
            lambda: storage.replace("manifests/1", b"two"),
            lambda: storage.put_file(Path(__file__), "catalogs/c"),
            lambda: written(storage),
            lambda: cache.open(ref, 64),
            lambda: Storage(folder, create=False),
        ]
        for call in calls:
            with pytest.raises(StoreFailed):
                call()
        assert not folder.exists() or not list(folder.iterdir())
        if empty:
            folder.rmdir()
        away.rename(folder)
        assert storage.list("manifests") == ["manifests/1"] and storage.read("manifests/1") == b"one"
        assert cache.open(ref, 64).rows == 500 and Storage(folder, create=False).id == storage.id


def test_another_storage_in_the_same_place_is_refused(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "storage")
    (tmp_path / "storage").rename(tmp_path / "away")
    other = Storage(tmp_path / "storage")
    with pytest.raises(StoreFailed, match=other.id):
        storage.create("manifests/1", b"")
    (tmp_path / "storage" / "storage").write_bytes(b"stillhash-storage 2 x")
    with pytest.raises(BadState, match="format 1"):
        Storage(tmp_path / "storage")


def test_a_storage_travels_to_other_processes(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    copy = pickle.loads(pickle.dumps(storage))
    assert (copy.url, copy.id, copy.timeout) == (storage.url, storage.id, storage.timeout)


def test_a_segment_on_disk_is_used_in_place(tmp_path: Path) -> None:
    for url in (tmp_path / "new", f"file://{tmp_path}/newer"):
        storage = Storage(url)
        ref, cache = written(storage), SegmentCache(storage, tmp_path / "cache")
        path = storage.local_path(ref.name)
        assert path is not None and cache.open(ref, 64).path == path and not cache.folder.exists()
        assert url_checksum(str(path)) == url_checksum(f"file://{path}") == ref.checksum
        flip(path)
        with pytest.raises(BadState, match="damaged"):
            cache.open(ref, 64)
        storage.delete(ref.name)
        with pytest.raises(BadState, match="cannot be read"):
            cache.open(ref, 64)


def test_a_segment_behind_a_url_is_copied_once(tmp_path: Path, memory: Storage) -> None:
    ref, cache = written(memory), SegmentCache(memory, tmp_path / "cache")
    first = cache.open(ref, 64)
    (copy,) = copies(cache)
    assert first.path == copy and url_checksum(memory.url_of(ref.name)) == ref.checksum
    memory.delete(ref.name)
    assert memory.list("segments") == []
    assert cache.open(ref, 64).row_numbers().tolist() == list(range(500))  # from the copy
    copy.unlink()
    with pytest.raises(BadState, match="cannot be read"):
        cache.open(ref, 64)


def test_a_damaged_copy_is_fetched_again_and_a_damaged_original_refused(tmp_path: Path, memory: Storage) -> None:
    ref, cache = written(memory), SegmentCache(memory, tmp_path / "cache")
    cache.open(ref, 64)
    (copy,) = copies(cache)
    sound = copy.read_bytes()
    flip(copy)
    assert cache.open(ref, 64).rows == 500 and copy.read_bytes() == sound
    flip(copy)
    damage(memory, ref)
    with pytest.raises(BadState, match="damaged"):
        cache.open(ref, 64)


def test_another_file_under_the_same_name_is_refused(tmp_path: Path, memory: Storage) -> None:
    for storage in (Storage(tmp_path / "new"), memory):
        ref = written(storage)
        write_segment(tmp_path / "other.seg", CodedRows.without_digests(np.arange(500), CODES[::-1]), 64)
        storage.put_file(tmp_path / "other.seg", ref.name)
        with pytest.raises(BadState, match="checksum"):
            SegmentCache(storage, tmp_path / "cache").open(ref, 64)


def test_old_copies_are_evicted(tmp_path: Path, memory: Storage) -> None:
    refs = [written(memory) for _ in range(4)]
    size = memory.size(refs[0].name)
    cache = SegmentCache(memory, tmp_path / "cache", 2 * size)
    mapped = [cache.open(ref, 64) for ref in refs]
    assert len(copies(cache)) == 2 and mapped[-1].path in copies(cache)
    assert [bytes(m.tiles) for m in mapped] == [bytes(mapped[0].tiles)] * 4  # a mapped copy stays readable


def test_a_url_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="nowhere"):
        Storage("nowhere://a")
    with pytest.raises(Unsupported, match="exclusively"):  # it looks, and then writes
        Storage(f"dir::file://{tmp_path}")
    with pytest.raises((BadState, StoreFailed), match=r"no\.seg"):
        url_checksum("memory://no.seg")
    with pytest.raises(BadState, match=r"no\.seg"):
        url_checksum(str(tmp_path / "no.seg"))


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_an_index_over_a_url(tmp_path: Path, kind: str, memory: Storage) -> None:
    ready = tmp_path / "ready.seg"
    write_segment(ready, CodedRows.without_digests(np.arange(1000, 2000, 2), CODES), 64)
    url = memory.url if kind == "memory" else f"file://{tmp_path}/remote"
    reference = Index(64, threads=1)
    with thread_index(url, 64, 2, cache=tmp_path / "cache") as index:
        index.add(CODES)
        index.add_segments([ready])
        reference.add(CODES)
        reference.add(CODES, np.arange(1000, 2000, 2))
        assert index.search(WEIGHTS, 1200).ids.tobytes() == reference.search(WEIGHTS, 1200).ids.tobytes()
        with pytest.raises(Conflict, match="1000"):
            index.add_segments([ready])
        bad = tmp_path / "bad.seg"
        write_segment(bad, CodedRows.without_digests(np.arange(5000, 5500), CODES), 64)
        flip(bad)
        with pytest.raises(BadState, match="damaged"):
            index.add_segments([bad])
        assert len(index) == len(reference) and index.plan == "scan" and index.nbytes >= 8000
        assert index.search(WEIGHTS, 1200).ids.tobytes() == reference.search(WEIGHTS, 1200).ids.tobytes()
        index.clear()
        reference = Index(64, threads=1)
        index.add(CODES[:9])
        reference.add(CODES[:9])
        assert len(index) == 9
        assert index.search(WEIGHTS, 12).ids.tobytes() == reference.search(WEIGHTS, 12).ids.tobytes()
    assert ready.exists()
