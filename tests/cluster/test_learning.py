from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash.cluster.datasets import MERGEABLE, learn_dataset
from stillhash.errors import Conflict, InvalidInput
from stillhash.hashers import OHSL, Tally, TallyListwise
from tests.cluster.fixtures import PART_ROWS, ROWS, file_contents, fit_tally, label_lists, write_dataset
from tests.support.toys import Toy, toy

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def assert_alike(learnt: Tally, expected: Tally) -> None:
    """Compare sums and model, to 1e-5 of the largest value of each array."""
    assert list(learnt.stats_.names) == list(expected.stats_.names)
    pairs = [*zip(learnt.stats_.arrays().values(), expected.stats_.arrays().values(), strict=True)]
    pairs += [(a, b) for a, b in zip(learnt.model(), expected.model(), strict=True) if isinstance(b, np.ndarray)]
    for a, b in pairs:
        assert a.shape == b.shape and np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def learn_alone(hasher: Tally, rows: Toy) -> Tally:
    labels = label_lists(rows.Y)
    for start in range(0, ROWS, 100):
        hasher.partial_fit(rows.X[start : start + 100], labels[start : start + 100])
    return hasher


@pytest.mark.parametrize("params", [{}, {"half_life": 500.0}, {"sharpness": 1.0, "rarity": 0.0}])
def test_it_learns_the_same_as_one_machine(tmp_path: Path, params: dict[str, Any]) -> None:
    rows, progress = write_dataset(tmp_path / "source"), list[int]()
    rows.Y[40:60] = 0
    np.save(tmp_path / "source" / "shard-0.labels.npy", rows.Y[:700])  # some rows have no labels
    earlier = toy(300, seed=7)
    hasher = fit_tally(**params).partial_fit(*earlier)
    before = hasher.state()
    source = tmp_path / "source"
    learnt = learn_dataset(source, hasher, rows_per_part=PART_ROWS, progress=lambda *args: progress.append(args[2]))
    assert hasher.state() == before and learnt.rows == ROWS - 20 and progress[-1] == ROWS
    assert_alike(learnt.hasher, learn_alone(hasher, rows))


def test_an_interrupted_run_continues(tmp_path: Path) -> None:
    hasher, source, out = fit_tally(), tmp_path / "source", tmp_path / "out"
    rows = write_dataset(source)

    def stop(parts_done: int, *_: Any) -> None:
        if parts_done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn_dataset(source, hasher, out=out, rows_per_part=PART_ROWS, progress=stop)
    assert len(list((out / "parts").iterdir())) >= 3
    first = learn_dataset(source, hasher, out=out, rows_per_part=PART_ROWS)
    before = file_contents(out)
    again = learn_dataset(source, hasher, out=out, rows_per_part=PART_ROWS)
    assert first.hasher.state() == again.hasher.state() and file_contents(out) == before
    assert_alike(again.hasher, learn_alone(hasher, rows))
    with pytest.raises(Conflict, match=r"hasher: "):
        learn_dataset(source, hasher, out=out, rows_per_part=PART_ROWS)


def test_methods_that_cannot_be_merged_are_refused(tmp_path: Path) -> None:
    sample = toy(300)
    assert MERGEABLE == ["tally"]
    for method in (OHSL, TallyListwise):
        with pytest.raises(InvalidInput, match=r"^hasher"):
            learn_dataset(tmp_path, method(bits=32).fit(*sample))


def test_a_source_without_labels_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path / "source", labels=False)
    with pytest.raises(InvalidInput, match=r"^source"):
        learn_dataset(tmp_path / "source", fit_tally(), rows_per_part=1000)
