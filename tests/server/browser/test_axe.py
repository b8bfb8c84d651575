"""No page breaks a rule of axe-core: names, roles, landmarks, contrast of WCAG AA, in light, in dark and on a phone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stillhash.server.app import ROUTERS
from stillhash.server.pages.rendering import PageRoute
from tests.server.browser.pages import THEMES, settle
from tests.server.live_server import LiveServer

AXE = (Path(__file__).parents[2] / "support" / "axe" / "axe.min.js").read_text(encoding="utf-8")
PAGES = {  # the path of each page, and addresses that show it in its different states
    "/c/{name}": [
        "/c/toys",
        "/c/toys?like=77",
        "/c/toys?search=label 3",
        "/c/toys?like=nothing",
        "/c/few?like=3",
        "/c/empty",
    ],
    "/c/{name}/learning": ["/c/toys/learning", "/c/empty/learning"],
    "/c/{name}/compare": ["/c/toys/compare", "/c/toys/compare?a=1&at=9", "/c/empty/compare"],
    "/c/{name}/collection": ["/c/toys/collection", "/c/empty/collection"],
    "/c/{name}/doubtful_labels": ["/c/toys/doubtful_labels"],
    "/c/{name}/votes": ["/c/toys/votes"],
    "/c/{name}/teach": ["/c/toys/teach?sitting=axe", "/c/empty/teach?sitting=axe"],
    "/collections": ["/collections"],
    "/new": ["/new"],
    "/docs": ["/docs"],
}
PARTS = {  # not pages
    "/",
    *("/c/{name}/events", "/c/{name}/explain", "/c/{name}/label_quality", "/c/{name}/picture", "/c/{name}/select"),
    *("/c/{name}/teach/items", "/c/{name}/teach/progress", "/c/{name}/steps", "/c/{name}/versions"),
    "/c/{name}/suggest",
    *("/c/{name}/duplicates", "/c/{name}/import", "/c/{name}/tasks", "/c/{name}/tasks/{id}/file"),
}
SIGNED_OUT = {"/login"}  # a server without keys has no such page


def violations(page: Any) -> list[str]:
    """Return what axe-core finds on the page as it is now: the rule, and the first element that breaks it."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    found = page.evaluate("axe.run().then(result => result.violations)")
    return [f"{rule['id']}: {rule['nodes'][0]['html']} {rule['nodes'][0]['failureSummary']}" for rule in found]


def come_to_rest(page: Any) -> None:
    """Wait until nothing loads and nothing moves."""
    page.wait_for_load_state("load")
    settle(page)
    page.evaluate("Promise.all(document.getAnimations().map(one => one.finished.catch(() => null)))")


@pytest.mark.parametrize("theme", THEMES)
def test_pages_break_no_rule(
    shared: LiveServer, visit: Callable[..., Any], theme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(shared.app.state.stillhash.settings, collections_folder=tmp_path)  # so that some can be created
    monkeypatch.setattr(shared.app.state, "stillhash", shared.app.state.stillhash._replace(settings=settings))
    page = visit(shared.url, **THEMES[theme])
    problems = {}
    for address in (one for addresses in PAGES.values() for one in addresses):
        page.goto(shared.url + address)
        come_to_rest(page)
        problems[address] = violations(page)
    assert problems == {address: [] for address in problems}


@pytest.mark.smoke
def test_every_page_is_examined() -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, PageRoute)]
    assert {route.path for route in routes if "GET" in (route.methods or ())} == PAGES.keys() | PARTS | SIGNED_OUT


@pytest.mark.parametrize("theme", THEMES)
def test_opened_parts_break_no_rule(shared: LiveServer, visit: Callable[..., Any], theme: str) -> None:
    page = visit(f"{shared.url}/c/toys?like=77", **THEMES[theme])
    page.locator(".now .why").first.click()
    page.locator("#why[open]").wait_for()
    come_to_rest(page)
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.locator("#why:not([open])").wait_for(state="attached")
    page.locator(".snippets summary").click()
    assert violations(page) == []
    page.goto(f"{shared.url}/docs")
    page.locator("#operations-tag-search button").first.click()
    page.locator("#operations-search-search_v1_collections__name__search_post button").first.click()
    page.get_by_text("Try it out").first.wait_for()
    come_to_rest(page)
    assert violations(page) == []


def test_axe_finds_a_violation(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{shared.url}/c/toys")
    page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<button></button><img src=x>')")
    assert {problem.partition(":")[0] for problem in violations(page)} == {"button-name", "image-alt"}
