"""Publishing: every commit of a collection arrives whole, whichever publisher dies, and little is written again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Collection
from stillhash.cluster import publish_plan
from stillhash.cluster import publisher as publisher_module
from stillhash.cluster.front import FrontCollection
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.manifest import read_latest
from stillhash.cluster.publish_plan import PublishedSource, plan_rewrites
from stillhash.cluster.publish_rows import rows_after, write_rows
from stillhash.cluster.publisher import Publisher
from stillhash.cluster.storage import Storage
from stillhash.errors import BadState, Conflict, StoreFailed
from tests.cluster.shard_threads import published, thread_index
from tests.collection.fixtures import BITS, begin, some_rows
from tests.collection.test_filters import LABELS, METADATA

pytestmark = pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
FILTERS: list[dict[str, Any]] = [{"odd": True}, {"labels": {"$exists": True}}, {"a": {"$exists": True}}]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("publisher") / "c"
    begin(path, 320)[0].close()
    return path


@pytest.fixture
def collection(template: Path, tmp_path: Path) -> Iterator[Collection]:
    with stillhash.open(shutil.copytree(template, tmp_path / "c")) as collection:
        yield collection


@pytest.fixture
def index(tmp_path: Path) -> Iterator[ClusterIndex]:
    with thread_index(tmp_path / "storage", BITS, shards=2) as index:
        yield index


def check_equal(front: FrontCollection, collection: Collection) -> None:
    """Check that a front has exactly the items of the collection, and searches them alike."""
    front.refresh()
    names = collection.ids(limit=2000)
    assert front.ids(limit=2000) == names
    assert front.get(names) == collection.get(names)
    for where in FILTERS:
        assert front.ids(where) == collection.ids(where)
    Q = np.concatenate([some_rows(3).X, some_rows(3, seed=9).X])
    assert front.search(Q, 400) == collection.search(Q, 400)
    if names:
        assert np.array_equal(front.codes(names), collection.codes(names))


WRITES = st.one_of(
    st.tuples(st.just("upsert"), st.lists(st.integers(300, 340), min_size=1, max_size=9, unique=True)),
    st.tuples(st.just("relabel"), st.lists(st.integers(0, 319), min_size=1, max_size=9, unique=True)),
    st.tuples(st.just("metadata"), st.lists(st.integers(0, 319), min_size=1, max_size=9, unique=True)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 340), min_size=1, max_size=99, unique=True)),
    st.tuples(st.just("forget"), st.lists(st.integers(0, 340), min_size=1, max_size=9, unique=True)),
    st.tuples(st.just("vote"), st.lists(st.integers(0, 319), min_size=1, max_size=2, unique=True)),
    st.tuples(st.sampled_from(["seal", "compact"]), st.just([])),
)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_commit_arrives_whole(
    template: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Writes, publications that fail at any file, other publishers, compactions: the front follows exactly."""
    folder = tmp_path_factory.mktemp("random")
    with (
        pytest.MonkeyPatch.context() as patch,
        stillhash.open(shutil.copytree(template, folder / "c")) as collection,
        thread_index(folder / "storage", BITS, shards=2) as index,
    ):
        patch.setattr(publish_plan, "TIER_ROWS", (20, 120))
        patch.setattr(publish_plan, "TIER_SEGMENTS", 3)
        patch.setattr(publish_plan, "PATCH_ROWS", data.draw(st.sampled_from([8, 1000]), label="rows of a patch"))
        patch.setattr(publisher_module, "MAX_PATCHES", 2)
        patch.setattr(publisher_module, "FORGET_SECONDS", -1.0)
        publisher = Publisher(collection, index)
        publisher.publish()
        with FrontCollection(folder / "storage") as front:
            for verb, ids in data.draw(st.lists(WRITES, min_size=1, max_size=9), label="writes"):
                write(collection, verb, ids, data)
                fails_at = data.draw(st.none() | st.integers(0, 7), label="the file that cannot be written")
                if fails_at is not None:
                    publish_failing(publisher, index, fails_at)
                    publisher.close()
                    publisher = Publisher(collection, index)  # another process takes over
                if data.draw(st.booleans(), label="publish"):
                    publisher.publish()
                    check_equal(front, collection)
            publisher.publish()
            check_equal(front, collection)
        publisher.close()


