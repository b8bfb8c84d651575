"""Cards: labels that fit, the labels of the query first; ids cut in the middle; fields; and how pages go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stillhash
from stillhash.collection import Item
from stillhash.server.pages.cards import CHIP_LENGTH, describe_items, fit_labels, next_hits, short_fields, split_id
from stillhash.server.pages.queries import COLUMN_HITS, MAX_PAGE_HITS, MAX_PAGES, PageOptions

LABEL = st.text("abc", min_size=1, max_size=12)


@given(labels=st.lists(LABEL, unique=True, max_size=8), known=st.lists(LABEL), length=st.integers(1, 60))
def test_labels_fit_and_none_is_lost(labels: list[str], known: list[str], length: int) -> None:
    shown, rest = fit_labels(labels, known, length)
    shared = [label for label in labels if label in known]
    assert [one.text for one in shown] + rest == shared + [label for label in labels if label not in known]
    assert all(one.shared == (one.text in known) for one in shown) and bool(shown) == bool(labels)
    if len(shown) > 1:
        assert sum(len(one.text) + CHIP_LENGTH for one in shown) <= length


@given(st.text(max_size=60) | st.integers())
def test_parts_of_an_id_are_the_id(name: str | int) -> None:
    head, tail = split_id(name)
    assert head + tail == str(name) and (not tail or len(head) > 2)


def test_ids_keep_their_end() -> None:
    assert split_id("archive/box-17/scan-00042.png") == ("archive/box-17/scan-0", "0042.png")
    assert split_id("000042.jpg") == ("000042.jpg", "")
    assert split_id("a" * 20 + "e\u0301" + "b" * 7) == ("a" * 20, "e\u0301" + "b" * 7)


def test_items_without_pictures_have_fields(tmp_path: Path) -> None:
    items: list[Any] = [{"text": "a"}, None, {"image": "x.png"}, {"n": 1, "long": "y" * 99, "list": [1], "s": "t"}]
    with stillhash.open(tmp_path / "c", 4, 32) as collection:
        ids = ["text", "stored", "named", "plain"]
        collection.add(ids, [[1, 2, 3, 4]] * 4, [["a"]] * 4, items, pictures=[None, b"GIF89a picture", None, None])
        assert collection.has_picture([*ids, "nobody", "stored"]) == [False, True, False, False, False, True]
        cards = describe_items(collection, [item for item in collection.get(ids) if item], ["a"])
    assert [(bool(one["text"]), one["picture"], one["fields"]) for one in cards] == [
        (True, False, ""),
        (False, True, ""),
        (False, True, ""),
        (False, False, "n 1 · s t"),
    ]
    assert short_fields(Item("a", [], None)) == ""


@pytest.mark.parametrize("has_more", [True, False])
def test_hits_are_added_to_a_page_and_then_on_others(has_more: bool) -> None:
    seen, options = list(range(COLUMN_HITS)), PageOptions()
    while (following := next_hits(options, has_more))["more_hits"]:
        options = options._replace(hits=following["more_hits"])
        seen = list(range(options.last))
    while (number := next_hits(options, has_more)["next_page"]) is not None:
        assert next_hits(options._replace(page=number), has_more)["previous_page"] == options.page
        options = options._replace(page=number)
        seen += range(options.last - options.hits, options.last)
    assert seen == list(range(MAX_PAGE_HITS * MAX_PAGES if has_more else COLUMN_HITS))
