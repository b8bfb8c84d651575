"""Segments from disks and URLs: copied once, checked, fetched again when damaged, and never taken for another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stillhash import Index
from stillhash.cluster import ClusterIndex, LocalCluster
from stillhash.cluster.shard import Asked, Held, Shard
from stillhash.cluster.storage import Cache, Piece, Storage, found
from stillhash.collection.storage.segments import write_segment
from stillhash.errors import BadState, Conflict, StoreFailed
from tests.contracts.searchers import random_codes

CODES = random_codes(np.random.default_rng(3), 500, 64, 60)
WEIGHTS = np.random.default_rng(4).integers(-2, 3, (4, 64)).astype(np.float32)
NONE = np.empty(0, np.int64)


def flip(path: Path, at: int = 5000) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(bytes(data))


def written(where: str | Path) -> Piece:
    return Storage(where).write(CODES, np.arange(500), 64)


def copies(cache: Cache) -> list[Path]:
    return sorted(cache.folder.glob("*.seg"))


def test_what_lies_on_a_disk_is_used_where_it_lies(tmp_path: Path) -> None:
    piece, cache = written(tmp_path / "new"), Cache(tmp_path / "cache")
    assert cache.mapped(piece, 64).path == Path(piece.url) and not cache.folder.exists()
    assert found(piece.url, 64, cache)[0] == piece
    flip(Path(piece.url))
    with pytest.raises(BadState, match="damaged"):
        cache.mapped(piece, 64)
    Storage(tmp_path / "new").drop(piece)
    with pytest.raises(BadState, match="cannot be read"):
        cache.mapped(piece, 64)


def test_what_lies_behind_a_url_is_copied_once(tmp_path: Path) -> None:
    piece, cache = written(f"file://{tmp_path}/far"), Cache(tmp_path / "cache")
    first = cache.mapped(piece, 64)
    (copy,) = copies(cache)
    assert first.path == copy and found(piece.url, 64, cache)[0] == piece
    Storage(f"file://{tmp_path}/far").drop(piece)
    assert not list((tmp_path / "far").iterdir())
    assert cache.mapped(piece, 64).row_numbers().tolist() == list(range(500))  # from the copy


def test_a_damaged_copy_is_fetched_again_and_a_damaged_original_refused(tmp_path: Path) -> None:
    piece, cache = written(f"file://{tmp_path}/far"), Cache(tmp_path / "cache")
    cache.mapped(piece, 64)
    (copy,) = copies(cache)
    sound = copy.read_bytes()
    flip(copy)
    assert cache.mapped(piece, 64).rows == 500 and copy.read_bytes() == sound
    flip(copy)
    flip(Path(piece.url.removeprefix("file://")))
    with pytest.raises(BadState, match="damaged"):
        cache.mapped(piece, 64)


def test_another_file_under_the_same_name_is_not_taken_for_it(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    for where in (tmp_path, f"file://{tmp_path}"):
        piece = written(where)
        write_segment(Path(piece.url.removeprefix("file://")), CODES[::-1], np.arange(500), 64)
        with pytest.raises(BadState, match="not the segment"):
            cache.mapped(piece, 64)


def test_copies_are_bounded(tmp_path: Path) -> None:
    pieces = [written(f"file://{tmp_path}/far") for _ in range(4)]
    size = Path(pieces[0].url.removeprefix("file://")).stat().st_size
    cache = Cache(tmp_path / "cache", 2 * size)
    mapped = [cache.mapped(piece, 64) for piece in pieces]
    assert len(copies(cache)) == 2 and mapped[-1].path in copies(cache)
    assert [bytes(m.tiles) for m in mapped] == [bytes(mapped[0].tiles)] * 4  # who has one mapped keeps it


def test_a_url_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="nowhere"):
        Storage("nowhere://a")
    with pytest.raises((BadState, StoreFailed), match=r"no\.seg"):
        found(f"file://{tmp_path}/no.seg", 64, Cache(tmp_path))
    with pytest.raises(BadState, match=r"no\.seg"):
        found(tmp_path / "no.seg", 64, Cache(tmp_path))


def test_a_shard_answers_about_the_state_that_was_asked_for(tmp_path: Path) -> None:
    """Without Ray: a shard is a plain class."""
    shard, asked = Shard(str(tmp_path / "cache"), threads=1), [Asked(WEIGHTS, 600, None, None)]
    first = Storage(tmp_path).write(CODES[:300], np.arange(300), 64)
    second = Storage(tmp_path).write(CODES[300:], np.arange(300, 500), 64)
    assert (
        shard.search(1, asked) is None and shard.change(2, 1, [second], NONE) is None and shard.codes(1, NONE) is None
    )
    assert shard.load(1, 64, [Held(first, NONE)]).rows == 300
    told = shard.change(2, 1, [second], np.array([7]))
    assert told is not None and told.rows == 499 and shard.change(2, 1, [second], NONE) == told
    one = Index(64, threads=1)
    one.add(CODES[:300])
    for version in (1, 2):
        if version == 2:
            one.add(CODES[300:])
            one.remove([7])
        answer = shard.search(version, asked)
        assert answer is not None
        scores, ids = one.search(WEIGHTS, len(one))
        assert answer.parts[0][1].tobytes() == ids.tobytes() and answer.parts[0][0].tobytes() == scores.tobytes()
    assert shard.load(3, 64, [Held(first, np.array([7])), Held(second, NONE)]).rows == 499
    for version in range(4, 30):
        shard.change(version, version - 1, [], np.array([version]))
    assert shard.search(1, asked) is None and shard.search(29, asked) is not None  # old states are let go


def test_an_index_over_a_url(cluster: LocalCluster, tmp_path: Path) -> None:
    ready = tmp_path / "ready.seg"
    write_segment(ready, CODES, np.arange(1000, 2000, 2), 64)
    far = tmp_path / "far"
    one = Index(64, threads=1)
    with ClusterIndex(64, 2, storage=f"file://{far}", cache=tmp_path / "cache", threads=1) as index:
        index.add(CODES)
        index.add_segments([ready])
        one.add(CODES)
        one.add(CODES, np.arange(1000, 2000, 2))
        assert index.search(WEIGHTS, 1200).ids.tobytes() == one.search(WEIGHTS, 1200).ids.tobytes()
        assert len(list((tmp_path / "cache").glob("*.seg"))) == 1 and len(list(far.iterdir())) == 1
        with pytest.raises(Conflict, match="1000"):
            index.add_segments([ready])
        bad = written(tmp_path / "bad")
        flip(Path(bad.url))
        with pytest.raises(BadState, match="damaged"):
            index.add_segments([bad.url])
        assert len(index) == len(one) and index.plan == "scan" and index.nbytes >= 8000
        assert index.search(WEIGHTS, 1200).ids.tobytes() == one.search(WEIGHTS, 1200).ids.tobytes()
        index.clear()
        one = Index(64, threads=1)
        index.add(CODES[:9])
        one.add(CODES[:9])
        assert len(index) == 9 and index.search(WEIGHTS, 12).ids.tobytes() == one.search(WEIGHTS, 12).ids.tobytes()
    assert not list(far.iterdir()) and ready.exists()
