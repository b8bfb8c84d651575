from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash.cluster.datasets import MERGEABLE, encode_dataset, learn_dataset
from stillhash.errors import BadState, Conflict, InvalidInput
from stillhash.hashers import LSH, OHSL, Tally
from stillhash.numeric.validation import Codes
from tests.cluster.fixtures import MAX_TASKS, PART_ROWS, ROWS, file_contents, fit_tally, label_lists, write_dataset
from tests.support.toys import Toy, toy

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def assert_alike(learnt: Tally, expected: Tally) -> None:
    """Compare sums and model, to 1e-5 of the largest value of each array."""
    assert list(learnt.stats_.names) == list(expected.stats_.names)
    pairs = [*zip(learnt.stats_.arrays().values(), expected.stats_.arrays().values(), strict=True)]
    pairs += [(a, b) for a, b in zip(learnt.model(), expected.model(), strict=True) if isinstance(b, np.ndarray)]
    for a, b in pairs:
        assert a.shape == b.shape and np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def learn_alone(hasher: Tally, rows: Toy, codes: Codes | None = None) -> Tally:
    """Learn with these codes, or with those that the hasher gives the rows before it learns them.

    With a half-life, rows without labels count from the end of their chunk, so chunks are those of the cluster.
    """
    labels = label_lists(rows.Y)
    codes = hasher.encode(rows.X, labels) if codes is None else codes
    for start in range(0, ROWS, PART_ROWS):
        chunk = slice(start, start + PART_ROWS)
        hasher.partial_fit(rows.X[chunk], labels[chunk], codes[chunk])
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
    assert learnt.hasher.stats_.unlabelled >= (20 if "half_life" not in params else 0)


def test_it_learns_the_codes_that_are_stored(tmp_path: Path) -> None:
    """Codes of another hasher with the same hash functions: they hold no labels."""
    rows, source, out = write_dataset(tmp_path / "source"), tmp_path / "source", tmp_path / "out"
    hasher = fit_tally()
    encode_dataset(source, hasher.functions(), out, rows_per_part=PART_ROWS, max_tasks=MAX_TASKS)
    learnt = learn_dataset(source, hasher, codes=out, out=tmp_path / "learnt", rows_per_part=PART_ROWS).hasher
    assert_alike(learnt, learn_alone(fit_tally(), rows, hasher.encode(rows.X)))
    assert learnt.model().label_bits == 0 < learn_dataset(source, hasher, rows_per_part=1000).hasher.model().label_bits
    for match, other, options in (
        ("codes: .*parts", hasher, {"rows_per_part": 1000}),
        ("codes: .*functions", fit_tally(random_state=1), {"rows_per_part": PART_ROWS}),
        ("out: .*codes", hasher, {"rows_per_part": PART_ROWS, "out": tmp_path / "learnt", "codes": None}),
    ):
        with pytest.raises(Conflict, match=match):
            learn_dataset(source, other, **{"codes": out, **options})
    (out / "parts" / "00000003.tiles").unlink()
    with pytest.raises(BadState, match=r"00000003\.tiles"):
        learn_dataset(source, hasher, codes=out, rows_per_part=PART_ROWS)


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
    for method in (OHSL, LSH):
        with pytest.raises(InvalidInput, match=r"^hasher"):
            learn_dataset(tmp_path, method(bits=32).fit(*sample))


def test_a_source_without_labels_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path / "source", labels=False)
    with pytest.raises(InvalidInput, match=r"^source"):
        learn_dataset(tmp_path / "source", fit_tally(), rows_per_part=1000)
