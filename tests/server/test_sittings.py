"""What the server remembers of people who label items."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

from stillhash import Collection
from stillhash.collection import LabelSuggestion
from stillhash.server import page_state
from stillhash.server.page_state import MAX_REMEMBERED, MAX_SITTINGS, Sittings
from tests.collection.fixtures import some_rows
from tests.server.live_server import LiveServer
from tests.support.waiting import TIMEOUT, until


def suggestion(id_: str | int, *labels: str) -> LabelSuggestion:
    return LabelSuggestion(id_, [(label, 0.5) for label in labels], 1.0, "typical")


def test_answers_are_counted_once_and_taken_back() -> None:
    sitting = Sittings().get("toys", "one")
    sitting.show([suggestion(1, "a", "b"), suggestion("1", "b"), suggestion(2)])
    sitting.decide(1, "labelled", ["a"])
    sitting.decide(1, "labelled", ["a"])  # sent twice
    sitting.decide("1", "labelled", ["a"])
    sitting.decide(2, "labelled", ["c"])
    assert sitting.count("labelled") == 3 and sitting.recent == ["c", "a"] and sitting.waiting == {}
    sitting.decide(3, "skipped")
    sitting.decide(4, "rejected")
    assert (sitting.count("skipped"), sitting.count("rejected"), len(sitting.times)) == (1, 1, 5)
    sitting.undo(2)
    assert sitting.count("labelled") == 2 and list(sitting.waiting) == [2]


def test_the_share_of_first_choices_that_were_right() -> None:
    sitting = Sittings().get("toys", "one")
    assert sitting.first_right is None
    sitting.show([suggestion(1, "a", "b"), suggestion(2, "a"), suggestion(3), suggestion(4, "x")])
    sitting.decide(1, "labelled", ["b", "a"])
    sitting.decide(2, "labelled", ["b"])
    sitting.decide(3, "labelled", ["b"])  # nothing was suggested
    sitting.decide(4, "rejected")
    assert sitting.first_right == 0.5


def test_the_rate_is_of_the_latest_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1000.0, 1002.0, 1004.0])
    monkeypatch.setattr("stillhash.server.page_state.time.monotonic", lambda: next(moments))
    monkeypatch.setattr(page_state, "RATED_ANSWERS", 3)
    sitting = Sittings().get("toys", "one")
    assert sitting.rate is None
    for number in range(4):
        sitting.decide(number, "labelled", ["a"])
    assert sitting.rate == 30


def test_people_are_not_shown_the_same_items(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Sittings()
    one, two = own.get("toys", "one"), own.get("toys", "two")
    one.show([suggestion(1), suggestion(2)])
    one.decide(2, "skipped")
    own.reject("toys", 3)
    assert own.hidden("toys", one) == [3, 2, 1]
    assert own.hidden("toys", two) == [3, 1]
    assert own.hidden("other", own.get("other", "two")) == []
    monkeypatch.setattr(page_state, "RESERVED_SECONDS", -1)
    assert own.hidden("toys", two) == [3]
    own.restore("toys", 3)
    assert own.hidden("toys", two) == []


def test_what_is_remembered_is_bounded() -> None:
    own = Sittings()
    first = own.get("toys", "first")
    for number in range(MAX_REMEMBERED + 10):
        first.decide(number, "skipped")
        own.reject("toys", number)
    assert len(first.decisions) == MAX_REMEMBERED and 0 not in first.decisions
    for number in range(MAX_SITTINGS):
        own.get("toys", str(number))
    assert own.get("toys", "first") is not first
    own.remove("toys")
    assert own.hidden("toys", own.get("toys", "new")) == []


class CountedLock(asyncio.Lock):
    """A lock that counts who has asked for it."""

    asked = 0

    async def acquire(self) -> Literal[True]:
        self.asked += 1
        return await super().acquire()


def test_a_stored_answer_is_counted(serving: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in figures that are asked for in between."""
    server, stored, go_on = serving(), threading.Event(), threading.Event()
    server.executor().collection.add(["new"], some_rows(1).X)
    add_labels = Collection.add_labels

    def add_and_wait(*args: Any) -> Any:
        before = add_labels(*args)
        stored.set()
        assert go_on.wait(TIMEOUT)
        return before

    def progress() -> tuple[int, int]:
        figures = server.request("GET", "/c/c/teach/progress?sitting=one", hx_request="true").json
        return figures["labelled"], figures["total"]

    monkeypatch.setattr(Collection, "add_labels", add_and_wait)
    lock = server.app.state.stillhash.sittings.get("c", "one").lock = CountedLock()
    form = {"content_type": "application/x-www-form-urlencoded", "hx_request": "true"}
    answer = b"sitting=one&id=%22new%22&answer=accept&labels=%5B%22a%22%5D"
    total = progress()[1]
    with ThreadPoolExecutor(2) as pool:
        answering = pool.submit(server.request, "POST", "/c/c/teach/answer", answer, **form)
        assert stored.wait(TIMEOUT)
        asking = pool.submit(progress)
        until(lambda: asking.done() or lock.asked == 3)
        go_on.set()
        assert answering.result().json["labelled"] == 1
        assert asking.result() == (1, total + 1)
