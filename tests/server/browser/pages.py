"""What tests of the pages share: collections, windows, and waiting for what a page shows.

A test waits for what it asserts: `expect` tries again until it holds, and `settle` waits until a page has taken in
what it fetched.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import expect

import stillhash
from stillhash import Collection
from tests.server.live_server import LiveServer
from tests.support.toys import toy

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TIMEOUT = 30_000  # milliseconds until something that should have happened is a failure
HOSTILE = ["<script>document.title='taken'</script>", "x" * 400, "🦊 مرحبا", "a'\"&b", "</template>{{7*7}}"]
expect.set_options(timeout=TIMEOUT)
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


def collection_of(server: LiveServer) -> Collection:
    collection: Collection = server.executor("toys").collection
    return collection


def order(page: Any, side: str = "now") -> list[str]:
    """Return the items of a column, best first."""
    names: list[str] = page.locator(f".{side} .card .id bdi").all_text_contents()
    return names


def settle(page: Any) -> None:
    """Wait until htmx fetches nothing, and what it has swapped in takes clicks and has its attributes.

    The page's own scripts move the focus and change the address in the same step.
    """
    page.wait_for_function(
        "() => !document.querySelector('.htmx-request, .htmx-swapping, .htmx-added, .htmx-settling')"
    )


def wait_for_message(page: Any, text: str) -> None:
    """Wait until the page says so, and shows the hits that belong to it."""
    page.locator("#message", has_text=text).wait_for()
    settle(page)
