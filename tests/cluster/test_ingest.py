"""Turn a data set into a collection with one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash.cluster import ingest
from stillhash.errors import Conflict, InvalidInput
from stillhash.search.first_page import search_page
from tests.cluster.fixtures import label_lists
from tests.support.toys import toy

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]
X, Y = toy(1300)


def write_rows(folder: Path, *, labels: bool = True) -> Path:
    folder.mkdir()
    for n, start in enumerate(range(0, 1200, 400)):
        np.save(folder / f"{n}.npy", X[start : start + 400])
        if labels:
            np.save(folder / f"{n}.labels.npy", Y[start : start + 400])
    return folder


def test_a_data_set_becomes_a_collection_that_has_learnt(tmp_path: Path) -> None:
    seeing: dict[str, Any] = {"sample": 400, "codes_see_labels": True, "rescore_bits": 0}
    with ingest(write_rows(tmp_path / "rows"), tmp_path / "c", bits=32, **seeing) as collection:
        assert collection.count() == 1200 and collection.verify() == []
        (version,) = collection.versions()
        assert version["rows"] == 1200
        (entry,) = collection.audit()
        assert (entry.what, entry.rows, entry.version_before, entry.version_after) == ("bulk load", 1200, 0, 1)
        hasher = stillhash.Tally(32).fit(X[:400], label_lists(Y[:400]))
        codes = hasher.encode(X[:1200], Y[:1200])
        hasher.partial_fit(X[:1200], Y[:1200], codes)
        answers = collection.search(X[1200:], 10)
        index = stillhash.Index(32)
        index.add(codes)
        expected = search_page(index, hasher.ranking(X[1200:]), 10)
        assert [[hit.id for hit in answer.hits] for answer in answers] == expected.ids.tolist()
        collection.add(["more"], X[1200:1201], Y[1200:1201])  # it continues as any other
        assert collection.count() == 1201
    with ingest(tmp_path / "rows", tmp_path / "c", bits=32, **seeing) as again:
        assert again.count() == 1201
    others: list[tuple[dict[str, Any], str]] = [({"bits": 64}, "^bits"), ({"bits": 32, "rescore_bits": 2}, "^rescore")]
    for options, match in [*others, ({"bits": 32, "codes_see_labels": False}, "^codes_see_labels")]:
        with pytest.raises(Conflict, match=match):
            ingest(tmp_path / "rows", tmp_path / "c", sample=400, **options)
    with pytest.raises(InvalidInput, match=r"^codes_see_labels"):
        ingest(tmp_path / "rows", tmp_path / "c", bits=32, sample=400, codes_see_labels="no")


@pytest.mark.parametrize("labelled", [1200, 800])
def test_it_equals_a_collection_that_rows_were_added_to(tmp_path: Path, labelled: int) -> None:
    """By default with rescoring codes: its sums are those of the stored items, and late labels change both alike."""
    rows = write_rows(tmp_path / "rows")
    Y_known = Y[:1200].copy()
    Y_known[labelled:] = 0
    np.save(rows / "2.labels.npy", Y_known[800:])
    sample = X[:400], label_lists(Y_known[:400])
    with (
        ingest(rows, tmp_path / "c", bits=32, sample=400) as ingested,
        stillhash.open(tmp_path / "added", X.shape[1], 32, init=sample) as added,
    ):
        added.add(range(1200), X[:1200], label_lists(Y_known))
        added.flush()
        assert ingested.stats()["rescore_bits"] == added.stats()["rescore_bits"] > 0
        assert ingested.verify() == added.verify() == []
        for change in (lambda _: None, lambda each: each.relabel(range(300, 900), label_lists(Y[300:900]))):
            for each in (ingested, added):
                change(each)
                each.flush()
            answers = [[answer.hits for answer in each.search(X[1200:], 1200)] for each in (ingested, added)]
            hits, expected = ([[(hit.id, hit.score) for hit in some] for some in all_hits] for all_hits in answers)
            assert hits == expected
        assert ingested.verify() == added.verify() == []


def test_items_that_nobody_learnt_from_are_learnt_later(tmp_path: Path) -> None:
    with ingest(write_rows(tmp_path / "rows"), tmp_path / "c", bits=32, sample=400, learn=False) as collection:
        assert collection.verify() == [] and collection.versions()[-1]["kind"] == "fit"
        collection.relabel(range(1200), label_lists(Y[:1200]))
        collection.flush()
        assert collection.verify() == [] and collection.search(X[1200], 3).ranking == "learnt similarity"


def test_codes_of_the_features_alone(tmp_path: Path) -> None:
    options = {"bits": 32, "sample": 400, "codes_see_labels": False}
    with ingest(write_rows(tmp_path / "rows"), tmp_path / "c", **options) as collection:
        stats = collection.stats()
        assert stats["codes_see_labels"] is False and "codes_see_labels" not in stats["params"]
        hasher = stillhash.Tally(32, codes_see_labels=False).fit(X[:400], label_lists(Y[:400]))
        assert np.array_equal(collection.codes(range(1200)), hasher.encode(X[:1200]))
        collection.add(["more"], X[1200:1201], Y[1200:1201])
        assert np.array_equal(collection.codes(["more"]), hasher.encode(X[1200:1201]))


def test_rows_without_labels_are_ingested_without_learning(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows", labels=False)
    with pytest.raises(InvalidInput, match=r"^source"):
        ingest(rows, tmp_path / "c", bits=32, sample=300)
    assert not (tmp_path / "c").exists()
    with ingest(rows, tmp_path / "c", bits=32, sample=300, learn=False) as collection:
        assert collection.count() == 1200 and collection.search(X[0], 3).ranking.startswith("similarity")
