"""Errors, a stopped server and keys, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhash.server import Keys, Settings
from tests.server.browser.pages import fill, order, wait_for_message
from tests.server.live_server import LiveServer, live_server


def test_errors_are_shown(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/nowhere")
    assert page.locator("h1").text_content() == "There is nothing here"
    page.goto(f"{server.url}/c/toys?like=nobody")
    assert "nobody" in page.locator(".state.miss").text_content() and page.locator(".state.error").count() == 0
    page.goto(f"{server.url}/c/empty")
    assert "Nothing is stored yet" in page.locator("main").text_content()
    page.goto(f"{server.url}/c/empty/learning")
    page.locator("#curve .few").wait_for()
    page.goto(f"{server.url}/c/few?like=3")
    assert "cosine of raw features" in page.locator(".notice").text_content()
    page.goto(f"{server.url}/c/toys?like=77")
    server.executor("toys").max_queued = 0
    page.locator(".now .thumb.up").first.click()
    page.locator("#error", has_text="writes are waiting").wait_for()
    page.get_by_role("button", name="Close this message").click()
    page.locator("#error").wait_for(state="hidden")


def test_stopped_server_is_noticed(tmp_path: Path, visit: Callable[..., Any]) -> None:
    with live_server({"toys": fill(tmp_path / "toys")}) as server:
        page = visit(f"{server.url}/c/toys?like=77")
        learning = visit(f"{server.url}/c/toys/learning")
        learning.locator("#live.on").wait_for()
    page.locator(".now .thumb.up").first.click()
    page.locator("#error", has_text="does not answer").wait_for()
    learning.locator("#live.off", has_text="no events").wait_for()


@pytest.mark.smoke
def test_sign_in_with_a_key(tmp_path: Path, visit: Callable[..., Any]) -> None:
    reading, writing = "reading-" * 3, "writing-" * 3
    voting = "voting-" * 3
    settings = Settings(keys=Keys((reading,), (writing,), feedback=(voting,)))
    with live_server({"toys": fill(tmp_path / "toys")}, settings) as server:
        page = visit(f"{server.url}/c/toys?like=77")
        page.get_by_label("Key").fill("not a key at all")
        page.keyboard.press("Enter")
        page.locator("#key-error", has_text="unknown").wait_for()
        page.get_by_label("Key").fill(reading)
        page.keyboard.press("Enter")
        page.wait_for_url("**like=77")
        assert len(order(page)) == 12
        assert page.locator(".thumb, .edit-labels").count() == 0  # of what the key may not do
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/login")
        page.get_by_label("Key").fill(voting)
        page.keyboard.press("Enter")
        page.wait_for_url("**/c/toys")
        assert page.locator(".sign-out", has_text="env-feedback-1").count() == 1
        page.goto(f"{server.url}/c/toys?like=77")
        page.locator(".now .thumb.up").first.click()
        wait_for_message(page, "Learnt as version")
        assert page.locator(".edit-labels").count() == 0
        page.context.clear_cookies()
        page.locator(".now .thumb.up").first.click()  # of a session that has ended
        page.wait_for_url("**/login?next=*")
        page.get_by_label("Key").fill(writing)
        page.keyboard.press("Enter")
        page.wait_for_url("**like=77")
        assert page.locator(".edit-labels").count() == 1