def write(collection: Collection, verb: str, ids: list[int], data: st.DataObject) -> None:
    some = [name for name in ids if collection.get(name) is not None]
    if verb == "upsert":
        lists = [data.draw(st.lists(kind, min_size=len(ids), max_size=len(ids))) for kind in (LABELS, METADATA)]
        collection.upsert(ids, some_rows(len(ids), seed=3).X, *lists, learn=False)
    elif verb == "relabel" and some:
        collection.relabel(some, [data.draw(LABELS) for _ in some], learn=False)
    elif verb == "metadata" and some:
        collection.upsert(some, metadata=[data.draw(METADATA) for _ in some])
    elif verb == "vote" and some:
        collection.feedback(some_rows(3).X[1], some, "up")
    elif verb in ("delete", "forget"):
        getattr(collection, verb)(ids)
    elif verb in ("seal", "compact"):
        getattr(collection, verb)()


def publish_failing(publisher: Publisher, index: ClusterIndex, fails_at: int) -> None:
    """Publish while the storage refuses the file of this number, and all later ones."""
    left = [fails_at]

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any) -> Any:
            if left[0] == 0:
                raise StoreFailed("no space is left")
            left[0] -= 1
            return real(*args)

        return write

    with pytest.MonkeyPatch.context() as patch:
        for verb in ("put_file", "create", "replace"):
            patch.setattr(index.storage, verb, refusing(getattr(index.storage, verb)))
        with suppress(StoreFailed):
            publisher.publish()


@contextmanager
def serving(collection: Collection, index: ClusterIndex) -> Iterator[tuple[Publisher, FrontCollection]]:
    """Yield a publisher that has published the collection, and a front."""
    with Publisher(collection, index) as publisher:
        publisher.publish()
        with FrontCollection(index.storage.url) as front:
            yield publisher, front


def names_of(index: ClusterIndex) -> set[str]:
    return {entry.name for entry in index.manifest.segments}


def test_rescoring_codes_of_an_earlier_commit_are_not_published_as_lost(
    collection: Collection, index: ClusterIndex
) -> None:
    collection.seal()
    with Publisher(collection, index) as publisher, publisher._store.reading() as connection:
        rows = next(rows_after(publisher._store, connection, -1, 1000))
        collection.delete(list(range(100)))
        collection.compact()  # removes the files of that commit
        with pytest.raises(BadState, match="rescoring"):
            write_rows(index.storage, publisher._store, connection, rows)


def test_a_compaction_publishes_nothing_again(collection: Collection, index: ClusterIndex) -> None:
    with serving(collection, index) as (publisher, front):
        collection.add(["new"], some_rows(1, seed=4).X)
        publisher.publish()
        before, patches = names_of(index), index.manifest.patches
        collection.relabel([5], [["z"]], learn=False)  # in the same publication as a compaction, which forgets it
        collection.delete([6])
        collection.compact()
        publisher.publish()
        assert names_of(index) == before and len(index.manifest.patches) == len(patches) + 1
        check_equal(front, collection)
        assert front.get(5).labels == ["z"] and front.get(6) is None
        collection.compact()
        publisher.publish()
        assert names_of(index) == before and len(index.manifest.patches) == len(patches) + 1


def test_nothing_new_commits_nothing(collection: Collection, index: ClusterIndex) -> None:
    with Publisher(collection, index) as publisher:
        number = publisher.publish().number
        assert publisher.publish().number == number
        assert publisher.status() == {
            "seq": front_seq(index),
            "published": front_seq(index),
            "number": number,
            "failure": None,
        }
        catalog = index.manifest.catalog
        collection.add(["new"], some_rows(1, seed=4).X, learn=False)
        assert publisher.publish().number == number + 1
        assert index.manifest.catalog == catalog  # since no model or vote has changed
    with Publisher(collection, index, writer="http://127.0.0.1:1") as publisher:
        assert publisher.publish().number == number + 2  # the writer's address is new
        assert PublishedSource.from_json(index.manifest.source).writer == "http://127.0.0.1:1"


def front_seq(index: ClusterIndex) -> int:
    source = PublishedSource.from_json(index.manifest.source)
    assert source is not None
    return source.seq


