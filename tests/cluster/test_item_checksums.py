"""Checksums of items and columns in the manifest: a damaged file, and a whole one of other items, are not served."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillhash import Collection
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.items_file import ItemsFile
from stillhash.cluster.manifest import SegmentEntry, pack_manifest, read_latest, unpack_manifest
from stillhash.cluster.partition import COLUMNS_SUFFIX, ITEMS_SUFFIX, RESCORING_SUFFIX, beside, write_partition
from stillhash.cluster.publisher import Publisher
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.shard import Shard
from stillhash.cluster.shard_items import open_partition
from stillhash.cluster.storage import Storage
from stillhash.collection.filters.language import compile_filter
from stillhash.collection.storage.segments import read_segment
from stillhash.errors import BadState
from stillhash.files import file_checksum
from tests.cluster.shard_threads import thread_index
from tests.collection.fixtures import BITS, begin


@pytest.fixture(scope="module")
def published_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checksums")
    collection = begin(folder / "c", 320)[0]
    with collection, thread_index(folder / "storage", BITS, shards=1) as index, publisher_of(collection, index):
        pass
    return folder / "storage"


def publisher_of(collection: Collection, index: ClusterIndex) -> Publisher:
    publisher = Publisher(collection, index)
    publisher.publish()
    return publisher


@pytest.fixture
def storage(published_folder: Path, tmp_path: Path) -> Iterator[Storage]:
    yield Storage(shutil.copytree(published_folder, tmp_path / "storage"), create=False)


def only_entry(storage: Storage) -> SegmentEntry:
    (entry,) = read_latest(storage).segments
    return entry


def file_of(storage: Storage, suffix: str) -> Path:
    path = storage.local_path(only_entry(storage).name + suffix)
    assert path is not None
    return path


def write_other_items(storage: Storage, folder: Path) -> Path:
    """Write whole files with the same rows and other metadata, and return the segment that they are beside."""
    folder.mkdir()
    path = Path(shutil.copyfile(file_of(storage, ""), folder / "segment"))
    items = ItemsFile(file_of(storage, ITEMS_SUFFIX), bytes.fromhex(only_entry(storage).checksum))
    rows = [(row, name, labels, '{"odd":true}') for some in items.iterate() for row, name, labels, _ in some]
    items.close()
    write_partition(read_segment(path, BITS), rows, None)
    return path


def odd_rows(storage: Storage) -> int:
    shard = Shard(storage, 0)
    return shard.items(shard.update()).count(compile_filter({"odd": True}))


def test_the_manifest_has_the_checksums_of_the_files(storage: Storage) -> None:
    entry = only_entry(storage)
    assert entry.items_checksum == file_checksum(file_of(storage, ITEMS_SUFFIX))
    assert entry.columns_checksum == file_checksum(file_of(storage, COLUMNS_SUFFIX))
    assert entry.rescoring_checksum == file_checksum(file_of(storage, RESCORING_SUFFIX))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_byte_of_items_is_refused(storage: Storage, data: st.DataObject) -> None:
    path = file_of(storage, ITEMS_SUFFIX)
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1), label="place")] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    try:
        path.write_bytes(changed)
        with pytest.raises(BadState, match=r"\.items.*damaged"):
            Shard(storage, 0).update()
    finally:
        path.write_bytes(whole)
    assert Shard(storage, 0).update() == read_latest(storage).number


def test_changed_rescoring_codes_are_refused(storage: Storage) -> None:
    path = file_of(storage, RESCORING_SUFFIX)
    changed = bytearray(path.read_bytes())
    changed[4100] ^= 1
    path.write_bytes(changed)
    with pytest.raises(BadState, match=r"\.rescoring.*damaged"):
        Shard(storage, 0).update()


def test_whole_items_of_another_writer_are_refused(storage: Storage, tmp_path: Path) -> None:
    other = write_other_items(storage, tmp_path / "other")
    shutil.copyfile(beside(other, ITEMS_SUFFIX), file_of(storage, ITEMS_SUFFIX))
    with pytest.raises(BadState, match=r"\.items: expected checksum"):
        Shard(storage, 0).update()


@pytest.mark.parametrize("kind", ["changed", "of another writer", "absent"])
def test_columns_that_the_manifest_does_not_name_are_not_used(storage: Storage, tmp_path: Path, kind: str) -> None:
    expected = odd_rows(storage)
    assert 0 < expected < only_entry(storage).rows
    path = file_of(storage, COLUMNS_SUFFIX)
    if kind == "changed":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif kind == "absent":
        path.unlink()
    else:
        shutil.copyfile(beside(write_other_items(storage, tmp_path / "other"), COLUMNS_SUFFIX), path)
    assert odd_rows(storage) == expected


def test_manifests_without_checksums_are_read(storage: Storage, tmp_path: Path) -> None:
    """Those that were written before there were any: the files' own checksums are verified, and nothing more."""
    manifest = read_latest(storage)
    old = manifest._replace(segments=(SegmentEntry(*manifest.segments[0][:10]),))
    packed = pack_manifest(old)
    assert b'true,0,"",true]' in packed and unpack_manifest(packed, old.number) == old
    segment = SegmentCache(storage).open(old.segments[0], BITS)
    open_partition(SegmentCache(storage), old.segments[0], segment).close()
    path = file_of(storage, ITEMS_SUFFIX)
    data = bytearray(path.read_bytes())
    data[5000] ^= 4
    path.write_bytes(data)
    with pytest.raises(BadState, match=r"\.items"):
        open_partition(SegmentCache(storage), old.segments[0], segment)


def test_a_compaction_of_the_cluster_writes_checksums(tmp_path: Path) -> None:
    collection = begin(tmp_path / "c", 320)[0]
    with collection, thread_index(tmp_path / "storage", BITS, shards=1) as index:
        with publisher_of(collection, index) as publisher:
            before = only_entry(index.storage)
            collection.delete(list(range(100)))
            publisher.publish()
            assert index.compact() == 0 and only_entry(index.storage).name != before.name
        test_the_manifest_has_the_checksums_of_the_files(index.storage)
