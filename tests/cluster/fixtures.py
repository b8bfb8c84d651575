"""Data sets on disk, and the contents of a folder of part files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.jobs import read_manifest, read_part
from stillhash.hashers import Tally
from stillhash.numeric.codes import from_tiles
from tests.support.toys import Toy, toy

FILE_ROWS = (700, 1, 0, 1299, 500)  # uneven, and one empty
ROWS = sum(FILE_ROWS)
PART_ROWS = 256  # no file begins with a part
MAX_TASKS = 4  # as many processes start


def label_lists(labels: NDArray[np.uint8]) -> list[list[int]]:
    """Return the labels of each row of an indicator matrix."""
    return [np.flatnonzero(row).tolist() for row in labels]


def sample() -> tuple[NDArray[np.float32], list[list[int]]]:
    rows = toy(400, seed=5)
    return rows.X, label_lists(rows.Y)


def fit_tally(**params: Any) -> Tally:
    return Tally(bits=32, **params).fit(*sample())


def write_dataset(folder: Path, *, labels: bool = True) -> Toy:
    """Write rows to .npy files, with labels beside them; return the rows."""
    folder.mkdir()
    data, start = toy(ROWS, seed=1), 0
    for number, rows in enumerate(FILE_ROWS):
        part = slice(start, start + rows)
        np.save(folder / f"shard-{number}.npy", data.X[part])
        if labels:
            np.save(folder / f"shard-{number}.labels.npy", data.Y[part])
        start += rows
    return data


def read_all_parts(out: Path) -> tuple[NDArray[np.uint8], list[Any]]:
    """Return the codes of all parts, and their ids."""
    manifest = read_manifest(out)
    parts = [read_part(out, n, first, manifest.job["bits"]) for n, (first, _) in enumerate(manifest.parts)]
    codes = np.concatenate([from_tiles(segment.tiles, segment.rows) for segment, _ in parts])
    return codes, [name for _, items in parts for name in items.ids]


def file_contents(out: Path) -> dict[str, bytes]:
    """Return every file below a folder, by its path."""
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def is_running(pid: int) -> bool:
    """Whether a process runs: one that ended and was not waited for yet does not."""
    return Path(f"/proc/{pid}/exe").exists()
