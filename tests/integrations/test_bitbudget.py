"""Rows of BitBudget: the scores of its methods are those of exact search, and its command prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash import Scan
from stillhash.numeric.codes import signs
from tests.support.guides import run_guide
from tests.support.toys import toy

pytestmark = pytest.mark.integrations
bitbudget: Any = pytest.importorskip("bitbudget", reason="BitBudget is an extra")
from stillhash.integrations.bitbudget import ROW_BITS, fit_hasher, main, register, row_name  # noqa: E402


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register our rows for one test."""
    for table in (bitbudget.methods.METHODS, bitbudget.indexes.INDEXES):
        for name in list(table):
            monkeypatch.setitem(table, name, table[name])
    register()


@pytest.mark.parametrize("bits", ROW_BITS)
def test_methods_and_indexes_rank_as_exact_search(bits: int) -> None:
    X, _ = toy(400)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    queries = X[:20] + 0.01
    hasher = fit_hasher(X, bits)
    plain = hasher.weigh(queries) @ signs(hasher.encode(X), bits).T
    scores, size = bitbudget.METHODS[row_name(bits)](X, queries)
    np.testing.assert_array_equal(scores, plain)
    exact = Scan(bits)
    exact.add(hasher.encode(X))
    ids, size_of_index, speed = bitbudget.INDEXES[row_name(bits)](X, queries, 10)
    np.testing.assert_array_equal(ids, exact.search(hasher.weigh(queries), 10).ids)
    assert size == size_of_index == bits / 8 and speed > 0


def test_recall_grows_with_bits() -> None:
    X, _ = toy(800)
    cards = bitbudget.bench_indexes(X[:700], X[700:], which=[row_name(bits) for bits in ROW_BITS], verbose=False)
    recall = [card["recall"] for card in cards]  # by size
    assert recall == sorted(recall) and recall[0] > 0.2 and recall[-1] > recall[0] + 0.1


def test_command_lists_our_rows(capsys: pytest.CaptureFixture[str]) -> None:
    for listing in ("methods", "indexes"):
        main([listing])
        printed = capsys.readouterr().out
        assert all(row_name(bits) in printed for bits in ROW_BITS)


def test_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_guide("integrations/bitbudget.md", monkeypatch, tmp_path) == 3
    card = json.loads((tmp_path / "results" / "card_local.json").read_text(encoding="utf-8"))
    ndcg = {row["method"]: row["ndcg"] for row in card["aggregate"]}
    assert ndcg["stillhash-64"] < ndcg["stillhash-256"] <= ndcg["float32"]
    speeds = json.loads((tmp_path / "results" / "index_card.json").read_text(encoding="utf-8"))
    assert {row["method"] for row in speeds["rows"]} == {"stillhash-64", "stillhash-128", "bittrie"}
