from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash.cluster.learning import MERGING, learn_dataset
from stillhash.errors import Conflict, InvalidInput
from stillhash.hashers import OHSL, Tally, TallyListwise
from tests.cluster.fixtures import PART, ROWS, contents, fitted, named, shards
from tests.support.toys import Toy, toy

pytestmark = pytest.mark.usefixtures("cluster")


def assert_alike(found: Tally, wanted: Tally) -> None:
    """To 1e-5 of the largest value of each array, of the sums as of the model."""
    assert list(found.stats_.names) == list(wanted.stats_.names)
    pairs = [*zip(found.stats_.arrays().values(), wanted.stats_.arrays().values(), strict=True)]
    pairs += [(a, b) for a, b in zip(found.model(), wanted.model(), strict=True) if isinstance(b, np.ndarray)]
    for a, b in pairs:
        assert a.shape == b.shape and np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def one_pass(hasher: Tally, rows: Toy) -> Tally:
    labels = named(rows.Y)
    for start in range(0, ROWS, 100):
        hasher.partial_fit(rows.X[start : start + 100], labels[start : start + 100])
    return hasher


@pytest.mark.parametrize("params", [{}, {"half_life": 500.0}, {"sharpness": 1.0, "rarity": 0.0}])
def test_it_learns_what_one_machine_does(tmp_path: Path, params: dict[str, Any]) -> None:
    rows, told = shards(tmp_path / "source"), list[int]()
    rows.Y[40:60] = 0
    np.save(tmp_path / "source" / "shard-0.labels.npy", rows.Y[:700])  # some rows teach nothing
    earlier = toy(300, seed=7)
    hasher = fitted(**params).partial_fit(*earlier)
    before = hasher.state()
    learnt = learn_dataset(
        tmp_path / "source", hasher, rows_per_part=PART, progress=lambda done, parts, rows, speed: told.append(rows)
    )
    assert hasher.state() == before and learnt.rows == ROWS - 20 and told[-1] == ROWS
    assert_alike(learnt.hasher, one_pass(hasher, rows))


def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    hasher, source, out = fitted(), tmp_path / "source", tmp_path / "out"
    rows = shards(source)

    def stop(parts_done: int, *_: Any) -> None:
        if parts_done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn_dataset(source, hasher, out=out, rows_per_part=PART, progress=stop)
    assert len(list((out / "parts").iterdir())) >= 3
    first = learn_dataset(source, hasher, out=out, rows_per_part=PART)
    kept = contents(out)
    again = learn_dataset(source, hasher, out=out, rows_per_part=PART)
    assert first.hasher.state() == again.hasher.state() and contents(out) == kept
    assert_alike(again.hasher, one_pass(hasher, rows))
    with pytest.raises(Conflict, match="its learns is"):
        learn_dataset(source, hasher, out=out, rows_per_part=PART)


def test_methods_that_cannot_be_merged_are_refused(tmp_path: Path) -> None:
    sample = toy(300)
    assert MERGING == ["tally"]
    for method in (OHSL, TallyListwise):
        with pytest.raises(InvalidInput, match="one that can be merged: tally"):
            learn_dataset(tmp_path, method(bits=32).fit(*sample))


def test_rows_without_labels_teach_nothing(tmp_path: Path) -> None:
    shards(tmp_path / "source", labels=False)
    with pytest.raises(InvalidInput, match="none of its rows has labels"):
        learn_dataset(tmp_path / "source", fitted(), rows_per_part=1000)
