"""Stores of all formats that were ever released open, answer as they did, and can be written to.

What differs for format 1, which has no ranking of the first page: votes put items first and last for their own query,
version 0 ranks by looks, what was measured of quality is dropped, and one segment without deleted rows is left.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash.collection.storage.format_1 import stored_format
from tests.collection.fixtures import some_rows
from tests.collection.format_1 import contents, scores, unpack_golden
from tests.collection.golden import FOLDER, QUERIES, answers, close

NEW_SINCE_FORMAT_1 = {"filter_columns", "filter_fields", "codes_see_labels", "wrong_label_share", "rescore_bits"}
CHANGED_SINCE_FORMAT_1 = {"segments": 1, "deleted": 0, "unsealed": 0, "quality": None}


def write_to(collection: stillhash.Collection, expected: dict[str, Any]) -> None:
    """Check that the collection can be changed, and that an earlier version ranks as before."""
    before = collection.versions()[-1]["version"]
    collection.upsert(["new"], *some_rows(1, seed=9))
    assert collection.learn(*some_rows(30, seed=9)[:2]) == before + 2  # pending rows, and these
    collection.feedback(QUERIES[0], "new", True)
    collection.compact()
    assert collection.verify() == [] and collection.get(["new"])[0] is not None
    again = collection.search(QUERIES, 5, version=2)
    assert [hit.id for hit in again[0].hits][:1] == [hit["id"] for hit in expected["earlier"][0]["hits"]][:1]


def test_there_is_one_for_each_format() -> None:
    assert sorted(file.stem for file in FOLDER.glob("format-*.zip")) == ["format-1", "format-5", "format-7"]


@pytest.mark.parametrize("number", [5, 7])
def test_a_golden_store_answers_as_it_did(tmp_path: Path, number: int) -> None:
    with zipfile.ZipFile(FOLDER / f"format-{number}.zip") as archive:
        archive.extractall(tmp_path)
    assert stored_format(tmp_path / "golden") == number
    expected = json.loads((tmp_path / "answers.json").read_text())
    with stillhash.open(tmp_path / "golden", read_only=True) as collection:
        results = answers(collection)
        for name in expected:
            assert close(results[name], expected[name]), name
        assert collection.verify() == []
    with stillhash.open(tmp_path / "golden") as collection:
        write_to(collection, expected)


@pytest.mark.parametrize("upgraded", [False, True], ids=["read only", "upgraded"])
def test_a_store_of_format_1_answers_as_it_did(tmp_path: Path, upgraded: bool) -> None:
    path, expected = unpack_golden(tmp_path)
    before = contents(path)
    if upgraded:
        stillhash.upgrade(path)
    with stillhash.open(path, read_only=True) as collection:
        results = answers(collection)
        assert results["items"] == expected["items"] and results["pictures"] == expected["pictures"]
        assert results["alignments"] == expected["bridges"]
        stats = {name: value for name, value in results["stats"].items() if name not in NEW_SINCE_FORMAT_1}
        assert stats == expected["stats"] | CHANGED_SINCE_FORMAT_1
        for version in expected["versions"]:
            version["created"] = version.pop("made")
            version.pop("quality", None)
        assert results["versions"] == expected["versions"]
        same_order(results, expected)
        same_scores(collection, expected)
        assert collection.verify() == []
    assert contents(tmp_path / ("golden.format-1" if upgraded else "golden")) == before
    if upgraded:
        with stillhash.open(path) as collection:
            write_to(collection, expected)


def same_order(results: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare hits with their scores in order; the voted items of the first query are first and last now."""
    for name in ("all", "some", "earlier"):
        for number, (result, answer) in enumerate(zip(results[name], expected[name], strict=True)):
            assert result["version"] == answer["version"] and result["ranking"] == answer["ranking"]
            voted = ["a1", 100] if number == 0 and name != "earlier" else []
            now, then = (
                [[h["id"], h["score"]] for h in part["hits"] if h["id"] not in voted] for part in (result, answer)
            )
            count = min(len(now), len(then))  # where only some hits are asked for, a voted item pushes others out
            assert count >= 4 and close(now[:count], then[:count])
    ids = [hit["id"] for hit in results["all"][0]["hits"]]
    assert (ids[0], ids[-1]) == ("a1", 100)


def same_scores(collection: stillhash.Collection, expected: dict[str, Any]) -> None:
    """Compare the scores of all items, and what each bit adds to them."""
    ranged = collection.range_search(QUERIES, -1e9)
    explained = collection.search(QUERIES, 400, explain=2)
    for number, answer in enumerate(expected["all"]):
        assert close(scores(ranged[number]), {hit["id"]: hit["score"] for hit in answer["hits"]})
    for number, answer in enumerate(expected["explained"]):
        by_id = {hit.id: hit.explanation for hit in explained[number].hits}
        for hit in answer["hits"]:
            why = by_id[hit["id"]]
            assert why is not None
            assert np.allclose(why.bits, hit["explanation"]["bits"], rtol=1e-4, atol=1e-5)
            assert np.isclose(why.other_score, hit["explanation"]["other_score"], rtol=1e-4)
