"""The benches of the store at quick sizes: nothing is lost, and they leave nothing behind. No time is judged here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import fixtures, ingest, store, timing
from stillhash.errors import InvalidInput
from tests.benchmarks.command import printed, run_bench


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("disk")
    result = run_bench("store", "--repeats", "3", "--folder", str(folder))
    assert list(folder.iterdir()) == []
    return result


@pytest.mark.slow
def test_result_has_times_of_all_contenders(result: dict[str, Any]) -> None:
    one = result["one_row"]
    assert one["commits"] == 3 and set(one["p50_ms"]) == {"bare", "add", "add, to learn"}
    for name, p50 in one["p50_ms"].items():
        assert 0 < p50 <= one["p99_ms"][name]
    assert result["rows"]
    for row in result["rows"]:
        assert set(row["ms"]) == {"add", "encode", "bare"} and all(ms > 0 for ms in row["ms"].values())
    assert all(ms > 0 for ms in result["open"]["same"].values())
    assert result["open"]["fresh"]["index_bytes"] > 0 and result["open"]["fresh"]["first_search_ms"] > 0


@pytest.mark.slow
def test_rescoring_codes_take_the_bytes_that_they_have(result: dict[str, Any]) -> None:
    disk = {one["rescore_bits"]: one["disk_bytes"] for one in result["sizes"]}
    assert list(disk) == [0, 1, 2, 4, 8] and result["sizes"][0]["columns"] == 64
    assert disk[8] - disk[1] == pytest.approx(7 * 64 / 8, abs=16)
    assert all(one["memory_grown"]["RssAnon"] >= 0 for one in result["sizes"])


@pytest.mark.slow
def test_nothing_is_lost(result: dict[str, Any]) -> None:
    assert result["wrong"] == 0 and all(row["wrong"] == 0 for row in result["rows"])
    assert all(found["live"] == found["items"] // 2 for found in result["churn"])


@pytest.mark.slow
def test_tables_name_every_goal(result: dict[str, Any]) -> None:
    lines = printed(store, result)
    assert all(len(line) <= 100 and "…" not in line for line in lines)
    assert all(any(line.startswith(goal["name"]) for line in lines) for goal in result["goals"])


@pytest.mark.slow
def test_a_collection_that_learns_gives_the_hits_of_the_hasher_alone(tmp_path: Path) -> None:
    result = run_bench("ingest", "--folder", str(tmp_path))
    (row,) = result["rows"]
    assert row["relabel"]["items"] == 1000 * row["chunks"] and row["relabel"]["problems"] == 0
    assert row["different"] == 0 and row["versions"] == 1 + 1 + row["chunks"]  # the fit, the warm-up, a chunk each
    assert list(tmp_path.iterdir()) == [] and any("Tally" in line for line in printed(ingest, result))


def test_a_loss_is_noticed(tmp_path: Path) -> None:
    with fixtures.open_fitted(tmp_path / "c", store.UPKEEP_DIM) as collection:
        collection.add(range(20), store.upkeep_features(20, seed=1), None, [{"turn": 0}] * 20)
        turns = dict.fromkeys(range(20), 0)
        for expected, deleted, wrong in (
            (turns, [20, 21], 0),
            (turns | {3: 1}, [], 1),  # altered
            (turns | {20: 0}, [], 3),  # not counted, not stored, not returned by a search
            (turns, [19], 1),  # not deleted
        ):
            assert store.count_wrong(collection, expected, deleted, search_all=True) == wrong


@pytest.mark.parametrize(
    ("bench", "options", "argument"),
    [
        (store, {"items": 10}, "items"),
        (store, {"items": 1000, "folder": Path("no/such")}, "folder"),
        (ingest, {"folder": Path("no/such")}, "folder"),
        (ingest, {"repeats": 0}, "repeats"),
    ],
)
def test_bad_options_are_refused(bench: Any, options: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{argument}"):
        timing.run_bench(bench, quick=False, **{"repeats": 1} | options)
