from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stillhash.cluster.datasets import encode_dataset
from stillhash.cluster.evaluation import evaluate_dataset
from stillhash.errors import InvalidInput
from stillhash.experiments.metrics import evaluate
from stillhash.hashers import Model
from tests.cluster.fixtures import MAX_TASKS, PART_ROWS, fit_tally, label_lists, write_dataset
from tests.support.toys import toy

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


@pytest.mark.slow
def test_it_measures_the_same_as_one_machine(tmp_path: Path) -> None:
    rows, queries = write_dataset(tmp_path / "source"), toy(150, seed=3)
    queries.Y[7] = 0  # a query that nothing is relevant for
    hasher, out = fit_tally().partial_fit(rows.X, rows.Y), tmp_path / "out"
    encode_dataset(tmp_path / "source", hasher, out, rows_per_part=PART_ROWS, max_tasks=MAX_TASKS)
    codes = hasher.encode(rows.X, label_lists(rows.Y))
    expected = evaluate(hasher.ranking(queries.X), codes, queries.Y, rows.Y)
    assert evaluate_dataset(hasher, queries.X, queries.Y, out, max_tasks=MAX_TASKS) == pytest.approx(
        expected, rel=0, abs=1e-12
    )
    assert evaluate_dataset(hasher.model(), queries.X, queries.Y, out, max_tasks=MAX_TASKS)[:] == pytest.approx(
        expected, rel=0, abs=1e-12
    )
    unknown = np.eye(1, len(queries.Y), len(queries.Y) - 1, dtype=queries.Y.dtype).T  # a label that no row has
    with_unknown, without = np.hstack([queries.Y, unknown]), np.hstack([rows.Y, np.zeros_like(rows.Y[:, :1])])
    unlearnt = evaluate(fit_tally().ranking(queries.X), codes, with_unknown, without)
    names = [np.flatnonzero(row).tolist() for row in queries.Y]
    quality = evaluate_dataset(
        Model("similarity"), queries.X, [*names[:-1], [*names[-1], "unknown label"]], out, max_tasks=MAX_TASKS
    )
    assert quality == pytest.approx(unlearnt, rel=0, abs=1e-12) and expected.map > unlearnt.map


def test_other_hash_functions_are_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path / "source")
    encode_dataset(tmp_path / "source", fit_tally(), tmp_path / "out", rows_per_part=1000, max_tasks=MAX_TASKS)
    queries = toy(5)
    with pytest.raises(InvalidInput, match=r"^ranker"):
        evaluate_dataset(fit_tally(random_state=1), queries.X, queries.Y, tmp_path / "out")
    with pytest.raises(InvalidInput, match=r"^queries"):
        evaluate_dataset(fit_tally(), queries.X[:, :7], queries.Y, tmp_path / "out")
