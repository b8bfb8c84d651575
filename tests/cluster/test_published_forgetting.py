"""What is forgotten in a collection leaves every file of the storage that it is published to, and readers go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stillhash import Collection
from stillhash.cluster import publisher as publisher_module
from stillhash.cluster.front import FrontCollection
from stillhash.cluster.garbage import collect_before
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.manifest import commit_manifest, first_manifest, manifest_numbers
from stillhash.cluster.publish_plan import PublishedSource
from stillhash.cluster.publisher import Publisher
from stillhash.cluster.storage import Storage
from tests.cluster.manifests import entry
from tests.cluster.shard_threads import thread_index
from tests.cluster.test_publisher import check_equal
from tests.collection.fixtures import BITS, begin, some_rows

pytestmark = pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
SECRETS = ("segment-secret", "replaced-secret", "patched-secret", "label-secret", "vote-secret", "secret-id")


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    with begin(tmp_path / "c", 320)[0] as collection:
        yield collection


@pytest.fixture
def index(tmp_path: Path) -> Iterator[ClusterIndex]:
    with thread_index(tmp_path / "storage", BITS, shards=2) as index:
        yield index


def secrets_in(folder: str) -> set[str]:
    """Return which secrets are in any byte of any file."""
    data = b"".join(path.read_bytes() for path in Path(folder).rglob("*") if path.is_file())
    return {secret for secret in SECRETS if secret.encode() in data}


def publish_secrets(collection: Collection, publisher: Publisher) -> None:
    """Publish an item whose texts are in a segment, in one of a row that was replaced, in patches, and in a catalog."""
    X = some_rows(3, seed=5).X
    collection.add(["secret-id", "other"], X[:2], [["a"], ["b"]], [{"owner": "replaced-secret"}, {}], learn=False)
    publisher.publish()
    collection.upsert(["secret-id"], X[2:], [["a"]], [{"owner": "segment-secret"}], learn=False)
    publisher.publish()
    collection.upsert(["secret-id"], metadata=[{"owner": "patched-secret"}])
    publisher.publish()
    collection.relabel(["secret-id", 7], [["label-secret"], ["z"]], learn=False)
    collection.feedback(some_rows(3).X[1], [3], "up", source="vote-secret")
    publisher.publish()


def forget_secrets(collection: Collection) -> None:
    assert collection.forget(["secret-id"]).items == 1
    assert collection.forget(source="vote-secret").votes == 1


def test_no_file_of_the_storage_has_what_was_forgotten(
    collection: Collection, index: ClusterIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = index.storage.url
    with Publisher(collection, index) as publisher, FrontCollection(publish_first(publisher, url)) as front:
        publish_secrets(collection, publisher)
        assert secrets_in(url) == set(SECRETS)
        forget_secrets(collection)
        number = publisher.publish().number
        check_equal(front, collection)
        assert all(entry.deleted == 0 for entry in index.manifest.segments) and index.manifest.patches == ()
        assert secrets_in(url) == set(SECRETS)  # readers may use the manifests before it
        monkeypatch.setattr(publisher_module, "FORGET_SECONDS", -1.0)
    with Publisher(collection, index) as publisher, FrontCollection(url) as front:  # another process goes on
        assert publisher.publish().number == number
        assert secrets_in(url) == set() and manifest_numbers(index.storage) == [number]
        assert set(index.storage.list("segments")) <= index.manifest.files()  # rescoring codes among them
        check_equal(front, collection)
        collection.add(["later"], some_rows(1, seed=8).X, learn=False)
        publisher.publish()
        check_equal(front, collection)
        assert source_of(index).clean_from == number  # nothing more was forgotten


def publish_first(publisher: Publisher, url: str) -> str:
    publisher.publish()
    return url


def source_of(index: ClusterIndex) -> PublishedSource:
    source = PublishedSource.from_json(index.manifest.source)
    assert source is not None
    return source


@pytest.mark.medium
def test_a_front_and_shards_that_are_open_go_on(
    collection: Collection, index: ClusterIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files disappear under shards and fronts that have used them, with and without filters."""
    monkeypatch.setattr(publisher_module, "FORGET_SECONDS", -1.0)
    with (
        Publisher(collection, index) as publisher,
        FrontCollection(publish_first(publisher, index.storage.url)) as front,
    ):
        for name in range(100, 110):
            check_equal(front, collection)
            collection.relabel([name + 1, name + 20], [["x"], ["y"]], learn=False)
            collection.forget([name])
            publisher.publish()
            check_equal(front, collection)
        assert np.array_equal(front.search(some_rows(1).X[0], 400).hits, collection.search(some_rows(1).X[0], 400).hits)


def test_a_patch_whose_segment_is_gone_is_not_left(
    collection: Collection, index: ClusterIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "FORGET_SECONDS", -1.0)
    with Publisher(collection, index) as publisher:
        publisher.publish()
        names = {entry.name for entry in index.manifest.segments}
        collection.add(["secret-id"], some_rows(1, seed=5).X, learn=False)  # a segment of one row
        publisher.publish()
        collection.upsert(["secret-id"], metadata=[{"owner": "patched-secret"}])
        publisher.publish()
        assert len(index.manifest.patches) == 1 and secrets_in(index.storage.url) == {"secret-id", "patched-secret"}
        collection.forget(["secret-id"])
        publisher.publish()
        assert index.manifest.patches == () and secrets_in(index.storage.url) == set()
        assert {entry.name for entry in index.manifest.segments} == names  # which had nothing of it


def test_forgetting_before_the_first_publication_rewrites_nothing(collection: Collection, index: ClusterIndex) -> None:
    collection.forget([3])
    with Publisher(collection, index) as publisher:
        publisher.publish()
        names = {entry.name for entry in index.manifest.segments}
        collection.delete([4])
        publisher.publish()
        assert source_of(index).clean_from == 0 and {entry.name for entry in index.manifest.segments} == names


def test_only_what_earlier_manifests_name_alone_is_deleted(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "storage")
    manifest, names = first_manifest(64, [0]), [entry(number).name for number in range(5)]
    for name in [*names, "segments/" + 32 * "f" + ".seg"]:  # the last one may be of a commit under way
        storage.create(name, b"")
    commit_manifest(storage, manifest)
    for number in range(4):  # each has two segments, one of which the next one has too
        segments = (entry(number), entry(number + 1, first=100))
        manifest = manifest._replace(segments=segments, next_id=300).next(0)
        commit_manifest(storage, manifest)
    assert not collect_before(storage, 4, 3600.0) and manifest_numbers(storage) == [1, 2, 3, 4, 5]
    assert collect_before(storage, 4, -1.0) and manifest_numbers(storage) == [4, 5]
    assert storage.list("segments") == [*names[2:], "segments/" + 32 * "f" + ".seg"]
    assert storage.list("collected") == ["collected/00000000000000000004"]
    assert collect_before(storage, 4, -1.0) and manifest_numbers(storage) == [4, 5]
    commit_manifest(storage, manifest.next(0))
