"""The collection page in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.server.browser.pages import HOSTILE, THEMES, collection_of, settle
from tests.server.live_server import LiveServer
from tests.support.toys import toy


@pytest.mark.smoke
def test_internals_are_folded_and_collections_selected(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{shared.url}/c/toys/collection")
    plan = page.locator(".internals dd", has_text="every code is scored")
    expect(plan).to_be_hidden()
    page.locator(".internals summary").click()
    expect(plan).to_be_visible()
    page.locator("select[data-visit]").select_option(label="few")
    page.wait_for_url("**/c/few/collection")
    assert "20 of 3,000 rows" in page.locator(".health").text_content()


@pytest.mark.parametrize("theme", THEMES)
def test_labels_and_fields_come_first(server: LiveServer, visit: Callable[..., Any], theme: str) -> None:
    collection = collection_of(server)
    ids = collection.ids(limit=10_000)
    texts = [HOSTILE[0], "plain"]
    fields = [{"year": 1990 + number % 30, HOSTILE[3]: texts[number % 2]} for number in range(len(ids))]
    collection.upsert(ids, metadata=fields)
    page = visit(f"{server.url}/c/toys/collection", **THEMES[theme])
    counts = {value.value: value.count for value in collection.facets().labels.values}
    labels = page.locator(".label-cards .label").all_text_contents()
    assert labels == list(counts) and HOSTILE[0] in labels
    numbers = [text.partition(" ")[0] for text in page.locator(".label-cards .count").all_text_contents()]
    assert numbers == [f"{count:,}" for count in counts.values()]
    assert set(page.locator(".field-list dt bdi").all_text_contents()) == {HOSTILE[3], "year"}
    assert page.locator(".field-list .range strong").all_text_contents() == ["1990", "2019"]
    assert page.title() != "taken" and page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    titles = page.locator("main h2").all_text_contents()
    assert titles[0].startswith("Labels") and titles.index("How it is stored") == len(titles) - 1
    page.locator(".value", has_text="plain").click()
    page.wait_for_url("**filter=**")


def test_near_duplicates_are_found_and_deleted(server: LiveServer, visit: Callable[..., Any]) -> None:
    collection, (X, _) = collection_of(server), toy(1200, 24, 6)
    collection.add([f"copy {row}" for row in range(45)], X[:45])
    (names, *rest), before = collection.duplicates(cosine=0.97), collection.count()
    assert names[0] == HOSTILE[0]
    page = visit(f"{server.url}/c/toys/collection")
    page.get_by_label("Find items that are").select_option("0.97")
    page.get_by_role("button", name="Find", exact=True).click()
    group = page.locator(".groups > li").first
    group.wait_for()
    settle(page)
    assert group.locator(".id").all_text_contents() == [str(name) for name in names]
    page.locator(".group img").first.wait_for()
    delete = group.get_by_role("button", name="Delete")
    expect(delete).to_be_hidden()  # before it is confirmed
    group.get_by_text("Keep only the first").click()
    expect(group).to_contain_text("cannot be undone", use_inner_text=True)
    delete.click()
    page.locator("#duplicate-groups .outcome", has_text="deleted").wait_for()
    settle(page)
    assert collection.count() == before - len(names) + 1 and collection.get(names[0]) is not None
    page.locator(".groups-head .confirm summary").click()
    page.locator(".groups-head").get_by_role("button", name="Delete").click()
    expect(page.locator(".groups-head strong").first).to_have_text(f"{len(rest) - 40:,}")
    assert collection.get(rest[0][0]) is not None and collection.get(rest[0][1]) is None
    assert collection.duplicates(cosine=0.97) == rest[40:] and page.title() != "taken"


def test_no_near_duplicates(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys/collection")
    page.get_by_role("button", name="Find", exact=True).click()
    page.locator("#duplicate-groups .outcome, #duplicate-groups .groups").first.wait_for()
    page.goto(f"{server.url}/c/few/collection")  # whose items have no codes yet
    page.get_by_role("button", name="Find", exact=True).click()
    page.locator("#duplicate-groups .outcome, #duplicate-groups .groups").first.wait_for()


def test_codes_begin_with_the_items_there_are(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/few/collection")
    page.get_by_role("button", name="Begin with these 20").click()
    page.locator(".health .good").wait_for()
    assert server.executor("few").collection.stats()["fitted"]


def test_an_empty_collection_says_how_to_begin(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{shared.url}/c/empty/collection")
    assert page.locator(".drop").is_visible() and "Client(" in page.locator("main").inner_text()
    assert page.locator("main h1").count() == 1
