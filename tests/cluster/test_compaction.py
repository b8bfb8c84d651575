"""Compaction: the same rows as before in fewer segments, in bounded memory, and files that no manifest names."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.cluster import compaction as compaction_module
from stillhash.cluster import merged_rows
from stillhash.cluster.compaction import compact_group, plan_compaction, with_compaction
from stillhash.cluster.deletions import without_ids
from stillhash.cluster.garbage import collect_garbage
from stillhash.cluster.manifest import ClusterManifest, SegmentEntry, commit_manifest, first_manifest, read_latest
from stillhash.cluster.merged_rows import MergedRows, SegmentRows
from stillhash.cluster.placement import place
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.segment_files import write_entry, write_segments
from stillhash.cluster.storage import Storage
from stillhash.collection.storage.segments import CodedRows, read_segment, write_segment
from stillhash.errors import Conflict, InvalidInput, StoreFailed
from stillhash.numeric.codes import NO_DIGEST
from tests.cluster.manifests import BITS, codes_of, compact_shard, content, entry, expected, names_below
from tests.collection.test_crash import ROOT


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "storage")


def added(storage: Storage, manifest: ClusterManifest, ids: Sequence[int] | range, most_rows: int) -> ClusterManifest:
    names = np.array(ids, np.int64)
    shards = len(manifest.shards)
    return place(manifest, write_segments(storage, codes_of(names), names, BITS, shards=shards, most_rows=most_rows))


@settings(max_examples=40, deadline=None)
@given(
    additions=st.lists(st.sets(st.integers(0, 600), min_size=1, max_size=150), min_size=1, max_size=5),
    removals=st.lists(st.sets(st.integers(0, 600), max_size=300), min_size=1, max_size=4),
    most=st.integers(20, 400),
)
def test_compaction_changes_no_row(
    tmp_path_factory: pytest.TempPathFactory, additions: list[set[int]], removals: list[set[int]], most: int
) -> None:
    storage = Storage(tmp_path_factory.mktemp("compaction"))
    cache, manifest, held = SegmentCache(storage), first_manifest(BITS, [0, 1]), dict[int, bytes]()
    for step in range(max(len(additions), len(removals))):
        for ids in additions[step : step + 1]:
            new = ids - held.keys()
            manifest = added(storage, manifest, sorted(new), most_rows=30)
            held.update(expected(new))
        for ids in removals[step : step + 1]:
            manifest, _ = without_ids(cache, manifest, np.array(sorted(ids), np.int64))
            held = {name: code for name, code in held.items() if name not in ids}
        before = manifest.shard_rows()
        for shard in manifest.shards:
            plan = plan_compaction(manifest, shard, most_rows=most)
            assert all(sum(each.live for each in group) <= max(most, *(e.rows for e in group)) for group in plan)
            compaction = compact_shard(cache, manifest, most, shard)
            assert set(compaction.removed) == {each for group in plan for each in group}
            assert all(each.shard == shard and not each.deleted for each in compaction.added)
            manifest = with_compaction(manifest, compaction)
            dense = [each for each in manifest.of_shard(shard) if each.deleted >= 0.2 * each.rows]
            assert not dense
        assert manifest.shard_rows() == before and content(storage, manifest) == held  # ids ascend in each segment


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_merged_rows_are_written_as_from_memory(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("merged")
    bits = data.draw(st.sampled_from([8, 20, 64]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    ids = rng.permutation(data.draw(st.integers(1, 1500)))
    if data.draw(st.booleans()):
        ids.sort()
    cuts = sorted(data.draw(st.lists(st.integers(1, len(ids)), max_size=4)))
    digests = np.where(
        rng.random(len(ids)) < data.draw(st.sampled_from([0.0, 0.7])), rng.integers(0, 9, len(ids)), NO_DIGEST
    )
    codes = rng.integers(0, 256, (len(ids), (bits + 7) // 8), dtype=np.uint8)
    if bits % 8:
        codes[:, -1] &= (1 << bits % 8) - 1
    everything, parts, chosen = CodedRows(ids, codes, digests), [], []
    for number, part in enumerate(np.split(np.arange(len(ids)), cuts)):
        part = part[np.argsort(ids[part])]
        if len(part):
            write_segment(folder / f"{number}.seg", everything.select(part), bits)
            rows = np.flatnonzero(rng.random(len(part)) < 0.8)
            if len(rows):
                parts.append(SegmentRows(read_segment(folder / f"{number}.seg", bits), rows.astype(np.uint32)))
                chosen.append(part[rows])
    if parts:
        together = np.concatenate(chosen)
        write_segment(folder / "memory", everything.select(together[np.argsort(ids[together])]), bits)
        for part_bytes, blocks in ((merged_rows.MERGED_PART_BYTES, merged_rows.WRITTEN_BLOCKS), (1, 1)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(merged_rows, "MERGED_PART_BYTES", part_bytes)
                patch.setattr(merged_rows, "WRITTEN_BLOCKS", blocks)
                MergedRows(parts, bits).write(folder / "merged")
            assert (folder / "merged").read_bytes() == (folder / "memory").read_bytes()


@pytest.mark.slow
def test_memory_is_that_of_less_than_two_segments(storage: Storage) -> None:
    rows, bits, rng = 400_000, 256, np.random.default_rng(1)
    manifest = first_manifest(bits, [0])
    for start in range(8):  # ids of all segments overlap
        ids = np.arange(start, rows, 8)
        codes = rng.integers(0, 256, (len(ids), 32), dtype=np.uint8)
        manifest = place(manifest, [write_entry(storage, CodedRows.without_digests(ids, codes), bits)])
    cache = SegmentCache(storage)
    manifest, _ = without_ids(cache, manifest, np.arange(0, rows, 5))
    (group,) = plan_compaction(manifest, 0)
    tracemalloc.start()
    try:
        (new,) = compact_group(cache, manifest, group)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"peak {peak:,} bytes for a segment of {storage.size(new.name):,} bytes")
    assert new.rows == rows * 4 // 5 and peak < 2 * storage.size(new.name)


def test_plans_leave_alone_what_is_large_and_whole() -> None:
    large, half = entry(1, 1000), entry(2, 1000, 1000, deleted=300, deletions="inline:AAAAAA==")
    small = [entry(3 + n, 10, 2000 + 10 * n) for n in range(3)]
    outside, other = entry(9, 10, 5000, owned=False, deleted=9), entry(10, 10, 6000, shard=1)
    manifest = first_manifest(64, [0, 1])._replace(segments=(*small[::-1], half, large, outside, other))
    assert plan_compaction(manifest, 0, most_rows=1000) == [(half, *small)]
    assert plan_compaction(manifest, 0, most_rows=700) == [(half,), tuple(small)]
    assert plan_compaction(manifest, 1, most_rows=1000) == []


def test_groups_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_module, "GROUP_SEGMENTS", 4)
    manifest = first_manifest(64, [0])._replace(segments=tuple(entry(n, 1, n) for n in range(9)))
    assert [len(group) for group in plan_compaction(manifest, 0)] == [4, 4]


def test_segments_that_changed_since_are_not_replaced(storage: Storage) -> None:
    cache, manifest = SegmentCache(storage), added(storage, first_manifest(BITS, [0]), range(300), 30)
    compaction = compact_shard(cache, manifest, 1000)
    assert len(compaction.removed) == 10 and len(compaction.added) == 1
    changed, _ = without_ids(cache, manifest, np.array([7]))
    with pytest.raises(Conflict, match="changed"):
        with_compaction(changed, compaction)
    later = added(storage, manifest, range(300, 310), 30)  # other segments may come meanwhile
    assert content(storage, with_compaction(later, compaction)) == expected(range(310))


def test_items_are_merged_by_the_function_for_them(storage: Storage) -> None:
    manifest = added(storage, first_manifest(BITS, [0]), range(90), 30)
    cache = SegmentCache(storage)
    manifest, _ = without_ids(cache, manifest, np.arange(0, 90, 3))
    manifest = manifest._replace(segments=tuple(each._replace(items=True) for each in manifest.segments))
    calls = []

    def merge_items(old: Sequence[tuple[SegmentEntry, np.ndarray]], new: SegmentEntry) -> SegmentEntry:
        calls.append(
            [(each, np.unpackbits(deleted, count=each.rows, bitorder="little").sum()) for each, deleted in old]
        )
        storage.create(new.name + ".items", b"")
        return new._replace(items=True)

    with pytest.raises(InvalidInput, match="merge_items"):
        compact_group(cache, manifest, manifest.segments)
    compaction = compact_shard(cache, manifest, 1000, merge_items=merge_items)
    assert calls == [[(each, 10) for each in manifest.segments]] and compaction.added[0].items
    assert content(storage, with_compaction(manifest, compaction)) == expected(set(range(90)) - set(range(0, 90, 3)))


def test_a_failed_compaction_leaves_nothing(storage: Storage) -> None:
    manifest = added(storage, first_manifest(BITS, [0]), range(90), 30)
    before = names_below(Path(storage.url))
    segments = tuple(each._replace(items=True) for each in manifest.segments)

    def refuse(old: object, new: SegmentEntry) -> SegmentEntry:
        storage.create(new.name + ".items", b"half")
        raise StoreFailed("no space")

    with pytest.raises(StoreFailed):
        compact_group(SegmentCache(storage), manifest, segments, refuse)
    assert names_below(Path(storage.url)) == before


KILLED = """
import os, signal, sys
import numpy as np
from stillhash.cluster.segment_files import write_segments
from stillhash.cluster.storage import Storage
from stillhash.cluster import segment_files
from tests.cluster.manifests import codes_of
storage, ids = Storage(sys.argv[1]), np.arange(1000, 1200)
write_segments(storage, codes_of(ids), ids, 64, shards=1, most_rows=50)
(storage.local_path("segments/x").parent / ".unfinished.seg.1.2").write_bytes(b"half")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_segments_of_a_killed_writer_disappear_and_young_ones_stay(storage: Storage) -> None:
    manifest = added(storage, first_manifest(BITS, [0]), range(90), 30)
    commit_manifest(storage, manifest)
    named = names_below(Path(storage.url))
    process = subprocess.run([sys.executable, "-c", KILLED, storage.url], cwd=ROOT)
    assert process.returncode < 0
    orphans = names_below(Path(storage.url)) - named
    assert len(orphans) == 5
    assert collect_garbage(storage, keep=2, older_than=600) == []  # they may be of a commit under way
    under_way = added(storage, manifest, range(90, 100), 30).next(0)
    assert collect_garbage(storage, keep=2, older_than=600) == []
    commit_manifest(storage, under_way)
    assert set(collect_garbage(storage, keep=2, older_than=-1)) == orphans
    assert content(storage, read_latest(storage)) == expected(range(100))


def test_manifests_in_use_keep_their_files(storage: Storage) -> None:
    cache, manifest = SegmentCache(storage), first_manifest(BITS, [0])
    commit_manifest(storage, manifest)
    for number in range(2, 8):
        manifest = added(storage, manifest, range(number * 100, number * 100 + 50), 30)
        manifest, _ = without_ids(cache, manifest, np.arange(number * 100, number * 100 + 25))
        manifest = with_compaction(manifest, compact_shard(cache, manifest, 1000)).next(0)
        commit_manifest(storage, manifest)
        collect_garbage(storage, keep=3, older_than=-1)
        numbers = [int(name[-20:]) for name in storage.list("manifests")]
        assert numbers == list(range(max(1, number - 2), number + 1))
        assert content(storage, manifest) == expected(
            each for step in range(2, number + 1) for each in range(step * 100 + 25, step * 100 + 50)
        )
    assert len(storage.list("segments")) == 3 and storage.list("deleted") == []
    with pytest.raises(InvalidInput, match="keep"):
        collect_garbage(storage, keep=1)
