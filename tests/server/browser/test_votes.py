"""Votes in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.server.browser.pages import SOON, collection_of, order, wait_for_message
from tests.server.live_server import LiveServer


def test_thumb_changes_the_ranking(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    before = order(page)
    version = collection_of(server).stats()["version"]
    page.locator(".now .thumb.down").first.click()
    page.locator("#message", has_text=f"version {version + 1}").wait_for(timeout=SOON)
    assert order(page) != before
    assert page.locator(".now .delta").count() == page.locator(".now .changed").count() > 0
    assert page.locator(".then .delta").count() == 0
    liked = order(page)[2]
    page.locator(".now .thumb.up").nth(2).click()
    wait_for_message(page, f"version {version + 2}")
    page.locator(f".now .card:has-text('{liked}') .thumb.up[aria-pressed=true]").wait_for(timeout=SOON)
    after = order(page)
    page.reload()
    assert order(page) == after
    assert page.locator(f".now .card:has-text('{liked}') .thumb.up[aria-pressed=true]").count() == 1
