"""Commands on ready codes, and the list of duplicates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import codes
from tests.cli.test_collection import call, call_json
from tests.collection.test_codes_only import brute_force, some_codes

STORED, QUERY = some_codes(200, 64), some_codes(1, 64, seed=4)[0]


@pytest.fixture
def hashes(tmp_path: Path) -> Any:
    np.save(tmp_path / "codes.npy", STORED)
    path = tmp_path / "hashes"
    assert call_json("create", path, "--codes-only", "--bits", 64)["bits"] == 64
    assert call_json("add", path, tmp_path / "codes.npy", "--chunk", 64)["added"] == 200
    return path


def test_codes_are_added_and_searched(hashes: Path, tmp_path: Path) -> None:
    expected = brute_force(STORED, QUERY)
    np.save(tmp_path / "query.npy", QUERY)
    for query in (codes.to_hex(QUERY), tmp_path / "query.npy"):
        (answer,) = call_json("search", hashes, "--vector", query, "-k", 5)["answers"]
        assert [(hit["distance"], hit["id"]) for hit in answer["hits"]] == expected[:5]
        (near,) = call_json("range-search", hashes, "--vector", query, "--distance", 12)["answers"]
        assert [(hit["distance"], hit["id"]) for hit in near["hits"]] == [pair for pair in expected if pair[0] <= 12]
    (like,) = call_json("search", hashes, "--like", 7, "-k", 1)["answers"]
    assert like["hits"][0]["distance"] == 0
    code, out, _ = call("search", hashes, "--vector", codes.to_hex(QUERY))
    assert code == 0 and str(expected[0][1]) in out
    assert call("search", hashes, "--vector", "12")[0] == 2
    assert call("range-search", hashes, "--vector", codes.to_hex(QUERY))[0] == 2
    assert call("create", tmp_path / "other")[0] == 2 and not (tmp_path / "other").exists()


def test_duplicates_are_listed(hashes: Path) -> None:
    with stillhash.open(hashes, read_only=True) as collection:
        groups = collection.duplicates(5)
    assert len(groups) > 1
    assert call_json("duplicates", hashes, "--distance", 5) == {"groups": groups}
    assert call_json("duplicates", hashes, "--distance", 5, "--limit", 1) == {"groups": groups[:1]}
    assert call_json("duplicates", hashes, "--where", '{"labels": "x"}') == {"groups": []}
    code, out, _ = call("duplicates", hashes, "--distance", 5)
    lines = out.splitlines()
    assert code == 0 and len(lines) == len(groups) + 1 and lines[-1].startswith(f"{len(groups)} groups with ")
    assert lines[0].split()[:2] == [str(name) for name in groups[0][:2]]
    assert call("duplicates", hashes, "--distance", 65)[0] == 2
