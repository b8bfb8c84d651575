"""The search page in a real browser: random items, uploads, and texts that attack it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from stillhash.encoders import open_encoder
from stillhash.experiments.shapes import write_shapes
from stillhash.images import index_folder, open_labels, open_query_encoder
from tests.server.browser.pages import HOSTILE, collection_of, order, wait_for_message
from tests.server.live_server import LiveServer, live_server
from tests.support.toys import toy


def test_random_item_shows_hits_before_and_after_learning(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(server.url)
    assert 0 < page.locator(".starts .card").count() <= 12
    page.get_by_role("link", name="Random item").click()
    page.wait_for_url("**like=**")
    assert len(order(page, "then")) == len(order(page)) == 12
    assert page.locator("#head-then").text_content() == "Before learning"
    shares = [int(re.findall(r"\d+", text)[0]) for text in page.locator(".matching strong").all_text_contents()]
    assert shares == [page.locator(f".{side} .card.match").count() for side in ("now", "then")]
    page.locator("select[name=against]").select_option("1")
    page.wait_for_url("**against=1")
    assert page.locator("#head-then").text_content() == "Version 1"
    page.locator("#like").fill("77")
    page.keyboard.press("Enter")
    page.wait_for_url("**like=77**")
    assert "against=1" in page.url and "77" not in order(page)
    page.locator("select[name=against]").select_option("0")
    page.wait_for_url("**against=0")
    assert order(page, "then") != order(page)


def test_vector_is_uploaded_or_pasted(server: LiveServer, visit: Callable[..., Any], tmp_path: Path) -> None:
    X, _ = toy(1200, 24, 6)
    np.save(tmp_path / "query.npy", X[40])
    page = visit(f"{server.url}/c/toys")
    page.get_by_text("Upload", exact=True).click()
    page.locator("#file").set_input_files(tmp_path / "query.npy")
    page.get_by_role("button", name="Search for this").click()
    page.wait_for_url("**q=**")
    assert page.locator(".query h2").text_content() == "query.npy"
    assert order(page) == [str(hit.id) for hit in collection_of(server).search(X[40], 12).hits]
    page.get_by_text("Upload", exact=True).click()
    page.locator("#numbers").fill("[1, 2]")
    page.get_by_role("button", name="Search for this").click()
    assert "2 features" in page.locator(".state.error").text_content()


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


def test_labels_are_edited_and_learnt(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    page.get_by_text("edit", exact=True).click()
    page.locator("#as").fill("label 3, mine, <b>")
    page.get_by_role("button", name="Save labels").click()
    page.locator(".labels [role=status]", has_text="Learnt as version").wait_for()
    assert page.locator(".labels .chips li").all_text_contents() == ["<b>", "label 3", "mine"]
    (item,) = collection_of(server).get([77])
    assert item is not None and item.labels == ["<b>", "label 3", "mine"]


def test_hostile_texts_are_escaped(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(server.url)
    for text in HOSTILE:
        page.goto(f"{server.url}/c/toys")
        page.locator("#like").fill(text)
        page.keyboard.press("Enter")
        page.wait_for_url("**like=**")
        assert page.locator(".query h2").text_content() == text
        assert page.title().startswith(text[:20])
        page.locator(".now .why").first.click()
        page.locator("#why[open]").wait_for()
        page.keyboard.press("Escape")
        page.locator(".now .thumb.up").first.click()
        wait_for_message(page, "Learnt as version")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
