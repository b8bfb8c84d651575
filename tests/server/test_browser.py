"""The page in a real browser: what a visitor does and sees, on a desktop and on a phone.

STILLHASH_SCREENSHOTS names a folder for pictures of every view.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.encoders import open_encoder
from stillhash.experiments.shapes import write_shapes
from stillhash.images import index_folder, open_labels, open_query_encoder
from stillhash.server import Keys, Settings
from tests.server.live_server import LiveServer, live_server
from tests.support.toys import toy

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")]

SOON = 15_000 if os.environ.get("CI") else 2000  # milliseconds until a thumb shows; a busy machine gets more
HOSTILE = ["<script>document.title='taken'</script>", "x" * 400, "🦊 مرحبا", "a'\"&b", "</template>{{7*7}}"]
WIDE: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
THEMES: dict[str, dict[str, Any]] = {
    "light": {**WIDE, "color_scheme": "light"},
    "dark": {**WIDE, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
}


def fill(path: Path, rows: int = 700) -> Collection:
    X, Y = toy(1200, 24, 6)
    collection = stillhash.open(path, 24, 64, init_rows=300, learn_rows=100)
    ids = [HOSTILE[row] if row < len(HOSTILE) else row for row in range(rows)]
    labels = [[HOSTILE[c] if c < 2 else f"label {c}" for c in np.flatnonzero(y)] for y in Y[:rows]]
    collection.add(ids, X[:rows], labels)
    return collection


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    collections = {
        "toys": fill(tmp_path / "toys"),
        "few": stillhash.open(tmp_path / "few", 4, 32),
        "empty": stillhash.open(tmp_path / "empty", 4, 32),
    }
    collections["few"].add([*range(20)], np.random.default_rng(0).standard_normal((20, 4)), [["a"], ["b"]] * 10)
    with live_server(collections) as server:
        yield server


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; at the end no script may have failed, and the page's own rules not have been broken."""
    errors: list[str] = []
    contexts = []

    def open_page(address: str, **options: Any) -> Any:
        context = browser.new_context(**(options or WIDE))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda message: errors.append(message.text) if "Content Security Policy" in message.text else None,
        )
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


def collection_of(server: LiveServer) -> Collection:
    collection: Collection = server.executor("toys").collection
    return collection


def order(page: Any, side: str = "now") -> list[str]:
    """Return the items of a column, best first."""
    names: list[str] = page.locator(f".{side} .card .id bdi").all_text_contents()
    return names


def wait_for_message(page: Any, text: str) -> None:
    page.locator("#message", has_text=text).wait_for()


# ---- search ----


