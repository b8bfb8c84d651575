"""Commands that count and suggest labels and values."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import stillhash
from tests.cli.test_collection import call, call_json


@pytest.fixture
def films(tmp_path: Path) -> Path:
    with stillhash.open(tmp_path / "films", 8, 16) as collection:
        labels = [["cat"], ["cat", "car"], [], ["dog"]]
        metadata = [{"year": 1990 + row, "city": "Oslo"} for row in range(4)]
        collection.add([f"f{row}" for row in range(4)], np.eye(4, 8), labels, metadata)
    return tmp_path / "films"


def test_facets(films: Path) -> None:
    with stillhash.open(films, read_only=True) as collection:
        expected = collection.facets({"labels": "cat"}, fields=["year"], limit=1)
    where = '{"labels": "cat"}'
    assert call_json("facets", films, "--field", "year", "--where", where, "--limit", 1) == asdict(expected)
    code, out, _ = call("facets", films)
    assert code == 0 and "labels: 3 items, 3 distinct" in out and "         2  cat" in out
    assert "year: 4 items, 4 distinct, 1990 to 1993" in out
    assert call("facets", films, "--field", "labels")[0] == 2


def test_suggest(films: Path) -> None:
    with stillhash.open(films, read_only=True) as collection:
        expected = [asdict(one) for one in collection.suggest("ca")]
    assert call_json("suggest", films, "ca") == {"suggestions": expected}
    code, out, _ = call("suggest", films, "catt")
    assert code == 0 and "label, near  cat" in out
    assert call("suggest", films, "x" * 1001)[0] == 2
