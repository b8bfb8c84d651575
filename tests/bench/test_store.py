"""The bench of the store at quick sizes: nothing is lost, and it leaves nothing behind. No time is judged here."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import stillhash
from stillhash.bench import store, store_upkeep
from stillhash.errors import InvalidInput


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("disk")
    found = store.run(repeats=3, quick=True, folder=folder)
    assert list(folder.iterdir()) == []
    return found


def test_result_is_json_with_times_of_all_contenders(result: dict[str, Any]) -> None:
    assert json.loads(json.dumps(result)) == result
    assert result["rows"] and result["goals"] and result["quick"] is True
    one = result["one_row"]
    assert one["commits"] == 3 and set(one["p50_ms"]) == {"bare", "add", "add, to learn"}
    for name, p50 in one["p50_ms"].items():
        assert 0 < p50 <= one["p99_ms"][name]
    for row in result["rows"]:
        assert set(row["ms"]) == {"add", "encode", "bare"} and all(ms > 0 for ms in row["ms"].values())
    assert all(ms > 0 for ms in result["open"]["same"].values())
    assert result["open"]["fresh"]["index_bytes"] > 0 and result["open"]["fresh"]["first_search_ms"] > 0


def test_nothing_is_lost(result: dict[str, Any]) -> None:
    assert result["wrong"] == 0 and all(row["wrong"] == 0 for row in result["rows"])
    assert all(found["live"] == found["items"] // 2 for found in result["churn"])


def test_tables_name_every_goal(result: dict[str, Any]) -> None:
    out = io.StringIO()
    store.show(result, Console(file=out, width=100))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= 100 and "…" not in line for line in lines)
    assert all(any(line.startswith(goal["name"]) for line in lines) for goal in result["goals"])


def test_a_loss_is_noticed(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", store_upkeep.DIM, store_upkeep.BITS) as collection:
        collection.fit(store_upkeep.features(store_upkeep.SAMPLE, 0))
        collection.add(range(20), store_upkeep.features(20, 1), None, [{"turn": 0}] * 20)
        there = dict.fromkeys(range(20), 0)
        assert store_upkeep.amiss(collection, there, [20, 21], every=True) == 0
        assert store_upkeep.amiss(collection, there | {3: 1}, [], every=True) == 1  # altered
        assert store_upkeep.amiss(collection, there | {20: 0}, [], every=True) == 3  # not counted, not there, not found
        assert store_upkeep.amiss(collection, there, [19], every=True) == 1  # not gone


@pytest.mark.parametrize(
    ("options", "told"), [({"items": 10}, "items is 10"), ({"folder": Path("no/such")}, "no/such")]
)
def test_what_cannot_be_measured_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        store.run(**options)
