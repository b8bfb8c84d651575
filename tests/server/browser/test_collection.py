"""The collection page in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.server.live_server import LiveServer


def test_collection_is_verified(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys/collection")
    assert "every code is scored" in page.locator("main").text_content()
    page.get_by_role("button", name="Verify").click()
    page.locator("#verified .good").wait_for()
    page.locator("select[data-visit]").select_option(label="few")
    page.wait_for_url("**/c/few/collection")
    assert "20 of 3,000 rows" in page.locator(".health").text_content()
