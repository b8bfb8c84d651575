"""The bench of the pages at its quick size: every page answers. No time is judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import page
from stillhash.errors import InvalidInput
from tests.benchmarks.command import printed, run_bench


@pytest.mark.slow
def test_every_page_is_timed(tmp_path: Path) -> None:
    result = run_bench("page", "--repeats", "2", "--folder", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert [row["page"] for row in result["rows"]] == list(page.page_addresses(2000))
    assert all(row["p50_ms"] > 0 and row["bytes"] > 100 for row in result["rows"])
    assert any(line.startswith("the slowest search page") for line in printed(page, result))


def test_too_few_items_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^items:"):
        page.run(quick=False, repeats=1, progress=print, items=10, folder=tmp_path)
