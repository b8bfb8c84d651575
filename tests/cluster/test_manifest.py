"""Manifests: what is committed is read again, one writer wins each number, and damage is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.cluster.deletions import INLINE_ROWS, existing_ids, load_deletions, store_deletions, without_ids
from stillhash.cluster.garbage import collect_garbage
from stillhash.cluster.manifest import (
    ClusterManifest,
    PatchEntry,
    commit_manifest,
    first_manifest,
    latest_number,
    manifest_name,
    manifest_numbers,
    pack_manifest,
    read_latest,
    read_manifest,
    unpack_manifest,
)
from stillhash.cluster.placement import place
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.segment_files import pieces, write_segments
from stillhash.cluster.storage import Storage
from stillhash.errors import BadState, Conflict, InvalidInput, NotFound, StoreFailed
from tests.cluster.manifests import BITS, codes_of, content, entry, expected


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "storage")


def filled(storage: Storage, ids: np.ndarray, shards: int = 2, most_rows: int = 1000) -> ClusterManifest:
    """Return a manifest of these ids, in segments that are written."""
    written = write_segments(storage, codes_of(ids), ids, BITS, shards=shards, most_rows=most_rows)
    return place(first_manifest(BITS, range(shards)), written)


def test_what_is_committed_is_read_again(storage: Storage) -> None:
    assert latest_number(storage) == 0
    with pytest.raises(NotFound, match="no index"):
        read_latest(storage)
    first = first_manifest(64, [0, 1], epoch=3)
    commit_manifest(storage, first)
    deleted = entry(2, first=100, shard=1, deleted=2, deletions="inline:AAAAAAEAAAA=", items=True)
    rescored = entry(4, first=300, items=True, items_checksum=16 * "1", rescoring_checksum=16 * "2")
    outside = entry(3, first=200, name="/elsewhere/ä b.seg", owned=False)
    patch = PatchEntry("patches/" + 32 * "a", 16 * "0", 5, 0, 99)
    second = first.next(4)._replace(
        next_id=400,
        segments=(entry(1), deleted, outside, rescored),
        catalog="catalogs/x.db",
        patches=(patch,),
        source='{"a":1}',
    )
    commit_manifest(storage, second)
    assert latest_number(storage) == 2 and read_latest(storage) == second and read_manifest(storage, 1) == first
    assert (second.rows, second.shard_rows(), second.of_shard(1)) == (398, {0: 300, 1: 98}, (deleted,))
    assert second.files() == {
        entry(1).name,
        *(one.name + s for one in (deleted, rescored) for s in ("", ".items", ".columns", ".rescoring")),
        patch.name,
        second.catalog,
    }


def test_a_number_is_committed_once(storage: Storage) -> None:
    first = first_manifest(64, [0])
    commit_manifest(storage, first)
    ours = place(first, [entry(1)]).next(1)
    commit_manifest(storage, ours)
    commit_manifest(storage, ours)  # as after a reply that was lost
    with pytest.raises(Conflict, match="2"):
        commit_manifest(storage, place(first, [entry(2)]).next(1))
    assert read_latest(storage) == ours


def test_a_former_epoch_cannot_commit(storage: Storage) -> None:
    first = first_manifest(64, [0], epoch=5)
    commit_manifest(storage, first)
    with pytest.raises(Conflict, match="epoch"):
        commit_manifest(storage, first.next(4))
    assert latest_number(storage) == 1


def test_a_number_that_was_collected_is_not_used_again(storage: Storage) -> None:
    manifest = first_manifest(64, [0])
    for _ in range(4):
        commit_manifest(storage, manifest)
        manifest = manifest.next(0)
    stale = place(read_manifest(storage, 1), [entry(1)]).next(0)
    collect_garbage(storage, keep=2)
    with pytest.raises(Conflict, match="follow"):
        commit_manifest(storage, stale)
    for late in (first_manifest(64, [0], epoch=1), first_manifest(64, [0], epoch=1).next(1)):  # each follows the last
        with pytest.raises(StoreFailed, match="cannot be known"):
            commit_manifest(storage, late)
    assert latest_number(storage) == 4 and storage.list("collected") == ["collected/00000000000000000003"]
    collect_garbage(storage, keep=2)
    assert manifest_numbers(storage) == [3, 4]


def test_an_entry_without_a_shard_is_not_committed(storage: Storage) -> None:
    with pytest.raises(InvalidInput, match="shard"):
        commit_manifest(storage, first_manifest(64, [0])._replace(segments=(entry(1, shard=-1),)))
    assert latest_number(storage) == 0


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_is_noticed_and_named(data: st.DataObject) -> None:
    manifest = first_manifest(64, [0, 1], epoch=7)._replace(number=12, segments=tuple(entry(n) for n in range(3)))
    packed = pack_manifest(manifest)
    assert unpack_manifest(packed, 12) == manifest
    at = data.draw(st.integers(0, len(packed) - 1))
    flipped = bytearray(packed)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), packed[:at], packed + b" "):
        with pytest.raises(BadState, match=manifest_name(12)):
            unpack_manifest(damaged, 12)


def test_shards_that_are_being_removed_are_named_only_if_there_are_any() -> None:
    manifest = first_manifest(64, [0, 1, 2])._replace(leaving=(1,), segments=(entry(1, shard=1), entry(2, shard=2)))
    assert unpack_manifest(pack_manifest(manifest), 1) == manifest and manifest.staying == (0, 2)
    without = pack_manifest(manifest._replace(leaving=()))
    assert b"leaving" not in without and unpack_manifest(without, 1).leaving == ()


def test_another_number_or_format_is_refused() -> None:
    packed = pack_manifest(first_manifest(64, [0]))
    with pytest.raises(BadState, match="damaged"):
        unpack_manifest(packed, 2)
    with pytest.raises(BadState, match="expected format 1, got 9"):
        unpack_manifest(packed.replace(b"manifest 1 ", b"manifest 9 new ", 1), 1)


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 300), deleted=st.sets(st.integers(0, 299), max_size=60))
def test_deleted_rows_are_loaded_as_they_were_stored(
    tmp_path_factory: pytest.TempPathFactory, rows: int, deleted: set[int]
) -> None:
    storage = Storage(tmp_path_factory.mktemp("deletions"))
    bits = np.array([row in deleted for row in range(rows)])
    stored = store_deletions(storage, entry(1, rows), np.packbits(bits, bitorder="little"))
    assert stored.deleted == bits.sum() and (len(storage.list("deleted")) == 1) == (bits.sum() > INLINE_ROWS)
    loaded = np.unpackbits(load_deletions(storage, stored), count=rows, bitorder="little")
    assert loaded.tolist() == bits.tolist()


def test_deleted_rows_of_another_segment_or_damaged_ones_are_refused(storage: Storage) -> None:
    bitmap = np.full(100, 255, np.uint8)
    stored = store_deletions(storage, entry(1, 800), bitmap)
    for other in (stored._replace(checksum=16 * "f"), stored._replace(rows=801), stored._replace(deleted=799)):
        with pytest.raises(BadState):
            load_deletions(storage, other)
    data = bytearray(storage.read(stored.deletions))
    data[60] ^= 1
    storage.replace(stored.deletions, bytes(data))
    with pytest.raises(BadState, match="damaged"):
        load_deletions(storage, stored)
    for inline in ("inline:!", "inline://///w=="):
        with pytest.raises(BadState):
            load_deletions(storage, entry(1, 800, deleted=1, deletions=inline))


ID_SETS = st.sets(st.integers(0, 400), min_size=1, max_size=200)


@settings(max_examples=40, deadline=None)
@given(additions=st.lists(ID_SETS, min_size=1, max_size=4), removals=st.lists(ID_SETS, max_size=4))
def test_removals_and_lookups_equal_those_of_a_set(
    tmp_path_factory: pytest.TempPathFactory, additions: list[set[int]], removals: list[set[int]]
) -> None:
    storage = Storage(tmp_path_factory.mktemp("ids"))
    cache, manifest, held = SegmentCache(storage), first_manifest(BITS, [0, 1]), set[int]()
    every = np.arange(500)
    for step in range(max(len(additions), len(removals))):
        for ids in additions[step : step + 1]:
            new = np.array(sorted(ids - held), np.int64)
            manifest = place(manifest, write_segments(storage, codes_of(new), new, BITS, shards=2, most_rows=64))
            held |= ids
        for ids in removals[step : step + 1]:
            manifest, removed = without_ids(cache, manifest, np.array(list(ids), np.int64))
            assert removed == len(ids & held)
            held -= ids
        assert existing_ids(cache, manifest, every).tolist() == sorted(held) and manifest.rows == len(held)
    assert content(storage, manifest) == expected(held)


def test_a_removal_changes_nothing_before_its_commit(storage: Storage) -> None:
    manifest = filled(storage, np.arange(0, 4000, 2))
    commit_manifest(storage, manifest)
    after, removed = without_ids(SegmentCache(storage), manifest, np.arange(1000))
    assert removed == 500 and content(storage, read_latest(storage)) == expected(range(0, 4000, 2))
    commit_manifest(storage, after.next(0))
    assert content(storage, read_latest(storage)) == expected(range(1000, 4000, 2))


@settings(max_examples=300, deadline=None)
@given(rows=st.integers(0, 5_000_000), shards=st.integers(1, 40), most=st.integers(1000, 2_000_000))
def test_pieces_are_bounded_and_equal(rows: int, shards: int, most: int) -> None:
    parts = pieces(rows, shards, most)
    sizes = [end - start for start, end in parts]
    assert sum(sizes) == rows and all(0 < size <= most for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert rows < shards * 4096 or len(sizes) % shards == 0
    assert [start for start, _ in parts] == [0, *(end for _, end in parts)][: len(parts)]


def test_a_million_rows_are_balanced_over_four_shards(storage: Storage) -> None:
    manifest = filled(storage, np.arange(1_000_000), shards=4, most_rows=1 << 20)
    assert manifest.shard_rows() == dict.fromkeys(range(4), 250_000) and manifest.next_id == 1_000_000


def test_segments_are_not_written_where_the_folder_is_none(storage: Storage) -> None:
    ids = np.arange(5000)
    (Path(storage.url) / "segments").write_bytes(b"")
    with pytest.raises(StoreFailed):
        write_segments(storage, codes_of(ids), ids, BITS, shards=1, most_rows=1000)
