"""Hits that are selected and labelled together, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhash import Collection
from stillhash.server import Keys, Settings
from tests.server.browser.pages import THEMES, collection_of, fill, settle
from tests.server.live_server import LiveServer, live_server

ADDRESS = "/c/toys?like=77"


def names(page: Any) -> list[Any]:
    """Return the ids of the hits, best first."""
    return [json.loads(box.get_attribute("data-item")) for box in page.locator(".now .select-box input").all()]


def selected(page: Any) -> list[Any]:
    return [json.loads(box.get_attribute("data-item")) for box in page.locator(".select-box input:checked").all()]


def labels_of(collection: Collection, ids: list[Any]) -> list[list[Any]]:
    return [item.labels for item in collection.get(ids) if item is not None]


@pytest.mark.smoke
def test_hits_are_labelled_together_and_it_is_undone(server: LiveServer, visit: Callable[..., Any]) -> None:
    collection = collection_of(server)
    page = visit(server.url + ADDRESS)
    bar = page.locator("#select-bar")
    assert not bar.is_visible()
    page.keyboard.press("ArrowRight")  # to the first hit
    page.keyboard.press("m")
    page.keyboard.press("ArrowRight")
    page.keyboard.press(" ")
    ids = selected(page)
    assert ids == names(page)[:2] and page.locator("#select-count").text_content() == "2"
    own, version = labels_of(collection, ids), collection.stats()["version"]
    page.keyboard.press("l")
    page.keyboard.type("fresh, <i>new</i>")
    page.keyboard.press("Enter")
    page.locator("#select-message", has_text="Added fresh, <i>new</i> to 2 items").wait_for()
    assert labels_of(collection, ids) == [sorted([*labels, "fresh", "<i>new</i>"]) for labels in own]
    assert collection.stats()["version"] == version + 1 and not bar.is_visible()
    page.locator(".now .card", has_text="fresh").first.wait_for()  # the hits are shown with it
    settle(page)
    page.locator("#select-undo").click()
    page.locator("#select-message", has_text="Undone").wait_for()
    assert labels_of(collection, ids) == own
    assert not page.locator("#select-undo").is_visible()


def test_a_range_is_selected_and_labels_are_removed(server: LiveServer, visit: Callable[..., Any]) -> None:
    collection = collection_of(server)
    page = visit(server.url + ADDRESS)
    page.locator(".now .select-box input").nth(1).click()
    page.locator(".now .select-box input").nth(4).click(modifiers=["Shift"])
    ids = names(page)[1:5]
    assert selected(page) == ids
    label = next(label for labels in labels_of(collection, ids) for label in labels)
    having = [labels for labels in labels_of(collection, ids) if label in labels]
    page.locator("#select-labels").fill(label)
    page.locator("#select-bar button[value=remove]").click()
    page.locator("#select-message", has_text=f"from {len(having)} item").wait_for()
    settle(page)  # the hits are shown without it
    assert all(label not in labels for labels in labels_of(collection, ids))
    page.locator(".now .select-box input").first.click()
    page.keyboard.press("Escape")
    assert selected(page) == [] and not page.locator("#select-bar").is_visible()


def test_a_selection_survives_a_vote(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(server.url + ADDRESS)
    page.locator(".now .select-box input").nth(2).click()
    ids = selected(page)
    page.locator(".now .thumb.up").nth(2).click()
    page.locator(".now .thumb.up[aria-pressed=true]").wait_for()
    settle(page)
    assert selected(page) == ids and page.locator("#select-count").text_content() == "1"


def test_a_server_that_refuses_says_so_and_keeps_the_selection(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(server.url + ADDRESS)
    executor = server.executor("toys")
    executor.max_queued, allowed = 0, executor.max_queued
    page.locator(".now .select-box input").first.click()
    ids = selected(page)
    page.locator("#select-labels").fill("fresh")
    page.keyboard.press("Enter")
    page.locator("#select-message", has_text="Try again").wait_for()
    assert selected(page) == ids and page.locator("#select-labels").input_value() == "fresh"
    executor.max_queued = allowed
    page.keyboard.press("Enter")
    page.locator("#select-message", has_text="Added fresh to 1 item").wait_for()
    assert "fresh" in labels_of(collection_of(server), ids)[0]


def test_without_the_role_nothing_can_be_selected(tmp_path: Path, visit: Callable[..., Any]) -> None:
    keys = Keys(("r" * 40,), ("w" * 40,))
    with live_server({"toys": fill(tmp_path / "toys")}, Settings(keys=keys)) as server:
        page = visit(f"{server.url}/login?next={ADDRESS}")
        page.locator("input[name=key]").fill("r" * 40)
        page.keyboard.press("Enter")
        page.locator(".now .card").first.wait_for()
        page.locator(".now .select-box").first.wait_for(state="hidden")
        assert page.locator("#select-bar").count() == 0
        form = {"content_type": "application/x-www-form-urlencoded", "hx_request": "true"}
        body = b"verb=add&items=%5B77%5D&labels=a"
        reply = server.request("POST", "/c/toys/select", body, authorization=f"Bearer {'r' * 40}", **form)
        assert reply.status == 403


@pytest.mark.parametrize(
    "body",
    [
        b"verb=add&items=%5B77%5D&labels=",
        b"verb=add&items=%5B%5D&labels=a",
        b"verb=add&items=%5B%5B1%5D%5D&labels=a",
        b"verb=add&items=77&labels=a",
        b"verb=add&items=%5B&labels=a",
        b"verb=drop&items=%5B77%5D&labels=a",
        b"verb=restore&items=%5B77%5D",
        b"verb=add&items=%5B77%2C%22nobody%22%5D&labels=a",
    ],
)
def test_others_are_refused(shared: LiveServer, body: bytes) -> None:
    own = labels_of(collection_of(shared), [77])
    form = {"content_type": "application/x-www-form-urlencoded", "hx_request": "true"}
    assert shared.request("POST", "/c/toys/select", body, **form).status == 422
    assert labels_of(collection_of(shared), [77]) == own


@pytest.mark.parametrize("theme", THEMES)
def test_the_bar_lies_over_the_page(shared: LiveServer, visit: Callable[..., Any], theme: str) -> None:
    page = visit(shared.url + ADDRESS, **THEMES[theme])
    card = page.locator(".now .card").first
    place = card.evaluate("(card) => card.offsetTop")
    page.locator(".now .select-box input").first.click()
    page.locator("#select-bar").wait_for()
    assert card.evaluate("(card) => card.offsetTop") == place
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