def test_a_thread_publishes_what_is_committed(collection: Collection, tmp_path: Path) -> None:
    with thread_index(tmp_path / "storage", BITS) as index, Publisher(collection, index, interval=0.01) as publisher:
        publisher.publish()
        publisher.start()
        with FrontCollection(tmp_path / "storage") as front:
            for number in range(3):
                collection.upsert([f"new{number}"], some_rows(1, seed=number).X)
                while front.get(f"new{number}") is None:  # the test's own time limit ends what never ends
                    front.refresh()
            check_equal(front, collection)


def test_a_thread_goes_on_after_a_failure(collection: Collection, index: ClusterIndex, monkeypatch: Any) -> None:
    monkeypatch.setattr(publisher_module, "REPUBLISH_SECONDS", 0.01)
    real, fails = index.storage.put_file, [True]

    def put_file(*args: Any) -> Any:
        if fails[0]:
            raise StoreFailed("no space is left")
        return real(*args)

    monkeypatch.setattr(index.storage, "put_file", put_file)
    with Publisher(collection, index, interval=0.01) as publisher:
        publisher.start()
        while publisher.status()["failure"] is None:
            pass
        assert publisher.status()["published"] is None
        fails[0] = False
        while publisher.status()["published"] != publisher.status()["seq"]:
            pass
        assert index.manifest.rows == collection.count()


def test_small_segments_are_merged(collection: Collection, index: ClusterIndex, monkeypatch: Any) -> None:
    monkeypatch.setattr(publish_plan, "TIER_SEGMENTS", 4)
    with serving(collection, index) as (publisher, front):
        for number in range(20):
            collection.add([f"new{number}"], some_rows(1, seed=number).X, [["a"]], [{"odd": True}], learn=False)
            publisher.publish()
        assert len(index.manifest.segments) < 10
        check_equal(front, collection)


def test_segments_with_many_changes_are_written_again(
    collection: Collection, index: ClusterIndex, monkeypatch: Any
) -> None:
    monkeypatch.setattr(publish_plan, "PATCH_ROWS", 100)
    with serving(collection, index) as (publisher, front):
        before = names_of(index)
        collection.relabel(list(range(40)), [["few"]] * 40, learn=False)
        publisher.publish()
        assert names_of(index) == before and [patch.rows for patch in index.manifest.patches] == [40]
        collection.relabel(list(range(300)), [["many"]] * 300, learn=False)
        publisher.publish()
        assert names_of(index) != before and sum(patch.rows for patch in index.manifest.patches) <= 25
        check_equal(front, collection)
        collection.delete(list(range(310)))
        publisher.publish()
        assert sum(entry.deleted for entry in index.manifest.segments) * 2 <= index.manifest.rows + 1
        check_equal(front, collection)


def test_only_one_collection_is_published_to_a_storage(
    collection: Collection, index: ClusterIndex, tmp_path: Path
) -> None:
    with Publisher(collection, index) as publisher:
        publisher.publish()
    other, _ = begin(tmp_path / "other", 320)
    with other, Publisher(other, index) as publisher, pytest.raises(Conflict, match="another collection"):
        publisher.publish()
    longer = stillhash.open(tmp_path / "longer", 8, 32)
    with longer, pytest.raises(Conflict, match="bits"):
        Publisher(longer, index)


