"""Every path of the scan equals scoring all rows and sorting, ties by smaller id."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.numeric import kernels
from stillhash.numeric.codes import TILE, signs, to_tiles, width
from stillhash.numeric.exact_scores import snap
from stillhash.search.blocks import Block

CHUNK = 16_384  # rows of which all are skipped, scored alone or filtered: kChunk of scan.cpp


def brute_force(
    codes: np.ndarray, ids: np.ndarray, live: np.ndarray, weights: np.ndarray, k: int
) -> tuple[list[Any], list[Any]]:
    """The hits of one query, by brute force."""
    x = signs(codes, len(weights)).astype(np.float64)
    scores = (x @ snap(weights[None])[0]).astype(np.float32)
    order = sorted((r for r in range(len(codes)) if live[r]), key=lambda r: (-scores[r], ids[r]))[:k]
    return [scores[r] for r in order], [ids[r] for r in order]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    bits = draw(st.one_of(st.sampled_from([8, 16, 32, 64, 96, 128, 512]), st.integers(8, 512)))
    n = draw(st.one_of(st.integers(0, 40), st.sampled_from([255, 256, 257, 1023, 1024, 1025, 2600])))
    codes = rng.integers(0, 256, (n, width(bits)), dtype=np.uint8)
    if bits % 8:
        codes[:, -1] &= (1 << bits % 8) - 1
    if n and draw(st.booleans()):
        codes = codes[rng.integers(0, min(n, 5), n)]  # duplicates: many ties
    queries = draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["normal", "small integers", "zero", "huge range", "one bit"]))
    weights = {
        "normal": rng.standard_normal((queries, bits)),
        "small integers": rng.integers(-2, 3, (queries, bits)),
        "zero": np.zeros((queries, bits)),
        "huge range": rng.standard_normal((queries, bits)) * 10.0 ** rng.integers(-30, 30, (queries, bits)),
        "one bit": np.eye(bits)[rng.integers(0, bits, queries)],
    }[kind].astype(np.float32)
    cuts = sorted(rng.integers(0, n + 1, draw(st.integers(0, 3))))
    return {
        "bits": bits,
        "codes": codes,
        "weights": weights,
        "k": draw(st.sampled_from([1, 2, 10, 100, 3000])),
        "cuts": [0, *cuts, n],
        "ids": rng.permutation(10 * n + 1)[:n] if draw(st.booleans()) else np.arange(n) + 7,
        "explicit": draw(st.booleans()),
        "live": rng.random(n) < draw(st.sampled_from([0.0, 0.02, 0.5, 1.0])),
        "masked": draw(st.booleans()),
        "threads": draw(st.sampled_from([1, 2, 5])),
    }


def blocks_of(case: dict[str, Any]) -> list[Block]:
    blocks = []
    for a, b in zip(case["cuts"], case["cuts"][1:], strict=False):
        tiles = to_tiles(np.ascontiguousarray(case["codes"][a:b]), case["bits"])
        live = np.zeros(len(tiles) * TILE // 8, np.uint8)
        packed = np.packbits(case["live"][a:b], bitorder="little")
        live[: len(packed)] = packed
        ids = np.ascontiguousarray(case["ids"][a:b]).astype(np.int64)
        implicit = not case["explicit"] and (np.diff(ids) == 1).all()
        first = int(ids[0]) if len(ids) else 0
        blocks.append(Block(tiles, b - a, first, None if implicit else ids, live if case["masked"] else None))
    return blocks


def restricted(block: Block, live: np.ndarray) -> Block:
    """The block with only these rows live."""
    rows = np.zeros(len(block.tiles) * TILE, bool)
    rows[live] = True
    return block._replace(live=np.packbits(rows, bitorder="little"))


@pytest.mark.slow
@settings(max_examples=250)
@given(cases())
def test_the_best_k_equal_brute_force(case: dict[str, Any]) -> None:
    blocks, grid = blocks_of(case), snap(case["weights"])
    live = case["live"] if case["masked"] else np.ones(len(case["codes"]), bool)
    floors = np.full(len(grid), -np.inf, np.float32)
    expected = [brute_force(case["codes"], case["ids"], live, w, case["k"]) for w in case["weights"]]
    for lanes in kernels.available():
        with kernels.using(lanes):
            scores, ids = kernels.scan_top(blocks, grid, case["k"], floors, case["threads"])
        for q, (best, names) in enumerate(expected):
            assert scores[q, : len(best)].tolist() == best, lanes
            assert ids[q, : len(best)].tolist() == names, lanes
            assert (ids[q, len(best) :] == -1).all() and (scores[q, len(best) :] == -np.inf).all()


@settings(max_examples=100)
@given(cases(), st.floats(-1.1, 1.1))
def test_a_range_equals_brute_force(case: dict[str, Any], share: float) -> None:
    blocks, grid = blocks_of(case), snap(case["weights"])
    live = case["live"] if case["masked"] else np.ones(len(case["codes"]), bool)
    floors = (share * np.abs(grid).sum(axis=1)).astype(np.float32)
    for lanes in kernels.available():
        with kernels.using(lanes):
            hits = kernels.scan_all(blocks, grid, floors, case["threads"])
        for q, (scores, ids) in enumerate(hits):
            best, names = brute_force(case["codes"], case["ids"], live, case["weights"][q], len(live))
            count = sum(score >= floors[q] for score in best)
            assert scores.tolist() == best[:count], lanes
            assert ids.tolist() == names[:count], lanes


@pytest.mark.medium
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_many_tiles_on_threads_equal_one_thread(lanes: str, threads: int) -> None:
    """Large enough that the work really is split, with floors that rise in every thread."""
    rng = np.random.default_rng(3)
    n = 20_000 if lanes == "numpy" else 300_000
    codes = rng.integers(0, 256, (n, 8), dtype=np.uint8)
    codes[n // 2 :] = codes[: n - n // 2]  # every hit has a twin with a larger id
    grid = snap(rng.standard_normal((16, 64)).astype(np.float32))
    floors = np.full(16, -np.inf, np.float32)
    block = Block(to_tiles(codes, 64), n, 0, None, None)
    exact = (grid @ signs(codes, 64).astype(np.float64).T).astype(np.float32)
    for live in (np.arange(n), np.flatnonzero(rng.random(n) < 0.006)):
        scores, ids = kernels.scan_top([restricted(block, live)], grid, 50, floors, threads)
        for q in range(16):
            order = live[np.lexsort((live, -exact[q, live]))[:50]]
            np.testing.assert_array_equal(ids[q], order)
            np.testing.assert_array_equal(scores[q], exact[q, order])


def test_rising_scores_are_the_hard_order_and_still_exact(lanes: str) -> None:
    """Each tile beats all before it, so the bound never helps and every floor is new."""
    n, bits = 5000, 16
    values = np.sort(np.random.default_rng(0).integers(0, 2**16, n)).astype("<u2")
    codes = values.view(np.uint8).reshape(n, 2)
    weights = 2.0 ** np.arange(bits, dtype=np.float32)[None]
    blocks = [Block(to_tiles(codes, bits), n, 0, None, None)]
    _, ids = kernels.scan_top(blocks, snap(weights), 5, np.full(1, -np.inf, np.float32))
    order = np.lexsort((np.arange(n), -values.astype(np.int64)))[:5]
    np.testing.assert_array_equal(ids[0], order)


def test_floors_cut_but_never_change_the_order(lanes: str) -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, (3000, 4), dtype=np.uint8)
    grid = snap(rng.standard_normal((1, 32)).astype(np.float32))
    blocks = [Block(to_tiles(codes, 32), 3000, 0, None, None)]
    free, names = kernels.scan_top(blocks, grid, 20, np.full(1, -np.inf, np.float32))
    cut, above = kernels.scan_top(blocks, grid, 20, free[:, 7].copy())
    assert above[0, :8].tolist() == names[0, :8].tolist()
    assert (above[0, 8:] == -1).sum() >= 12 - (free[0] == free[0, 7]).sum()
    np.testing.assert_array_equal(cut[0, :8], free[0, :8])


@pytest.mark.medium
@settings(max_examples=100)
@given(cases(), st.floats(-1.1, 1.1), st.floats(-1.1, 1.1))
def test_a_floor_rises_to_the_best_score_up_to_its_ceiling(case: dict[str, Any], low: float, high: float) -> None:
    blocks, grid = blocks_of(case), snap(case["weights"])
    live = case["live"] if case["masked"] else np.ones(len(case["codes"]), bool)
    most = np.abs(grid).sum(axis=1)
    floors, ceilings = (low * most).astype(np.float32), (high * most).astype(np.float32)
    ceilings[::2] = -np.inf  # queries without one are scanned beside those with one
    for lanes in kernels.available():
        with kernels.using(lanes):
            scores, ids = kernels.scan_top(blocks, grid, case["k"], floors, case["threads"], ceilings)
        for q, weights in enumerate(case["weights"]):
            best, names = brute_force(case["codes"], case["ids"], live, weights, case["k"])
            count = sum(score >= max(floors[q], min(best[0], ceilings[q])) for score in best)
            assert scores[q, :count].tolist() == best[:count], lanes
            assert ids[q, :count].tolist() == names[:count], lanes
            assert (ids[q, count:] == -1).all()


@pytest.mark.medium
def test_selective_queries_of_many_tiles_equal_all_others(lanes: str) -> None:
    """Long answers, whose floors are estimated from a sample, beside queries that only near matches reach."""
    rng = np.random.default_rng(8)
    n = 20_000 if lanes == "numpy" else 300_000
    codes = rng.integers(0, 256, (n, 8), dtype=np.uint8)
    weights = rng.standard_normal((40, 64)).astype(np.float32)
    for q in range(0, 40, 3):  # a match, and near matches, for some
        codes[rng.integers(0, n, 5)] = np.packbits(weights[q] >= 0, bitorder="little") ^ np.eye(8, dtype=np.uint8)[:5]
    grid = snap(weights)
    most = np.abs(grid).sum(axis=1)
    blocks = [Block(to_tiles(codes, 64), n, 0, None, None)]
    free = np.full(40, -np.inf, np.float32)
    plain, names = kernels.scan_top(blocks, grid, 100, free)
    for some, is_open in itertools.product((slice(0, 1), slice(1, 3), slice(0, 7), slice(0, 40)), (0, 0.2, 0.5, 0.8)):
        floors, ceilings = (0.7 * most[some]).astype(np.float32), (0.95 * most[some]).astype(np.float32)
        ceilings[rng.random(len(ceilings)) < is_open] = -np.inf  # groups of all kinds
        scores, ids = kernels.scan_top(blocks, grid[some], 100, floors, 2, ceilings)
        kept = plain[some] >= np.maximum(floors, np.minimum(plain[some, 0], ceilings))[:, None]
        np.testing.assert_array_equal(ids, np.where(kept, names[some], -1))
        np.testing.assert_array_equal(scores, np.where(kept, plain[some], -np.inf))


@pytest.mark.medium
@settings(max_examples=25)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 5, 9, 40]),
    st.sampled_from([0.0005, 0.002, 0.01, 0.02]),
    st.sampled_from([1, 10, 200]),
    st.booleans(),
    st.sampled_from([1, 3]),
)
def test_few_live_rows_equal_brute_force(
    seed: int, queries: int, share: float, k: int, tied: bool, threads: int
) -> None:
    """Chunks with no live row, with some that are scored one by one, and with enough for the filter, in any order."""
    rng = np.random.default_rng(seed)
    bits, n = int(rng.integers(8, 100)), int(rng.integers(1, 80_000))
    codes = rng.integers(0, 256, (n, width(bits)), dtype=np.uint8)
    codes[:, -1] &= (1 << ((bits - 1) % 8 + 1)) - 1
    codes = codes[rng.integers(0, min(n, 7), n)] if tied else codes
    live = rng.random(n) < share * np.repeat(rng.choice([0, 1, 1, 50], n // CHUNK + 1), CHUNK)[:n]
    weights = rng.standard_normal((queries, bits)).astype(np.float32)
    case = {"bits": bits, "codes": codes, "cuts": [0, *sorted(rng.integers(0, n + 1, 2)), n], "masked": True}
    blocks = blocks_of(case | {"live": live, "ids": np.arange(n) + 3, "explicit": bool(rng.random() < 0.5)})
    free = np.full(queries, -np.inf, np.float32)
    expected = [brute_force(codes[live], np.flatnonzero(live) + 3, np.ones(live.sum(), bool), w, k) for w in weights]
    for lanes in kernels.available():
        with kernels.using(lanes):
            scores, ids = kernels.scan_top(blocks, snap(weights), k, free, threads)
        for q, (best, names) in enumerate(expected):
            assert ids[q].tolist() == names + [-1] * (k - len(names)), lanes
            assert scores[q, : len(best)].tolist() == best, lanes
