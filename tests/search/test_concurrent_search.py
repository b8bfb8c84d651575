"""Threads search while others add, remove and merge, each with kernels of several threads: no answer is torn.

`make sanitize-threads` runs this module with ThreadSanitizer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from stillhash import MIWQ, Index, Scan
from stillhash.numeric import kernels
from stillhash.numeric.exact_scores import score_all, snap
from stillhash.search import index as index_module
from stillhash.search import miwq as miwq_module
from tests.contracts.searchers import random_codes

BITS, FIRST_ROWS, ADDED, CHUNK = 64, 40_000, 9_000, 150  # chunks end within a tile, and readers read that tile
QUERIES, K = 32, 20  # enough work for a kernel to start threads of its own
READERS = 3


class Answer(NamedTuple):
    added: tuple[int, int]  # rows that were there when the search began, and when it ended
    removed: tuple[int, int]  # rows that had gone by then
    scores: np.ndarray
    ids: np.ndarray


@contextmanager
def searching(search: Callable[[], None]) -> Iterator[None]:
    """Repeat a search in threads during the block; an exception in one of them is raised here."""
    stop, failures = threading.Event(), list[BaseException]()

    def repeat() -> None:
        try:
            while not stop.is_set():
                search()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=repeat) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def check_answer(answer: Answer, scores: np.ndarray, removed: np.ndarray) -> None:
    """Check that every hit was there at some moment of the search, and that none was left out that was there all along.

    Rows are added in the order of their ids, and removed in the order of `removed`.
    """
    assert (answer.ids < answer.added[1]).all() and (answer.ids >= 0).all()
    assert not np.isin(answer.ids, removed[: answer.removed[0]]).any()
    np.testing.assert_array_equal(answer.scores, np.take_along_axis(scores, answer.ids, axis=1))
    stable = np.setdiff1d(np.arange(answer.added[0]), removed[: answer.removed[1]])
    for hits, all_scores in zip(answer.ids, scores, strict=True):
        assert len(set(hits.tolist())) == len(hits)
        last = all_scores[hits[-1]], -hits[-1]
        above = stable[all_scores[stable] >= last[0]]
        missing = np.setdiff1d(above, hits)
        assert all((all_scores[i], -i) < last for i in missing.tolist())


@pytest.mark.parametrize("kind", ["scan", "miwq", "index"])
def test_searches_beside_add_remove_and_merge(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "TABLES_PAY", ((512, 1),))
    monkeypatch.setattr(index_module, "LARGE_K", 0.2)
    monkeypatch.setattr(miwq_module, "MERGE_ROWS", 3000)
    monkeypatch.setattr(miwq_module, "MERGE_SHARE", 0.0)
    index: Any = {"scan": Scan, "miwq": MIWQ, "index": Index}[kind](BITS, threads=4)
    rng = np.random.default_rng(1)
    total = FIRST_ROWS + ADDED
    codes, removed = random_codes(rng, total, BITS), rng.permutation(FIRST_ROWS)[: ADDED // 3]
    weights = rng.standard_normal((QUERIES, BITS)).astype(np.float32)
    allowed = rng.random(total) < 0.9
    began, ended = [0, 0], [FIRST_ROWS, 0]  # rows added and removed: writes that have begun, and those that have ended
    answers: list[Answer] = []

    def search() -> None:
        before = tuple(ended)
        scores, ids = index.search(weights, K)
        after = tuple(began)
        answers.append(Answer((before[0], max(before[0], after[0])), (before[1], after[1]), scores, ids))
        index.range_search(weights[:2], 30.0)
        index.search(weights[:5], K, allowed=allowed)
        index.codes(np.arange(FIRST_ROWS, before[0]))  # of these, none is removed

    index.add(codes[:FIRST_ROWS])
    with searching(search):
        for start in range(FIRST_ROWS, total, CHUNK):
            began[0] = start + CHUNK
            index.add(codes[start : start + CHUNK])
            ended[0] = start + CHUNK
            began[1] = min(len(removed), ended[1] + CHUNK // 3)
            index.remove(removed[ended[1] : began[1]])
            ended[1] = began[1]
            if kind != "scan" and start % (20 * CHUNK) == 0:
                index.merge()
    if kind != "scan":
        index.wait_for_merge()
    assert len(answers) >= READERS
    scores = score_all(snap(weights), codes)
    for answer in answers[:: max(1, len(answers) // 40)]:
        check_answer(answer, scores, removed)


def test_threads_encode_rows_at_the_same_time() -> None:
    rng = np.random.default_rng(2)
    X, W = rng.standard_normal((3000, 96)).astype(np.float32), rng.standard_normal((96, BITS)).astype(np.float32)
    mean, t = X.mean(axis=0), np.zeros(BITS, np.float32)
    expected, _ = kernels.encode_rows(X, mean, True, W, t, threads=1)

    def encode() -> None:
        codes, _ = kernels.encode_rows(X, mean, True, W, t, threads=4)
        np.testing.assert_array_equal(codes, expected)

    with searching(encode):
        for _ in range(10):
            encode()
