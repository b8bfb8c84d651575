"""Explanations in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stillhash
from tests.server.browser.pages import THEMES, collection_of, order, settle, wait_for_message
from tests.server.browser.test_axe import come_to_rest
from tests.server.live_server import LiveServer, live_server
from tests.support.toys import toy


def open_why(page: Any, number: int, side: str = ".now") -> Any:
    page.locator(f"{side} .why").nth(number).click()
    page.locator("#why[open] #why-title").wait_for()
    settle(page)
    return page.locator("#why")


@pytest.mark.smoke
def test_it_says_in_words_what_the_model_sees(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{shared.url}/c/toys?like=77")
    collection = collection_of(shared)
    hit = order(page)[1]
    answer = collection.search(collection.reconstruct([77])[0], 13, explain=0)
    expected = next(one.explanation for one in answer.hits if str(one.id) == hit)
    assert expected is not None and expected.shared_labels and expected.similarity is not None
    why = open_why(page, 1)
    assert "Same labels: " in why.locator(".reasons").inner_text()
    assert str(expected.shared_labels[0].label)[:60] in why.locator(".reasons").inner_text()  # long ones are cut
    assert f"similar by {round(100 * expected.similarity)} %" in why.locator(".reasons").inner_text()
    assert str(expected.shared_labels[0].label) == why.locator(".label-bars tbody th").first.inner_text()
    assert why.locator(".pair img").count() == 2
    assert why.locator(".ranks dd").first.text_content() == "2"
    assert why.locator(".ranks dt").all_text_contents() == ["now", "before learning", "Hamming distance"]


def test_bits_are_folded_and_escape_returns_the_focus(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{shared.url}/c/toys?like=77")
    for side in (".now", ".then"):
        why = open_why(page, 1, side)
        assert not why.locator(".bars").is_visible()
        why.locator(".bits summary").click()
        assert why.locator(".bars").is_visible() and why.locator(".bars rect").count() == 8
        assert why.locator(".ranks dd").first.text_content() == "2"
        page.keyboard.press("Escape")
        page.locator("#why:not([open])").wait_for(state="attached")
        page.wait_for_function(f"document.activeElement === document.querySelectorAll('{side} .why')[1]")


def test_it_says_that_a_vote_placed_a_hit(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    page.locator(".now .thumb.up").nth(4).click()
    wait_for_message(page, "moved from 5 to 1")
    why = open_why(page, 0)
    assert "1 thumb up puts it first in this search." in why.inner_text()


def test_words_are_explained_by_both_ranks(tmp_path: Path, visit: Callable[..., Any]) -> None:
    class Encoder:
        """Encodes every text as one of the toys."""

        has_images, has_text, name = False, True, "toys"

        def text(self, query: str) -> Any:
            return toy(700, 24, 6).X[77]

    X, Y = toy(700, 24, 6)
    texts = [{"text": f"a {'red' if row % 5 else 'green'} thing of row {row}"} for row in range(700)]
    labels = [[f"label {c}" for c, has in enumerate(y) if has] for y in Y]
    collection = stillhash.open(tmp_path / "c", 24, 64, init_rows=300, learn_rows=100, lexical_field="text")
    collection.add(range(700), X, labels, texts)
    with live_server({"c": collection}, query_encoders={"c": Encoder()}) as server:
        page = visit(f"{server.url}/c/c?words=green")
        why = open_why(page, 0)
        assert re.search(r"It is \d+ by its words|It is \d+ by likeness", why.inner_text())
        assert "green" in why.locator("blockquote").first.inner_text()


def test_it_fits_a_phone(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{shared.url}/c/toys?like=77", **THEMES["phone"])
    why = open_why(page, 0)
    come_to_rest(page)
    box = why.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["height"] <= 844
    assert page.evaluate("document.querySelector('#why').scrollWidth <= document.querySelector('#why').clientWidth")
