"""Votes: for its own query a liked item never falls and a disliked one never rises; taken back, they leave no trace."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Collection, Vote
from stillhash.collection.learning.votes import examination_weight
from stillhash.errors import Conflict, InvalidInput, WrongType
from tests.collection.fixtures import BITS, DIM, INIT, begin, some_rows
from tests.support.toys import toy

ROWS = 320
QUERIES = toy(12, DIM, 4, seed=77).X
VOTERS = itertools.count()
KINDS = ("labels", "some labels", "no labels")


def create(path: Path, kind: str) -> Collection:
    """Create a collection whose items have labels, of which some have none (as always), or none have any."""
    X, labels, metadata = some_rows(ROWS)
    if kind != "labels":
        labels = [some if kind == "some labels" and n % 2 else [] for n, some in enumerate(labels)]
    collection = stillhash.open(path, DIM, BITS, init_rows=INIT, learn_rows=40)
    collection.add(list(range(ROWS)), X, labels, metadata)
    collection.flush()
    return collection


@pytest.fixture(scope="module", params=KINDS)
def collection(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    collection = create(tmp_path_factory.mktemp("votes") / "c", request.param)
    yield collection
    collection.close()


def ids_of(collection: Collection, query: Any, **options: Any) -> list[Any]:
    return [hit.id for hit in collection.search(query, ROWS, **options).hits]


def results(collection: Collection) -> list[dict[str, Any]]:
    """Return all that a search answers, without the number of the version."""
    answers = [*collection.search(QUERIES, ROWS), *collection.search(QUERIES, 5, explain=1)]
    plain = [asdict(answer) for answer in answers]
    for answer in plain:
        del answer["version"]
        for hit in answer["hits"]:
            del hit["version"]
    return plain


# ---- its own query ----


@pytest.mark.medium
@settings(max_examples=60, deadline=None)
@given(query=st.integers(0, 11), rank=st.integers(0, ROWS - 1), vote=st.floats(-1, 1).filter(lambda v: abs(v) > 0.01))
def test_a_liked_item_never_falls_and_a_disliked_one_never_rises(
    collection: Collection, query: int, rank: int, vote: float
) -> None:
    before = ids_of(collection, QUERIES[query])
    item = before[rank]
    version = collection.feedback(QUERIES[query], item, vote, source=f"voter {next(VOTERS)}")
    after = ids_of(collection, QUERIES[query])
    assert sorted(after) == sorted(before) and version == collection.stats()["version"]
    assert after.index(item) <= rank if vote > 0 else after.index(item) >= rank


def test_liked_items_come_first_by_votes_and_disliked_ones_last(tmp_path: Path) -> None:
    with create(tmp_path / "c", "labels") as collection:
        query = QUERIES[0]
        before = ids_of(collection, query)
        liked, disliked = before[50:54], before[:3]
        collection.feedback(query, liked, [0.5, 1, 1, 0.25], source="ann")
        collection.feedback(query, disliked, "down", source="ann")
        collection.feedback(query, liked[3], 1, source="bo")
        after = ids_of(collection, query)
        assert after[:4] == [liked[3], liked[1], liked[2], liked[0]]  # the earlier vote, among equals
        assert after[-3:] == disliked[::-1]  # where the first one is the last
        placed = [hit.placed for hit in collection.search(query, ROWS).hits]
        assert placed[:4] == ["liked"] * 4 and placed[-3:] == ["disliked"] * 3
        assert not {"liked", "disliked"} & set(placed[4:-3])
        odd = ids_of(collection, query, where={"odd": True})
        assert sorted(odd) == sorted(n for n in range(ROWS) if n % 2 and n % 5)
        assert odd[: len(chosen := [i for i in after[:4] if i in odd])] == chosen
        assert [hit.id for hit in collection.search(query, 2).hits] == after[:2]
        assert ids_of(collection, QUERIES[1]) != after and ids_of(collection, query, version=1)[:4] != after[:4]
        assert {hit.placed for hit in collection.search(query, ROWS, version="hamming").hits} == {"score"}


def test_a_click_further_down_counts_for_more(tmp_path: Path) -> None:
    with create(tmp_path / "c", "no labels") as collection:
        first, ninth, far, farther = ids_of(collection, QUERIES[0])[10:14]
        shown = [farther, far, first, ninth]
        collection.feedback(QUERIES[0], shown, 0.1, position=[5000, 100, 1, 9])
        assert ids_of(collection, QUERIES[0])[:4] == [farther, far, ninth, first]  # 100 and 5,000 count alike
    assert examination_weight(None) == examination_weight(1) == 1
    assert examination_weight(9) == pytest.approx(3.3219, abs=1e-4)


def test_a_source_counts_for_no_more_than_its_cap(tmp_path: Path) -> None:
    for cap, expected in ((1000.0, "disliked"), (2.0, "liked")):
        collection, _ = begin(tmp_path / str(cap), source_cap=cap)
        collection.feedback(QUERIES[0], list(range(200)), "down", source="many")
        collection.feedback(QUERIES[0], 7, 0.5, source="few")
        hits = {hit.id: hit.placed for hit in collection.search(QUERIES[0], ROWS).hits}
        assert hits[7] == expected
        collection.close()


# ---- undo ----


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_a_vote_taken_back_leaves_no_trace(kind: str, tmp_path: Path) -> None:
    with create(tmp_path / "c", kind) as collection:
        rng = np.random.default_rng(0)
        states = []
        votes = [(int(rng.integers(12)), int(rng.integers(ROWS)), float(rng.uniform(-1, 1))) for _ in range(8)]
        for number, (query, item, vote) in enumerate(votes):
            states.append((results(collection), collection.stats()["feedback"]))
            collection.feedback(QUERIES[query], item, vote, source=str(number), position=number + 1)
            assert results(collection) != states[-1][0]
        for number, (query, item, _) in reversed(list(enumerate(votes))):
            collection.feedback(QUERIES[query], item, 0, source=str(number))
            assert (results(collection), collection.stats()["feedback"]) == states.pop()
        assert collection.feedback(QUERIES[0], 5, 0) and collection.stats()["feedback"] == 0


@pytest.mark.medium
def test_the_last_vote_of_a_source_counts(tmp_path: Path) -> None:
    with create(tmp_path / "c", "labels") as collection:
        before = results(collection)
        collection.feedback(QUERIES[0], 7, "up", source="ann")
        up = results(collection)
        version = collection.feedback(QUERIES[0], 7, "down", source="ann")
        down = results(collection)
        assert down != up and collection.stats()["feedback"] == 1
        collection.feedback(QUERIES[0], 7, "up", source="bo")
        assert ids_of(collection, QUERIES[0]) == [hit["id"] for hit in before[0]["hits"]]  # they cancel
        assert collection.rollback(version) and results(collection) == down
        collection.rollback(version - 1)
        assert results(collection) == up and collection.stats()["feedback"] == 1
        collection.rollback(version - 2)
        assert results(collection) == before and collection.stats()["feedback"] == 0


def test_votes_survive_closing_deletion_and_repair(tmp_path: Path) -> None:
    collection = create(tmp_path / "c", "labels")
    collection.feedback(QUERIES[0], [7, 8], ["up", "down"], source="ann")
    expected = results(collection)
    collection.close()
    with stillhash.open(tmp_path / "c") as reopened:
        assert results(reopened) == expected and reopened.verify() == []
        with stillhash.open(tmp_path / "c", read_only=True) as reader:
            assert results(reader) == expected
        reopened.seal()
        assert results(reopened) == expected
        reopened.delete([7])
        after = ids_of(reopened, QUERIES[0])
        assert 7 not in after and after[-1] == 8
        with pytest.raises(InvalidInput, match="7"):
            reopened.feedback(QUERIES[0], 7, "up")
        reopened.upsert([7], some_rows(1, seed=5).X)
        assert ids_of(reopened, QUERIES[0])[0] == 7  # the vote is on the id
        reopened.delete([7])
        reopened.feedback(QUERIES[0], 7, 0, source="ann")  # and can be taken back without its item
        assert reopened.stats()["feedback"] == 1


# ---- many at once ----


def test_many_votes_are_one_version_and_count_as_they_would_one_by_one(tmp_path: Path) -> None:
    one, many = create(tmp_path / "one", "some labels"), create(tmp_path / "many", "some labels")
    votes: list[Any] = [
        Vote(QUERIES[0], 5, "up", "ann", 3),
        {"query": QUERIES[1].tolist(), "id": 6, "vote": -0.5},
        {"query_id": 9, "id": 7, "vote": True, "source": "bo"},
        Vote(None, 8, "down", query_id=9),
        {"query": QUERIES[0], "id": 5, "vote": 0.5, "source": "ann"},  # replaces the first
    ]
    for vote in votes:
        fields = vote._asdict() if isinstance(vote, Vote) else dict(vote)
        query = fields.pop("query", None)
        named = fields.pop("query_id", None)
        query = one.reconstruct([named])[0] if query is None else query
        one.feedback(query, fields.pop("id"), fields.pop("vote"), **fields)
    version = many.feedback_many(iter(votes))
    assert version == many.versions()[-1]["version"] and many.versions()[-1]["rows"] == 5
    assert results(many) == results(one) and many.stats()["feedback"] == one.stats()["feedback"] == 4
    assert ids_of(many, many.reconstruct([9])[0])[0] == 7
    assert many.feedback_many([]) == version
    one.close()
    many.close()


GOOD = {"query": QUERIES[0].tolist(), "id": 5, "vote": "up"}


@pytest.mark.parametrize(
    ("bad", "error", "match"),
    [
        ({**GOOD, "vote": 2}, InvalidInput, "^vote 2: vote"),
        ({**GOOD, "vote": "yes"}, InvalidInput, "^vote 2: vote"),
        ({**GOOD, "vote": None}, WrongType, "^vote 2: vote"),
        ({**GOOD, "query": [1.0]}, InvalidInput, "^vote 2: query"),
        ({**GOOD, "query_id": 5}, InvalidInput, "^vote 2: query"),
        ({"id": 5, "vote": 1}, InvalidInput, "^vote 2: query"),
        ({**GOOD, "id": [5]}, WrongType, "^vote 2: id"),
        ({**GOOD, "id": "nobody"}, InvalidInput, "nobody"),
        ({"query_id": "nobody", "id": 5, "vote": 1}, InvalidInput, "nobody"),
        ({**GOOD, "source": 3}, WrongType, "^vote 2: source"),
        ({**GOOD, "position": 0}, InvalidInput, "^vote 2: position"),
        ({**GOOD, "more": 0}, InvalidInput, "^vote 2: "),
        ("up", InvalidInput, "^vote 2: "),
        (5, InvalidInput, "^vote 2: "),
    ],
)
def test_one_bad_vote_of_many_changes_nothing(collection: Collection, bad: Any, error: Any, match: str) -> None:
    before = collection.stats()
    with pytest.raises(error, match=match):
        collection.feedback_many([GOOD, bad])
    assert collection.stats() == before


@pytest.mark.parametrize("votes", [None, 5, "votes", GOOD, Vote(QUERIES[0], 5, "up")])
def test_many_votes_are_a_list(collection: Collection, votes: Any) -> None:
    with pytest.raises(WrongType, match=r"^votes"):
        collection.feedback_many(votes)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("args", "options", "error", "match"),
    [
        ((np.ones(3), 1, True), {}, InvalidInput, "^query"),
        ((np.ones((2, DIM)), 1, True), {}, InvalidInput, "^query"),
        ((np.full(DIM, np.nan), 1, True), {}, InvalidInput, "^query"),
        ((np.ones(DIM), "nobody", True), {}, InvalidInput, "nobody"),
        ((np.ones(DIM), 1.5, True), {}, WrongType, "^ids?"),
        ((np.ones(DIM), [], []), {}, InvalidInput, "^ids?"),
        ((np.ones(DIM), [1, 1], True), {}, InvalidInput, "^ids?"),
        ((np.ones(DIM), 1, 1.5), {}, InvalidInput, "^vote"),
        ((np.ones(DIM), 1, "left"), {}, InvalidInput, "^vote"),
        ((np.ones(DIM), 1, None), {}, WrongType, "^vote"),
        ((np.ones(DIM), 1, float("nan")), {}, InvalidInput, "^vote"),
        ((np.ones(DIM), [1, 2], [True]), {}, InvalidInput, "^vote"),
        ((np.ones(DIM), [1, 2], True), {"position": [1]}, InvalidInput, "^position"),
        ((np.ones(DIM), 1, True), {"position": 0}, InvalidInput, "^position"),
        ((np.ones(DIM), 1, True), {"position": 1.5}, WrongType, "^position"),
        ((np.ones(DIM), 1, True), {"source": 3}, WrongType, "^source"),
    ],
)
def test_bad_feedback_is_refused(collection: Collection, args: Any, options: Any, error: Any, match: str) -> None:
    before = collection.stats()
    with pytest.raises(error, match=match):
        collection.feedback(*args, **options)
    assert collection.stats() == before


def test_feedback_needs_a_writer(tmp_path: Path) -> None:
    begin(tmp_path / "d")[0].close()
    with stillhash.open(tmp_path / "d", read_only=True) as reader, pytest.raises(Conflict):
        reader.feedback(np.ones(DIM), 1, True)


# ---- the same number ----


def test_a_vote_holds_for_a_query_with_another_sign_of_zero(tmp_path: Path) -> None:
    with create(tmp_path / "c", "labels") as collection:
        query = QUERIES[0].copy()
        query[3] = -0.0
        same = np.where(query == 0, np.float32(0), query)
        item = ids_of(collection, same)[50]
        before = ids_of(collection, same)
        collection.feedback(query, item, "up", source="ann")
        assert ids_of(collection, same)[0] == ids_of(collection, query)[0] == item
        collection.feedback(same, item, 0, source="ann")
        assert ids_of(collection, query) == ids_of(collection, same) == before
        collection.feedback(same, item, "up", source="ann")
        assert ids_of(collection, query)[0] == item and collection.stats()["feedback"] == 1
