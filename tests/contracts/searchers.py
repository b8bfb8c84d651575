"""The contract of every index: the answers of brute force, at every moment. Imported by tests/search.

The importing module supplies the fixture `make`: bits -> an empty Searcher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.errors import Conflict, InvalidInput, WrongType
from stillhash.numeric.codes import signs, width
from stillhash.numeric.exact_scores import snap
from stillhash.search import Searcher

Make = Callable[[int], Searcher]


def random_codes(rng: np.random.Generator, n: int, bits: int, distinct: int | None = None) -> np.ndarray:
    codes = rng.integers(0, 256, (n, width(bits)), dtype=np.uint8)
    if bits % 8:
        codes[:, -1] &= (1 << bits % 8) - 1
    return codes if distinct is None or not n else codes[rng.integers(0, min(n, distinct), n)]


class BruteForce:
    """A dict of codes, searched by scoring them all."""

    def __init__(self, bits: int) -> None:
        self.bits, self.rows = bits, dict[int, np.ndarray]()

    def ranking(self, weights: np.ndarray, allowed: np.ndarray | None = None) -> list[tuple[float, int]]:
        ids = [i for i in self.rows if allowed is None or (i < len(allowed) and allowed[i])]
        if not ids:
            return []
        x = signs(np.stack([self.rows[i] for i in ids]), self.bits).astype(np.float64)
        scores = (x @ snap(weights[None])[0]).astype(np.float32)
        return sorted(zip(scores.tolist(), ids, strict=True), key=lambda hit: (-hit[0], hit[1]))


def agree(index: Searcher, model: BruteForce, weights: np.ndarray, k: int, allowed: np.ndarray | None = None) -> None:
    scores, ids = index.search(weights, k, allowed=allowed)
    assert scores.shape == ids.shape == (len(weights), k) and scores.dtype == np.float32 and ids.dtype == np.int64
    for q, w in enumerate(weights):
        expected = model.ranking(w, allowed)
        best = expected[:k] + [(-np.inf, -1)] * (k - len(expected))
        assert list(zip(scores[q].tolist(), ids[q].tolist(), strict=True)) == best
        cut = expected[len(expected) // 2][0] if expected else 0.0
        (hits,) = index.range_search(w, cut, allowed=allowed)
        assert list(zip(hits.scores.tolist(), hits.ids.tolist(), strict=True)) == [h for h in expected if h[0] >= cut]
    names = [i for i in model.rows if i % 3][::-1]
    assert index.codes(np.array(names, np.int64)).tobytes() == b"".join(model.rows[i].tobytes() for i in names)
    with pytest.raises(InvalidInput, match=r"^ids"):
        index.codes(np.array([*names, max(model.rows, default=0) + 1]))


@settings(max_examples=60)
@given(st.data())
def test_any_history_of_adds_and_removals_equals_brute_force(make: Make, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    bits = data.draw(st.sampled_from([8, 12, 32, 33, 64]))
    index, model = make(bits), BruteForce(bits)
    for _ in range(data.draw(st.integers(1, 6))):
        step = data.draw(st.sampled_from(["add", "add", "ids", "odd id", "remove"]))
        n = data.draw(st.sampled_from([0, 1, 3, 50, 1030]))
        codes = random_codes(rng, n, bits, data.draw(st.sampled_from([None, 4])))
        top = max(model.rows, default=-1) + 1
        if step == "remove":
            removed = rng.choice(top + 5, min(n, top + 5), replace=False)
            assert index.remove(removed) == sum(model.rows.pop(int(i), None) is not None for i in removed)
        elif step == "add":
            before = len(index)
            index.add(codes)
            ids = index.search(np.zeros((1, bits)), len(index) + 1).ids[0]
            new = sorted(set(ids.tolist()) - set(model.rows) - {-1})
            assert len(new) == n == len(index) - before
            model.rows.update(zip(new, codes, strict=True))
        else:
            free = np.setdiff1d(np.arange(2 * top + 2 * n + 10), list(model.rows))
            names = (
                rng.choice(free, min(n, len(free)), replace=False) if step == "ids" else free[-n:] if n else free[:0]
            )
            index.add(codes[: len(names)], names)
            model.rows.update(zip(names.tolist(), codes[: len(names)], strict=True))
        assert len(index) == len(model.rows)
    weights = {
        "normal": rng.standard_normal((2, bits)),
        "ties": rng.integers(-1, 2, (2, bits)),
        "zero": np.zeros((2, bits)),
    }[data.draw(st.sampled_from(["normal", "ties", "zero"]))].astype(np.float32)
    allowed = rng.random(max(model.rows, default=0) + 1) < data.draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))
    k = data.draw(st.sampled_from([1, 10, 2000]))
    agree(index, model, weights, k)
    agree(index, model, weights, k, allowed)
    packed = index.search(weights, k, allowed=np.packbits(allowed, bitorder="little"))
    np.testing.assert_array_equal(packed.ids, index.search(weights, k, allowed=allowed).ids)


def filled(make: Make, n: int = 200, bits: int = 32) -> tuple[Searcher, np.ndarray]:
    index, codes = make(bits), random_codes(np.random.default_rng(0), n, bits)
    index.add(codes)
    return index, codes


def test_an_empty_index_answers(make: Make) -> None:
    scores, ids = make(32).search(np.ones((2, 32)), 3)
    assert (scores == -np.inf).all() and (ids == -1).all() and ids.shape == (2, 3)
    assert [len(hits.ids) for hits in make(32).range_search(np.ones((2, 32)), 0)] == [0, 0]


def test_one_query_may_be_flat_and_no_query_is_fine(make: Make) -> None:
    index, _ = filled(make)
    w = np.arange(32) - 15.5
    np.testing.assert_array_equal(index.search(w, 5).ids, index.search(w[None], 5).ids)
    assert index.search(np.empty((0, 32)), 5).ids.shape == (0, 5)


def test_a_batch_answers_as_its_queries_do_alone(make: Make) -> None:
    index, _ = filled(make, 3000)
    weights = np.random.default_rng(1).standard_normal((70, 32)).astype(np.float32)
    together = index.search(weights, 9)
    for q in range(70):
        alone = index.search(weights[q], 9)
        assert (
            alone.ids.tobytes() == together.ids[q].tobytes() and alone.scores.tobytes() == together.scores[q].tobytes()
        )


def test_the_layout_of_arrays_does_not_matter(make: Make) -> None:
    rng = np.random.default_rng(0)
    codes, weights = random_codes(rng, 300, 64), rng.standard_normal((3, 64)).astype(np.float32)
    plain, odd = make(64), make(64)
    plain.add(codes)
    frozen = np.asfortranarray(codes)
    frozen.flags.writeable = False
    odd.add(frozen[::-1][::-1])
    wide = np.repeat(weights, 2, axis=1)[:, ::2].astype(np.float64)
    wide.flags.writeable = False
    np.testing.assert_array_equal(odd.search(wide, 7).ids, plain.search(weights, 7).ids)


def test_ids_may_be_used_again_once_removed(make: Make) -> None:
    index, codes = filled(make)
    assert index.remove([5, 6, 7]) == 3
    index.add(codes[:2], [6, 5])
    best = index.search(signs(codes[:1], 32), 2).ids[0]
    assert best.tolist() == [0, 6]
    assert len(index) == 199


def test_search_sees_one_state_while_others_write(make: Make) -> None:
    """A search that started is not disturbed; here, interleaved from a second thread."""
    import threading

    index, codes = filled(make, 5000)
    weights = np.random.default_rng(2).standard_normal((1, 32)).astype(np.float32)
    stop, wrong = threading.Event(), []

    def search_repeatedly() -> None:
        while not stop.is_set():
            ids = index.search(weights, 10).ids[0]
            if len(set(ids.tolist())) != 10 or (ids < 0).any():
                wrong.append(ids)

    reader = threading.Thread(target=search_repeatedly)
    reader.start()
    for i in range(60):
        index.add(codes[:700])
        index.remove(np.arange(i * 100, i * 100 + 50))
    stop.set()
    reader.join()
    assert not wrong


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda i: i.add(np.zeros((2, 5), np.uint8)), InvalidInput, "^codes"),
        (lambda i: i.add(np.zeros((2, 4), np.int64)), WrongType, "^codes"),
        (lambda i: i.add(np.zeros(4, np.uint8)), InvalidInput, "^codes"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), [1]), InvalidInput, "^ids"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), [300, 300]), InvalidInput, "^ids"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), [300, 5]), Conflict, "^ids"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), [300, -1]), InvalidInput, "^ids"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), ["a", "b"]), WrongType, "^ids"),
        (lambda i: i.add(np.zeros((1, 4), np.uint8), [2**63 - 1]), InvalidInput, "^ids"),
        (lambda i: i.remove([1.5]), WrongType, "^ids"),
        (lambda i: i.remove([-4]), InvalidInput, "^ids"),
        (lambda i: i.remove("abc"), WrongType, "^ids"),
        (lambda i: i.search(np.ones((1, 31)), 3), InvalidInput, "^weights"),
        (lambda i: i.search(np.ones((1, 2, 32)), 3), InvalidInput, "^weights"),
        (lambda i: i.search(np.full((1, 32), np.nan), 3), InvalidInput, "^weights"),
        (lambda i: i.search(np.full((1, 32), np.inf), 3), InvalidInput, "^weights"),
        (lambda i: i.search(np.full((1, 32), 3e38), 3), InvalidInput, "^weights"),
        (lambda i: i.search(np.ones((1, 32), complex), 3), InvalidInput, "weights"),
        (lambda i: i.search([["a"] * 32], 3), WrongType, "^weights"),
        (lambda i: i.search(np.ones((1, 32)), 0), InvalidInput, "^k"),
        (lambda i: i.search(np.ones((1, 32)), -2), InvalidInput, "^k"),
        (lambda i: i.search(np.ones((1, 32)), 2.5), WrongType, "^k"),
        (lambda i: i.search(np.ones((1, 32)), 3, allowed=[0, 1, 2]), WrongType, "^allowed"),
        (lambda i: i.search(np.ones((1, 32)), 3, allowed=np.ones((2, 2), bool)), WrongType, "^allowed"),
        (lambda i: i.range_search(np.ones((1, 32)), float("nan")), InvalidInput, "^threshold"),
        (lambda i: i.range_search(np.ones((1, 32)), [1, 2]), InvalidInput, "^threshold"),
        (lambda i: i.range_search(np.ones((1, 32)), "high"), InvalidInput, "^threshold"),
    ],
)
def test_bad_input_is_refused_and_nothing_changes(make: Make, call: Any, error: type[Exception], match: str) -> None:
    index, _ = filled(make)
    weights = np.random.default_rng(1).standard_normal((2, 32))
    before = index.search(weights, 300)
    with pytest.raises(error, match=match):
        call(index)
    after = index.search(weights, 300)
    assert len(index) == 200 and after.ids.tobytes() == before.ids.tobytes()
    assert after.scores.tobytes() == before.scores.tobytes()


def test_stray_bits_past_the_code_length_are_refused(make: Make) -> None:
    with pytest.raises(InvalidInput, match=r"^codes"):
        make(12).add(np.full((1, 2), 255, np.uint8))
