"""A dataset into a collection in one go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.cluster import LocalCluster, ingest
from stillhash.errors import Conflict, InvalidInput
from tests.support.toys import toy

X, Y = toy(1300)


def written(folder: Path, *, labels: bool = True) -> Path:
    folder.mkdir()
    for n, start in enumerate(range(0, 1200, 400)):
        np.save(folder / f"{n}.npy", X[start : start + 400])
        if labels:
            np.save(folder / f"{n}.labels.npy", Y[start : start + 400])
    return folder


def test_a_dataset_becomes_a_collection_that_has_learnt(cluster: LocalCluster, tmp_path: Path) -> None:
    with ingest(written(tmp_path / "rows"), tmp_path / "c", bits=32, sample=400) as made:
        assert made.count() == 1200 and made.verify() == []
        (version,) = made.versions()
        assert version["rows"] == 1200
        hasher = stillhash.Tally(32).fit(X[:400], [list(map(int, np.flatnonzero(y))) for y in Y[:400]])
        hasher.partial_fit(X[:1200], Y[:1200])
        answers = made.search(X[1200:], 10)
        scores = stillhash.Index(32)
        scores.add(hasher.encode(X[:1200]))
        wanted = scores.search(hasher.weigh(X[1200:]), 10)
        assert [[hit.id for hit in answer.hits] for answer in answers] == wanted.ids.tolist()
        made.add(["more"], X[1200:1201], Y[1200:1201])  # it goes on as any other
        assert made.count() == 1201
    with ingest(tmp_path / "rows", tmp_path / "c", bits=32, sample=400) as again:
        assert again.count() == 1201
    with pytest.raises(Conflict, match="was begun with tally and 32 bits"):
        ingest(tmp_path / "rows", tmp_path / "c", bits=64, sample=400)


def test_rows_without_labels_teach_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    rows = written(tmp_path / "rows", labels=False)
    with pytest.raises(InvalidInput, match="none of its rows has labels"):
        ingest(rows, tmp_path / "c", bits=32, sample=300)
    assert not (tmp_path / "c").exists()
    with ingest(rows, tmp_path / "c", bits=32, sample=300, learn=False) as made:
        assert made.count() == 1200 and made.search(X[0], 3).ranking.startswith("Hamming")
