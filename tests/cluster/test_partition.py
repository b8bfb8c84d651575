"""Items beside segments: the answers of the collection, after any writes, and files that cannot be used."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Collection
from stillhash.cluster import partition as partition_module
from stillhash.cluster.items_file import ItemsFile, write_items
from stillhash.cluster.partition import ItemPartition, LivePartition, Patch, beside, merge_partitions, write_partition
from stillhash.cluster.shard_items import ShardItems
from stillhash.collection.filters import columns
from stillhash.collection.filters.language import Condition, compile_filter
from stillhash.collection.storage.segments import CodedRows, read_segment, write_segment
from stillhash.errors import BadState, InvalidInput, StoreFailed, TooLarge
from stillhash.numeric.codes import feature_digests
from tests.cluster.published_items import PublishedItems
from tests.collection.fixtures import BITS, begin, some_rows
from tests.collection.test_filters import LABELS, METADATA, WHERE

pytestmark = pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
FILTERS: list[dict[str, Any]] = [
    {},
    {"odd": True},
    {"tone": {"$gte": 0.25, "$lt": 1}},
    {"n": {"$in": [1, 2, 3, 50, 99, 200, 299]}},
    {"labels": {"$exists": False}, "$not": {"odd": True}},
    {"a": {"$exists": True}},
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("partition") / "c"
    begin(path, 320)[0].close()
    return path


def check_equal(collection: Collection, items: ShardItems, filters: list[dict[str, Any]]) -> None:
    """Check that the partitions answer as the store does."""
    store = collection._store
    with collection._view.pinned() as snapshot:
        rows = list(range(-1, 400))
        assert items.contents(rows) == store.items.contents(snapshot.connection, rows)
        names: list[Any] = [*range(330), "new0", "new1", "absent"]
        assert items.rows_of(names) == store.items.rows_of(snapshot.connection, names)
    assert items.count() == collection.count()
    for where in filters:
        condition = compile_filter(where)
        with collection._view.pinned(condition) as snapshot:
            expected = np.flatnonzero(np.unpackbits(snapshot.allowed, bitorder="little"))
        for _ in range(2):  # the second time it is remembered
            found = np.flatnonzero(np.unpackbits(items.matching(condition), bitorder="little"))
            assert found.tolist() == expected.tolist(), where


WRITES = st.one_of(
    st.tuples(st.just("upsert"), st.lists(st.integers(0, 330), min_size=1, max_size=9, unique=True)),
    st.tuples(st.just("relabel"), st.lists(st.integers(0, 319), min_size=1, max_size=9, unique=True)),
    st.tuples(st.just("metadata"), st.lists(st.integers(0, 319), min_size=1, max_size=9, unique=True)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 330), min_size=1, max_size=9, unique=True)),
    st.tuples(st.sampled_from(["seal", "compact", "publish"]), st.just([])),
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_partitions_answer_as_the_collection(
    template: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("random")
    sizes = data.draw(st.lists(st.integers(50, 200), min_size=1, max_size=3), label="rows of segments")
    published = PublishedItems(folder, BITS, sizes)
    with stillhash.open(shutil.copytree(template, folder / "c")) as collection, closing(published):
        published.follow(collection)
        for verb, ids in data.draw(st.lists(WRITES, max_size=8), label="writes"):
            some = [name for name in ids if collection.get(name) is not None]
            if verb == "upsert":
                labels, metadata = (
                    data.draw(st.lists(kind, min_size=len(ids), max_size=len(ids))) for kind in (LABELS, METADATA)
                )
                collection.upsert(ids, some_rows(len(ids), seed=3).X, labels, metadata, learn=False)
            elif verb == "relabel" and some:
                labels = data.draw(st.lists(LABELS, min_size=len(some), max_size=len(some)))
                collection.relabel(some, labels, learn=False)
            elif verb == "metadata" and some:
                collection.upsert(some, metadata=[data.draw(METADATA) for _ in some])
            elif verb == "delete":
                collection.delete(ids)
            elif verb == "seal":
                collection.seal()
            elif verb == "compact":
                published.follow(collection)  # which the table of deleted rows is needed for
                collection.compact()
            else:
                published.follow(collection)
        published.follow(collection)
        filters = data.draw(st.lists(WHERE, max_size=4), label="filters")
        check_equal(collection, published.items(), [*FILTERS, *filters])
        merged = merge_all(published)
        check_equal(collection, merged, [*FILTERS, *filters])


def merge_all(published: PublishedItems) -> ShardItems:
    """Return the items of all partitions, merged to one."""
    rows = [part.partition.segment.coded_rows() for part in published.parts]
    keep = [
        np.isin(some.numbers, part.partition.live_rows(part.deleted))
        for some, part in zip(rows, published.parts, strict=True)
    ]
    joined = CodedRows.join([some.select(kept) for some, kept in zip(rows, keep, strict=True)], BITS)
    if not len(joined.numbers):
        return ShardItems([])
    path = published._path("seg")
    write_segment(path, joined.select(np.argsort(joined.numbers)), BITS)
    segment = read_segment(path, BITS)
    merge_partitions(published.parts, published.patches, segment)
    published.parts = [LivePartition(ItemPartition.open(segment))]
    published.patches = []
    return published.items()


@pytest.fixture
def followed(template: Path, tmp_path: Path) -> Any:
    """Return a collection and its items in three partitions and two patches."""
    published = PublishedItems(tmp_path, BITS, [150, 100])
    with stillhash.open(shutil.copytree(template, tmp_path / "c")) as collection, closing(published):
        published.follow(collection)
        collection.relabel([3, 4, 5], [["z"], [], ["a", "z"]], learn=False)
        collection.delete([7, 8, 300])
        published.follow(collection)
        collection.upsert([4, 200], metadata=[{"n": 1, "odd": True}, None])
        published.follow(collection)
        assert len(published.parts) == 3 and len(published.patches) == 2
        yield collection, published


def test_filters_that_columns_cannot_answer_go_to_sql(followed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    collection, published = followed
    monkeypatch.setattr(columns, "MAX_COLUMN_BYTES", 0)
    items = published.items()
    check_equal(collection, items, FILTERS)
    assert "odd" in published.parts[0].partition._use.stats()["by_sql"]


@pytest.mark.parametrize("kind", ["absent", "header", "arrays", "of another segment"])
def test_columns_that_cannot_be_used_are_built_again(followed: Any, kind: str) -> None:
    collection, published = followed
    first, second, _ = sorted(published.folder.glob("*.columns"))
    if kind == "absent":
        first.unlink()
    elif kind == "of another segment":
        shutil.copyfile(second, first)
    else:
        data = bytearray(first.read_bytes())
        for place in [100] if kind == "header" else range(4096 + 10, len(data) - 4096, 4096):
            data[place] ^= 16
        first.write_bytes(data)
    parts = [part._replace(partition=ItemPartition.open(part.partition.segment)) for part in published.parts]
    items = ShardItems(parts, published.patches)
    check_equal(collection, items, FILTERS)
    assert all(part.partition._use.stats()["by_sql"] == [] for part in parts)
    for part in parts:
        part.partition.close()


def test_repeats_are_rows_with_the_digest(followed: Any) -> None:
    collection, published = followed
    X = some_rows(320).X
    collection.upsert(["twin"], X[9:10])
    published.follow(collection)
    rows = published.items().repeats(feature_digests(np.asarray(X[[7, 9, 300]], np.float32)).tolist())
    assert [some.tolist() for some in rows] == [[], [9, 320], []]  # 7 and 300 are deleted


def test_answers_have_a_bound(followed: Any) -> None:
    collection, published = followed
    items, rows = published.items(), [1, 2, 3, 3]
    with collection._store.reading() as connection:
        for most in (100, 300, 400, 500, 600, 10_000):
            results = []
            for read in (items.contents, lambda *given: collection._store.items.contents(connection, *given)):
                try:
                    results.append(read(rows, most))
                except TooLarge:
                    results.append("too large")
            assert results[0] == results[1], most
    with pytest.raises(TooLarge):
        items.records(rows, 100)


@pytest.mark.parametrize("damage", ["page", "table", "cut", "empty", "of another segment"])
def test_damaged_items_are_refused(followed: Any, damage: str) -> None:
    _, published = followed
    first, second, _ = sorted(published.folder.glob("*.items"))[:3]
    data = bytearray(first.read_bytes())
    if damage == "of another segment":
        shutil.copyfile(second, first)
    elif damage in ("cut", "empty"):
        first.write_bytes(data[: -4096 if damage == "cut" else 0])
    else:
        data[5000 if damage == "page" else -3] ^= 4
        first.write_bytes(data)
    with pytest.raises(BadState, match=r"\.items"):
        ItemPartition.open(published.parts[0].partition.segment)


def test_items_of_other_rows_are_not_written(followed: Any, tmp_path: Path) -> None:
    _, published = followed
    segment = published.parts[0].partition.segment
    copy = segment._replace(path=Path(shutil.copyfile(segment.path, tmp_path / "copy.seg")))
    rows = [(row, row, "[]", None) for row in segment.row_numbers().tolist()]
    for wrong in (rows[1:], [*rows, (10**6, "x", "[]", None)], [*rows[:-1], (10**6, "x", "[]", None)]):
        with pytest.raises(BadState):
            write_partition(copy, wrong, None)
        assert not beside(copy.path, ".items").exists()
    with pytest.raises(StoreFailed):
        write_items(tmp_path / "absent" / "x.items", rows)


def test_a_file_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def rows() -> Any:
        yield 1, "a", "[]", None
        raise InvalidInput("rows: no more")

    with pytest.raises(InvalidInput):
        write_items(tmp_path / "x.items", rows())
    assert list(tmp_path.iterdir()) == []


def test_a_patch_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_items(tmp_path / "x.patch", [(row, row, "[]", None) for row in range(4)])
    with closing(Patch(tmp_path / "x.patch")) as patch:
        assert patch.numbers.tolist() == [0, 1, 2, 3]
    monkeypatch.setattr(partition_module, "PATCH_ROWS", 3)
    with pytest.raises(BadState):
        Patch(tmp_path / "x.patch")


def test_ids_and_texts_keep_their_types(tmp_path: Path) -> None:
    rows = [(0, 7, '["a"]', None), (3, "7", "[7, 2.5]", '{"a": {"b": [null, true]}}'), (9, "é\u0001", "[]", "{}")]
    assert write_items(tmp_path / "x.items", rows, bytes(range(8)), ["a.b"]) == 3
    with closing(ItemsFile(tmp_path / "x.items", bytes(range(8)))) as items:
        assert items.records([0, 1, 3, 9]) == [(*row[:3], row[3] or "null") for row in rows]
        assert items.rows_of([7, "7", 8, "é\u0001"]) == {7: 0, "7": 3, "é\u0001": 9}
        assert [row for some in items.iterate() for row in some] == rows
        assert items.named == ["a.b"]


@given(WHERE)
def test_conditions_travel_as_json(where: dict[str, Any]) -> None:

    condition = compile_filter(where)
    again = Condition.from_json(json.loads(json.dumps(condition.to_json())))
    assert again.tree == condition.tree and again.key == condition.key and again.sql == condition.sql


@pytest.mark.parametrize(
    "parts",
    [
        *(None, [], ["field"], ["field", "a", "$ne", 1], ["field", "a", "$regex", 1], ["labels", "$gt", 1], ["not"]),
        *("all", ["field", "a\0", "$eq", 1], ["field", "a", "$in", 3], ["all", ["any", 3]]),
    ],
)
def test_lists_that_are_no_condition_are_refused(parts: Any) -> None:
    with pytest.raises(InvalidInput):
        Condition.from_json(parts)


def test_deep_conditions_are_refused() -> None:
    parts: list[Any] = ["all"]
    for _ in range(50):
        parts = ["not", parts]
    with pytest.raises(InvalidInput):
        Condition.from_json(parts)
