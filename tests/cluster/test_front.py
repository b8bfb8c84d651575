"""A front answers as the collection does, in every field, and refuses what it cannot know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.cluster.dispatcher import Dispatcher
from stillhash.cluster.front import FrontCollection
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.manifest import read_latest
from stillhash.cluster.publisher import Publisher
from stillhash.cluster.storage import Storage
from stillhash.collection.types import Vote
from stillhash.errors import InvalidInput, StillhashError, TooLarge, Unreachable, Unsupported
from tests.cluster.shard_threads import ShardThreads, published
from tests.collection.fixtures import BITS, begin, some_rows

pytestmark = pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
Served = tuple[Collection, Publisher, FrontCollection]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": 500},
    {"version": 0},
    {"version": 1, "k": 3},
    {"version": "hamming"},
    {"balance": 0.0},
    {"balance": 1.0, "where": {"odd": True}},
    {"where": {"labels": {"$in": ["a", "b"]}}, "k": 50},
    {"where": {"n": -1}},
    {"explain": True, "k": 5},
    {"explain": 1, "where": {"n": {"$lt": 60}}, "k": 200},
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a collection with versions, votes, repeats, deleted and changed items; its publisher and a front."""
    folder = tmp_path_factory.mktemp("front")
    collection, _ = begin(folder / "c", 320, source_cap=2.5)
    X = some_rows(320).X
    with collection, published(collection, folder / "storage") as (publisher, front):
        collection.add([f"late{r}" for r in range(90)], *some_rows(90, seed=5))
        publisher.publish()
        for source in ("ann", "bo"):
            votes = [Vote(X[q], 20 + q + s, "up" if s % 2 else "down", source) for q in range(4) for s in range(3)]
            collection.feedback_many(votes)
        collection.delete([21, 22, "late5"])
        collection.relabel([1, 2, "late7"], [["z"], [], ["a", "d"]], learn=False)
        collection.upsert([50, "twin"], X[[50, 51]])
        collection.update_metadata([3, 60], metadata={"odd": True, "deep": {"er": [1, None]}})
        publisher.publish()
        front.refresh()
        yield collection, publisher, front


def assert_same(front: FrontCollection, collection: Collection, query: Any, **options: Any) -> None:
    ours, own = front.search(query, **options), collection.search(query, **options)
    assert ours == own
    for one, other in zip(as_list(ours), as_list(own), strict=True):
        assert [(h.version, h.placed) for h in one.hits] == [(h.version, h.placed) for h in other.hits]


def as_list(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]


@pytest.mark.medium
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_front_searches_as_the_collection(served: Served, options: dict[str, Any]) -> None:
    collection, _, front = served
    for queries in (some_rows(320).X[:60], some_rows(5, seed=9).X, some_rows(1).X[0]):
        assert_same(front, collection, queries, **options)


def test_range_search(served: Served) -> None:
    collection, _, front = served
    Q = some_rows(4, seed=9).X
    score = float(np.median([hit.score for answer in collection.search(Q, 300) for hit in answer.hits]))
    for options in ({}, {"version": 1}, {"where": {"odd": True}}, {"version": "hamming"}):
        assert front.range_search(Q, score, **options) == collection.range_search(Q, score, **options)
    assert front.range_search(Q[0], distance=5) == collection.range_search(Q[0], distance=5)
    with pytest.raises(TooLarge):
        front.range_search(Q, -1000, most=10)


