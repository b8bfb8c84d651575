"""Labels to check, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.collection.test_doubtful_labels import create, noisy_rows
from tests.server.live_server import live_server


def test_labels_are_kept_or_replaced_by_keys(tmp_path: Path, visit: Callable[..., Any]) -> None:
    collection = create(tmp_path / "c", noisy_rows(0.2))
    first, second, third = collection.doubtful_labels(3)
    with live_server({"c": collection}) as server:
        page = visit(f"{server.url}/c/c/doubtful_labels")
        page.keyboard.press("j")
        page.keyboard.press("k")
        page.locator("#checked", has_text="keeps its labels").wait_for()
        page.keyboard.press("r")
        page.locator("#checked", has_text="is now").wait_for()
        assert json.loads(page.locator(".doubt:focus").get_attribute("data-id")) == third.id
        items = collection.get([first.id, second.id])
        assert [item.labels for item in items if item] == [first.labels, sorted(second.predicted)]
        assert not {first.id, second.id} & {item.id for item in collection.doubtful_labels(1000)}
        page.keyboard.press("z")
        page.locator("#checked", has_text="labels from before").wait_for()
        assert json.loads(page.locator(".doubt:focus").get_attribute("data-id")) == second.id
        item = collection.get(second.id)
        assert item is not None and item.labels == second.labels
        page.locator(".doubt").first.locator("button[value=keep]").click()
        page.locator("#checked", has_text="keeps its labels").wait_for()
        assert page.locator(".doubt").count() == 98
