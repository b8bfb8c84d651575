"""Long work on the collection page in a real browser: it starts, shows its progress, ends, and can be cancelled."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from pyarrow import parquet

import stillhash
from stillhash import Collection
from stillhash.errors import StoreFailed
from stillhash.server import Settings
from stillhash.server.tasks import Report
from tests.server.browser.pages import THEMES, fill, settle
from tests.server.live_server import LiveServer, live_server


@pytest.fixture
def copying(tmp_path: Path) -> Iterator[LiveServer]:
    """A server with a folder for snapshots."""
    with live_server({"toys": fill(tmp_path / "toys")}, Settings(snapshots=tmp_path / "copies")) as server:
        yield server


class Slow:
    """Work that stays at a share until it is told to go on, or cancelled."""

    def __init__(self, share: float = 0.4) -> None:
        self.share, self.end = share, threading.Event()

    def __call__(self, collection: Collection, report: Report) -> dict[str, Any]:
        while not self.end.wait(0.005):
            report(self.share, "counting")
        return {"problems": []}


def test_verify_snapshot_and_export(copying: LiveServer, visit: Callable[..., Any], tmp_path: Path) -> None:
    page = visit(f"{copying.url}/c/toys/collection")
    tasks = page.locator("#task-list .task")
    page.get_by_role("button", name="Verify").click()
    tasks.first.locator(".pill", has_text="sound").wait_for()
    page.get_by_role("button", name="Snapshot").click()
    tasks.first.locator("code", has_text="toys-").wait_for()
    name = tasks.first.locator("code").text_content()
    with stillhash.open(tmp_path / "copies" / name, read_only=True) as copy:
        assert len(copy) == 700 and copy.verify() == []
    page.locator("#tasks select[name=format]").select_option("parquet")
    page.get_by_role("button", name="Export").click()
    link = tasks.first.get_by_role("link")
    link.wait_for()
    with page.expect_download() as download:
        link.click()
    assert parquet.read_table(download.value.path()).num_rows == 700
    expect(tasks).to_have_count(3)
    settle(page)
    tasks.first.get_by_role("button", name="Remove").click()
    tasks.nth(2).wait_for(state="detached")


@pytest.mark.smoke
def test_progress_and_cancelling(copying: LiveServer, visit: Callable[..., Any]) -> None:
    listed, slow = copying.executor("toys").tasks, Slow()
    task = listed.start("verify", "Verify", slow)
    page = visit(f"{copying.url}/c/toys/collection")
    page.locator("[role=progressbar][aria-valuenow='40']").wait_for()
    slow.share = 0.75
    page.locator("[role=progressbar][aria-valuenow='75']").wait_for()
    expect(page.locator(".task-result")).to_contain_text("75 % · counting")
    page.get_by_role("button", name="Cancel").click()
    page.locator(".task.cancelled").wait_for()
    assert task.state == "cancelled" and "Nothing is left" in page.locator(".task-result").text_content()
    expect(page.locator("#task-list")).not_to_have_attribute(
        "hx-trigger", re.compile("")
    )  # nothing is fetched any more
    settle(page)
    page.get_by_role("button", name="Verify", exact=True).click()
    page.locator(".task.done").wait_for()
    expect(page.locator("#task-status")).to_have_text("Verify: done")


def test_a_fault_and_a_full_queue_are_shown(copying: LiveServer, visit: Callable[..., Any]) -> None:
    def fail(collection: Collection, report: Report) -> None:
        raise StoreFailed("path: expected room on the disk, got none <b>left</b>")

    copying.executor("toys").tasks.start("snapshot", "Snapshot", fail)
    page = visit(f"{copying.url}/c/toys/collection")
    page.locator(".task.failed").wait_for()
    assert "got none <b>left</b>." in page.locator(".task-result.bad").text_content()
    slow = Slow()
    for _ in range(8):
        copying.executor("toys").tasks.start("verify", "Verify", slow)
    page.get_by_role("button", name="Verify", exact=True).click()
    page.locator("#error p", has_text="8 are waiting or running").wait_for()
    slow.end.set()


def test_without_a_folder_nothing_is_copied(shared: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{shared.url}/c/toys/collection", **THEMES["phone"])
    assert page.locator("#tasks button").all_text_contents() == ["Verify", "Compact"]
    assert page.locator("#tasks code", has_text="--snapshots").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_without_scripts_the_page_comes_back(copying: LiveServer, visit: Callable[..., Any]) -> None:
    page = visit(f"{copying.url}/c/toys/collection", java_script_enabled=False)
    page.get_by_role("button", name="Verify").click()
    page.wait_for_url("**/c/toys/collection#tasks")
    assert page.locator("#task-list .task").count() == 1