def test_codes_alone_are_not_published_over(collection: Collection, index: ClusterIndex) -> None:
    index.add(np.zeros((3, BITS // 8), np.uint8))
    with Publisher(collection, index) as publisher, pytest.raises(Conflict, match="codes alone"):
        publisher.publish()


def test_a_collection_that_went_back_is_published_again(
    collection: Collection, index: ClusterIndex, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(collection.path, tmp_path / "copy", ignore=shutil.ignore_patterns("lock")))
    collection.close()
    with stillhash.open(tmp_path / "c") as later, Publisher(later, index) as publisher:
        later.upsert(["later"], some_rows(1, seed=8).X)
        later.relabel([4], [["later"]], learn=False)
        publisher.publish()
    with stillhash.open(copy) as earlier, Publisher(earlier, index) as publisher:
        publisher.publish()
        with FrontCollection(index.storage.url) as front:
            check_equal(front, earlier)
            assert front.get("later") is None


def test_rescoring_codes_that_were_built_are_published(index: ClusterIndex, tmp_path: Path) -> None:
    rows = some_rows(320)
    with begin(tmp_path / "c", 320, rescore_bits=0)[0] as collection, Publisher(collection, index) as publisher:
        publisher.publish()
        with FrontCollection(index.storage.url) as front:
            check_equal(front, collection)
            assert collection.build_rescoring(range(320), rows.X) == 0
            publisher.publish()
            check_equal(front, collection)
            before = front.search(rows.X[:5], 20)
            assert collection.build_rescoring() == 0
            publisher.publish()
            check_equal(front, collection)
            assert front.search(rows.X[:5], 20) != before
            number, names = publisher.publish().number, [entry.name for entry in index.manifest.segments]
            collection.relabel([3], [["a"]])
            assert publisher.publish().number == number + 1
            check_equal(front, collection)
            assert [entry.name for entry in index.manifest.segments] == names


def test_sources_that_cannot_be_read_are_refused() -> None:
    assert PublishedSource.from_json("") is None
    for text in ("{", "[]", '{"seq": 1}', "3"):
        with pytest.raises(BadState):
            PublishedSource.from_json(text)


def test_plans_stay_within_a_shard(collection: Collection, index: ClusterIndex) -> None:
    with Publisher(collection, index) as publisher:
        publisher.publish()
        for number in range(30):
            collection.add([f"new{number}"], some_rows(1, seed=number).X, learn=False)
            publisher.publish()
            for group in plan_rewrites(index.manifest, {}):
                assert len({entry.shard for entry in group}) == 1


def test_fronts_of_a_deleted_collection(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    with collection, published(collection, tmp_path / "storage") as (publisher, front):
        collection.delete(collection.ids())
        publisher.publish()
        check_equal(front, collection)
        assert front.search(some_rows(1).X[0]).hits == []
        assert read_latest(Storage(tmp_path / "storage")).segments == ()


@pytest.mark.parametrize("verb", ["relabel", "delete", "add", "compact"])
def test_a_publication_during_a_compaction_of_the_cluster(
    collection: Collection, index: ClusterIndex, monkeypatch: Any, verb: str
) -> None:
    """What is published between the reading of old segments and the commit of new ones is not lost."""
    with serving(collection, index) as (publisher, front):
        collection.relabel([5, 6], [["old"], ["old"]], learn=False)
        publisher.publish()
        for number in range(3):
            collection.add([f"new{number}"], some_rows(1, seed=number).X, [["old"]], learn=False)
            publisher.publish()
        real, before = index.commit_change, names_of(index)

        def commit_change(change: Callable[[Any], Any]) -> Any:
            if verb == "relabel":
                collection.relabel([5, 7, "new1"], [["later"], ["later"], ["later"]], learn=False)
            elif verb == "delete":
                collection.delete([5, 8, "new1"])
            elif verb == "add":
                collection.upsert([5, "last"], some_rows(2, seed=8).X)
            else:
                collection.compact()
            publisher.publish()
            return real(change)

        with monkeypatch.context() as patch:
            patch.setattr(index, "commit_change", commit_change)
            index.compact()
        check_equal(front, collection)
        index.compact()
        assert names_of(index) != before
        check_equal(front, collection)
        collection.relabel([5 if verb == "relabel" else 9], [["last"]], learn=False)
        publisher.publish()
        check_equal(front, collection)


def test_items_move_with_their_segments(collection: Collection, index: ClusterIndex) -> None:
    with serving(collection, index) as (publisher, front):
        collection.relabel([5, 6], [["old"], ["old"]], learn=False)
        for number in range(4):
            collection.add([f"{number}-{n}" for n in range(80)], *some_rows(80, seed=number), learn=False)
            publisher.publish()
        shard = index.add_shard()
        assert index.manifest.shard_rows()[shard] > 0
        check_equal(front, collection)
        index.remove_shard(0)
        assert 0 not in index.manifest.shards
        collection.relabel([5, "1-3"], [["new"], []], learn=False)
        collection.delete([6, "2-2"])
        publisher.publish()
        check_equal(front, collection)
