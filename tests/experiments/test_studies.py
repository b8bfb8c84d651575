"""The studies of alignment and feedback, at small sizes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stillhash.errors import InvalidInput
from stillhash.experiments import alignment, feedback
from stillhash.experiments.data import Dataset
from tests.support.toys import toy


@pytest.mark.nightly
def test_an_alignment_keeps_most_of_encoding_again() -> None:
    X, Y = toy(900)
    other = np.maximum(X @ np.random.default_rng(0).standard_normal((48, 80)), 0).astype(np.float32)
    queries = np.arange(0, 900, 9)
    old, new = (Dataset(name, (features,), 1.0, Y, queries) for name, features in (("old", X), ("new", other)))
    result = alignment.run(old, new, bits=32, seeds=1)
    assert [row["pairs"] for row in result["rows"]] == [100, 300, 800, 800]
    for row in result["rows"][1:]:
        assert result["chance"] < row["aligned"]["map"] and row["aligned"]["map"] > 0.9 * row["encoded_again"]["map"]
    with pytest.raises(InvalidInput, match=r"^new"):
        alignment.run(old, Dataset("wrong", (other,), 1.0, Y[::-1].copy(), queries))
    (table,) = alignment.tables(result)
    lines = ["old encoder", "100 images in both", "300 images in both", "800 images in both", "encoded again"]
    assert not isinstance(table, str) and [row[0] for row in table.rows] == lines
    assert list(table.columns)[1:5] == ["mAP", "P@10", "P@100", "nDCG@10"]


@pytest.mark.nightly
def test_votes_and_clicks_help() -> None:
    X, Y = toy(1500)
    data = Dataset("toy", (X,), 1.0, Y, np.arange(200))
    result = feedback.run(data, bits=32, votes=40, others=50, click_queries=600)
    votes, clicks = result["votes"], result["clicks"]
    assert votes["up"] + votes["down"] == 40 and votes["fell"] == votes["rose"] == 0
    assert all(page["change"] > -0.02 for page in votes["pages"])
    assert [line["queries"] for line in clicks] == [0, 10, 30, 100, 300, 600]
    assert clicks[-1]["map"] > clicks[0]["map"]
    assert json.loads(json.dumps(result)) == result
    assert [len(list(table.rows)) for table in feedback.tables(result)] == [1, 3, 6]  # type: ignore[union-attr]
