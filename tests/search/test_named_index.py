from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash import NamedIndex
from stillhash.errors import BadState, Conflict, InvalidInput, WrongType
from stillhash.files import read_sealed, write_sealed
from tests.contracts.saved_indexes import saved_and_loaded, through_joblib
from tests.contracts.searchers import BruteForce, random_codes

COPIES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda index: index,
    "mapped": saved_and_loaded,
    "in memory": lambda index: saved_and_loaded(index, mapped=False),
    "pickle": lambda index: pickle.loads(pickle.dumps(index)),
    "deepcopy": copy.deepcopy,
    "joblib": through_joblib,
}


class NamedBruteForce:
    """Codes by text in order of addition, searched by scoring them all."""

    def __init__(self, bits: int) -> None:
        self.bits, self.rows = bits, dict[str, np.ndarray]()

    def ranking(self, weights: np.ndarray, allowed: set[str] | None = None) -> list[tuple[float, str]]:
        plain, names = BruteForce(self.bits), list(self.rows)
        plain.rows = {n: self.rows[name] for n, name in enumerate(names) if allowed is None or name in allowed}
        return [(score, names[n]) for score, n in plain.ranking(weights)]


def agree(index: NamedIndex, model: NamedBruteForce, weights: np.ndarray) -> None:
    assert len(index) == len(model.rows) and index.ids() == list(model.rows)
    for allowed in (None, {name for name in model.rows if len(name) > 1} | {"unknown"}):
        for w in weights:
            expected = model.ranking(w, allowed)
            scores, ids = index.search(w, 12, allowed=allowed)
            best = (expected + [(-np.inf, None)] * 12)[:12]  # type: ignore[list-item]
            assert list(zip(scores[0].tolist(), ids[0].tolist(), strict=True)) == best
            (hits,) = index.range_search(w, 0, allowed=allowed)
            assert list(zip(hits.scores.tolist(), hits.ids, strict=True)) == [h for h in expected if h[0] >= 0]
    names = [*list(model.rows)[::2], *list(model.rows)[:3]]
    assert index.codes(names).tobytes() == b"".join(model.rows[name].tobytes() for name in names)
    assert all(name in index for name in model.rows) and "unknown" not in index


@settings(max_examples=40)
@given(st.data())
def test_any_history_equals_brute_force_through_any_copy(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    bits = data.draw(st.sampled_from([8, 12, 64]))
    index, model = NamedIndex(bits), NamedBruteForce(bits)
    weights = rng.integers(-2, 3, (2, bits)).astype(np.float32)  # with ties
    text = st.text("abcé漢🙂\n ", min_size=1, max_size=3)
    for _ in range(data.draw(st.integers(1, 5))):
        names = data.draw(st.lists(text, unique=True, max_size=20))
        if data.draw(st.booleans()):
            names = [name for name in names if name not in model.rows]
            codes = random_codes(rng, len(names), bits)
            index.add(codes, names)
            model.rows.update(zip(names, codes, strict=True))
        else:
            assert index.remove(names) == sum(model.rows.pop(name, None) is not None for name in names)
        index = COPIES[data.draw(st.sampled_from(sorted(COPIES)))](index)
        agree(index, model, weights)


def filled() -> tuple[NamedIndex, np.ndarray]:
    index, codes = NamedIndex(32), random_codes(np.random.default_rng(0), 5, 32)
    index.add(codes, ["a", "b", "c", "d", "e"])
    return index, codes


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda i: i.add(np.zeros((2, 4), np.uint8), ["x"]), InvalidInput, "^ids"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), ["x", "x"]), InvalidInput, "^ids"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), ["x", "a"]), Conflict, "^ids"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), ["x", 3]), WrongType, "^ids"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), "xy"), WrongType, "^ids"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), None), WrongType, "^ids"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), ["x", ""]), InvalidInput, "^ids"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), ["x", "y" * 1001]), InvalidInput, "^ids"),
        (lambda i: i.add(np.zeros((2, 4), np.uint8), ["x", "\ud800"]), InvalidInput, "^ids"),
        (lambda i: i.add(np.zeros((2, 5), np.uint8), ["x", "y"]), InvalidInput, "^codes"),
        (lambda i: i.remove("a"), WrongType, "^ids"),
        (lambda i: i.remove([1]), WrongType, "^ids"),
        (lambda i: i.codes(["a", "x"]), InvalidInput, "^ids"),
        (lambda i: i.search(np.ones(32), 0), InvalidInput, "^k"),
        (lambda i: i.search(np.ones(32), 1, allowed="a"), WrongType, "^allowed"),
        (lambda i: i.search(np.ones(32), 1, allowed=np.ones(5, bool)), WrongType, "^allowed"),
    ],
)
def test_bad_input_is_refused_and_nothing_changes(call: Any, error: type[Exception], match: str) -> None:
    index, codes = filled()
    with pytest.raises(error, match=match):
        call(index)
    assert index.ids() == ["a", "b", "c", "d", "e"] and index.codes(["e", "a"]).tobytes() == codes[[4, 0]].tobytes()
    index.add(codes[:1], ["x"])
    assert index.ids()[-1] == "x"


def test_texts_of_removed_rows_are_not_in_the_file_and_may_come_again(tmp_path: Path) -> None:
    index, codes = filled()
    index.add(codes[:1], ["secret"])
    index.remove(["secret", "b"])
    index.save(tmp_path / "a")
    assert b"secret" not in (tmp_path / "a").read_bytes()
    loaded = NamedIndex.load(tmp_path / "a")
    assert loaded.ids() == ["a", "c", "d", "e"]
    loaded.add(codes[:1], ["b"])
    assert loaded.ids() == ["a", "c", "d", "e", "b"]


def test_hostile_texts_are_refused(tmp_path: Path) -> None:
    index, codes = filled()
    index.save(tmp_path / "a")
    content = bytearray(read_sealed(tmp_path / "a"))
    ends, texts = len(content) - 2 * 4096, len(content) - 4096
    for place, value in ((ends, (9).to_bytes(8, "little")), (ends + 32, (4).to_bytes(8, "little"))):
        hostile = content.copy()
        hostile[place : place + 8] = value
        write_sealed(tmp_path / "b", [bytes(hostile)])
        with pytest.raises(BadState):
            NamedIndex.load(tmp_path / "b")
    content[texts : texts + 2] = b"\xff\xff"  # not UTF-8, and twice the same
    write_sealed(tmp_path / "b", [bytes(content)])
    loaded = NamedIndex.load(tmp_path / "b")
    assert len(loaded.search(np.ones(32), 5).ids[0]) == 5
    with pytest.raises(BadState, match=r"^ids"):
        loaded.add(codes[:1], ["x"])
