from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stillhash.cluster.encoding import encode_dataset
from stillhash.cluster.evaluation import evaluate_dataset
from stillhash.errors import InvalidInput
from stillhash.experiments.metrics import evaluate
from stillhash.hashers import Model
from tests.cluster.fixtures import PART, fitted, shards
from tests.support.toys import toy

pytestmark = pytest.mark.usefixtures("cluster")


def test_it_measures_what_one_machine_does(tmp_path: Path) -> None:
    rows, asked = shards(tmp_path / "source"), toy(150, seed=3)
    asked.Y[7] = 0  # a query that nothing is relevant for
    hasher, out = fitted().partial_fit(rows.X, rows.Y), tmp_path / "out"
    encode_dataset(tmp_path / "source", hasher, out, rows_per_part=PART, at_once=4)
    codes = hasher.encode(rows.X)
    wanted = evaluate(hasher.weigh(asked.X), codes, asked.Y, rows.Y, k=50)
    assert evaluate_dataset(hasher, asked.X, asked.Y, out, k=50, at_once=4) == pytest.approx(wanted, rel=0, abs=1e-12)
    assert evaluate_dataset(hasher.model(), asked.X, asked.Y, out, k=50, at_once=4)[:] == pytest.approx(
        wanted, rel=0, abs=1e-12
    )
    plain = evaluate(fitted().weigh(asked.X), codes, asked.Y, rows.Y)
    names = [np.flatnonzero(row).tolist() for row in asked.Y]
    found = evaluate_dataset(Model("hamming"), asked.X, [*names[:-1], [*names[-1], "unheard of"]], out, at_once=4)
    assert found == pytest.approx(plain, rel=0, abs=1e-12) and wanted.map > plain.map


def test_other_hash_functions_are_refused(tmp_path: Path) -> None:
    shards(tmp_path / "source")
    encode_dataset(tmp_path / "source", fitted(), tmp_path / "out", rows_per_part=1000, at_once=4)
    asked = toy(5)
    with pytest.raises(InvalidInput, match="other hash functions"):
        evaluate_dataset(fitted(random_state=1), asked.X, asked.Y, tmp_path / "out")
    with pytest.raises(InvalidInput, match="queries has 7 features"):
        evaluate_dataset(fitted(), asked.X[:, :7], asked.Y, tmp_path / "out")
