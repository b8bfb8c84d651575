"""A real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import sync_playwright

import stillhash
from tests.server.browser.pages import CHROMIUM, TIMEOUT, WIDE, fill
from tests.server.live_server import LiveServer, live_server


@pytest.fixture(scope="package")  # its event loop must not outlive these tests
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Start one server for all pages on which nothing is changed."""
    with serving(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with serving(tmp_path) as server:
        yield server


@contextmanager
def serving(folder: Path) -> Iterator[LiveServer]:
    """Serve a collection that has learnt, one of a few items, and an empty one."""
    collections = {
        "toys": fill(folder / "toys"),
        "few": stillhash.open(folder / "few", 4, 32),
        "empty": stillhash.open(folder / "empty", 4, 32),
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
        page.set_default_timeout(TIMEOUT)
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
