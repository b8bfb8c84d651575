"""The bench of the GPU, on its twin in NumPy: results are exact and well-formed. No time is judged here."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from stillhash.bench import gpu, timing
from stillhash.cli.main import app
from stillhash.experiments.machine import machine
from stillhash.search.gpu.card import CardLimits
from stillhash.search.gpu.numpy_card import NumpyCard
from tests.bench.command import printed
from tests.support.gpu import TWIN_LIMITS, gpu_reason


@pytest.fixture(scope="module")
def row() -> dict[str, Any]:
    card = NumpyCard(CardLimits(**{**vars(TWIN_LIMITS), "batch": 64}))
    return gpu.measure(1 << 13, 32, 1, lambda now: None, card)


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


@pytest.mark.skipif(not gpu_reason(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_so() -> None:
    outcome = CliRunner().invoke(app, ["bench", "gpu", "--quick"])
    assert outcome.exit_code != 0 and str(outcome.exception).startswith("device")


@pytest.mark.parametrize("option", [["--codes", "many"], ["--bits", "64,x"]])
def test_what_is_no_number_is_refused(option: list[str]) -> None:
    outcome = CliRunner().invoke(app, ["bench", "gpu", *option])
    assert outcome.exit_code != 0 and str(outcome.exception).startswith(option[0].strip("-"))