def test_the_other_verbs(served: Served) -> None:
    collection, _, front = served
    Q, names = some_rows(4, seed=9).X, [3, "late7", 21, "absent", 50, 3, "twin"]
    assert front.get(names) == collection.get(names)
    assert front.get(1) == collection.get(1) and front.get("nobody") is None
    assert front.count() == collection.count() == len(front)
    for where in ({"odd": True}, {"deep.er": {"$exists": True}}, {"labels": "z"}, {"n": {"$gt": 1e9}}):
        assert front.count(where) == collection.count(where)
        assert front.ids(where) == collection.ids(where)
    assert front.ids() == collection.ids()
    assert front.ids(after=200, limit=170) == collection.ids(after=200, limit=170)
    known = [3, "late7", 50, 3]
    assert np.array_equal(front.codes(known), collection.codes(known))
    assert np.array_equal(front.reconstruct(known), collection.reconstruct(known))
    for version in (None, 0, 1, "hamming"):
        assert np.array_equal(front.weigh(Q, version=version), collection.weigh(Q, version=version))
    assert front.versions() == collection.versions() and front.quality() == collection.quality()
    assert front.encoder == collection.encoder and front.alignments() == collection.alignments()
    weights = np.linspace(-1, 1, collection.bits)
    assert front.search(weights=weights, k=30) == collection.search(weights=weights, k=30)
    own, ours = collection.stats(), front.stats()
    assert {key: own[key] for key in ours.keys() & own.keys() - {"segments", "deleted"}} == {
        key: ours[key] for key in ours.keys() & own.keys() - {"segments", "deleted"}
    }
    assert front.version == own["version"]
    assert repr(front).startswith("FrontCollection(")


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 99},
        {"version": -1},
        {"balance": 2},
        {"where": {"a": {"$x": 1}}},
        {"where": 3},
        {"k": 0},
        {"max_bytes": 100},
        {"explain": True, "max_bytes": 100},
        {"explain": 99},
        {"query": [1.0]},
        {"query": [[float("nan")] * 8]},
        {"query": "text"},
    ],
    ids=str,
)
def test_errors_are_those_of_the_collection(served: Served, wrong: dict[str, Any]) -> None:
    collection, _, front = served
    errors = []
    for one in (front, collection):
        with pytest.raises(StillhashError) as info:
            one.search(**{"query": some_rows(2, seed=9).X, **wrong})
        errors.append((info.type, str(info.value)))
    assert errors[0] == errors[1]


def test_ids_that_do_not_exist(served: Served) -> None:
    collection, _, front = served
    for verb in ("codes", "reconstruct"):
        for one in (front, collection):
            with pytest.raises(InvalidInput, match="'absent'"):
                getattr(one, verb)([1, "absent"])


