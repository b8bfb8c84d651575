"""The reference of the HTTP API in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.server.live_server import LiveServer


def test_every_request_is_listed_and_can_be_tried(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{shared.url}/c/toys")
    others: list[str] = []
    page.on("request", lambda request: None if request.url.startswith(shared.url) else others.append(request.url))
    page.get_by_role("link", name="HTTP API").click()
    page.wait_for_url("**/docs")
    page.locator("#operations-tag-server").wait_for()
    description = shared.request("GET", "/v1/openapi.json").json
    for tag in page.locator(".opblock-tag button").all():
        tag.click()
    page.wait_for_function(
        "count => document.querySelectorAll('.opblock').length === count",
        arg=sum(len(methods) for methods in description["paths"].values()),
    )
    health = page.locator(".opblock", has_text="/v1/health").first
    health.locator(".opblock-summary-control").click()
    health.get_by_role("button", name="Try it out").click()
    health.get_by_role("button", name="Execute").click()
    expect(health.locator(".live-responses-table .highlight-code").first).to_contain_text('"status": "ok"')
    assert others == []


@pytest.mark.smoke
def test_snippet_is_copied(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{shared.url}/c/toys?like=77")
    page.clock.install(time=0)
    page.clock.pause_at(1000)  # "Copied" is shown for a while, which the test ends
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".snippets summary").click()
    buttons = page.locator(".snippets button.copy")
    count = buttons.count()
    buttons.first.click()
    expect(buttons).to_have_text(["Copied", *["Copy"] * (count - 1)])
    assert page.evaluate("navigator.clipboard.readText()") == "stillhash search toys --like 77 -k 12"
    page.clock.run_for(1500)
    expect(buttons).to_have_text(["Copy"] * count)
