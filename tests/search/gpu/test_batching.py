"""Searches that wait for the card go together, and errors reach all of them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from stillhash.search.gpu.gpu_scan import MOST_TOGETHER, CardSearch, SearchQueue
from stillhash.search.merge import no_floors


def a_search(queries: int, k: int = 3, mirror: Any = "mirror", live: Any = None) -> CardSearch:
    return CardSearch(mirror, np.arange(queries * 2.0).reshape(queries, 2), k, no_floors(queries), None, live)


def echo(search: CardSearch) -> Any:
    """Answer each query with its first weight, k times."""
    first = search.grid[:, :1].astype(np.float32)
    return np.repeat(first, search.k, axis=1), np.zeros((len(first), search.k), np.int64)


def test_a_search_alone_is_answered() -> None:
    scores, ids = SearchQueue(echo).run(a_search(2))
    assert scores.tolist() == [[0, 0, 0], [2, 2, 2]] and ids.shape == (2, 3)


def together(searches: list[CardSearch], answer: Any) -> tuple[list[int], list[Any]]:
    """Run the first search, and the others while it is being answered; return the sizes of turns, and all outcomes."""
    asked: list[int] = []
    started, go_on = threading.Event(), threading.Event()

    def slow(search: CardSearch) -> Any:
        asked.append(len(search.grid))
        started.set()
        assert go_on.wait(10)
        return answer(search)

    queue = SearchQueue(slow)
    outcomes: list[Any] = [None] * len(searches)

    def run(i: int) -> None:
        try:
            outcomes[i] = queue.run(searches[i])
        except ValueError as error:
            outcomes[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(searches))]
    threads[0].start()
    assert started.wait(10)
    for thread in threads[1:]:
        thread.start()
    while len(queue._waiting) < len(searches) - 1:
        pass
    go_on.set()
    for thread in threads:
        thread.join()
    assert not queue._waiting
    return asked, outcomes


def test_those_that_wait_go_together_and_get_their_own_hits() -> None:
    asked, outcomes = together([a_search(1), a_search(2, k=5), a_search(3, k=2)], echo)
    assert asked == [1, 5]
    assert outcomes[1][0].tolist() == [[0] * 5, [2] * 5] and outcomes[2][0].tolist() == [[0] * 2, [2] * 2, [4] * 2]


def test_only_searches_of_the_same_rows_go_together() -> None:
    others = [a_search(1, mirror="later"), a_search(1, live="filter"), a_search(1)]
    asked, outcomes = together([a_search(1), *others], echo)
    assert asked == [1, 1, 1, 1] and all(len(each[0]) == 1 for each in outcomes)


def test_a_turn_has_a_bound() -> None:
    asked, _ = together([a_search(1), a_search(MOST_TOGETHER), a_search(1)], echo)
    assert sorted(asked) == [1, 1, MOST_TOGETHER]


def test_an_error_reaches_all_of_the_turn() -> None:
    def fail(search: CardSearch) -> Any:
        raise ValueError("the card")

    asked, outcomes = together([a_search(1), a_search(1), a_search(1)], fail)
    assert asked == [1, 2] and all(isinstance(each, ValueError) for each in outcomes)


def test_a_search_after_an_error_is_answered() -> None:
    answers = iter([ValueError("once"), None])

    def sometimes(search: CardSearch) -> Any:
        if (error := next(answers)) is not None:
            raise error
        return echo(search)

    queue = SearchQueue(sometimes)
    with pytest.raises(ValueError, match="once"):
        queue.run(a_search(1))
    assert queue.run(a_search(1))[0].tolist() == [[0, 0, 0]]
