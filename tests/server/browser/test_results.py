"""Hits in a real browser: now and before, the balance, cards, more hits, and keys."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

import stillhash
from stillhash import Collection
from tests.server.browser.pages import THEMES, WIDE, collection_of, order, settle, wait_for_message
from tests.server.live_server import LiveServer, live_server
from tests.support.toys import toy

LABELS = ["harbour", "lighthouse at night", "boat", "fog", "gull", "pier"]
SIZES = [(160, 90), (60, 120), (20, 20)]  # wide, tall, and tiny
TOP = "document.querySelector('.now .card').getBoundingClientRect().top + scrollY"  # other hits have other heights
SHIFTS = """window.shifts = [];
const keep = (entries) => window.shifts.push(...entries.filter(one => !one.hadRecentInput).map(one => one.value));
const observer = new PerformanceObserver(list => keep(list.getEntries()));
observer.observe({type: "layout-shift", buffered: true});
window.reported = () => { keep(observer.takeRecords()); return window.shifts; };"""
FIRST_NEW = "document.activeElement.closest('.card').getBoundingClientRect().top"  # in the window, of more hits
REPORTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))).then(reported)"  # 2 frames on


def picture(row: int) -> bytes:
    """Return a picture of one of SIZES, in a colour of its own."""
    file = io.BytesIO()
    Image.new("RGB", SIZES[row % len(SIZES)], (40 * row % 256, 90, 160)).save(file, "PNG")
    return file.getvalue()


def long_id(row: int) -> str:
    return f"archive/2024/box-17/scan-{row:05d}-front.png"


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Serve pictures with long ids and many labels, and texts, none of which a test changes."""
    folder = tmp_path_factory.mktemp("gallery")
    X, Y = toy(400, 24, 6)
    labels = [[LABELS[c] for c in np.flatnonzero(y)] for y in Y]
    options: dict[str, Any] = {"init_rows": 300, "learn_rows": 100}
    pictures = stillhash.open(folder / "pictures", 24, 64, **options)
    pictures.add([long_id(row) for row in range(400)], X, labels, pictures=[picture(row) for row in range(400)])
    texts = stillhash.open(folder / "texts", 24, 64, lexical_field="text", **options)
    words = [f"{'A calm day. ' * (row % 40)}The gull number {row} sat on the pier." for row in range(400)]
    metadata = [{"text": text, "document": f"d{row // 2}.md", "chunk": row % 2} for row, text in enumerate(words)]
    texts.add([f"d{row // 2}.md#{row % 2}" for row in range(400)], X, labels, metadata)
    with live_server({"pictures": pictures, "texts": texts}) as server:
        yield server


def parameters(page: Any) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def expected_hits(collection: Collection, id_: Any, count: int, **options: Any) -> list[str]:
    """Return the first hits of an item, without itself."""
    (query,) = collection.reconstruct([id_])
    return [str(hit.id) for hit in collection.search(query, count + 1, **options).hits if hit.id != id_][:count]


def wait_for_pictures(page: Any) -> None:
    """Wait until all pictures that the window shows are there; others are not even fetched."""
    page.wait_for_function(
        """() => [...document.images].filter(image => image.checkVisibility()).every(image => {
            const { top, bottom } = image.getBoundingClientRect();
            return bottom < 0 || top > innerHeight || image.complete;
        })"""
    )


def box(locator: Any) -> dict[str, float]:
    rectangle: dict[str, float] = locator.bounding_box()
    return rectangle


# ---- now, and before ----


