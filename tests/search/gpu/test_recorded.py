"""Which searches are recorded as graphs, and how long these are there."""

from __future__ import annotations

import gc

import numpy as np

from stillhash.search.gpu.card import Mirror
from stillhash.search.gpu.cuda_card import MOST_GRAPHS, NOT_RECORDED, RecordedSearches
from stillhash.search.gpu.mirror import empty_mirror
from tests.search.gpu.numpy_card import NumpyCard


def a_mirror() -> Mirror:
    return empty_mirror(NumpyCard(), 64)


def test_a_kind_is_recorded_when_it_comes_again() -> None:
    recorded, mirror = RecordedSearches(), a_mirror()
    assert recorded.find(mirror, (1, 10, 0)) is None
    assert recorded.find(mirror, (1, 10, 0)) is NOT_RECORDED
    recorded.keep(mirror, (1, 10, 0), "graph")
    assert recorded.find(mirror, (1, 10, 0)) == "graph"
    assert recorded.find(mirror, (2, 10, 0)) is None and recorded.find(a_mirror(), (1, 10, 0)) is None


def test_the_kinds_of_an_index_are_bounded_and_the_latest_stay() -> None:
    recorded, mirror = RecordedSearches(), a_mirror()
    for k in range(1, MOST_GRAPHS + 1):
        recorded.find(mirror, (1, k, 0))
    recorded.find(mirror, (1, 1, 0))
    recorded.find(mirror, (1, 1000, 0))
    assert recorded.find(mirror, (1, 1, 0)) is NOT_RECORDED and recorded.find(mirror, (1, 2, 0)) is None


def test_graphs_do_not_keep_the_codes_of_an_index() -> None:
    recorded, mirror = RecordedSearches(), a_mirror()
    recorded.keep(mirror, (1, 10, 0), np.zeros(3))
    assert len(recorded._graphs) == 1
    del mirror
    gc.collect()
    assert len(recorded._graphs) == 0
