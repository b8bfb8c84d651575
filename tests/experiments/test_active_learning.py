"""The study of active learning, on a small made-up dataset: it learns what a collection learns, and compares fairly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stillhash.errors import InvalidInput
from stillhash.experiments import active_learning
from stillhash.experiments.active_learning import SUGGESTED, TaughtCollection, TeachingJob, choose, compare, teach
from stillhash.experiments.data import open_dataset
from stillhash.experiments.label_choices import LABEL_CHOICES
from stillhash.numeric.ranking import rank_all
from tests.support.toys import toy

TOY_ITEMS, TOY_QUERIES, TOY_COUNTS = 600, 60, (0, 40, 80)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("toy")
    X, Y = toy(900, 32, 6, 0)
    np.save(path / "features.npy", X)
    np.save(path / "labels.npy", Y)
    np.save(path / "queries.npy", np.arange(0, 900, 10))
    return str(path)


def job(folder: str, choice: str = SUGGESTED, keep_features: bool = True) -> TeachingJob:
    return TeachingJob(folder, choice, 64, keep_features, 0, TOY_ITEMS, TOY_QUERIES, 20, None, TOY_COUNTS)


@pytest.mark.parametrize("keep_features", [True, False])
def test_measures_the_ranking_of_the_collection(tmp_path: Path, folder: str, keep_features: bool) -> None:
    some = job(folder, keep_features=keep_features)
    taught = TaughtCollection(some, open_dataset(folder), tmp_path / "c")
    with taught.collection as collection:
        for _ in range(3):
            taught.teach(choose(taught, some, 30, np.random.default_rng(0)))
        pages = rank_all(taught.hasher().ranking(taught.Q), taught.codes)[:, :10]
        assert [[hit.id for hit in answer.hits] for answer in collection.search(taught.Q, 10)] == pages.tolist()
        assert len(set(taught.labelled.tolist())) == 90


def test_a_job_has_a_record_for_each_count(folder: str) -> None:
    records, random = (teach(job(folder, choice)) for choice in (SUGGESTED, "random"))
    assert [record["labels"] for record in records] == list(TOY_COUNTS)
    assert records[-1]["map"] > records[0]["map"] == random[0]["map"]


def test_all_choices_choose_unlabelled_items(tmp_path: Path, folder: str) -> None:
    with (taught := TaughtCollection(job(folder), open_dataset(folder), tmp_path / "c")).collection:
        for _ in range(2):  # before anything is learnt, and after
            for choice in LABEL_CHOICES:
                rows = choose(taught, job(folder, choice), 20, np.random.default_rng(0))
                assert len(set(rows.tolist())) == 20 and not np.isin(rows, taught.labelled).any()
            taught.teach(rows)


def test_gains_are_over_random_items_of_the_same_seed() -> None:
    def record(choice: str, seed: int, value: float) -> dict[str, object]:
        about = {"choice": choice, "seed": seed, "labels": 100, "bits": 64, "keep_features": True}
        return about | {"precision_10": value, "ndcg_10": value / 2, "map": value / 4}

    values = {("random", 0): 0.5, ("random", 1): 0.7, (SUGGESTED, 0): 0.6, (SUGGESTED, 1): 0.82}
    result = {"records": [record(choice, seed, value) for (choice, seed), value in values.items()]}
    random, suggested = compare(result, True, 64)
    assert random["precision_10"] == pytest.approx((0.6, 0, 0))
    assert suggested["precision_10"] == pytest.approx((0.71, 0.11, 0.01))
    assert suggested["map"] == pytest.approx((0.1775, 0.0275, 0.0025))


def test_runs_and_writes_tables(tmp_path: Path, folder: str) -> None:
    result = active_learning.run(folder, bits=(32,), seeds=2, items=300, queries=20, per_round=300, rows=500, workers=1)
    assert json.loads(json.dumps(result)) == result and len(result["records"]) == 2 * 2 * 2 * 4
    data, tables = active_learning.write(result, tmp_path / "out")
    assert json.loads(data.read_text()) == result
    text = tables.read_text()
    assert text.count("| random | 300 |") == 2 and text.count(f"| {SUGGESTED} | 1,000 |") == 2


def test_choices_are_validated(folder: str) -> None:
    with pytest.raises(InvalidInput, match="choices"):
        active_learning.run(folder, choices=("random", "best"))
