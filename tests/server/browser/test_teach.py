"""The Teach page in a real browser: every answer by single keys, and none of them lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

import stillhash
from stillhash import Collection
from stillhash.server import Keys, Settings
from tests.server.browser.pages import THEMES
from tests.server.live_server import LiveServer, live_server
from tests.support.toys import toy
from tests.support.waiting import until

NAMES = [f"label {c}" for c in range(12)]
ROWS, LABELLED = 600, 320


def teachable(path: Path, labels: int = 12) -> Collection:
    """Return a collection of which the first rows have labels, one or more, and the others none."""
    X, Y = toy(ROWS, 24, labels)
    collection = stillhash.open(path, 24, 64, init_rows=300, learn_rows=100, codes_see_labels=False)
    own = [[NAMES[c] for c in np.flatnonzero(y)] if row < LABELLED else [] for row, y in enumerate(Y)]
    collection.add(range(ROWS), X, own)
    collection.flush()
    return collection


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    fresh = stillhash.open(tmp_path / "fresh", 4, 32)
    fresh.add(range(40), np.random.default_rng(0).standard_normal((40, 4)))
    collections = {"toys": teachable(tmp_path / "toys"), "fresh": fresh}
    with live_server(collections) as server:
        yield server


@pytest.fixture
def collection(server: LiveServer) -> Collection:
    return server.executor("toys").collection


def shown(page: Any) -> Any:
    """Return the item that the page shows."""
    return page.locator(".teach-item:visible")


def current_id(page: Any) -> Any:
    return json.loads(shown(page).get_attribute("data-id"))


def chosen(page: Any) -> list[str]:
    labels: list[str] = shown(page).locator(".choice:has(:checked) bdi").all_text_contents()
    return sorted(labels)


def wait_until_saved(page: Any) -> None:
    page.locator('#saved[data-state="ok"][data-waiting="0"]').wait_for()


def labels_of(collection: Collection, id_: Any) -> list[Any]:
    (item,) = collection.get([id_])
    assert item is not None
    return item.labels


def press_number(page: Any, number: int) -> list[str]:
    """Choose this label as well, or no longer, and return what is chosen."""
    page.keyboard.press(str(number))
    return chosen(page)


def accept(page: Any, number: int) -> tuple[Any, list[str]]:
    """Label the item by the keyboard only, with a label at least, and return it with its labels."""
    id_, labels = current_id(page), press_number(page, number)
    if not labels:
        labels = press_number(page, number)
    page.keyboard.press("Enter")
    return id_, labels


def test_thirty_items_are_labelled_by_the_keyboard(
    server: LiveServer, collection: Collection, visit: Callable[..., Any]
) -> None:
    page = visit(f"{server.url}/c/toys/teach?sitting=one&one=0")
    before = set(collection.ids({"labels": {"$exists": False}}, limit=1000))
    version = collection.stats()["version"]
    answers = dict(accept(page, 1 + number % 3) for number in range(30))
    wait_until_saved(page)
    assert len(answers) == 30 and answers.keys() <= before
    assert {id_: labels_of(collection, id_) for id_ in answers} == answers
    assert set(collection.ids({"labels": {"$exists": False}}, limit=1000)) == before - answers.keys()
    expect(page.locator('[data-figure="labelled"]')).to_have_text("30")
    expect(page.locator('[data-figure="total"]')).to_have_text(str(LABELLED + 30))
    assert collection.stats()["version"] > version  # they were learnt in between
    page.locator("#learn-now").click()
    page.locator("#saved", has_text="Learnt as version").wait_for()
    assert collection.stats()["pending"] == 0
    expect(page.locator('[data-figure="explained"]')).to_contain_text("nDCG@10")


def test_figures_of_before_an_answer_are_not_shown_after_it(server: LiveServer, visit: Callable[..., Any]) -> None:
    page, held = visit(f"{server.url}/c/toys/teach?sitting=one&one=0"), list[Any]()
    page.route("**/teach/progress?*", lambda route: held.append((route, route.fetch())), times=1)
    accept(page, 1)
    wait_until_saved(page)
    page.locator("#learn-now").click()
    until(lambda: page.evaluate("true") and held, "request")  # each call lets playwright handle what came
    ((route, reply),) = held
    accept(page, 1)
    wait_until_saved(page)
    assert reply.json()["labelled"] == 1
    route.fulfill(response=reply)
    page.locator("#saved", has_text="Learnt as version").wait_for()
    expect(page.locator('[data-figure="labelled"]')).to_have_text("2")
    expect(page.locator('[data-figure="total"]')).to_have_text(str(LABELLED + 2))


def test_undo_reject_and_skip(server: LiveServer, collection: Collection, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys/teach?sitting=one&one=0")
    first, labels = accept(page, 1)
    wait_until_saved(page)
    assert labels_of(collection, first) == labels
    page.keyboard.press("z")
    assert current_id(page) == first and chosen(page) == labels
    wait_until_saved(page)
    assert labels_of(collection, first) == [] and collection.stats()["pending"] == 0
    page.keyboard.press("x")
    rejected = first
    skipped = current_id(page)
    page.keyboard.press("s")
    last, labels = accept(page, 2)
    page.keyboard.press("z")  # while its answer may be on its way
    page.keyboard.press("z")
    assert current_id(page) == skipped
    page.keyboard.press("s")
    assert accept(page, 2)[0] == last
    wait_until_saved(page)
    assert labels_of(collection, rejected) == labels_of(collection, skipped) == []
    assert labels_of(collection, last) != []
    page.reload()
    expect(page.locator('[data-figure="labelled"]')).to_have_text("1")
    ids = {json.loads(one.get_attribute("data-id")) for one in page.locator(".teach-item").all()}
    assert not ids & {rejected, skipped, last}
    other = visit(f"{server.url}/c/toys/teach?sitting=two")  # nobody else is shown the same items
    others = {json.loads(one.get_attribute("data-id")) for one in other.locator(".teach-item").all()}
    assert others and not others & (ids | {rejected})


def test_other_labels_are_typed(server: LiveServer, collection: Collection, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/fresh/teach?sitting=one&one=0")
    page.keyboard.press("Enter")  # nothing is chosen
    page.locator("#saved", has_text="Choose a label").wait_for()
    first = current_id(page)
    page.keyboard.press("/")
    page.keyboard.type("cat, <b>sea</b>")
    page.keyboard.press("Enter")
    assert chosen(page) == ["<b>sea</b>", "cat"]
    page.keyboard.press("Enter")
    second = current_id(page)
    assert press_number(page, 1) == ["cat"]  # what was typed is a choice of the next items
    page.keyboard.press(" ")
    wait_until_saved(page)
    fresh = server.executor("fresh").collection
    assert (labels_of(fresh, first), labels_of(fresh, second)) == (["<b>sea</b>", "cat"], ["cat"])


@pytest.mark.smoke
def test_a_number_answers_at_once(server: LiveServer, collection: Collection, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys/teach?sitting=one&one=1")
    answers = {}
    for number in range(5):
        label = shown(page).locator(".choice bdi").nth(number).text_content()
        answers[current_id(page)] = [label]
        page.keyboard.press(str(number + 1))
    wait_until_saved(page)
    assert {id_: labels_of(collection, id_) for id_ in answers} == answers and len(answers) == 5


def test_a_server_that_refuses_writes_loses_nothing(
    server: LiveServer, collection: Collection, visit: Callable[..., Any]
) -> None:
    page = visit(f"{server.url}/c/toys/teach?sitting=one&one=0")
    executor = server.executor("toys")
    executor.max_queued, allowed = 0, executor.max_queued
    answers = dict(accept(page, 1) for _ in range(3))
    page.locator('#saved[data-state="failed"]', has_text="3 not saved yet").wait_for()
    assert all(labels_of(collection, id_) == [] for id_ in answers)
    page.reload()  # which does not lose them either
    page.locator('#saved[data-state="failed"]', has_text="3 not saved yet").wait_for()
    assert current_id(page) not in answers
    answers |= dict([accept(page, 2)])
    executor.max_queued = allowed
    wait_until_saved(page)
    assert {id_: labels_of(collection, id_) for id_ in answers} == answers and len(answers) == 4


def test_an_item_that_is_gone_is_said_and_the_rest_goes_on(
    server: LiveServer, collection: Collection, visit: Callable[..., Any]
) -> None:
    page = visit(f"{server.url}/c/toys/teach?sitting=one&one=0")
    collection.delete([current_id(page)])
    gone, _ = accept(page, 1)
    later, labels = accept(page, 1)
    wait_until_saved(page)
    assert page.locator("#error").is_visible() and str(gone) in page.locator("#error p").text_content()
    assert labels_of(collection, later) == labels


def test_without_the_role_the_page_says_so(tmp_path: Path, visit: Callable[..., Any]) -> None:
    keys = Keys(("r" * 40,), ("w" * 40,))
    with live_server({"toys": teachable(tmp_path / "toys")}, Settings(keys=keys)) as server:
        page = visit(f"{server.url}/login?next=/c/toys/teach")
        page.locator("input[name=key]").fill("r" * 40)
        page.keyboard.press("Enter")
        page.locator(".state", has_text="role write").wait_for()
        assert page.locator(".teach-item").count() == 0
        body = b"sitting=one&id=500&answer=accept&labels=%5B%22a%22%5D"
        form = {"content_type": "application/x-www-form-urlencoded", "hx_request": "true"}
        for key, status in (("r" * 40, 403), ("w" * 40, 200)):
            reply = server.request("POST", "/c/toys/teach/answer", body, authorization=f"Bearer {key}", **form)
            assert reply.status == status
        item = server.executor("toys").collection.get(500)
        assert item is not None and item.labels == ["a"]


@pytest.mark.parametrize("theme", THEMES)
def test_nothing_moves_and_nothing_is_too_wide(server: LiveServer, visit: Callable[..., Any], theme: str) -> None:
    page = visit(f"{server.url}/c/toys/teach?sitting={theme}&one=0", **THEMES[theme])
    place = page.locator(".teach-foot").bounding_box()
    for _ in range(3):
        accept(page, 1)
    wait_until_saved(page)
    assert page.locator(".teach-foot").bounding_box() == place
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
