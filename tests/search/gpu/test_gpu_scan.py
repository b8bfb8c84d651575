"""The index on a GPU: its logic on the NumPy twin everywhere, and on a GPU where there is one (`make test-gpu`)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash import Scan
from stillhash.errors import OutOfMemory
from stillhash.numeric.codes import TILE, to_tiles
from stillhash.search.gpu.card import CardLimits
from stillhash.search.gpu.gpu_scan import CardSearch, GpuScan
from tests.contracts.saved_indexes import *  # noqa: F403
from tests.contracts.searchers import *  # noqa: F403
from tests.contracts.searchers import Make, random_codes
from tests.search.gpu.numpy_card import NumpyCard
from tests.support.gpu import TWIN_LIMITS, TwinScan, gpu_reason, small_card
from tests.support.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:cupy")


@pytest.fixture(params=["twin", "gpu"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "gpu" and gpu_reason():
        pytest.skip(gpu_reason())
    return str(request.param)


@pytest.fixture
def make(kind: str) -> Make:
    return lambda bits: TwinScan(bits, threads=2) if kind == "twin" else GpuScan(bits, threads=2)


def small(kind: str, bits: int, **limits: int) -> GpuScan:
    """Return an index on a card with small limits, so that few rows take all steps."""
    return GpuScan(bits, device=small_card(kind, CardLimits(**{**vars(TWIN_LIMITS), **limits})))


def same(index: GpuScan, plain: Scan, weights: Any, k: int, allowed: Any = None) -> None:
    got, expected = index.search(weights, k, allowed=allowed), plain.search(weights, k, allowed=allowed)
    np.testing.assert_array_equal(got.ids, expected.ids)
    assert got.scores.tobytes() == expected.scores.tobytes()


def random_weights(rng: np.random.Generator, queries: int, bits: int, kind: str) -> np.ndarray:
    weights = {
        "normal": lambda: rng.standard_normal((queries, bits)),
        "laplace": lambda: rng.laplace(size=(queries, bits)) ** 3,
        "ties": lambda: rng.integers(-2, 3, (queries, bits)),
        "signs": lambda: rng.choice([-1.0, 1.0], (queries, bits)),
        "zero": lambda: np.zeros((queries, bits)),
        "one": lambda: np.eye(bits)[rng.integers(0, bits, queries)],
        "tiny": lambda: rng.standard_normal((queries, bits)) * 1e-44,
        "wide": lambda: rng.standard_normal((queries, bits)) * 10.0 ** rng.integers(-30, 30, (queries, bits)),
    }[kind]()
    return np.asarray(weights, np.float32)


KINDS = ["normal", "laplace", "ties", "signs", "zero", "one", "tiny", "wide"]


@pytest.mark.medium
@settings(max_examples=60)
@given(st.data())
def test_every_step_equals_the_scan(kind: str, data: st.DataObject) -> None:
    """Sample, two phases, overflow and restart, batches, filters: all with so small limits that few rows take them."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    bits = data.draw(st.sampled_from([8, 31, 64, 96, 200, 512]))
    n = data.draw(st.sampled_from([300, 9000, 20_000]))
    order = data.draw(st.sampled_from(["random", "sorted", "few", "clustered"]))
    codes = random_codes(rng, n, bits, 40 if order == "few" else None)
    if order == "clustered":
        codes = (codes & random_codes(rng, n, bits) & random_codes(rng, n, bits)) ^ random_codes(rng, 1, bits)
    if order != "random":
        codes = codes[np.lexsort(codes.T)]
    index, plain = small(kind, bits, candidates=data.draw(st.sampled_from([64, 700, 100_000]))), Scan(bits)
    queries = data.draw(st.sampled_from([1, 3, 20]))
    for each in (index, plain):
        each.add(codes[: n // 2])
        each.add(codes[n // 2 :], np.random.default_rng(0).permutation(n - n // 2) + 2 * n)
        each.remove(np.arange(0, n, 7))
    weights = random_weights(rng, queries, bits, data.draw(st.sampled_from(KINDS)))
    k = data.draw(st.sampled_from([1, 10, 150]))
    same(index, plain, weights, k)
    allowed = rng.random(3 * n) < data.draw(st.sampled_from([0.0, 0.01, 0.1, 0.9]))
    same(index, plain, weights, k, allowed)


@pytest.mark.parametrize("planes", [3, 4])
@pytest.mark.parametrize("weights", KINDS)
def test_the_bound_of_one_query_loses_no_tie(kind: str, planes: int, weights: str) -> None:
    rng = np.random.default_rng(5)
    codes = random_codes(rng, 12_000, 64, 3000)
    index, plain = small(kind, 64), Scan(64)
    index.card.planes = planes  # type: ignore[attr-defined]
    for each in (index, plain):
        each.add(codes)
    for q in random_weights(rng, 12, 64, weights):
        same(index, plain, q, 25)


def test_a_filter_that_stays_on_the_card_follows_the_index(kind: str) -> None:
    rng = np.random.default_rng(4)
    codes, weights = random_codes(rng, 9000, 64), rng.standard_normal((4, 64))
    index, plain = small(kind, 64), Scan(64)
    allowed = rng.random(9000) < 0.05
    for each in (index, plain):
        each.add(codes[:5000])
    prepared = index.prepare_filter(allowed)
    for _ in range(2):
        got, expected = index.search(weights, 12, allowed=prepared), plain.search(weights, 12, allowed=allowed)
        np.testing.assert_array_equal(got.ids, expected.ids)
        got_all = index.range_search(weights[0], 5, allowed=prepared)[0]
        np.testing.assert_array_equal(got_all.ids, plain.range_search(weights[0], 5, allowed=allowed)[0].ids)
        for each in (index, plain):
            each.add(codes[5000:])
            each.remove(np.arange(100, 700))


def test_a_bitmap_is_copied_once_if_it_cannot_change(kind: str) -> None:
    rng = np.random.default_rng(4)
    index, plain = small(kind, 64), Scan(64)
    for each in (index, plain):
        each.add(random_codes(np.random.default_rng(1), 3000, 64))
    writable = np.packbits(rng.random(3000) < 0.5, bitorder="little")
    same(index, plain, rng.standard_normal((2, 64)), 9, writable)
    writable ^= 255
    same(index, plain, rng.standard_normal((2, 64)), 9, writable)
    fixed = writable.copy()
    fixed.setflags(write=False)
    for _ in range(3):
        same(index, plain, rng.standard_normal((2, 64)), 9, fixed)
    assert len(index._filters) == 1
    for each in (index, plain):
        each.remove([3, 4, 5])
    same(index, plain, rng.standard_normal((2, 64)), 9, fixed)


def test_searches_of_many_threads_go_together(kind: str) -> None:
    rng = np.random.default_rng(6)
    index, plain = small(kind, 64), Scan(64)
    for each in (index, plain):
        each.add(random_codes(np.random.default_rng(1), 6000, 64))
    weights = rng.standard_normal((24, 3, 64)).astype(np.float32)
    expected = [plain.search(weights[i], 5 + i) for i in range(24)]
    asked, answer = [], index._queue._answer

    def counted(search: CardSearch) -> Any:
        asked.append(len(search.grid))
        return answer(search)

    index._queue._answer = counted
    with ThreadPoolExecutor(24) as pool:
        with index.card.holding():
            futures = [pool.submit(index.search, weights[i], 5 + i) for i in range(24)]
            until(lambda: len(index._queue._waiting) >= 23)  # the first one has its turn
        got = [future.result() for future in futures]
    assert asked == [3, 69]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        assert one.scores.tobytes() == other.scores.tobytes()


def test_a_search_that_comes_again_has_its_own_weights(kind: str) -> None:
    """The third time a search of some kind comes, a GPU replays the second one."""
    rng = np.random.default_rng(8)
    index, plain = small(kind, 64), Scan(64)
    for each in (index, plain):
        each.add(random_codes(np.random.default_rng(1), 9000, 64))
    for turn in range(6):
        for queries, k in ((1, 10), (5, 10), (1, 3), (16, 10)):
            same(index, plain, rng.standard_normal((queries, 64)), k)
        if turn == 3:
            for each in (index, plain):
                each.add(random_codes(np.random.default_rng(2), 300, 64))
                each.remove(np.arange(0, 9000, 5))


def test_floors_are_those_of_the_scan(kind: str) -> None:
    from stillhash.search.merge import Floors

    rng = np.random.default_rng(3)
    codes, weights = random_codes(rng, 5000, 64), rng.standard_normal((4, 64)).astype(np.float32)
    index, plain = small(kind, 64), Scan(64)
    for each in (index, plain):
        each.add(codes)
    best = plain.search(weights, 40).scores
    for least, most in ((best[:, 20], best[:, 5]), (best[:, 39], best[:, 0] + 1), (best[:, 0] + 1, best[:, 0])):
        floors = Floors(np.ascontiguousarray(least), np.ascontiguousarray(most))
        got, expected = index.search_checked(weights, 30, floors), plain.search_checked(weights, 30, floors)
        np.testing.assert_array_equal(got.ids, expected.ids)
        np.testing.assert_array_equal(got.scores, expected.scores)


def test_more_hits_than_there_is_memory_for_are_found_on_the_host(kind: str) -> None:
    codes = np.zeros((4000, 8), np.uint8)
    index, plain = small(kind, 64, candidates=32), Scan(64)
    for each in (index, plain):
        each.add(codes)
    weights = np.random.default_rng(0).standard_normal((3, 64))
    same(index, plain, weights, 10)
    got, expected = index.range_search(weights[0], -1e9), plain.range_search(weights[0], -1e9)
    np.testing.assert_array_equal(got[0].ids, expected[0].ids)


def test_a_frozen_index_does_not_see_what_comes_later(kind: str) -> None:
    rng = np.random.default_rng(1)
    codes, weights = random_codes(rng, 2000, 40), rng.standard_normal((3, 40))
    index, plain = small(kind, 40), Scan(40)
    for each in (index, plain):
        each.add(codes[:700])
    frozen = index.frozen()
    index.add(codes[700:])
    index.remove(np.arange(0, 700, 2))
    same(frozen, plain, weights, 900)
    assert len(frozen) == 700 and len(index) == 1650


def test_tiles_and_rows_after_them_grow_over_many_chunks(kind: str) -> None:
    rng = np.random.default_rng(2)
    codes = random_codes(rng, 40_000, 100)
    index, plain = small(kind, 100, chunk_bytes=1), Scan(100)
    for each in (index, plain):
        each.add_tiles(to_tiles(codes[:20_100], 100), 20_100)
        for part in np.array_split(codes[20_100:], 9):
            each.add(part)
        each.add_tiles(to_tiles(codes[:300], 100), 300, np.arange(10**6, 10**6 + 300))
    assert len(index._mirror.chunks) > 3
    same(index, plain, rng.standard_normal((5, 100)), 20)
    same(index, plain, rng.standard_normal((5, 100)), 20, np.arange(2 * 10**6) % 11 == 3)
    assert index.card_bytes >= 40_300 * 16


def test_the_card_holds_little_more_than_the_codes(kind: str) -> None:
    index = GpuScan(64, device=small_card(kind, CardLimits()))
    index.add_tiles(np.zeros((1 << 14, 8, TILE), np.uint8), (1 << 14) * TILE)
    assert index.card_bytes <= 1.05 * (1 << 14) * TILE * 8


def test_a_full_card_says_how_many_codes_fit_and_nothing_changes(kind: str) -> None:
    rng = np.random.default_rng(0)
    index = small(kind, 64)
    index.add(random_codes(rng, 3000, 64))
    weights = rng.standard_normal((3, 64))
    before = index.search(weights, 10)
    if kind == "twin":
        index.card.memory = 1 << 17  # type: ignore[attr-defined]
        codes, more = random_codes(rng, 100_000, 64), None
    else:  # a card of the largest size has less than 2^44 bytes
        with pytest.raises(OutOfMemory, match=r"^codes: .* more codes of 64 bits fit"):
            index.card.allocate(1 << 33, 2)
        return
    for _ in range(2):
        with pytest.raises(OutOfMemory, match=r"^codes: .* more codes of 64 bits fit"):
            index.add(codes, more)
        assert len(index) == 3000
        after = index.search(weights, 10)
        assert after.ids.tobytes() == before.ids.tobytes() and after.scores.tobytes() == before.scores.tobytes()
    index.card.memory = 1 << 30  # type: ignore[attr-defined]
    index.add(codes)
    assert len(index) == 103_000 and index.ids()[-1] == 102_999


def test_several_indexes_share_a_card(kind: str) -> None:
    card = small_card(kind, TWIN_LIMITS)
    rng = np.random.default_rng(0)
    pairs = []
    for bits in (64, 64, 40):
        pairs.append((GpuScan(bits, device=card), Scan(bits)))
        codes = random_codes(rng, 4000, bits)
        for each in pairs[-1]:
            each.add(codes)
    for index, plain in [*pairs, *pairs[::-1]]:
        same(index, plain, rng.standard_normal((5, index.bits)), 10)


def test_the_twin_finds_all_candidates_on_the_card() -> None:
    """A search that quietly fell back to the host would be exact too: here it must not."""
    rng = np.random.default_rng(0)
    index = GpuScan(64, device=NumpyCard(TWIN_LIMITS))
    index.add(random_codes(rng, 30_000, 64))
    index._scan_on_host = None  # type: ignore[assignment, method-assign]
    plain = Scan(64)
    plain.add(index.codes(np.arange(30_000)))
    same(index, plain, rng.standard_normal((40, 64)), 10)
    for q in rng.standard_normal((10, 64)):
        same(index, plain, q, 10)
