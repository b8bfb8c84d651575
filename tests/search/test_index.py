from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stillhash import Index, Scan
from stillhash.numeric import kernels
from stillhash.search import index as index_module
from tests.contracts.saved_indexes import *  # noqa: F403
from tests.contracts.searchers import *  # noqa: F403
from tests.contracts.searchers import Make, random_codes


@pytest.fixture(params=["tables", "scan"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """With tables from the first row on, or, as they really are here, only scanning."""
    if request.param == "tables":
        monkeypatch.setattr(index_module, "TABLES_PAY", ((512, 1),))
        monkeypatch.setattr("stillhash.search.miwq.MERGE_ROWS", 40)
        monkeypatch.setattr(index_module, "LARGE_K", 0.2)
    yield lambda bits: Index(bits, threads=2)


def built(bits: int, codes: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> Index:
    monkeypatch.setattr(index_module, "TABLES_PAY", ((512, 1),))
    monkeypatch.setattr(index_module, "LARGE_K", 0.2)
    index = Index(bits, threads=1)
    index.add(codes)
    index.merge()
    return index


def same(index: Index, codes: np.ndarray, weights: np.ndarray, k: int) -> None:
    plain = Scan(index.bits)
    plain.add(codes)
    for got, expected in zip(index.search(weights, k), plain.search(weights, k), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("bits", "rows", "tables"),
    [
        (32, 999_000, False),
        (32, 1_000_000, True),
        (64, 9_000_000, False),
        (64, 10_000_000, True),
        (96, 29_000_000, False),
        (96, 30_000_000, True),
        (128, 100_000_000, False),
    ],
)
def test_tables_are_built_where_they_pay(bits: int, rows: int, tables: bool) -> None:
    planner = Index(bits).planner
    assert planner.builds(bits, rows) == tables
    with kernels.using("numpy"):
        assert not planner.builds(bits, rows)


def test_a_million_short_codes_go_to_tables_by_themselves() -> None:
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 1_000_000, 32)
    index = Index(32)
    index.add(codes)
    weights = rng.standard_normal((6, 32)).astype(np.float32)
    before = index.search(weights, 10)  # perhaps while the merge is under way
    index.wait_for_merge()
    assert index.state.tables is not None and not index.state.unmerged
    after = index.search(weights, 10)
    assert after.ids.tobytes() == before.ids.tobytes() and after.scores.tobytes() == before.scores.tobytes()
    index.add(codes[:100])
    same(index, np.concatenate([codes, codes[:100]]), weights, 10)
    plans = index.explain_plan(weights[:1], 10)
    assert plans[0]["in_tables"] == 1_000_000 and plans[0]["rows"] == 1_000_100
    assert plans[0]["path"] in ("tables", "scan") and plans[0]["scan_ms"] > 0


def test_a_query_that_is_too_dear_goes_to_the_scan_and_stays_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    codes = random_codes(rng, 30_000, 64)
    index = built(64, codes, monkeypatch)
    weights = rng.standard_normal((8, 64)).astype(np.float32)
    for scan in (1e-9, 1e-3, 1e9):  # a scan that costs nothing, something, or more than anything
        index.planner.costs = index_module.Costs(0.0, scan, 0.0, 30.0, 5.0)
        plans = {plan["path"] for plan in index.explain_plan(weights, 10)}
        assert plans == ({"tables"} if scan == 1e9 else {"scan"})
        same(index, codes, weights, 10)


def test_zero_weights_are_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = random_codes(np.random.default_rng(2), 5000, 32)
    index = built(32, codes, monkeypatch)
    assert index.explain_plan(np.zeros((1, 32)), 3)[0]["path"] == "scan"
    same(index, codes, np.zeros((2, 32), np.float32), 3)


def test_plans_explain_why(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = random_codes(np.random.default_rng(3), 5000, 32)
    weights = np.ones((1, 32), np.float32)
    assert "no tables" in Index(32).explain_plan(weights, 1)[0]["why"]
    index = built(32, codes, monkeypatch)
    assert "too large" in index.explain_plan(weights, 4000)[0]["why"]
    index.planner.costs = index_module.Costs(0.0, 1e9, 0.0, 1.0, 1.0)
    (plan,) = index.explain_plan(np.random.default_rng(0).standard_normal((1, 32)), 2)
    assert plan["path"] == "tables" and plan["probes"] > 0 and plan["costs"]["probe"] == 1.0


def test_few_allowed_rows_are_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = random_codes(np.random.default_rng(4), 5000, 32)
    index = built(32, codes, monkeypatch)
    allowed = np.zeros(5000, bool)
    allowed[::50] = True
    bitmap = np.packbits(allowed, bitorder="little")
    assert "few rows are allowed" in index.planner.why_scan(index.state, 1, bitmap)
    assert not index.planner.why_scan(index.state, 1, np.full(700, 255, np.uint8))


def test_costs_are_measured_and_positive(monkeypatch: pytest.MonkeyPatch) -> None:
    index = built(32, random_codes(np.random.default_rng(5), 50_000, 32), monkeypatch)
    assert index.planner.costs is not None
    assert index.planner.costs.scan(50_000, 1) > 0 and index.planner.costs.probing(100, 1000) > 0
    assert index.planner.costs.scan(50_000, 32) <= index.planner.costs.scan(50_000, 1)
