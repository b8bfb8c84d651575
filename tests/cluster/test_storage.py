"""Segments from disks and URLs: copied once, verified, fetched again when damaged, and never confused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stillhash.cluster.shard
from stillhash import Index
from stillhash.cluster import ClusterIndex, LocalCluster
from stillhash.cluster.shard import Shard, ShardRequest, ShardSegment
from stillhash.cluster.storage import SegmentCache, SegmentRef, Storage, open_segment
from stillhash.collection.storage.segments import CodedRows, write_segment
from stillhash.errors import BadState, Conflict, StoreFailed
from tests.contracts.searchers import random_codes

CODES = random_codes(np.random.default_rng(3), 500, 64, 60)
WEIGHTS = np.random.default_rng(4).integers(-2, 3, (4, 64)).astype(np.float32)
NO_IDS = np.empty(0, np.int64)


def flip(path: Path, at: int = 5000) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(bytes(data))


def write_ref(folder: str | Path) -> SegmentRef:
    return Storage(folder).write(CODES, np.arange(500), 64)


def copies(cache: SegmentCache) -> list[Path]:
    return sorted(cache.folder.glob("*.seg"))


def test_a_segment_on_disk_is_used_in_place(tmp_path: Path) -> None:
    ref, cache = write_ref(tmp_path / "new"), SegmentCache(tmp_path / "cache")
    assert cache.open(ref, 64).path == Path(ref.url) and not cache.folder.exists()
    assert open_segment(ref.url, 64, cache)[0] == ref
    flip(Path(ref.url))
    with pytest.raises(BadState, match="damaged"):
        cache.open(ref, 64)
    Storage(tmp_path / "new").delete(ref)
    with pytest.raises(BadState, match="cannot be read"):
        cache.open(ref, 64)


def test_a_segment_behind_a_url_is_copied_once(tmp_path: Path) -> None:
    ref, cache = write_ref(f"file://{tmp_path}/remote"), SegmentCache(tmp_path / "cache")
    first = cache.open(ref, 64)
    (copy,) = copies(cache)
    assert first.path == copy and open_segment(ref.url, 64, cache)[0] == ref
    Storage(f"file://{tmp_path}/remote").delete(ref)
    assert not list((tmp_path / "remote").iterdir())
    assert cache.open(ref, 64).row_numbers().tolist() == list(range(500))  # from the copy


def test_a_damaged_copy_is_fetched_again_and_a_damaged_original_refused(tmp_path: Path) -> None:
    ref, cache = write_ref(f"file://{tmp_path}/remote"), SegmentCache(tmp_path / "cache")
    cache.open(ref, 64)
    (copy,) = copies(cache)
    sound = copy.read_bytes()
    flip(copy)
    assert cache.open(ref, 64).rows == 500 and copy.read_bytes() == sound
    flip(copy)
    flip(Path(ref.url.removeprefix("file://")))
    with pytest.raises(BadState, match="damaged"):
        cache.open(ref, 64)


def test_another_file_under_the_same_name_is_refused(tmp_path: Path) -> None:
    cache = SegmentCache(tmp_path / "cache")
    for folder in (tmp_path, f"file://{tmp_path}"):
        ref = write_ref(folder)
        write_segment(Path(ref.url.removeprefix("file://")), CodedRows.without_digests(np.arange(500), CODES[::-1]), 64)
        with pytest.raises(BadState, match="checksum"):
            cache.open(ref, 64)


def test_old_copies_are_evicted(tmp_path: Path) -> None:
    refs = [write_ref(f"file://{tmp_path}/remote") for _ in range(4)]
    size = Path(refs[0].url.removeprefix("file://")).stat().st_size
    cache = SegmentCache(tmp_path / "cache", 2 * size)
    mapped = [cache.open(ref, 64) for ref in refs]
    assert len(copies(cache)) == 2 and mapped[-1].path in copies(cache)
    assert [bytes(m.tiles) for m in mapped] == [bytes(mapped[0].tiles)] * 4  # a mapped copy stays readable


def test_a_missing_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="nowhere"):
        Storage("nowhere://a")
    with pytest.raises((BadState, StoreFailed), match=r"no\.seg"):
        open_segment(f"file://{tmp_path}/no.seg", 64, SegmentCache(tmp_path))
    with pytest.raises(BadState, match=r"no\.seg"):
        open_segment(tmp_path / "no.seg", 64, SegmentCache(tmp_path))


def test_a_shard_answers_from_the_requested_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray: a shard is a plain class."""
    monkeypatch.setattr(stillhash.cluster.shard, "OLD_VERSION_SECONDS", np.inf)
    shard, requests = Shard(str(tmp_path / "cache"), threads=1), [ShardRequest(WEIGHTS, 600, None, None)]
    first = Storage(tmp_path).write(CODES[:300], np.arange(300), 64)
    second = Storage(tmp_path).write(CODES[300:], np.arange(300, 500), 64)
    assert shard.search(1, requests) is None and shard.codes(1, NO_IDS) is None
    assert shard.change(2, 1, [second], NO_IDS) is None
    assert shard.load(1, 64, [ShardSegment(first, NO_IDS)]).rows == 300
    status = shard.change(2, 1, [second], np.array([7]))
    assert status is not None and status.rows == 499 and shard.change(2, 1, [second], NO_IDS) == status
    reference = Index(64, threads=1)
    reference.add(CODES[:300])
    for version in (1, 2):
        if version == 2:
            reference.add(CODES[300:])
            reference.remove([7])
        reply = shard.search(version, requests)
        assert reply is not None
        scores, ids = reference.search(WEIGHTS, len(reference))
        (hits,) = reply.hits[0]
        assert hits.ids.tobytes() == ids.tobytes() and hits.scores.tobytes() == scores.tobytes()
    assert shard.load(3, 64, [ShardSegment(first, np.array([7])), ShardSegment(second, NO_IDS)]).rows == 499
    for version in range(4, 30):
        shard.change(version, version - 1, [], np.array([version]))
    assert shard.search(1, requests) is None and shard.search(29, requests) is not None  # old versions are dropped


