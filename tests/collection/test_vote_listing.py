"""The list of votes: those that count, the latest first, each with what takes it back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Collection, VoteEntry
from stillhash.errors import InvalidInput, WrongType
from tests.collection.fixtures import DIM, begin
from tests.support.toys import toy

QUERIES = toy(4, DIM, 4, seed=77).X
Cast = tuple[int, Any, str, float]  # query, item, source, vote


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    collection, _ = begin(tmp_path / "c")
    yield collection
    collection.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    collection, _ = begin(tmp_path_factory.mktemp("votes") / "c")
    yield collection
    collection.close()


def listed(votes: list[VoteEntry]) -> list[Cast]:
    numbers = {tuple(query.tolist()): number for number, query in enumerate(QUERIES)}
    return [(numbers[tuple(vote.query)], vote.id, vote.source, vote.vote) for vote in votes]


CASTS = st.tuples(
    st.integers(0, 3), st.integers(0, 5), st.sampled_from(["ann", "bo", ""]), st.sampled_from([1.0, -1.0, 0.5, 0.0])
)


@pytest.mark.medium
@settings(max_examples=25, deadline=None)
@given(st.lists(CASTS, min_size=1, max_size=12))
def test_it_lists_the_last_vote_of_each_source_on_a_hit(shared: Collection, casts: list[Cast]) -> None:
    for entry in shared.votes():  # of the examples before
        shared.feedback(entry.query, entry.id, 0, source=entry.source)
    assert shared.votes() == []
    last: dict[Any, Cast] = {}
    for query, item, source, vote in casts:
        shared.feedback(QUERIES[query], item, vote, source=source)
        last.pop((query, item, source), None)
        last[query, item, source] = (query, item, source, vote)
    expected = [cast for cast in reversed(last.values()) if cast[3]]
    assert listed(shared.votes()) == expected
    for source in ("ann", "bo", "", "nobody"):
        assert listed(shared.votes(source)) == [cast for cast in expected if cast[2] == source]
    for number, query in enumerate(QUERIES):
        assert listed(shared.votes(query=query)) == [cast for cast in expected if cast[0] == number]
    entries: list[VoteEntry] = []
    while page := shared.votes(limit=2, after=entries[-1].number if entries else None):
        assert len(page) <= 2
        entries += page
    assert entries == shared.votes()


def test_it_has_time_position_and_the_item_that_is_the_query(collection: Collection) -> None:
    collection.feedback_many([{"query_id": 9, "id": 7, "vote": -0.5, "source": "ann", "position": 40}])
    collection.feedback(QUERIES[0], 8, "up")
    other, own = collection.votes()
    assert (own.id, own.source, own.position) == (7, "ann", 40)
    assert own.query_id is not None  # item 9, or another one with the same code
    assert np.array_equal(collection.reconstruct([own.query_id]), collection.reconstruct([9]))
    assert own.vote == pytest.approx(-0.5) and np.array_equal(own.query, collection.reconstruct([9])[0])
    assert other.query_id is None and other.position is None
    assert all(re.match(r"\d{4}-\d\d-\d\dT", vote.time or "") for vote in (own, other))


def test_the_time_outlives_its_version(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", keep_versions=2)
    collection.feedback(QUERIES[0], 7, "up")
    (before,) = collection.votes()
    for item in range(8, 12):
        collection.feedback(QUERIES[1], item, "up")
    after = collection.votes(query=QUERIES[0])
    assert after[0].time is not None and before.time is not None and after[0].time[:16] == before.time[:16]
    collection.close()


def test_a_vote_is_listed_after_opening_again_and_gone_once_forgotten(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    collection.feedback(QUERIES[0], [7, 8], ["up", "down"], source="ann")
    votes = collection.votes()
    version = collection.feedback(QUERIES[0], 9, "up", source="bo")
    collection.close()
    with stillhash.open(tmp_path / "c", read_only=True) as reader:
        assert reader.votes("ann") == votes
    with stillhash.open(tmp_path / "c") as collection:
        collection.rollback(version - 1)
        assert collection.votes() == votes
        collection.forget(source="ann")
        assert collection.votes() == []


def test_ready_codes_are_listed_as_digits(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 256, (40, 4), np.uint8)
    with stillhash.open(tmp_path / "c", bits=32, codes_only=True) as collection:
        collection.add(range(40), codes)
        collection.feedback(codes[3], 5, "up")
        (vote,) = collection.votes()
        assert vote.query_id == 3 and len(vote.query) == 8
        collection.delete([3])
        assert collection.votes()[0].query_id is None
        collection.feedback(vote.query, vote.id, 0, source=vote.source)
        assert collection.votes(query=codes[3]) == []


def test_before_hash_functions_there_are_none(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    assert collection.votes() == []
    collection.close()


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"source": 3}, WrongType, "^source"),
        ({"limit": 0}, InvalidInput, "^limit"),
        ({"limit": 1.5}, WrongType, "^limit"),
        ({"limit": 10**9}, InvalidInput, "^limit"),
        ({"after": -1}, InvalidInput, "^after"),
        ({"query": np.full(DIM, np.nan)}, InvalidInput, "^query"),
        ({"query": np.ones(3)}, InvalidInput, "^query"),
        ({"query": np.ones((2, DIM))}, InvalidInput, "^query"),
    ],
)
def test_bad_arguments_are_refused(shared: Collection, arguments: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        shared.votes(**arguments)