def test_before_folds_away(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{shared.url}/c/toys?like=77")
    now, then = box(page.locator(".now")), box(page.locator(".then"))
    assert now["x"] < then["x"] and now["width"] > 2 * then["width"]
    page.get_by_role("link", name="Hide").click()
    page.locator(".then").wait_for(state="hidden")
    settle(page)
    assert parameters(page)["before"] == ["hide"] and box(page.locator(".now"))["width"] > 1.3 * now["width"]
    assert page.evaluate("document.activeElement.id") == "show-before"
    page.reload()
    assert page.locator(".then").is_hidden()
    page.locator(".now .look").first.click()
    page.wait_for_url(lambda url: "like=77" not in url)
    assert page.locator(".then").is_hidden()
    page.get_by_role("link", name="Compare with before").click()
    page.locator(".then").wait_for()
    settle(page)
    assert parameters(page)["before"] == ["show"] and len(order(page, "then")) == 12


def test_phone_shows_now_first_with_its_votes(gallery: LiveServer, visit: Callable[..., Any]) -> None:
    for name in (f"pictures?like={long_id(7)}", "texts?like=d3.md%231"):
        page = visit(f"{gallery.url}/c/{name}", **THEMES["phone"])
        assert page.locator(".then").is_hidden()
        for button in (page.locator(".now .thumb.up").first, page.locator(".now .thumb.down").first):
            place = box(button)
            assert place["y"] + place["height"] <= 844 and min(place["width"], place["height"]) >= 44
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("link", name="Compare with before").click()
        page.locator(".then").wait_for()
        settle(page)
        assert box(page.locator(".now"))["y"] < box(page.locator(".then"))["y"]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# ---- the balance ----


@pytest.mark.smoke
def test_slider_changes_hits_and_address(server: LiveServer, visit: Callable[..., Any]) -> None:
    collection = collection_of(server)
    page = visit(f"{server.url}/c/toys?like=77")
    chosen = collection.search(collection.reconstruct([77])[0]).balance
    assert page.locator("#balance-state").text_content().strip() == f"automatic: {chosen:.2f}"
    automatic, top = order(page), page.evaluate(TOP)
    page.locator("#balance").focus()
    for key, balance in (("Home", 0.0), ("ArrowRight", 0.05), ("End", 1.0)):
        page.keyboard.press(key)
        page.locator(f"#hits[data-address*='balance={balance:g}']").wait_for()
        page.wait_for_url(f"**balance={balance:g}")
        settle(page)
        assert order(page) == expected_hits(collection, 77, 12, balance=balance)
        assert page.evaluate("document.activeElement.id") == "balance" and page.evaluate(TOP) == top
        assert page.locator("#balance-state .value").text_content() == f"{balance:.2f}"
    assert expected_hits(collection, 77, 12, balance=0) != expected_hits(collection, 77, 12, balance=1)
    page.locator("#balance").fill("0.3")
    page.wait_for_url("**balance=0.3")
    settle(page)
    page.locator(".now .thumb.down").first.click()  # which keeps the balance
    wait_for_message(page, "Learnt as version")
    assert order(page) == expected_hits(collection, 77, 12, balance=0.3) and "balance=0.3" in page.url
    page.reload()
    assert page.locator("#balance").input_value() == "0.3"
    page.get_by_role("link", name="automatic").click()
    page.wait_for_url(lambda url: "balance" not in url)
    settle(page)
    assert order(page) == expected_hits(collection, 77, 12) and order(page)[0] != automatic[0]


def test_page_works_without_scripts(shared: LiveServer, visit: Callable[..., Any]) -> None:
    collection = collection_of(shared)
    page = visit(f"{shared.url}/c/toys?like=77&hits=24", **WIDE, java_script_enabled=False)
    page.locator("#balance").fill("0.3")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**balance=0.3*")
    assert parameters(page) == {"like": ["77"], "hits": ["24"], "balance": ["0.3"]}
    assert order(page) == expected_hits(collection, 77, 24, balance=0.3)
    page.get_by_role("link", name="Show 12 more").click()
    page.wait_for_url("**hits=36*")
    assert order(page) == expected_hits(collection, 77, 36, balance=0.3)
    page.get_by_role("link", name="automatic").click()
    page.wait_for_url(lambda url: "balance" not in url)
    page.get_by_role("link", name="Hide").click()
    page.wait_for_url("**before=hide*")
    assert page.locator(".then").is_hidden() and order(page) == expected_hits(collection, 77, 36)


# ---- cards ----


def test_pictures_fill_their_cards(gallery: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{gallery.url}/c/pictures?like={long_id(7)}")
    pictures = page.locator(".now .look img")
    assert pictures.count() == 12
    for look, image, kind in zip(page.locator(".now .look").all(), pictures.all(), order(page), strict=True):
        image.scroll_into_view_if_needed()
        page.wait_for_function("image => image.complete && image.naturalWidth", arg=image.element_handle())
        assert box(look) == box(image) and box(image)["width"] >= 160
        assert box(image)["width"] == pytest.approx(box(image)["height"], abs=1)
        assert image.evaluate("image => getComputedStyle(image).objectFit") == "cover"
        crisp = SIZES[int(kind[25:30]) % len(SIZES)][0] * 2 <= box(image)["width"]
        expect(image).to_have_css("image-rendering", "pixelated" if crisp else "auto")


def test_ids_are_cut_in_the_middle(gallery: LiveServer, visit: Callable[..., Any]) -> None:
    for options in (WIDE, THEMES["phone"]):
        page = visit(f"{gallery.url}/c/pictures?like={long_id(7)}", **options)
        card = page.locator(".now .card").first
        name, head, tail = card.locator(".id bdi"), card.locator(".cut span").first, card.locator(".cut span").last
        assert name.text_content() == name.get_attribute("title") == order(page)[0]
        assert len(order(page)[0]) == 40 and tail.text_content() == "ront.png"
        assert head.evaluate("part => part.scrollWidth > part.clientWidth && part.clientWidth > 30")  # its end is cut
        assert tail.evaluate("part => part.scrollWidth <= part.clientWidth + 1")
        assert box(tail)["x"] + box(tail)["width"] <= box(card)["x"] + box(card)["width"] + 1


def test_shared_labels_are_first_and_the_rest_is_counted(gallery: LiveServer, visit: Callable[..., Any]) -> None:
    collection = gallery.executor("pictures").collection
    (item,) = collection.get([long_id(8)])
    for options in (WIDE, THEMES["phone"]):
        page = visit(f"{gallery.url}/c/pictures?like={long_id(8)}", **options)
        counted = 0
        for card, name in zip(page.locator(".now .card").all(), order(page), strict=True):
            (hit,) = collection.get([name])
            chips = card.locator(".chip:not(.rest)")
            shown, rest = chips.all_text_contents(), card.locator(".chip.rest")
            shared = [label for label in hit.labels if label in item.labels]
            assert set(shown) <= set(hit.labels) and shown[: len(shared)] == shared[: len(shown)]
            if rest.count():
                counted += 1
                assert rest.text_content().startswith(f"+{len(hit.labels) - len(shown)}")
                assert set(rest.get_attribute("title").split(", ")) == set(hit.labels) - set(shown)
            else:
                assert len(shown) == max(1, len(hit.labels))
            for chip in [chips.first, *rest.all()]:
                assert box(chip)["x"] + box(chip)["width"] <= box(card)["x"] + box(card)["width"] + 1
            if shared:
                first = card.locator(".chip").first
                assert "shared" in first.get_attribute("class")
                assert len(shown[0]) > 12 or first.evaluate("chip => chip.scrollWidth <= chip.clientWidth + 1")
        assert counted > 0


def test_labels_lead_where_there_is_no_picture(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{shared.url}/c/toys?like=77")
    card = page.locator(".now .card").first
    assert card.locator("img").count() == 0 and box(card.locator(".chips"))["y"] < box(card.locator(".id"))["y"]
    labels = next(item.labels for item in collection_of(shared).items() if str(item.id) == order(page)[0])
    shown, rest = card.locator(".look .chip:not(.rest)").all_text_contents(), card.locator(".look .chip.rest")
    assert shown and set(shown) <= set(labels)
    assert len(shown) + rest.count() * int((rest.text_content() or "+0").split()[0]) == len(labels)


def test_words_of_texts_are_marked(gallery: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{gallery.url}/c/texts?words=gull+39")
    first = page.locator(".now .card").first
    assert first.locator("mark").all_text_contents() == ["gull", "39"]  # of the end of a long text
    assert first.locator(".passage").evaluate("text => text.scrollHeight <= text.clientHeight + 1")
    assert "chunk 1" in first.locator(".source").text_content()


# ---- more hits ----


def test_more_hits_go_on_where_the_first_end(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{shared.url}/c/toys?like=77")
    expected = expected_hits(collection_of(shared), 77, 180)
    assert order(page) == expected[:12]
    for count in (24, 36, 48, 60):
        page.locator("#more").click()
        page.wait_for_url(f"**hits={count}")
        settle(page)
        assert order(page) == expected[:count] and len(order(page, "then")) == count
        focused = page.evaluate("document.activeElement.closest('.card').querySelector('.rank').textContent")
        assert int(focused) == count - 11
    page.reload()
    assert order(page) == expected[:60] and page.locator("#more").count() == 0
    page.get_by_role("link", name="Next 60").click()
    page.wait_for_url("**page=2")
    assert order(page) == expected[60:120]
    assert page.locator(".now .rank").all_text_contents() == [str(rank) for rank in range(61, 121)]
    page.locator(".now .why").nth(1).click()
    page.locator("#why[open]").wait_for()
    expect(page.locator("#why .ranks .own dd")).to_have_text("62")
    page.keyboard.press("Escape")
    page.locator("#why:not([open])").wait_for(state="attached")
    page.get_by_role("link", name="Previous 60").click()
    page.wait_for_url(lambda url: "page=" not in url)
    page.goto(f"{shared.url}/c/toys?like=77&page=2")
    assert order(page) == expected[12:24]
    page.goto(f"{shared.url}/c/toys?like=77&page=20&hits=60")
    assert "no more hits" in page.locator(".now .state").text_content()


@pytest.mark.parametrize("theme", ["light", "phone"])
def test_nothing_jumps(gallery: LiveServer, visit: Callable[..., Any], theme: str) -> None:
    page = visit("about:blank", **THEMES[theme])
    page.add_init_script(SHIFTS)
    for name in (f"pictures?like={long_id(7)}", "texts?like=d3.md%231"):
        page.goto(f"{gallery.url}/c/{name}")
        wait_for_pictures(page)
        top = page.locator("#results").evaluate("part => part.getBoundingClientRect().top + scrollY")
        for action in ("slider", "more"):
            if action == "more":
                page.locator("#more").click()
                page.wait_for_url("**hits=24**")
            else:
                page.locator("#balance").fill("0.4")
                page.wait_for_url("**balance=0.4**")
            settle(page)
            wait_for_pictures(page)
            assert page.locator("#results").evaluate("part => part.getBoundingClientRect().top + scrollY") == top
        assert 0 < page.evaluate(FIRST_NEW) < page.viewport_size["height"]
        assert page.evaluate(REPORTED) == []


# ---- keys ----


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
    page.locator("#why:not([open])").wait_for(state="attached")
    version = collection_of(server).stats()["version"]
    page.keyboard.press("u")
    wait_for_message(page, "Learnt as version")
    assert page.evaluate(focus) in order(page)  # it is still among the hits
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("d")
    wait_for_message(page, f"Learnt as version {version + 2}")
    page.keyboard.press("r")
    page.wait_for_url(lambda url: "like=77" not in url)
    page.locator("#search").focus()
    page.locator("#search").fill("")
    page.keyboard.type("rude")  # no shortcuts in a text field
    assert page.locator("#search").input_value() == "rude"
