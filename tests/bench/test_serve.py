"""The bench of the server at quick sizes: no errors, nothing lost. No time is judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

from stillhash.bench import serve
from tests.bench.command import printed, run_bench


@pytest.mark.slow
def test_a_server_under_load_and_killed(tmp_path: Path) -> None:
    result = run_bench("serve", "--folder", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert result["load"]["errors"] == 0, result["load"]["first_error"]
    assert result["load"]["searches"] > 0 and result["load"]["versions"] > 0
    assert result["killed"]["acknowledged"] > 0 and result["killed"]["lost"] == 0
    assert any("searches/s" in line for line in printed(serve, result))
