"""The map in a real browser: it draws what `layout` returns, and lists exactly the items that are selected."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from tests.server.browser.pages import HOSTILE, THEMES, WIDE, collection_of, settle
from tests.server.live_server import LiveServer
from tests.support.waiting import until

SIDES = ("features", "labels")
GROUND = [255, 255, 255]
COLOURS = {"--map-1": [0, 114, 178], "--map-2": [213, 94, 0]}


def open_map(server: LiveServer, visit: Callable[..., Any], query: str = "", **options: Any) -> Any:
    page = visit(f"{server.url}/c/toys/map{query}", **options)
    page.locator(".map[data-drawn]").wait_for()
    return page


def shown(page: Any, name: str) -> str:
    text: str = page.locator(".map").get_attribute(f"data-{name}")
    return text


def drag(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    box = page.locator("#map-marks").bounding_box()
    page.mouse.move(box["x"] + start[0], box["y"] + start[1])
    page.mouse.down()
    page.mouse.move(box["x"] + end[0], box["y"] + end[1], steps=4)
    page.mouse.up()


def state(page: Any) -> dict[str, str]:
    """Return the parameters of the address as it is now."""
    return {name: values[0] for name, values in parse_qs(page.evaluate("location.search.slice(1)")).items()}


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def listed(page: Any) -> list[Any]:
    """Return the ids of all items that the panel lists, after asking for all of them."""
    page.locator("#map-total").wait_for()
    total = int(page.locator("#map-total").text_content().replace(",", ""))
    while page.locator(".map-card").count() < total:
        count = page.locator(".map-card").count()
        page.locator("[data-map=more]").click()
        until(lambda count=count: page.locator(".map-card").count() > count)  # type: ignore[misc]
    addresses = [link.get_attribute("href") for link in page.locator(".map-card .look").all()]
    return [json.loads(parse_qs(urlsplit(address).query)["like"][0]) for address in addresses]


@pytest.mark.parametrize("side", SIDES)
def test_every_point_is_drawn_and_grouped(server: LiveServer, visit: Callable[..., Any], side: Any) -> None:
    page, layout = open_map(server, visit, f"?by={side}"), collection_of(server).layout(by=side)
    assert int(shown(page, "drawn")) == len(layout.ids) == 700
    counts = Counter(layout.labels[number] for number in layout.main.tolist() if number >= 0)
    legend = page.locator(".map-legend button")
    assert legend.locator("bdi").all_text_contents() == [str(name) for name in layout.labels[:8]]
    assert legend.locator(".count").all_text_contents() == [str(counts[name]) for name in layout.labels[:8]]
    page.locator(".map-groups summary").click()
    rows = [row.split("\t") for row in page.locator(".map-groups tbody").inner_text().splitlines()]
    for number, (name, row) in enumerate(zip(layout.labels, rows, strict=False)):
        centre = layout.coordinates[layout.main == number].mean(axis=0)
        assert (row[0], int(row[1])) == (name, counts[name])
        assert [float(text) for text in row[3:5]] == pytest.approx(centre, abs=0.0051)


def test_points_are_where_the_layout_has_them_in_their_colours(server: LiveServer, visit: Callable[..., Any]) -> None:
    page, layout = open_map(server, visit, **THEMES["light"]), collection_of(server).layout()
    pixel = """([x, y, width, height]) => {
        const canvas = document.querySelector("#map-points"), box = canvas.getBoundingClientRect();
        const scale = 0.92 * Math.min(box.width / width, box.height / height);
        const at = [Math.round(box.width / 2 + x * scale), Math.round(box.height / 2 - y * scale)];
        return [...canvas.getContext("2d").getImageData(...at, 1, 1).data].slice(0, 3);
    }"""
    low, high = layout.coordinates.min(axis=0), layout.coordinates.max(axis=0)
    middle, size = (low + high) / 2, high - low
    seen = Counter(
        tuple(page.evaluate(pixel, [*(place - middle).tolist(), *size.tolist()]))
        for place in layout.coordinates[(layout.main == 0) & ~layout.predicted][:60]
    )
    assert tuple(GROUND) not in seen  # something is drawn at each of them
    assert seen[tuple(COLOURS["--map-1"])] > 30  # and nearly all of them are not covered by others
    corner = page.evaluate(pixel, [float(size[0]) / 2, float(size[1]) / 2, *size.tolist()])
    assert corner == GROUND


@pytest.mark.parametrize("way", ["shift", "button", "key"])
def test_a_selection_lists_exactly_its_items(server: LiveServer, visit: Callable[..., Any], way: str) -> None:
    page, layout = open_map(server, visit), collection_of(server).layout()
    if way == "button":
        page.locator("[data-map=brush]").click()
    elif way == "key":
        page.locator("#map-marks").focus()
        page.keyboard.press("b")
    else:
        page.keyboard.down("Shift")
    drag(page, (380, 200), (560, 420))
    page.keyboard.up("Shift")
    until(lambda: "box" in state(page))
    left, bottom, right, top = numbers(state(page)["box"])
    x, y = layout.coordinates.astype(np.float64).T
    inside = (left <= x) & (x <= right) & (bottom <= y) & (y <= top)
    assert 10 < inside.sum() < 650
    expected = [name for name, chosen in zip(layout.ids, inside.tolist(), strict=True) if chosen]
    assert listed(page) == expected
    assert page.locator("[data-map=brush]").get_attribute("aria-pressed") == "false"
    again = open_map(server, visit, page.evaluate("location.search"))
    assert listed(again) == expected
    again.locator("[data-map=clear]").click()
    until(lambda: "box" not in state(again))
    assert again.locator(".map-card").count() == 0


def test_move_and_zoom_by_mouse_keys_and_buttons(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = open_map(server, visit, viewport=WIDE["viewport"], reduced_motion="reduce")
    board = page.locator("#map-marks")
    assert shown(page, "zoom") == "1.000"
    board.hover()
    page.mouse.wheel(0, -500)
    until(lambda: float(shown(page, "zoom")) > 2)
    until(lambda: int(shown(page, "drawn")) < 700)
    page.locator("[data-map=fit]").click()
    until(lambda: shown(page, "zoom") == "1.000" and shown(page, "drawn") == "700")
    page.locator("[data-map=in]").click()
    until(lambda: shown(page, "zoom") == "1.600")
    board.focus()
    for key, zoom in (("-", "1.000"), ("+", "1.600"), ("+", "2.560"), ("0", "1.000")):
        page.keyboard.press(key)
        until(lambda zoom=zoom: shown(page, "zoom") == zoom)  # type: ignore[misc]
    until(lambda: "view" not in state(page))  # the whole map is in the address again, so the next view is the new one
    drag(page, (300, 300), (200, 250))
    until(lambda: "view" in state(page))
    seen = numbers(state(page)["view"])
    again = open_map(server, visit, page.evaluate("location.search"))
    until(lambda: shown(again, "drawn") == shown(page, "drawn"))
    page.keyboard.press("ArrowRight")
    until(lambda: numbers(state(page)["view"])[0] > seen[0])


def test_pictures_appear_where_few_points_are_in_view(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = open_map(server, visit, viewport=WIDE["viewport"], reduced_motion="reduce")
    assert shown(page, "pictures") == "0"
    page.locator("#map-marks").focus()
    for _ in range(5):
        page.keyboard.press("+")
    until(lambda: int(shown(page, "pictures")) > 0)
    assert int(shown(page, "pictures")) <= 96
    page.keyboard.press("0")
    until(lambda: shown(page, "pictures") == "0")


def test_what_is_in_view_is_listed_by_the_keyboard_alone(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = open_map(server, visit)
    page.locator("#map-marks").focus()
    page.keyboard.press("Enter")
    assert set(listed(page)) == set(collection_of(server).layout().ids)
    page.keyboard.press("Escape")
    until(lambda: page.locator(".map-card").count() == 0)


def test_pointing_at_an_item_shows_it_and_a_click_lists_it(server: LiveServer, visit: Callable[..., Any]) -> None:
    page, layout = open_map(server, visit), collection_of(server).layout()
    number = int(layout.coordinates[:, 0].argmax())  # far from others
    low, high = layout.coordinates.min(axis=0), layout.coordinates.max(axis=0)
    box = page.locator("#map-marks").bounding_box()
    scale = 0.92 * min(box["width"] / float(high[0] - low[0]), box["height"] / float(high[1] - low[1]))
    dx, dy = (layout.coordinates[number] - (low + high) / 2).tolist()
    at = box["x"] + box["width"] / 2 + dx * scale, box["y"] + box["height"] / 2 - dy * scale
    page.mouse.move(*at)
    page.locator("#map-tip").wait_for()
    assert page.locator("#map-tip strong").text_content() == str(layout.ids[number])
    page.mouse.click(*at)
    assert listed(page) == [layout.ids[number]]


@pytest.mark.smoke
def test_one_label_is_highlighted(server: LiveServer, visit: Callable[..., Any]) -> None:
    page, layout = open_map(server, visit), collection_of(server).layout()
    button = page.locator(".map-legend button").nth(1)
    button.click()
    assert page.locator(".map-legend button").nth(1).get_attribute("aria-pressed") == "true"
    until(lambda: state(page).get("label") == layout.labels[1])
    assert layout.labels[1] in HOSTILE or layout.labels[1].startswith("label")
    again = open_map(server, visit, page.evaluate("location.search"))
    assert again.locator(".map-legend button[aria-pressed=true] bdi").text_content() == layout.labels[1]
    assert again.title() != "taken"


@pytest.mark.parametrize("theme", THEMES)
def test_nothing_is_wider_than_the_window(server: LiveServer, visit: Callable[..., Any], theme: str) -> None:
    page = open_map(server, visit, **THEMES[theme])
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    board = page.locator(".map-board").bounding_box()
    assert board["height"] >= 300 and board["y"] + board["height"] <= page.viewport_size["height"] + 60


def test_collections_without_a_map_say_why(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/few/map")
    assert "20 of 3,000 items" in page.locator(".state").text_content()
    page = visit(f"{server.url}/c/empty/map?by=labels")
    assert "Not enough items" in page.locator(".state").text_content()


def test_all_items_of_a_part_are_labelled_and_it_is_taken_back(server: LiveServer, visit: Callable[..., Any]) -> None:
    page, collection = open_map(server, visit), collection_of(server)
    before = {item.id: item.labels for item in collection.items()}
    page.keyboard.down("Shift")
    drag(page, (380, 200), (560, 420))
    page.keyboard.up("Shift")
    chosen = set(listed(page))
    settle(page)
    page.locator(".map-label input[name=labels]").fill("new <i>one</i>")
    page.locator(".map-label button").click()
    page.locator("#map-labelled p", has_text="labelled new <i>one</i>").wait_for()
    now = {item.id: set(item.labels) for item in collection.items()}
    assert now == {name: {*own, *(["new <i>one</i>"] if name in chosen else [])} for name, own in before.items()}
    settle(page)
    page.locator("#map-labelled button").click()
    page.locator("#map-labelled p", has_text="former labels again").wait_for()
    assert {item.id: item.labels for item in collection.items()} == before


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ("box=0,0,1,1&labels=a&key=x", 409),
        ("box=0,0,1&labels=a", 422),
        ("box=0,0,nan,1&labels=a", 422),
        ("box=-1,-1,1,1&labels=,", 422),
        ("box=5,5,6,6&labels=a", 413),
    ],
)
def test_labels_of_an_invalid_part_are_refused(server: LiveServer, fields: str, status: int) -> None:
    assert server.request("GET", "/c/toys/map").status == 200  # which computes the layout
    (change,) = (entry.number for entry in collection_of(server).audit(limit=1))
    body = f"{fields}&key=features-20000-{change}" if "key" not in fields else fields
    form = {"content_type": "application/x-www-form-urlencoded", "hx_request": "true"}
    assert server.request("POST", "/c/toys/map/label", body.encode(), **form).status == status
    assert server.request("POST", "/c/toys/map/unlabel", b"token=x", **form).status == 409


def test_an_outdated_map_is_refused(server: LiveServer) -> None:
    assert server.request("GET", "/c/toys/map/points?key=features-20000-9999", hx_request="true").status == 409
    assert server.request("GET", "/c/toys/map/items?key=x&points=1", hx_request="true").status == 409
    assert server.request("GET", "/c/toys/map?by=colour", hx_request="true").status == 422
