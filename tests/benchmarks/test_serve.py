"""The bench of the server at quick sizes: no errors, nothing lost. No time is judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import serve
from tests.benchmarks.command import printed, run_bench


@pytest.mark.slow
def test_a_server_under_load_and_killed(tmp_path: Path) -> None:
    result = run_bench("serve", "--folder", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert result["load"]["errors"] == 0, result["load"]["first_error"]
    assert result["load"]["searches"] > 0 and result["load"]["versions"] > 0
    assert result["killed"]["acknowledged"] > 0 and result["killed"]["lost"] == 0
    assert any("searches/s" in line for line in printed(serve, result))


@pytest.mark.slow
def test_good_clients_beside_hostile_ones(tmp_path: Path) -> None:
    result = run_bench("serve-hostile", "--folder", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    for part in ("alone", "beside"):
        assert result[part]["errors"] == 0, result[part]["first_error"]
        assert result[part]["searches"] > 0 and result[part]["adds"] > 0
    outcomes = result["beside"]["outcomes"]
    assert set(outcomes["wrong key"]) == {"401"} and set(outcomes["oversized"]) <= {"413", "422", "200"}
    assert outcomes["heavy filter"]["200"] > 0 and result["served_after"]
    assert any("beside hostile clients" in line for line in printed(serve.HOSTILE_BENCH, result))