def test_random_item_shows_hits_before_and_after_learning(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(server.url)
    assert 0 < page.locator(".starts .card").count() <= 12
    page.get_by_role("link", name="Random item").click()
    page.wait_for_url("**like=**")
    assert len(order(page, "then")) == len(order(page)) == 12
    assert page.locator("#head-then").text_content() == "Before learning"
    shares = [int(re.findall(r"\d+", text)[0]) for text in page.locator(".matching strong").all_text_contents()]
    assert shares == [page.locator(f".{side} .card.match").count() for side in ("then", "now")]
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


def test_thumb_changes_the_ranking(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    before = order(page)
    version = collection_of(server).stats()["version"]
    page.locator(".now .thumb.down").first.click()
    page.locator("#message", has_text=f"version {version + 1}").wait_for(timeout=SOON)
    assert order(page) != before
    assert page.locator(".now .delta").count() == page.locator(".now .changed").count() > 0
    assert page.locator(".then .delta").count() == 0
    liked = order(page)[2]
    page.locator(".now .thumb.up").nth(2).click()
    wait_for_message(page, f"version {version + 2}")
    page.locator(f".now .card:has-text('{liked}') .thumb.up[aria-pressed=true]").wait_for(timeout=SOON)
    after = order(page)
    page.reload()
    assert order(page) == after
    assert page.locator(f".now .card:has-text('{liked}') .thumb.up[aria-pressed=true]").count() == 1


def test_explanation_opens_and_closes(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    for side in (".now", ".then"):
        page.locator(f"{side} .why").nth(1).click()
        page.locator("#why[open]").wait_for()
        assert page.locator("#why .bars rect").count() == 8
        assert page.locator("#why tbody tr td:nth-child(2)").first.text_content() == "2"
        page.keyboard.press("Escape")
        page.locator("#why:not([open])").wait_for(state="attached")


def test_page_works_by_keyboard(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys?like=77")
    focus = "document.activeElement.closest('.card')?.querySelector('.id bdi').textContent"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focus) == order(page)[0]
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focus) == order(page)[1]
    page.keyboard.press("ArrowDown")
    below = page.evaluate(focus)
    assert order(page).index(below) > 2
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focus) == order(page)[1]
    page.keyboard.press("e")
    page.locator("#why[open]").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    wait_for_message(page, "Learnt as version")
    assert page.evaluate(focus) in order(page)  # it is still among the hits
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("d")
    page.locator(".now .thumb.down[aria-pressed=true]").or_(page.locator(".now .changed")).first.wait_for()
    page.keyboard.press("r")
    page.wait_for_url(lambda url: "like=77" not in url)
    page.locator("#like").focus()
    page.keyboard.type("rude")  # no shortcuts in a text field
    assert page.locator("#like").input_value() == "rude"


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


# ---- learning ----


def test_curve_is_live_and_a_rollback_restores(server: LiveServer, visit: Callable[..., Any]) -> None:
    collection, (X, Y) = collection_of(server), toy(1200, 24, 6)
    search = visit(f"{server.url}/c/toys?like=77")
    before, version = order(search), collection.stats()["version"]
    page = visit(f"{server.url}/c/toys/learning")
    page.locator("#live.on").wait_for()
    points = int(page.locator("#curve").get_attribute("data-points"))
    assert points == len(collection.quality()["curve"])
    picture = page.locator("#plot-ndcg canvas").screenshot()
    table = page.locator("#values").text_content()
    rows = page.locator("#versions tbody tr").count()
    labels = [[f"label {c}" for c in np.flatnonzero(1 - y)] for y in Y[700:]]  # inverted, so that much changes
    for start in range(0, 500, 100):
        part = slice(start, start + 100)
        collection.add([*range(2000 + start, 2100 + start)], X[700:][part], labels[part])
    page.locator(f"#curve[data-points='{points + 5}']").wait_for()
    assert page.locator("#plot-ndcg canvas").screenshot() != picture
    assert page.locator("#values").text_content() != table
    assert page.locator("[data-figure=items]").text_content() == "1,200"
    assert page.locator("[data-figure=rate]").text_content() != "0"
    page.wait_for_function("n => document.querySelectorAll('#versions tbody tr').length === n", arg=rows + 5)
    search.reload()
    assert order(search) != before

    row = page.locator("#versions tbody tr", has=page.locator(f"th:text-is('{version}')"))
    row.locator(".tagging summary").click()
    row.locator("input[name=tag]").fill("before the turn")
    page.keyboard.press("Enter")
    wait_for_message(page, "before the turn")
    row.get_by_text("Roll back").click()
    assert collection.stats()["version"] == version + 5  # needs a second click
    row.get_by_role("button", name="Yes").click()
    wait_for_message(page, f"Version {version} is restored")
    search.goto(f"{server.url}/c/toys?like=77&against={version}")
    assert order(search) == order(search, "then")
    row.get_by_role("link", name="Compare").click()
    page.wait_for_url(f"**against={version}")
    assert page.locator("#head-then").text_content() == f"Version {version}"


def test_charts_and_table_show_weighted_means(server: LiveServer, visit: Callable[..., Any]) -> None:
    curve = collection_of(server).quality()["curve"]
    assert len(curve) == 7 and {point["version"] for point in curve} == {2}
    ndcg, before = curve[0]["ndcg"], curve[0]["before"]["ndcg"]
    for n, point in enumerate(curve[1:], 1):
        share = max(0.3, 2 / (n + 2))
        ndcg, before = (
            (1 - share) * ndcg + share * point["ndcg"],
            (1 - share) * before + share * point["before"]["ndcg"],
        )
    page = visit(f"{server.url}/c/toys/learning")
    page.locator("#curve[data-points='7']").wait_for()
    cell = {
        name: page.locator(f"#values [data-at={name}]") for name in ("rows", "now-ndcg", "before-ndcg", "gain-ndcg")
    }
    shown = {name: float(one.text_content()) for name, one in cell.items()}
    expected = {"rows": 600, "now-ndcg": ndcg, "before-ndcg": before, "gain-ndcg": ndcg - before}
    assert shown == pytest.approx(expected, abs=6e-4)
    label = page.locator("#plot-ndcg").get_attribute("aria-label")
    assert cell["now-ndcg"].text_content() in label and cell["before-ndcg"].text_content() in label
    assert cell["gain-ndcg"].text_content() in page.locator("#plot-gain").get_attribute("aria-label")
    assert "By chance" in page.locator("#noise").text_content()
    page.locator("#plot-precision .u-over").hover(position={"x": 1, "y": 20})
    assert cell["rows"].text_content() == "0" and cell["gain-ndcg"].text_content() == "+0.000"


# ---- the collection ----


def test_collection_is_verified(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/toys/collection")
    assert "every code is scored" in page.locator("main").text_content()
    page.get_by_role("button", name="Verify").click()
    page.locator("#verified .good").wait_for()
    page.locator("select[data-visit]").select_option(label="few")
    page.wait_for_url("**/c/few/collection")
    assert "20 of 3,000 rows" in page.locator(".health").text_content()


# ---- when something is wrong ----


def test_errors_are_shown(server: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{server.url}/c/nowhere")
    assert page.locator("h1").text_content() == "There is nothing here"
    page.goto(f"{server.url}/c/toys?like=nobody")
    assert "No item 'nobody'" in page.locator(".state.error").text_content()
    page.goto(f"{server.url}/c/empty")
    assert "Nothing is stored yet" in page.locator("main").text_content()
    page.goto(f"{server.url}/c/empty/learning")
    page.locator("#curve .empty").wait_for()
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
        server.app.state.stillhash.sessions.end(page.context.cookies()[0]["value"])
        page.locator(".now .thumb.up").first.click()  # of a session that has ended
        page.wait_for_url("**/login?next=*")
        page.get_by_label("Key").fill(writing)
        page.keyboard.press("Enter")
        page.wait_for_url("**like=77")
        assert page.locator(".edit-labels").count() == 1


# ---- looks ----


@pytest.mark.parametrize("theme", THEMES)
def test_layout_fits_and_does_not_jump(server: LiveServer, visit: Callable[..., Any], theme: str) -> None:
    shots = os.environ.get("STILLHASH_SCREENSHOTS")
    page = visit(f"{server.url}/c/toys?like=77", **THEMES[theme])
    views = {"start": "toys", "search": "toys?like=77", "learning": "toys/learning", "collection": "toys/collection"}
    views |= {"few": "few?like=3", "empty": "empty", "error": "nowhere"}
    for name, path in views.items():
        page.goto(f"{server.url}/c/{path}")
        if name == "learning":
            page.locator("#live.on").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        if shots:
            page.screenshot(path=Path(shots) / f"{name}-{theme}.png", full_page=True)
    page.goto(f"{server.url}/c/toys?like=77")
    places = "[...document.querySelectorAll('.now .card')].map(c => [c.offsetLeft, c.offsetTop, c.offsetHeight].join())"
    before = page.evaluate(places)
    page.locator(".now .thumb.down").first.click()
    wait_for_message(page, "Learnt as version")
    assert page.evaluate(places) == before
    if shots:
        page.screenshot(path=Path(shots) / f"thumb-{theme}.png", full_page=True)
