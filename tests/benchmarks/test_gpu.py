"""The bench of the GPU, on its twin in NumPy: results are exact and well-formed. No time is judged here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu, timing
from benchmarks.__main__ import run
from benchmarks.scan import brute_force, count_different
from stillhash.errors import StillhashError
from stillhash.experiments.passes import machine
from stillhash.numeric.codes import count_ones, from_tiles, to_tiles
from stillhash.search.gpu.card import CardLimits
from tests.benchmarks.command import printed
from tests.search.gpu.numpy_card import NumpyCard
from tests.support.gpu import TWIN_LIMITS, gpu_reason


def twin() -> NumpyCard:
    return NumpyCard(CardLimits(**{**vars(TWIN_LIMITS), "batch": 64}))


@pytest.fixture(scope="module")
def row() -> dict[str, Any]:
    return gpu.measure(1 << 13, 32, 1, lambda now: None, twin())


def test_every_contender_is_timed_and_exact(row: dict[str, Any]) -> None:
    assert row["wrong_hits"] == 0 and row["codes"] == 1 << 13
    assert {"read", "one", "more", "filtered", "batch 64", "batch 128", "cpu"} <= set(row["ms"])
    assert all(ms > 0 for ms in row["ms"].values()) and row["load_s"] > 0


def test_the_table_fits_a_hundred_columns(row: dict[str, Any]) -> None:
    large = {**row, "codes": 1 << 33, "bits": 256}
    goals = [timing.judge(*goal) for goal in gpu.goals_of(large)]
    lines = printed(gpu, {"rows": [large], "goals": goals, "machine": machine(), "quick": True})
    assert all(len(line) <= 100 and "…" not in line for line in lines)
    assert any("8,589,934,592" in line for line in lines)


def test_random_tiles_differ_and_have_whole_tiles() -> None:
    tiles = gpu.random_tiles(5000, 24)
    assert tiles.shape == (19, 3, 256) and len({tile.tobytes() for tile in tiles}) == 19


@pytest.mark.slow
def test_orders_are_timed_and_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ORDERS", {"random": None, "sorted by label": "random"})
    monkeypatch.setattr(gpu, "CALLERS", 1)
    rows = gpu.measure_orders(1 << 12, 32, 1, lambda now: None, tmp_path, twin())
    assert [row["order"] for row in rows] == ["random", "sorted by label"]
    assert [row["queries"] for row in rows] == [100, 4] and not any(row["wrong_hits"] for row in rows)
    large = [{**row, "codes": 1 << 33, "bits": 256} for row in rows]
    goals = [timing.judge(*goal) for row in large for goal in gpu.order_goals(row)]
    lines = printed(gpu.ORDERS_BENCH, {"rows": large, "goals": goals, "machine": machine(), "quick": True})
    assert all(len(line) <= 120 and "…" not in line for line in lines) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("pieces", [1, 4])
def test_the_product_equals_brute_force(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    codes, weights = rng.integers(0, 4, (1024, 3), dtype=np.uint8), rng.integers(-2, 3, (5, 20)).astype(np.float32)
    monkeypatch.setattr(gpu, "ORDER_TILES", 4 // pieces)
    found = gpu.product_hits(np, to_tiles(codes, 20), weights, 9)
    assert count_different(found, brute_force(np.arange(1024), codes, weights, 9, None)) == 0


def test_codes_come_in_their_order() -> None:
    def codes(order: str) -> Any:
        return from_tiles(gpu.ordered_tiles(order, 1 << 13, 64), 1 << 13)

    first = codes("sorted by code")[:, :4].copy().view(">u4").ravel().astype(np.int64)
    assert (np.diff(first) >= 0).all() and first.max() - first.min() > 2**31
    centres = gpu.label_codes(64)
    labels = [count_ones(row ^ centres).sum(axis=1).argmin() for row in codes("sorted by label")[::50]]
    assert (np.diff(labels) >= 0).all() and len(set(labels)) > 100
    assert codes("random").tobytes() != codes("labels mixed").tobytes()


@pytest.mark.slow
def test_clients_search_a_server_with_many_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LOAD_PROCESSES", 2)
    gpu.fill_served(tmp_path / "served")
    rows = gpu.measure_served(tmp_path / "served", "CPU scan", 1 << 16, 1.0, lambda now: None)
    assert [row["clients"] for row in rows] == [16, 32] and all(row["per_second"] > 0 for row in rows)
    assert not any(row["errors"] for row in rows), rows
    goals = [timing.judge(*goal) for row in rows for goal in gpu.served_goals(row)]
    assert printed(gpu.SERVED_BENCH, {"rows": rows, "goals": goals, "machine": machine(), "quick": True})


@pytest.mark.skipif(not gpu_reason(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_so() -> None:
    with pytest.raises(StillhashError, match=r"^device"):
        run("gpu", ["--quick"])
