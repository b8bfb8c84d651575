"""The tables and the search over them equal their twins, and brute force."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.numeric import kernels, reference
from stillhash.numeric.codes import signs, width
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.kernels import Slots, Table


def random_codes(rng: np.random.Generator, n: int, bits: int) -> np.ndarray:
    codes = rng.integers(0, 256, (n, width(bits)), dtype=np.uint8)
    if bits % 8:
        codes[:, -1] &= (1 << bits % 8) - 1
    return codes[rng.integers(0, max(1, n // 3), n)] if n and rng.random() < 0.4 else codes


def cut(bits: int, count: int) -> list[tuple[int, int]]:
    edges = np.linspace(0, bits, count + 1).round().astype(int)
    return [(int(a), int(b - a)) for a, b in pairwise(edges)]


@given(st.integers(0, 400), st.integers(8, 90), st.integers(0, 2**32), st.data())
def test_a_table_is_a_stable_sort_by_value(n: int, bits: int, seed: int, data: st.DataObject) -> None:
    codes = random_codes(np.random.default_rng(seed), n, bits)
    at = data.draw(st.integers(0, bits - 1))
    length = data.draw(st.integers(1, min(14, bits - at)))
    slots = np.arange(n, dtype=np.uint32) * 3
    table = kernels.fill_table(codes, slots, at, length)
    for got, expected in zip(table[2:], reference.fill_table(codes, slots, at, length), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
@pytest.mark.slow
@settings(max_examples=200)
@given(st.integers(1, 300), st.integers(8, 70), st.integers(0, 2**32), st.data())
def test_the_best_k_equal_brute_force(n: int, bits: int, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    codes = random_codes(rng, n, bits)
    parts = [kernels.fill_table(codes, np.arange(n, dtype=np.uint32), *c) for c in cut(bits, -(-bits // 9))]
    kind = data.draw(st.sampled_from(["normal", "integers", "one table only"]))
    weights = (rng.standard_normal((3, bits)) if kind != "integers" else rng.integers(-2, 3, (3, bits))).astype(
        np.float32
    )
    if kind == "one table only":
        weights[:, parts[0].width :] = 0
    grid, k = snap(weights), data.draw(st.sampled_from([1, 7, 500]))
    live = rng.random(n) < data.draw(st.sampled_from([0.1, 0.9]))
    ids = np.sort(rng.choice(10 * n, n, replace=False)).astype(np.int64) if data.draw(st.booleans()) else None
    slots = Slots(5, ids, np.packbits(live, bitorder="little"))
    names = np.arange(n) + 5 if ids is None else ids
    exact = (grid @ signs(codes, bits).astype(np.float64).T).astype(np.float32)
    floors = np.full(3, -np.inf, np.float32)
    budgets = np.full(3, np.inf)
    for lanes in (kernels.available()[0], "numpy"):
        with kernels.using(lanes):
            scores, hits, effort = kernels.table_top(parts, slots, grid, k, floors, (10.0, 2.0), budgets)
        for q in range(3):
            if not grid[q].any():
                assert effort[q, 2] == 0
                continue
            order = [r for r in np.lexsort((names, -exact[q])) if live[r]][:k]
            assert hits[q, : len(order)].tolist() == names[order].tolist(), lanes
            assert scores[q, : len(order)].tolist() == exact[q, order].tolist(), lanes
            assert (hits[q, len(order) :] == -1).all() and effort[q, 2] == 1


def test_the_textbook_walk_visits_every_value_once_in_order() -> None:
    losses = np.array([0.5, 3.0, 0.25, 0.0, 1.0, 1.0])
    walk = reference.BestFirst(losses, np.array([1, -1, 1, 1, -1, 1]))
    seen, last = set(), 0.0
    while walk.heap:
        assert walk.frontier >= last
        last = walk.frontier
        value = walk.pop()
        differs = value ^ 0b101101
        assert losses[[i for i in range(6) if differs >> i & 1]].sum() == last
        seen.add(value)
    assert len(seen) == 64


def test_a_search_out_of_budget_is_incomplete_and_its_hits_are_real() -> None:
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 20_000, 64)
    parts = [kernels.fill_table(codes, np.arange(20_000, dtype=np.uint32), *c) for c in cut(64, 5)]
    grid = snap(rng.standard_normal((4, 64)).astype(np.float32))
    exact = (grid @ signs(codes, 64).astype(np.float64).T).astype(np.float32)
    floors, slots = np.full(4, -np.inf, np.float32), Slots(0, None, None)
    scores, ids, effort = kernels.table_top(parts, slots, grid, 10, floors, (10.0, 2.0), np.full(4, 2e4))
    assert (effort[:, 2] == 0).all()
    for q in range(4):
        real = ids[q][ids[q] >= 0]
        assert len(set(real.tolist())) == len(real)
        np.testing.assert_array_equal(scores[q][ids[q] >= 0], exact[q, real])


def test_tables_are_tuples_the_extension_reads() -> None:
    assert Table._fields == ("at", "width", "starts", "slots", "codes")