def test_an_index_over_a_url(cluster: LocalCluster, tmp_path: Path) -> None:
    ready = tmp_path / "ready.seg"
    write_segment(ready, CodedRows.without_digests(np.arange(1000, 2000, 2), CODES), 64)
    remote = tmp_path / "remote"
    reference = Index(64, threads=1)
    with ClusterIndex(64, 2, storage=f"file://{remote}", cache=tmp_path / "cache", threads=1) as index:
        index.add(CODES)
        index.add_segments([ready])
        reference.add(CODES)
        reference.add(CODES, np.arange(1000, 2000, 2))
        assert index.search(WEIGHTS, 1200).ids.tobytes() == reference.search(WEIGHTS, 1200).ids.tobytes()
        assert len(list((tmp_path / "cache").glob("*.seg"))) == 1 and len(list(remote.iterdir())) == 1
        with pytest.raises(Conflict, match="1000"):
            index.add_segments([ready])
        bad = write_ref(tmp_path / "bad")
        flip(Path(bad.url))
        with pytest.raises(BadState, match="damaged"):
            index.add_segments([bad.url])
        assert len(index) == len(reference) and index.plan == "scan" and index.nbytes >= 8000
        assert index.search(WEIGHTS, 1200).ids.tobytes() == reference.search(WEIGHTS, 1200).ids.tobytes()
        index.clear()
        reference = Index(64, threads=1)
        index.add(CODES[:9])
        reference.add(CODES[:9])
        assert (
            len(index) == 9 and index.search(WEIGHTS, 12).ids.tobytes() == reference.search(WEIGHTS, 12).ids.tobytes()
        )
    assert not list(remote.iterdir()) and ready.exists()