def test_before_hash_functions_are_fitted(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    with collection, published(collection, tmp_path / "storage") as (publisher, front):
        assert front.count() == 20 and not front.stats()["fitted"]
        for refused in (lambda: front.search(some_rows(1).X), lambda: front.get(1), lambda: front.ids()):
            with pytest.raises(Unsupported, match="writes"):
                refused()
        collection.add(range(20, 320), *some_rows(300, seed=3))
        publisher.publish()
        front.refresh()
        front.wait_ready()
        assert_same(front, collection, some_rows(4, seed=9).X)


def test_collections_of_codes_alone(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 256, (500, 8), np.uint8)
    with stillhash.open(tmp_path / "c", bits=64, codes_only=True) as collection:
        collection.add(range(500), codes, metadata=[{"n": n} for n in range(500)])
        with published(collection, tmp_path / "storage") as (_, front):
            assert_same(front, collection, codes[:5])
            assert_same(front, collection, codes[:5], where={"n": {"$lt": 100}})
            assert np.array_equal(front.reconstruct([4, 2]), codes[[4, 2]])


@pytest.mark.parametrize("bits", [0, 1, 8])
def test_rescoring_codes_of_any_length(tmp_path: Path, bits: int) -> None:
    collection, _ = begin(tmp_path / "c", 320, rescore_bits=bits)
    with collection, published(collection, tmp_path / "storage") as (publisher, front):
        files = [path.suffix for path in (tmp_path / "storage" / "segments").iterdir()]
        assert files.count(".rescoring") == (files.count(".seg") if bits else 0)
        collection.add([f"late{r}" for r in range(90)], *some_rows(90, seed=5))
        collection.delete(range(0, 300, 2))
        publisher.publish()
        publisher._cluster.compact()  # as a program may, though the publisher joins segments too
        front.refresh()
        for options in ({}, {"version": 0}, {"where": {"odd": True}, "explain": True}):
            assert_same(front, collection, some_rows(5, seed=9).X, **options)
        assert np.array_equal(front.reconstruct(["late3", 7]), collection.reconstruct(["late3", 7]))


def test_rescoring_codes_that_are_lost(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    collection.seal()
    collection.close()
    for file in (tmp_path / "c" / "segments").glob("*.rescoring"):
        file.unlink()
    stillhash.repair(tmp_path / "c")
    with stillhash.open(tmp_path / "c") as collection:
        collection.add(["late"], *some_rows(1, seed=5), learn=False)  # which has one
        with published(collection, tmp_path / "storage") as (_, front):
            assert_same(front, collection, some_rows(5, seed=9).X)


def test_a_search_takes_three_messages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, front = served
    kinds = []
    submit = Dispatcher.submit
    monkeypatch.setattr(Dispatcher, "submit", lambda self, call: (kinds.append(call.kind), submit(self, call)))
    front.search(some_rows(5, seed=9).X)
    assert sorted(kinds) == ["get", "page", "repeats", "search"]  # scores and repeats go together


def test_kept_features_are_asked_of_the_writer(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320, keep_features=True)
    with collection, published(collection, tmp_path / "storage") as (_, front):
        assert_same(front, collection, some_rows(320).X[:20])
        with pytest.raises(Unsupported):
            front.reconstruct([1])


def test_no_queries_have_no_answers(served: Served) -> None:
    collection, _, front = served
    none = np.empty((0, 8), np.float32)
    assert front.search(none) == collection.search(none) == []
    assert front.get([]) == [] and front.codes([]).shape == collection.codes([]).shape


@pytest.mark.medium
def test_partial_answers_say_what_is_missing(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    shards = ShardThreads(tmp_path / "storage")
    index = ClusterIndex(BITS, 2, storage=tmp_path / "storage", processes=shards, lease_seconds=0.5)
    with collection, index, Publisher(collection, index) as publisher:
        publisher.publish()
        collection.add([f"new{n}" for n in range(80)], *some_rows(80, seed=4), learn=False)  # on the other shard
        publisher.publish()
        assert sorted(index.manifest.shard_rows().values()) == [80, 320]
        few, many = sorted(index.manifest.shard_rows(), key=index.manifest.shard_rows().get)
        Q = some_rows(3, seed=9).X
        with FrontCollection(tmp_path / "storage", partial=True) as front:
            front.wait_ready()
            assert_same(front, collection, Q)
            shards.ensure([many], 1)
            while front.readiness()["ready"]:
                pass
            answers = front.search(Q, 500)
            assert [answer.missing for answer in answers] == [0.2] * 3
            assert {hit.id for hit in answers[0].hits} == set(range(320))
            for refused in (lambda: front.count({"odd": True}), lambda: front.get("new1"), lambda: front.ids()):
                with pytest.raises(Unreachable):  # what is not there would look as if it did not exist
                    refused()
            shards.ensure([few, many], 1)
            front.wait_ready()
            assert_same(front, collection, Q)


def test_through_aggregators(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    with collection, published(collection, tmp_path / "storage", shards=4, aggregators=2) as (publisher, front):
        for number in range(4):
            collection.add([f"{number}-{n}" for n in range(60)], *some_rows(60, seed=number), learn=False)
            publisher.publish()
        front.refresh()
        assert len([rows for rows in read_latest(Storage(tmp_path / "storage")).shard_rows().values() if rows]) > 1
        for options in ({}, {"where": {"odd": True}, "k": 50}, {"version": 0, "k": 500}):
            assert_same(front, collection, some_rows(5, seed=9).X, **options)
        assert front.range_search(some_rows(2).X, 0.0) == collection.range_search(some_rows(2).X, 0.0)
