"""The command that lays out items."""

from __future__ import annotations

from pathlib import Path

import pytest

import stillhash
from tests.cli.test_collection import call, call_json
from tests.collection.fixtures import begin


@pytest.mark.parametrize("by", ["features", "labels"])
def test_points_are_those_of_the_library(tmp_path: Path, by: str) -> None:
    begin(tmp_path / "films")[0].close()
    with stillhash.open(tmp_path / "films", read_only=True) as collection:
        layout = collection.layout(100, by=by, seed=3)  # type: ignore[arg-type]
    result = call_json("layout", tmp_path / "films", "--by", by, "--items", 100, "--seed", 3)
    assert (result["by"], result["items"], len(result["points"])) == (by, 320, 100)
    assert [point["id"] for point in result["points"]] == layout.ids
    assert [[point["x"], point["y"]] for point in result["points"]] == layout.coordinates.tolist()
    code, out, _ = call("layout", tmp_path / "films")
    assert code == 0 and out.splitlines()[0].split() == ["main", "label", "items", "predicted", "centre"]
    assert call("layout", tmp_path / "films", "--by", "colour")[0] == 2
