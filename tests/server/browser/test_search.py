"""The search page in a real browser: random items, uploads, and texts that attack it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

import stillhash
from stillhash.encoders import index_folder, open_encoder, open_query_encoder
from stillhash.experiments.shapes import write_shapes
from stillhash.io import open_labels
from tests.server.browser.pages import HOSTILE, collection_of, order, wait_for_message
from tests.server.live_server import LiveServer, live_server
from tests.support.toys import toy

CITIES = ["Kyoto", "New York", "Oslo"]


def scenes(path: Path) -> stillhash.Collection:
    """Return 400 items with labels, fields, and words in their texts."""
    X, _ = toy(400, 24, 6)
    collection = stillhash.open(path, 24, 64, init_rows=300, learn_rows=100, lexical_field="caption")
    labels = [["temple"] if row % 4 == 0 else ["tree"] if row % 4 == 1 else ["traffic light"] for row in range(400)]
    metadata = [
        {"city": CITIES[row % 3], "year": 1900 + row % 60, "caption": f"scene number {row}"} for row in range(400)
    ]
    collection.add([f"photo-{row:03d}" for row in range(400)], X, labels, metadata)
    return collection


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server({"photos": scenes(tmp_path_factory.mktemp("photos") / "photos")}) as server:
        yield server


def listed(page: Any) -> list[str]:
    names: list[str] = page.locator(".listed .card .id bdi").all_text_contents()
    return names


def test_random_item_shows_hits_before_and_after_learning(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(shared.url)
    assert 0 < page.locator(".starts .card").count() <= 12
    page.get_by_role("link", name="Random item").click()
    page.wait_for_url("**like=**")
    assert len(order(page, "then")) == len(order(page)) == 12
    shares = [int(re.findall(r"\d+", text)[0]) for text in page.locator(".matching strong").all_text_contents()]
    assert shares == [page.locator(f".{side} .card.match").count() for side in ("now", "then")]
    page.locator("select[name=against]").select_option("1")
    page.wait_for_url("**against=1")
    page.locator("#search").fill("77")
    page.keyboard.press("Enter")
    page.wait_for_url("**search=77**")
    assert "against=1" in page.url and "77" not in order(page)
    assert page.locator(".query h2").text_content() == "77"
    page.locator("select[name=against]").select_option("0")
    page.wait_for_url("**against=0")
    assert order(page, "then") != order(page)


@pytest.mark.smoke
def test_suggestions_by_keyboard(photos: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{photos.url}/c/photos")
    box, options = page.locator("#search"), page.locator("#suggestions [role=option]")
    page.keyboard.press("/")
    expect(box).to_be_focused()
    page.keyboard.type("t")
    options.first.wait_for()
    assert box.get_attribute("aria-expanded") == "true"
    texts = [" ".join(text.split()) for text in options.all_text_contents()]
    assert texts == ["traffic light label · 200", "temple label · 100", "tree label · 100", "Search the words t"]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert box.get_attribute("aria-activedescendant") == options.nth(1).get_attribute("id")
    assert options.nth(1).get_attribute("aria-selected") == "true"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # back to the box itself
    assert box.get_attribute("aria-activedescendant") is None
    page.keyboard.press("ArrowUp")  # around to the last
    assert options.last.get_attribute("aria-selected") == "true"
    page.keyboard.press("Escape")
    assert box.get_attribute("aria-expanded") == "false" and not options.first.is_visible()
    assert box.input_value() == "t"
    page.keyboard.press("ArrowDown")  # opens it again
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**filter=**")
    assert page.locator(".active-filters a bdi").all_text_contents() == ["temple"]
    assert listed(page) == photos.executor("photos").collection.ids({"labels": "temple"}, limit=48)


def test_suggestions_by_mouse_and_after_typing_on(photos: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{photos.url}/c/photos")
    page.locator("#search").press_sequentially("photo-01")
    options = page.locator("#suggestions [role=option]")
    expect(options.last).to_have_text("Search the words photo-01")  # no later key replaces the list
    options.filter(has_text="photo-013").click()
    page.wait_for_url("**like=**")
    assert page.locator(".query h2").text_content() == "photo-013"
    page.locator("#search").fill("osl")
    page.locator("#suggestions [role=option]", has_text="Oslo").wait_for()
    page.locator("h1").click()
    page.locator("#suggestions").wait_for(state="hidden")
    page.locator("#search").fill("osl")
    page.locator("#suggestions [role=option]", has_text="Oslo").wait_for()
    page.locator("#search").fill("")
    page.locator("#suggestions").wait_for(state="hidden")


@pytest.mark.parametrize(
    ("typed", "heading"),
    [
        ("photo-077", "photo-077"),
        ("temple", "Items with the label temple · 100"),
        ("scene 77", "scene 77"),
        ("new york", "Items with the city: New York · 133"),
    ],
)
def test_a_text_is_understood(photos: LiveServer, visit: Callable[..., Any], typed: str, heading: str) -> None:
    page = visit(f"{photos.url}/c/photos")
    page.locator("#search").fill(typed)
    page.keyboard.press("Enter")
    page.wait_for_url("**search=**")
    expect(page.locator(".query h2, #listed-title")).to_have_text(heading)
    assert page.locator("#search").input_value() == typed
    if typed == "temple":
        page.get_by_role("link", name="Search the words instead").click()
        page.wait_for_url("**words=temple")


def test_chips_filter_and_are_removed(photos: LiveServer, visit: Callable[..., Any]) -> None:
    collection = photos.executor("photos").collection
    page = visit(f"{photos.url}/c/photos?search=photo-077")
    before = order(page)
    page.locator(".offered .filter-chip", has_text="temple").click()
    page.wait_for_url("**filter=**")
    assert "search=photo-077" in page.url and order(page) != before
    query = collection.reconstruct(["photo-077"])[0]
    expected = [
        hit.id for hit in collection.search(query, 13, where={"labels": "temple"}).hits if hit.id != "photo-077"
    ]
    assert order(page) == expected[:12]
    page.get_by_text("city", exact=True).click()
    chip = page.locator(".facet[open] .filter-chip", has_text="Oslo")
    count = collection.count({"labels": "temple", "city": "Oslo"})
    assert chip.locator(".count").text_content() == str(count)
    chip.click()
    page.wait_for_url("**Oslo**")
    assert page.locator(".active-filters a bdi").all_text_contents() == ["temple", "city: Oslo"]
    page.get_by_role("link", name="Remove the filter temple").click()
    page.wait_for_url(lambda url: "temple" not in url)
    page.get_by_role("link", name="Remove the filter city: Oslo").click()
    page.wait_for_url(lambda url: "filter" not in url)
    assert order(page) == before
    page.get_by_text("year", exact=True).click()
    page.locator(".range input[name=from]").fill("1905")
    page.locator(".range input[name=to]").fill("1910")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**gte**")
    assert page.locator(".active-filters a bdi").all_text_contents() == ["year: 1905 to 1910"]
    page.get_by_text("city", exact=True).click()
    page.keyboard.press("Escape")
    assert page.locator(".facet[open]").count() == 0


def test_a_miss_is_neutral_and_offers_what_is_near(photos: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{photos.url}/c/photos")
    for typed, near in (("tempel", "temple"), ("photo-0077", "photo-007")):
        page.locator("#search").fill(typed)
        page.keyboard.press("Enter")
        page.locator(".state.miss").wait_for()
        assert page.locator(".state.error").count() == 0 and not page.locator("#error").is_visible()
        assert page.locator("#search").input_value() == typed
        page.locator(".near .filter-chip", has_text=near).first.click()
        page.locator(".query h2, #listed-title").first.wait_for()
        expect(page.locator("main")).to_contain_text(near)


def test_search_works_without_scripts(photos: LiveServer, visit: Callable[..., Any], tmp_path: Path) -> None:
    X, _ = toy(400, 24, 6)
    np.save(tmp_path / "query.npy", X[40])
    page = visit(f"{photos.url}/c/photos", java_script_enabled=False)
    page.locator("#search").fill("temple")
    page.keyboard.press("Enter")
    page.wait_for_url("**search=temple")
    assert len(listed(page)) == 48
    page.get_by_role("link", name="Next page").click()
    page.wait_for_url("**after=**")
    page.get_by_text("city", exact=True).click()
    page.locator(".facet[open] .filter-chip", has_text="Oslo").click()
    page.wait_for_url("**Oslo**")
    page.locator("#file").set_input_files(tmp_path / "query.npy")
    page.get_by_role("button", name="Search for this file").click()
    page.wait_for_url("**q=**")
    assert page.locator(".query h2").text_content() == "query.npy" and "Oslo" in page.url


def test_vector_is_uploaded_or_pasted(shared: LiveServer, visit: Callable[..., Any], tmp_path: Path) -> None:
    X, _ = toy(1200, 24, 6)
    np.save(tmp_path / "query.npy", X[40])
    page = visit(f"{shared.url}/c/toys")
    with page.expect_file_chooser() as chooser:
        page.get_by_text("Upload", exact=True).click()
    chooser.value.set_files(tmp_path / "query.npy")  # which searches at once
    page.wait_for_url("**q=**")
    assert page.locator(".query h2").text_content() == "query.npy"
    assert order(page) == [str(hit.id) for hit in collection_of(shared).search(X[40], 12).hits]
    page.get_by_text("Paste a vector", exact=True).click()
    page.locator("#numbers").fill(str(X[40].tolist()))
    page.get_by_role("button", name="Search for this").click()
    page.locator(".query h2", has_text="pasted numbers").wait_for()
    page.get_by_text("Paste a vector", exact=True).click()
    page.locator("#numbers").fill("[1, 2]")
    page.get_by_role("button", name="Search for this").click()
    expect(page.locator(".state.error")).to_contain_text("2 features")


DROP = """async (bytes) => {
  const carrier = new DataTransfer();
  carrier.items.add(new File([new Uint8Array(bytes)], "dropped.png", {type: "image/png"}));
  const event = (kind) => new DragEvent(kind, {dataTransfer: carrier, bubbles: true, cancelable: true});
  document.body.dispatchEvent(event("dragover"));
  document.body.dispatchEvent(event("drop"));
}"""


PASTE = """async (bytes) => {
  const carrier = new DataTransfer();
  carrier.items.add(new File([new Uint8Array(bytes)], "pasted.png", {type: "image/png"}));
  document.body.dispatchEvent(new ClipboardEvent("paste", {clipboardData: carrier, bubbles: true, cancelable: true}));
}"""


def test_image_is_dropped_or_pasted(visit: Callable[..., Any], tmp_path: Path) -> None:
    write_shapes(tmp_path / "images", 320, 0, size=32, fmt="PNG")
    encoder = open_encoder("classic")
    collection = stillhash.open(tmp_path / "c", encoder=encoder, init_rows=300)
    index_folder(tmp_path / "images", collection, "classic", open_labels(tmp_path / "images"), workers=1)
    data = list((tmp_path / "images" / "000007.png").read_bytes())
    with live_server({"c": collection}, query_encoders={"c": open_query_encoder(collection)}) as server:
        for action, name in ((DROP, "dropped.png"), (PASTE, "pasted.png")):
            page = visit(f"{server.url}/c/c")
            page.evaluate(action, data)
            page.wait_for_url("**q=**")
            assert page.locator(".query h2").text_content() == name
            assert order(page, "then")[0] == "000007.png"
        page.evaluate(DROP, [1, 2, 3])
        page.locator(".state.error").wait_for()


@pytest.mark.smoke
def test_labels_are_edited_and_learnt(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    page.get_by_text("edit", exact=True).click()
    page.locator("#as").fill("label 3, mine, <b>")
    page.get_by_role("button", name="Save labels").click()
    page.locator(".labels [role=status]", has_text="Learnt as version").wait_for()
    expect(page.locator(".labels .chips li")).to_have_text(["<b>", "label 3", "mine"])
    (item,) = collection_of(server).get([77])
    assert item is not None and item.labels == ["<b>", "label 3", "mine"]


def test_hostile_texts_are_escaped(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(server.url)
    for text in HOSTILE:
        page.goto(f"{server.url}/c/toys")
        page.locator("#search").fill(text)
        page.keyboard.press("Enter")
        page.wait_for_url("**search=**")
        assert page.locator(".query h2").text_content() == text
        assert page.title().startswith(text[:20])
        page.locator(".now .why").first.click()
        page.locator("#why[open]").wait_for()
        page.keyboard.press("Escape")
        page.locator("#why:not([open])").wait_for(state="attached")
        page.locator(".now .thumb.up").first.click()
        wait_for_message(page, "Learnt as version")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
