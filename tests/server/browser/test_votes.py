"""Votes in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import stillhash
from tests.server.browser.pages import THEMES, collection_of, fill, order, settle, wait_for_message
from tests.server.browser.test_axe import AXE, come_to_rest, violations
from tests.server.live_server import LiveServer, live_server

TOP_OF_RESULTS = "document.querySelector('#results').getBoundingClientRect().top + scrollY"


def pressed(page: Any) -> list[tuple[str, str]]:
    """Return the items whose thumbs are pressed, and which."""
    script = """all => all.map(thumb => [thumb.closest(".card").querySelector(".id bdi").textContent,
                                         thumb.classList.contains("up") ? "up" : "down"])"""
    return [tuple(pair) for pair in page.locator(".now .thumb[aria-pressed=true]").evaluate_all(script)]


def test_thumb_changes_the_ranking(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    before = order(page)
    version = collection_of(server).stats()["version"]
    page.locator(".now .thumb.down").first.click()
    wait_for_message(page, f"version {version + 1}")
    assert order(page) != before
    assert page.locator(".now .delta").count() == page.locator(".now .changed").count() > 0
    assert page.locator(".then .delta").count() == 0
    liked = order(page)[2]
    page.locator(".now .thumb.up").nth(2).click()
    wait_for_message(page, f"version {version + 2}")
    assert pressed(page) == [(liked, "up")]
    after = order(page)
    page.reload()
    assert order(page) == after and pressed(page) == [(liked, "up")]


@pytest.mark.smoke
def test_a_liked_hit_moves_to_the_first_place_and_keeps_the_focus(
    server: LiveServer, visit: Callable[..., Any]
) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    liked = order(page)[4]
    page.locator(".now .thumb.up").nth(4).click()
    wait_for_message(page, "moved from 5 to 1")
    assert order(page)[0] == liked and liked in page.locator("#message .voted").inner_text()
    page.wait_for_function("document.activeElement.matches('.now .card:first-child .thumb.up')")
    assert page.locator("#message a", has_text="Show it").count() == 0
    outcome = page.locator("#message").inner_text()
    known = set(order(page))
    page.locator("#undo").click()
    wait_for_message(page, "moved from 1 to 5")
    assert f"{len(known - set(order(page)))} new" in outcome or known == set(order(page))


def test_a_disliked_hit_leaves_and_undo_restores_the_order(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    before, feedback = order(page), collection_of(server).stats()["feedback"]
    page.locator(".now .thumb.down").nth(2).click()
    wait_for_message(page, "now last")
    assert before[2] not in order(page) and pressed(page) == []
    page.wait_for_function("document.activeElement.closest('.card') === document.querySelectorAll('.now .card')[2]")
    assert page.locator("#message a", has_text="Show it").get_attribute("href").endswith(f"like={before[2]}")
    page.locator("#undo").click()
    wait_for_message(page, "vote taken back")
    assert order(page) == before and collection_of(server).stats()["feedback"] == feedback
    page.locator("#undo", has_text="Redo").click()
    wait_for_message(page, "now last")
    page.keyboard.press("z")
    wait_for_message(page, "vote taken back")
    assert order(page) == before


def test_the_pressed_thumb_takes_its_vote_back(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    before = order(page)
    page.locator(".now .thumb.up").nth(6).click()
    wait_for_message(page, "moved from 7 to 1")
    assert pressed(page) == [(before[6], "up")]
    page.keyboard.press("u")  # the focus is on it
    wait_for_message(page, "vote taken back")
    assert order(page) == before and pressed(page) == []
    assert collection_of(server).votes() == []


def test_undo_goes_back_to_the_vote_before(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    liked = order(page)[3]
    page.locator(".now .thumb.up").nth(3).click()
    wait_for_message(page, "moved from 4 to 1")
    first = order(page)
    page.locator(".now .thumb.down").first.click()
    wait_for_message(page, "now last")
    page.locator("#undo").click()
    wait_for_message(page, "moved to 1")
    assert order(page) == first and pressed(page) == [(liked, "up")]


def test_my_votes_are_listed_and_taken_back(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    before = order(page)
    collection_of(server).feedback(collection_of(server).reconstruct([78])[0], 79, "up", source="another")
    page.locator(".now .thumb.up").nth(3).click()
    wait_for_message(page, "moved from 4 to 1")
    page.locator(".now .thumb.down").nth(1).click()
    wait_for_message(page, "now last")
    page.get_by_role("link", name="My votes").click()
    page.wait_for_url("**/votes")
    rows = page.locator(".vote-list li:not(.heads)")
    expect(rows.locator(".cast")).to_have_text(["down", "up"], use_inner_text=True)  # the latest first
    assert rows.locator(".query-item bdi").all_inner_texts() == ["77", "77"]
    assert rows.locator(".item bdi").last.inner_text() == before[3]
    assert rows.locator("time").first.inner_text() == "just now"
    rows.last.get_by_role("button").click()
    page.locator(".message", has_text=f"The vote on {before[3]} is taken back").wait_for()
    expect(rows.locator(".cast")).to_have_text(["down"], use_inner_text=True)
    settle(page)
    rows.first.get_by_role("button").click()
    page.get_by_text("You have not voted yet").wait_for()
    assert [vote.source for vote in collection_of(server).votes()] == ["another"]
    page.goto(f"{server.url}/c/toys?like=77")
    assert pressed(page) == []


def test_thumbs_stay_pressed_after_a_restart(tmp_path: Path, visit: Callable[..., Any]) -> None:
    with live_server({"toys": fill(tmp_path / "toys")}) as server:
        page = visit(f"{server.url}/c/toys?like=77")
        page.locator(".now .thumb.up").nth(5).click()
        wait_for_message(page, "moved from 6 to 1")
        expected = pressed(page), order(page)
    with live_server({"toys": stillhash.open(tmp_path / "toys")}) as server:
        page = visit(f"{server.url}/c/toys?like=77")
        assert (pressed(page), order(page)) == expected
        page.get_by_role("link", name="My votes").click()
        expect(page.locator(".vote-list .query-item .thing[href*=like]")).to_have_count(1)


def test_nothing_jumps_when_a_message_appears(server: LiveServer, visit: Callable[..., Any]) -> None:
    for theme in ("light", "phone"):
        page = visit(f"{server.url}/c/toys?like=77", **THEMES[theme])
        top = page.evaluate(TOP_OF_RESULTS)
        page.locator(".now .thumb.up").nth(1).click()
        wait_for_message(page, "to 1" if theme == "light" else "")
        page.locator("#undo").wait_for()
        settle(page)
        assert page.evaluate(TOP_OF_RESULTS) == top
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("theme", THEMES)
def test_votes_break_no_rule_of_axe(server: LiveServer, visit: Callable[..., Any], theme: str) -> None:
    page = visit(f"{server.url}/c/toys?like=77", **THEMES[theme])
    for thumb, said in ((".now .thumb.up", "to 1"), (".now .thumb.down", "now last")):
        page.locator(thumb).nth(3).click()
        wait_for_message(page, said)
        come_to_rest(page)
        page.evaluate(AXE)
        assert page.evaluate("axe.run('.vote-line').then(result => result.violations.map(rule => rule.id))") == []
    page.goto(f"{server.url}/c/toys/votes")
    page.locator(".vote-list .cast").first.wait_for()
    assert violations(page) == []
