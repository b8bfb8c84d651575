"""Hits in a real browser: keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.server.browser.pages import order, wait_for_message
from tests.server.live_server import LiveServer


def test_page_works_by_keyboard(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    focus = "document.activeElement.closest('.card')?.querySelector('.id bdi').textContent"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focus) == order(page)[0]
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focus) == order(page)[1]
    page.keyboard.press("ArrowDown")
    below = page.evaluate(focus)
    assert order(page).index(below) > 2
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focus) == order(page)[1]
    page.keyboard.press("e")
    page.locator("#why[open]").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    wait_for_message(page, "Learnt as version")
    assert page.evaluate(focus) in order(page)  # it is still among the hits
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("d")
    page.locator(".now .thumb.down[aria-pressed=true]").or_(page.locator(".now .changed")).first.wait_for()
    page.keyboard.press("r")
    page.wait_for_url(lambda url: "like=77" not in url)
    page.locator("#like").focus()
    page.keyboard.type("rude")  # no shortcuts in a text field
    assert page.locator("#like").input_value() == "rude"
