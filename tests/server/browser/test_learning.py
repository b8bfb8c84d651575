"""The learning page in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count as count_from
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

import stillhash
from stillhash import Collection
from tests.server.browser.pages import collection_of, order, settle, wait_for_message
from tests.server.live_server import LiveServer, live_server
from tests.support.toys import toy
from tests.support.waiting import until


def wait_for_rate(page: Any, collection: Collection) -> None:
    """Add rows without labels until the page says how many come in a second: it counts those of its last events."""
    numbers = count_from(5000)

    def is_shown() -> bool:
        collection.add([next(numbers)], np.ones((1, collection.dim)))
        return page.locator("[data-figure=rate]").text_content() != "0"

    until(is_shown, "rate")


@pytest.mark.smoke
def test_curve_is_live_and_a_rollback_restores(server: LiveServer, visit: Callable[..., Any]) -> None:
    collection, (X, Y) = collection_of(server), toy(1200, 24, 6)
    search = visit(f"{server.url}/c/toys?like=77")
    before, version = order(search), collection.stats()["version"]
    page = visit(f"{server.url}/c/toys/learning")
    page.locator("#live.on").wait_for()
    points = int(page.locator("#curve").get_attribute("data-points"))
    assert points == len(collection.quality()["curve"])
    chart, picture = page.locator("#plot-ndcg canvas"), page.locator("#plot-ndcg canvas").screenshot()
    table = page.locator("#values").text_content()
    rows = page.locator("#versions tbody tr").count()
    labels = [[f"label {c}" for c in np.flatnonzero(1 - y)] for y in Y[700:]]  # inverted, so that much changes
    for start in range(0, 500, 100):
        part = slice(start, start + 100)
        collection.add([*range(2000 + start, 2100 + start)], X[700:][part], labels[part])
    page.locator(f"#curve[data-points='{points + 5}']").wait_for()
    until(lambda: chart.screenshot() != picture)
    expect(page.locator("#values")).not_to_have_text(table)
    expect(page.locator("[data-figure=items]")).to_have_text("1,200")
    expect(page.locator("[data-figure=version]")).to_have_text(str(version + 5))  # so no refresh of the table follows
    expect(page.locator("#versions tbody tr")).to_have_count(rows + 5)
    settle(page)
    wait_for_rate(page, collection)
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
    expect(page.locator("[data-figure=version]")).to_have_text(str(version + 6))
    settle(page)
    search.goto(f"{server.url}/c/toys?like=77&against={version}")
    assert order(search) == order(search, "then")
    row.get_by_role("link", name="Compare").click()
    page.wait_for_url(f"**/compare?a={version}")
    expect(page.locator(".lead")).to_contain_text("0.0 of the first ten hits differ")


def test_charts_and_table_show_weighted_means(shared: LiveServer, visit: Callable[..., Any]) -> None:
    curve = collection_of(shared).quality()["curve"]
    assert len(curve) == 7 and {point["version"] for point in curve} == {2}
    ndcg, before = curve[0]["ndcg"], curve[0]["before"]["ndcg"]
    for n, point in enumerate(curve[1:], 1):
        share = max(0.3, 2 / (n + 2))
        ndcg, before = (
            (1 - share) * ndcg + share * point["ndcg"],
            (1 - share) * before + share * point["before"]["ndcg"],
        )
    page = visit(f"{shared.url}/c/toys/learning")
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
    expect(cell["rows"]).to_have_text("0")
    expect(cell["gain-ndcg"]).to_have_text("0.000")
    expect(cell["gain-ndcg"]).to_contain_class("zero")
    lead = page.locator("#gain")
    assert float(lead.locator("[data-gain=ndcg]").text_content()) == pytest.approx(ndcg - before, abs=6e-4)
    assert "better" in lead.get_attribute("class") and lead.locator("h2").is_visible()
    assert lead.bounding_box()["y"] < page.locator("#figures").bounding_box()["y"]


DIM, STEP = 24, 100
SENTENCE = "Two steps are measured so far"


def labels_of(Y: np.ndarray) -> list[list[str]]:
    return [[f"label {c}" for c in np.flatnonzero(y)] for y in Y]


def begin(path: Path, steps: int) -> Collection:
    """Return a collection whose codes hold no labels, with so many measured steps."""
    X, Y = toy(300 + STEP * steps, DIM, 6)
    options: dict[str, Any] = {"learn_rows": STEP, "codes_see_labels": False, "init": (X[:300], Y[:300])}
    collection = stillhash.open(path, DIM, 64, **options)
    for n in range(steps):
        add_step(collection, n, X[300 + STEP * n :][:STEP], labels_of(Y[300 + STEP * n :][:STEP]))
    return collection


def add_step(collection: Collection, n: int, X: np.ndarray, labels: list[list[str]]) -> None:
    collection.add([*range(STEP * n, STEP * (n + 1))], X, labels)


@pytest.fixture
def learnt(tmp_path: Path) -> Iterator[LiveServer]:
    with live_server({"many": begin(tmp_path / "many", 6), "two": begin(tmp_path / "two", 2)}) as server:
        yield server


def test_few_steps_are_a_sentence_until_the_third_makes_a_chart(learnt: LiveServer, visit: Callable[..., Any]) -> None:
    collection, (X, Y) = learnt.executor("two").collection, toy(STEP, DIM, 6, seed=9)
    page = visit(f"{learnt.url}/c/two/learning")
    page.locator("#live.on").wait_for()
    few, last = page.locator("#few"), collection.quality()["curve"][-1]
    expect(few).to_contain_text(SENTENCE)
    expect(few).to_contain_text(f"{last['ndcg']:.3f} ({last['before']['ndcg']:.3f}")
    expect(page.locator(".charts")).to_be_hidden()
    expect(page.locator("canvas")).to_have_count(0)
    add_step(collection, 2, X, labels_of(Y))
    page.locator("#curve[data-points='3']").wait_for()
    expect(few).to_be_hidden()
    assert page.locator("#plot-gain canvas").bounding_box()["width"] > 200


def test_without_a_measurable_gain_the_figures_fade(tmp_path: Path, visit: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    chance = begin(tmp_path / "chance", 0)
    for n in range(6):  # labels at random
        labels = [[str(rng.integers(4))] for _ in range(STEP)]
        add_step(chance, n, rng.standard_normal((STEP, DIM)).astype(np.float32), labels)
    with live_server({"chance": chance, "empty": stillhash.open(tmp_path / "empty", 4, 32)}) as server:
        page = visit(f"{server.url}/c/chance/learning")
        page.locator("#curve[data-points='6']").wait_for()
        expect(page.locator("#gain h2")).to_contain_text("No measurable gain yet")
        colour, muted = "element => getComputedStyle(element).color", page.locator(".happened")
        for place in ("#gain [data-gain=ndcg]", "#figures .alarm dd"):
            expect(page.locator(place)).to_have_css("color", muted.evaluate(colour))  # as a zero is
        assert muted.evaluate(colour) != page.locator("body").evaluate(colour)
        page.goto(f"{server.url}/c/empty/learning")
        page.locator("#live.on").wait_for()
        expect(page.locator("#gain h2")).to_contain_text("No gain measured yet")
        expect(page.locator(".big")).to_be_hidden()
        expect(page.locator("#few")).to_be_visible()


def test_markers_say_what_happened_and_can_be_hidden(learnt: LiveServer, visit: Callable[..., Any]) -> None:
    collection, (X, Y) = learnt.executor("many").collection, toy(800, DIM, 6, seed=9)
    collection.feedback(X[0], [1, 2, 3], ["up", "down", "up"])
    collection.relabel([4, 5], [["label 1"], ["label 2"]])
    collection.flush()
    for n in range(6, 12):
        labels = labels_of(Y[:STEP]) if n < 8 else [["none of them"]] * 50 + [["neither"]] * 50
        add_step(collection, n, X[STEP * (n - 6) :][:STEP], labels)
    drifts = len(collection.quality()["alarms"])
    assert drifts > 0
    page = visit(f"{learnt.url}/c/many/learning")
    points = len(collection.quality()["curve"])
    page.locator(f"#curve[data-points='{points}']").wait_for()
    for kind, count in (("votes", "1"), ("labels", "1"), ("drift", str(drifts))):
        expect(page.locator(f"[data-count={kind}]")).to_have_text(count)
    chart, picture = page.locator("#plot-gain canvas"), page.locator("#plot-gain canvas").screenshot()
    page.get_by_label("Thumbs").uncheck()
    until(lambda: chart.screenshot() != picture)
    page.get_by_label("Thumbs").check()
    page.mouse.move(0, 0)
    page.get_by_text("The same as a table").click()
    rows = page.locator("#steps tbody tr")
    expect(rows).to_have_count(points)
    row = rows.filter(has_text="3 thumbs")
    expect(row).to_contain_text("labels of 2 items")
    expect(page.locator("#steps tbody tr", has_text="drift")).to_have_count(drifts)
    step = collection.quality()["curve"][-1]
    cells = rows.first.locator("td").all_text_contents()
    assert cells[:3] == [str(step["version"]), f"{step['ndcg']:.3f}", f"{step['before']['ndcg']:.3f}"]


def test_labels_are_listed_worst_first_as_the_library_has_them(learnt: LiveServer, visit: Callable[..., Any]) -> None:
    report = learnt.executor("many").collection.probe()
    page = visit(f"{learnt.url}/c/many/learning")
    rows = page.locator(".by-label tbody tr")
    texts = [[cell.strip() for cell in rows.nth(n).locator("th, td").all_text_contents()] for n in range(rows.count())]
    assert [text[0] for text in texts] == [row.label for row in report.labels]
    expected = [(row.ndcg, row.ndcg_gain, row.precision, row.precision_gain) for row in report.labels]
    assert [tuple(map(float, text[1:5])) for text in texts] == [pytest.approx(some, abs=6e-4) for some in expected]
    rows.first.get_by_role("link", name="Search").click()
    page.wait_for_url("**filter=**")


def test_two_versions_are_compared_query_by_query(learnt: LiveServer, visit: Callable[..., Any]) -> None:
    collection = learnt.executor("many").collection
    version = collection.stats()["version"]
    page = visit(f"{learnt.url}/c/many/learning")
    page.get_by_label("Compare version 2, as A").check()
    page.get_by_role("button", name="Compare A and B").click()
    page.wait_for_url(f"**/compare?b={version}&a=2")  # in the order of the table
    comparison = collection.compare_versions(2, version)
    assert f"{comparison.differing:.1f} of the first ten hits differ" in page.locator(".lead").text_content()
    for place in (1, 2):
        query = comparison.queries[place - 1]
        assert f"Query {place} of {len(comparison.queries)}: {query.id}" in page.locator("#query h2").text_content()
        for side, hits in enumerate(query.hits):
            cards = page.locator(".side").nth(side).locator(".card")
            assert cards.locator(".id bdi").all_text_contents() == [str(id_) for id_ in hits]
            items = [item for item in collection.get(hits) if item is not None]
            shared = [bool(set(item.labels) & set(query.labels)) for item in items]
            classes = cards.evaluate_all("cards => cards.map((card) => card.classList.contains('match'))")
            assert classes == shared
            others = set(query.hits[1 - side])
            marked = [place for place, id_ in enumerate(hits) if shared[place] and id_ not in others]
            word = ("lost", "gained")[side]
            assert cards.locator(f".pill:text-is('{word}')").count() == len(marked)
        page.get_by_role("link", name="Next").click()
        page.wait_for_url(f"**at={place + 1}#query")
    page.locator("select[name=a]").select_option("0")
    page.wait_for_url("**a=0&b=*")
    assert page.locator(".side h3").first.text_content().startswith("Before learning")
    page.goto(f"{learnt.url}/c/many/compare?at=999")
    assert f"Query {len(comparison.queries)} of" in page.locator("#query h2").text_content()
    assert page.get_by_role("link", name="Next").count() == 0
