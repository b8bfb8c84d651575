"""Iterating over items: the order of `ids`, page by page, also while another thread writes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stillhash
from stillhash.collection.storage.items import ITEM_BYTES
from stillhash.errors import InvalidInput, WrongType
from tests.collection.fixtures import begin, some_rows
from tests.collection.test_listing import FILTERS


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Any:
    collection, _ = begin(tmp_path_factory.mktemp("items") / "c", 320)
    collection.upsert([f"t{r}" for r in range(60)], *some_rows(60, seed=3))
    collection.delete([1, 2, 3, "t7"])
    with collection:
        yield collection


@pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
@given(
    where=st.sampled_from(FILTERS),
    after=st.sampled_from([None, -1, 5, 319, "a", "t5", "z"]),
    limit=st.none() | st.integers(1, 400),
    batch=st.integers(1, 400),
)
@settings(max_examples=60)
def test_items_are_those_of_ids(collection: Any, where: Any, after: Any, limit: int | None, batch: int) -> None:
    ids = collection.ids(where, after=after, limit=limit or 1000)
    items = list(collection.items(where, after=after, limit=limit, batch=batch))
    assert [item.id for item in items] == ids
    assert items == collection.get(ids)


def test_a_page_has_no_more_bytes_than_allowed_but_one_item(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 0)
    collection.add(range(9), some_rows(9).X, metadata=[{"text": "x" * 1000}] * 9)
    sizes = {most: len(collection.list_items(max_bytes=most)) for most in (1, 1000 + ITEM_BYTES, 3500, 10**6)}
    assert sizes == {1: 1, 1000 + ITEM_BYTES: 1, 3500: 3, 10**6: 9}
    assert [item.id for item in collection.list_items(after=4, max_bytes=3500)] == [5, 6, 7]


def test_items_is_lazy_and_sees_later_commits(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 30)
    items = collection.items(batch=10)
    first = [next(items).id for _ in range(10)]
    collection.delete([3, 15])
    collection.add([100, -100], *some_rows(2, seed=4))
    assert first + [item.id for item in items] == [r for r in range(30) if r != 15] + [100]


@pytest.mark.medium
def test_no_item_is_returned_twice_or_skipped_while_another_thread_writes(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    done = threading.Event()

    def write() -> None:
        for n in range(40):
            collection.upsert([f"n{n}", n], *some_rows(2, seed=n))
            if n % 10 == 0:
                collection.compact()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    rounds = 0
    while not done.is_set() or not rounds:
        ids = [item.id for item in collection.items(batch=7)]
        assert len(set(ids)) == len(ids) and set(range(320)) <= set(ids)
        rounds += 1
    writer.join()
    collection.close()


def test_invalid_arguments_are_refused_before_the_first_item(collection: stillhash.Collection) -> None:
    for arguments in ({"limit": 0}, {"batch": 0}, {"where": {"a": {}}}):
        with pytest.raises(InvalidInput, match=f"^{next(iter(arguments))}:"):
            collection.items(**arguments)  # type: ignore[arg-type]
    with pytest.raises(WrongType, match=r"^ids"):
        collection.items(after=1.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^max_bytes:"):
        collection.list_items(max_bytes=0)
