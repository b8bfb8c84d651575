"""Every page fits its window and does not jump. STILLHASH_SCREENSHOTS names a folder for pictures of each."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.browser.pages import THEMES, wait_for_message
from tests.server.live_server import LiveServer


@pytest.mark.parametrize("theme", THEMES)
def test_layout_fits_and_does_not_jump(server: LiveServer, visit: Callable[..., Any], theme: str) -> None:
    shots = os.environ.get("STILLHASH_SCREENSHOTS")
    page = visit(f"{server.url}/c/toys?like=77", **THEMES[theme])
    views = {"start": "toys", "search": "toys?like=77", "learning": "toys/learning", "collection": "toys/collection"}
    views |= {"few": "few?like=3", "empty": "empty", "error": "nowhere"}
    for name, path in views.items():
        page.goto(f"{server.url}/c/{path}")
        if name == "learning":
            page.locator("#live.on").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        if shots:
            page.screenshot(path=Path(shots) / f"{name}-{theme}.png", full_page=True)
    page.goto(f"{server.url}/c/toys?like=77")
    cards = "[...document.querySelectorAll('.now .card')]"  # which may be others after a vote, and of other heights
    places = f"[{cards}[0].offsetTop, ...{cards}.map(c => c.offsetLeft)]"
    before = page.evaluate(places)
    page.locator(".now .thumb.down").first.click()
    wait_for_message(page, "Learnt as version")
    assert page.evaluate(places) == before
    if shots:
        page.screenshot(path=Path(shots) / f"thumb-{theme}.png", full_page=True)
