"""The learning page in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.server.browser.pages import collection_of, order, wait_for_message
from tests.server.live_server import LiveServer
from tests.support.toys import toy


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
