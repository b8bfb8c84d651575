"""A longer answer begins with the shorter one, so pages neither repeat nor lose a hit; answers have their balance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Answer, Collection
from stillhash.errors import StillhashError
from tests.collection.fixtures import BITS, DIM, some_rows

ROWS = 700  # more than the candidates that are ordered again for the first page
WORDS = "ba mu ki to sa"
QUERIES = some_rows(8, seed=5).X
CONDITIONS: list[dict[str, Any] | None] = [None, {"odd": True}, {"labels": "a"}, {"n": {"$lt": 5}}, {"n": -1}]


@pytest.fixture(scope="module", params=["tally", "ohsl"])
def collection(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Return a collection with equal codes, votes and words."""
    X, labels, metadata = some_rows(ROWS)
    X[600:] = X[:100]  # every query of an item has a repeat
    words = WORDS.split()
    metadata = [{**(one or {}), "text": " ".join(words[: row % 6])} for row, one in enumerate(metadata)]
    path, method = tmp_path_factory.mktemp("paging") / "c", request.param
    with stillhash.open(path, DIM, BITS, method=method, init_rows=300, learn_rows=40, lexical_field="text") as some:
        some.add([*range(ROWS)], X, labels, metadata)
        for row in (3, 40, 500):
            some.feedback(QUERIES[0], row, "up")
        for hit in some.search(QUERIES[0], 5).hits[3:]:
            some.feedback(QUERIES[0], hit.id, "down")
        yield some


def names(answer: Answer) -> list[tuple[Any, ...]]:
    return [(hit.id, hit.score, hit.placed, hit.learnt_rank, hit.lexical_rank) for hit in answer.hits]


@settings(max_examples=60)
@given(
    query=st.integers(0, len(QUERIES) - 1),
    k=st.integers(1, ROWS),
    more=st.integers(1, ROWS),
    balance=st.none() | st.sampled_from([0.0, 0.3, 1.0]),
    where=st.sampled_from(CONDITIONS),
    version=st.sampled_from([None, 0, "hamming"]),
)
def test_longer_answer_begins_with_the_shorter(
    collection: Collection, query: int, k: int, more: int, **options: Any
) -> None:
    short, long = (collection.search(QUERIES[query], count, **options) for count in (k, k + more))
    assert names(short) == names(long)[:k]
    assert len({hit.id for hit in long.hits}) == len(long.hits) == min(k + more, collection.count(options["where"]))


@given(k=st.integers(1, 99), more=st.integers(1, 99), where=st.sampled_from(CONDITIONS))
def test_hybrid_answers_do_so_of_one_depth(collection: Collection, k: int, more: int, where: Any) -> None:
    options: dict[str, Any] = {"where": where, "depth": 200}
    short, long = (collection.hybrid_search(QUERIES[1], "mu sa", count, **options) for count in (k, k + more))
    assert names(short) == names(long)[:k]
    short, long = (collection.lexical_search("mu sa", count, where=where) for count in (k, k + more))
    assert names(short) == names(long)[:k]


def test_answers_do_so_before_there_are_codes(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", DIM, BITS, init_rows=300) as collection:
        X = some_rows(90).X
        collection.add([*range(120)], [*X, *X[:30]])
        long = collection.search(QUERIES[0], 120)
        assert all(names(collection.search(QUERIES[0], k)) == names(long)[:k] for k in (1, 12, 24, 119))
        assert long.balance is None
        collection.fit()
        assert collection.search(QUERIES[0]).balance == 0.0  # by similarity: nothing is learnt
        assert collection.search(QUERIES[0], balance=0.7).balance == 0.0


def test_answers_have_their_balance(collection: Collection) -> None:
    learnt = collection.search(QUERIES[0]).balance
    if collection.stats()["method"] == "tally":
        assert learnt is not None and 0 < learnt < 1
    else:
        assert learnt is None  # its ranking has none until a search has
    for one in collection.search(QUERIES[:3], balance=0.3):
        assert one.balance == 0.3
    assert collection.hybrid_search(QUERIES[0], "mu").balance == learnt
    assert collection.hybrid_search(QUERIES[0], "mu", balance=1).balance == 1.0
    assert collection.range_search(QUERIES[0], -1e9).balance == learnt
    assert collection.search(QUERIES[0], version=0).balance == 0.0
    assert collection.search(QUERIES[0], version="hamming").balance is None
    assert collection.lexical_search("mu").balance is None
    assert collection.search(weights=[1.0] * BITS).balance is None
    with pytest.raises(StillhashError, match="balance"):
        collection.search(QUERIES[0], balance=float("nan"))


def test_automatic_balance_ranks_the_same_candidates(collection: Collection) -> None:
    automatic = collection.search(QUERIES[0], version=None)
    if automatic.balance is not None:
        pages = [collection.search(QUERIES[0], ROWS, balance=balance).hits for balance in (None, automatic.balance)]
        same, fixed = ({hit.id for hit in hits if hit.placed != "score"} for hits in pages)
        assert same == fixed and 300 <= len(same) < ROWS  # sureness and neighbours change their order only
