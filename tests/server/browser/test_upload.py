"""Uploads in a real browser: dropped and chosen files, progress, broken ones, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import stillhash
from stillhash.encoders import open_query_encoder
from stillhash.server import Settings, create_app
from stillhash.server.tasks import Task
from tests.server import live_server as live
from tests.server.browser.pages import THEMES
from tests.server.live_server import LiveServer
from tests.server.test_uploads import DIM, picture, rows, zipped
from tests.support.waiting import until


@pytest.fixture
def creating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    """A server on which collections can be created, with one of vectors."""
    (tmp_path / "more").mkdir()
    monkeypatch.setattr(live, "create_app", partial(create_app, open_query_encoder=open_query_encoder))
    settings = Settings(collections_folder=tmp_path / "more", max_upload_bytes=8 << 20)
    with live.live_server({"rows": stillhash.open(tmp_path / "rows", DIM, 32)}, settings) as server:
        yield server


def choose(page: Any, name: str, data: bytes) -> None:
    page.set_input_files("#upload-input", {"name": name, "mimeType": "application/octet-stream", "buffer": data})


def upload(page: Any, name: str, data: bytes) -> Any:
    """Upload a file, and return what is said about it at the end."""
    choose(page, name, data)
    page.get_by_role("button", name="Upload").click()
    outcome = page.locator("#import-state .outcome")
    outcome.wait_for()
    return outcome


@pytest.mark.smoke
def test_a_collection_is_created_filled_and_searched(creating: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{creating.url}/collections")
    page.get_by_role("link", name="New collection").click()
    page.get_by_label("Name").fill("photos")
    page.get_by_role("button", name="Create").click()
    page.wait_for_url("**/c/photos/collection")
    assert "empty collection for images" in page.locator(".lead").text_content()
    archive = zipped({f"photos/{kind}/{number}.png": picture(number) for kind in ("cat", "dog") for number in range(3)})
    assert "6 added" in upload(page, "photos.zip", archive).text_content()
    page.get_by_role("link", name="Show labels and fields").click()
    labels = page.locator(".label-cards .label")
    expect(labels).to_have_count(2)
    assert sorted(labels.all_text_contents()) == ["cat", "dog"]
    expect(page.locator(".lead")).to_contain_text("6 images", use_inner_text=True)
    page.locator(".label-cards img").first.wait_for()
    page.locator(".label-cards a", has_text="cat").click()
    page.wait_for_url("**filter=**")
    assert page.locator(".card, .hit").count() > 0


def test_a_form_with_a_mistake_comes_back(creating: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{creating.url}/new")
    page.get_by_label("Name").fill("rows")
    page.locator("#vectors").check()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert").first).to_contain_text("dim", ignore_case=True)
    page.get_by_label("Numbers in each").fill("16")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert").first).to_contain_text("exists already")
    assert page.get_by_label("Numbers in each").input_value() == "16" and page.locator("#vectors").is_checked()
    page.get_by_label("Name").fill("others")
    page.get_by_role("button", name="Create").click()
    page.wait_for_url("**/c/others/collection")
    assert "vectors of 16 numbers" in page.locator(".lead").text_content()
    page.get_by_role("link", name="All", exact=True).click()
    expect(page.locator(".collection-cards .title")).to_have_text(["rows", "others"])


@pytest.mark.parametrize("theme", THEMES)
def test_rows_are_dropped(creating: LiveServer, visit: Callable[..., Any], theme: str) -> None:
    page = visit(f"{creating.url}/c/rows/collection", **THEMES[theme])
    page.evaluate(
        """text => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([text], "rows.jsonl"));
            const at = document.querySelector(".drop");
            for (const kind of ["dragenter", "dragover", "drop"]) {
                at.dispatchEvent(new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer: transfer }));
            }
        }""",
        rows(12).decode(),
    )
    page.locator("#upload-chosen", has_text="rows.jsonl").wait_for()
    page.get_by_role("button", name="Upload").click()
    page.locator(".outcome", has_text="12 added").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("link", name="Search them").click()
    page.wait_for_url("**/c/rows")


def test_broken_files_change_nothing_and_say_why(creating: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{creating.url}/c/rows/collection")
    said = upload(page, "rows.jsonl", rows(3) + b'{"id": 9, "features": [1.0]}\n').text_content()
    assert "Not imported" in said and "rows.jsonl, line 4" in said and "Nothing was changed" in said
    said = upload(page, "<img src=x onerror=alert(1)>.exe", b"x").text_content()
    assert "Not imported" in said and page.locator("#import-state img").count() == 0
    said = upload(page, "<img src=x onerror=alert(1)>.jsonl", b"{").text_content()
    assert "Not imported" in said and page.locator("#import-state img").count() == 0
    assert "at a time" in upload(page, "large.jsonl", bytes(9 << 20)).text_content()
    assert creating.executor("rows").collection.count() == 0


def test_an_archive_bomb_is_refused(creating: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{creating.url}/new")
    page.get_by_label("Name").fill("bombs")
    page.get_by_role("button", name="Create").click()
    page.wait_for_url("**/c/bombs/collection")
    said = upload(page, "bomb.zip", zipped({"a.png": picture(), "b.png": bytes(40 << 20)})).text_content()
    assert "Not imported" in said and "bomb.zip" in said
    assert creating.executor("bombs").collection.count() == 0


def test_an_import_is_cancelled(
    creating: LiveServer, visit: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Task.report

    def report_when_cancelled(task: Task, share: float, message: str | None = None) -> None:
        if share > 0:
            until(lambda: task.cancelling)
        report(task, share, message)

    monkeypatch.setattr(Task, "report", report_when_cancelled)
    page = visit(f"{creating.url}/c/rows/collection")
    choose(page, "rows.jsonl", rows(30_000))
    page.get_by_role("button", name="Upload").click()
    bar = page.get_by_role("progressbar", name="Import rows.jsonl")
    bar.first.wait_for()
    page.locator("#import-state").get_by_role("button", name="Cancel").click()
    page.locator("#import-state .outcome").wait_for()
    count = creating.executor("rows").collection.count()
    assert count % 10_000 == 0 and count < 30_000
    assert "Stopped" in page.locator("#import-state").text_content()


def test_the_form_works_without_scripts(creating: LiveServer, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{creating.url}/c/rows/collection")
    choose(page, "rows.jsonl", rows(7))
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url("**task=**")

    def is_done() -> bool:
        page.reload()
        return page.locator("#import-state .outcome").count() > 0

    until(is_done)
    assert "7 added" in page.locator(".outcome").text_content()
    context.close()
