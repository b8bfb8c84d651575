"""Data sets on disk, and what lies in a folder of parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.manifest import read_plan
from stillhash.cluster.part_files import read_part
from stillhash.hashers import Tally
from stillhash.numeric.codes import from_tiles
from tests.support.toys import Toy, toy

SIZES = (700, 1, 0, 1299, 500)  # rows of shards: uneven, and one empty
ROWS = sum(SIZES)
PART = 256  # rows of a part; no shard begins with one


def named(labels: NDArray[np.uint8]) -> list[list[int]]:
    """Of an indicator matrix, the labels of each row, as a collection has them."""
    return [np.flatnonzero(row).tolist() for row in labels]


def sample() -> tuple[NDArray[np.float32], list[list[int]]]:
    made = toy(400, seed=5)
    return made.X, named(made.Y)


def fitted(**params: Any) -> Tally:
    return Tally(bits=32, **params).fit(*sample())


def shards(folder: Path, *, labels: bool = True) -> Toy:
    """Rows as .npy shards with labels beside them."""
    folder.mkdir()
    made, start = toy(ROWS, seed=1), 0
    for number, rows in enumerate(SIZES):
        some = slice(start, start + rows)
        np.save(folder / f"shard-{number}.npy", made.X[some])
        if labels:
            np.save(folder / f"shard-{number}.labels.npy", made.Y[some])
        start += rows
    return made


def all_codes(out: Path) -> tuple[NDArray[np.uint8], list[Any]]:
    """The codes of all parts, and their ids."""
    plan = read_plan(out)
    found = [read_part(out, number, first, plan.about["bits"]) for number, (first, _) in enumerate(plan.parts)]
    codes = np.concatenate([from_tiles(segment.tiles, segment.rows) for segment, _ in found])
    return codes, [name for _, items in found for name in items.ids]


def contents(out: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
