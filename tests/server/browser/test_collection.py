"""The collection page in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.server.live_server import LiveServer


def test_internals_are_folded_and_collections_selected(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys/collection")
    plan = page.locator(".internals dd", has_text="every code is scored")
    assert not plan.is_visible()
    page.locator(".internals summary").click()
    assert plan.is_visible()
    page.locator("select[data-visit]").select_option(label="few")
    page.wait_for_url("**/c/few/collection")
    assert "20 of 3,000 rows" in page.locator(".health").text_content()
