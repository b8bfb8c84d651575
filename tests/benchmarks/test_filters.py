"""The bench of filters at its quick size: every condition matches what NumPy counts. No time is judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

import stillhash
from benchmarks import filters
from benchmarks.fixtures import COLLECTION_FIT_ROWS, random_features
from benchmarks.timing import CODE_BITS
from stillhash import Tally
from stillhash.collection.transfer.bulk_load import bulk_load
from stillhash.errors import InvalidInput
from tests.benchmarks.command import printed, run_bench


@pytest.mark.slow
def test_every_condition_is_timed_and_matches(tmp_path: Path) -> None:
    result = run_bench("filters", "--repeats", "2", "--folder", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    names = ("equal", "range", "$in", "label", "combined")
    assert sorted((row["name"], row["share"]) for row in result["rows"]) == sorted(
        (name, share) for name in names for share in filters.SHARES
    )
    assert all(row["ms"] > 0 for row in result["rows"])
    assert [goal["measured"] for goal in result["goals"] if goal["name"] == "items too many or too few"] == [0]
    assert 0 < result["column_bytes_per_item"] < 20
    lines = printed(filters, result)
    assert all(len(line) <= 100 and "…" not in line for line in lines)
    assert all(any(line.startswith(goal["name"]) for line in lines) for goal in result["goals"])


def test_too_few_items_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^items:"):
        filters.run(quick=False, repeats=1, progress=print, items=10, folder=tmp_path)


def test_conditions_match_about_their_share() -> None:
    items = filters.make_items(200_000)
    for (name, share), (_, matching) in filters.conditions(items).items():
        expected = filters.SHARES[share] * (0.7 if (name, share) == ("combined", "50 %") else 1)
        assert matching == pytest.approx(expected * 200_000, rel=0.5, abs=20)


def test_a_bulk_load_has_columns(tmp_path: Path) -> None:
    items = filters.make_items(3000)
    hasher = Tally(CODE_BITS).fit(random_features(COLLECTION_FIT_ROWS, filters.FILTERED_DIM, seed=0))
    batches = filters.segments(items, tmp_path, lambda _: None)
    bulk_load(
        tmp_path / "c",
        hasher,
        batches,
        id=filters.COLLECTION_ID,
        source="a",
        learnt=0,
        settings=filters.LOADED_SETTINGS,
    )
    files = {file.suffix for file in (tmp_path / "c" / "segments").iterdir()}
    with stillhash.open(tmp_path / "c") as collection:
        assert files == {".tiles", ".columns"} and collection.verify() == []
        for where, matching in filters.conditions(items).values():
            assert collection.count(where) == matching
        collection.relabel([0, 1], [["new"], ["new"]], learn=False)
        collection.delete([1])
        assert collection.ids({"labels": "new"}) == [0]
