"""Explanations in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.server.live_server import LiveServer


def test_explanation_opens_and_closes(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    for side in (".now", ".then"):
        page.locator(f"{side} .why").nth(1).click()
        page.locator("#why[open]").wait_for()
        assert page.locator("#why .bars rect").count() == 8
        assert page.locator("#why tbody tr td:nth-child(2)").first.text_content() == "2"
        page.keyboard.press("Escape")
        page.locator("#why:not([open])").wait_for(state="attached")
