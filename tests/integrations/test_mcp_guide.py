from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.guides import run_guide

pytest.importorskip("mcp", reason="mcp is an extra")
pytestmark = [pytest.mark.integrations, pytest.mark.slow]


def test_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_guide("integrations/mcp.md", monkeypatch, tmp_path) >= 2
