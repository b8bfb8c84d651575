from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash.cluster import LocalCluster, datasets
from stillhash.cluster.datasets import encode_dataset, encode_part
from stillhash.cluster.jobs import read_manifest, read_part
from stillhash.cluster.sources import find_source
from stillhash.errors import BadState, Conflict, InvalidInput, NotFitted
from stillhash.hashers import HMOH, Tally
from stillhash.numeric.codes import from_tiles
from tests.cluster.fixtures import (
    FILE_ROWS,
    MAX_TASKS,
    PART_ROWS,
    ROWS,
    file_contents,
    fit_tally,
    label_lists,
    read_all_parts,
    sample,
    write_dataset,
)
from tests.support.seeds import run_seed
from tests.support.toys import toy
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def test_every_row_is_encoded_once_and_in_order(tmp_path: Path) -> None:
    hasher, rows, out = fit_tally(), write_dataset(tmp_path / "source"), tmp_path / "out"
    calls = list[tuple[int, int, int]]()
    done = encode_dataset(
        tmp_path / "source",
        hasher,
        out,
        rows_per_part=PART_ROWS,
        max_tasks=MAX_TASKS,
        progress=lambda *args: calls.append(args[:3]),
    )
    codes, ids = read_all_parts(out)
    assert np.array_equal(codes, hasher.encode(rows.X, label_lists(rows.Y))) and ids == list(range(ROWS))
    assert done[:4] == (-(-ROWS // PART_ROWS), ROWS, ROWS, {})
    assert [call[0] for call in calls] == list(range(1, done.parts + 1))
    assert calls[-1] == (done.parts, done.parts, ROWS)
    _, items = read_part(out, 3, 3 * PART_ROWS, 32)
    assert items.labels == label_lists(rows.Y[3 * PART_ROWS : 4 * PART_ROWS])
    before = file_contents(out)
    again = encode_dataset(tmp_path / "source", hasher, out, rows_per_part=PART_ROWS, max_tasks=MAX_TASKS)
    assert (again.rows, again.new_rows) == (ROWS, 0) and file_contents(out) == before


def test_labels_that_the_sample_lacks_are_learnt_of_a_block_as_of_an_added_chunk(tmp_path: Path) -> None:
    """A block is what a part has of a file."""
    X, labels = sample()
    hasher = Tally(bits=32).fit(X, [[label for label in some if label != 3] for some in labels])
    rows, out = write_dataset(tmp_path / "source"), tmp_path / "out"
    encode_dataset(tmp_path / "source", hasher, out, rows_per_part=PART_ROWS, max_tasks=MAX_TASKS)
    starts = np.cumsum([0, *FILE_ROWS])
    cuts = sorted({*range(0, ROWS, PART_ROWS), *starts.tolist()})
    codes = np.concatenate([hasher.encode(rows.X[a:b], label_lists(rows.Y[a:b])) for a, b in pairwise(cuts)])
    assert np.array_equal(read_all_parts(out)[0], codes)
    late = rows.Y[:, 3] == 1
    without = hasher.encode(rows.X, [[label for label in some if label != 3] for some in label_lists(rows.Y)])
    assert np.array_equal(codes[~late], without[~late]) and not np.array_equal(codes[late], without[late])


@pytest.mark.parametrize("seeing", [True, False])
def test_codes_without_labels(tmp_path: Path, seeing: bool) -> None:
    """By the hash functions alone, or by a hasher whose codes do not see labels; then the job is the same."""
    rows, out, hasher = write_dataset(tmp_path / "source"), tmp_path / "out", fit_tally(codes_see_labels=seeing)
    encode_dataset(tmp_path / "source", hasher.functions(), out, rows_per_part=1000, max_tasks=MAX_TASKS)
    assert np.array_equal(read_all_parts(out)[0], hasher.encode(rows.X))
    if not seeing:
        again = fit_tally(codes_see_labels=False).partial_fit(*rows)
        assert encode_dataset(tmp_path / "source", again, out, rows_per_part=1000, max_tasks=MAX_TASKS).new_rows == 0


def test_a_damaged_or_missing_part_is_encoded_again(tmp_path: Path) -> None:
    hasher, out = fit_tally(), tmp_path / "out"
    write_dataset(tmp_path / "source")
    encode_dataset(tmp_path / "source", hasher, out, rows_per_part=PART_ROWS, max_tasks=MAX_TASKS)
    whole = file_contents(out)
    (out / "parts" / "00000001.tiles").unlink()
    damaged = bytearray((out / "parts" / "00000002.items").read_bytes())
    damaged[100] ^= 1
    (out / "parts" / "00000002.items").write_bytes(damaged)
    (out / "parts" / ".00000003.tiles.123").write_bytes(b"begun")
    done = encode_dataset(tmp_path / "source", hasher, out, rows_per_part=PART_ROWS, max_tasks=MAX_TASKS)
    assert done.new_rows == 2 * PART_ROWS and file_contents(out) == whole


def test_another_job_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    hasher, source, out = fit_tally(), tmp_path / "source", tmp_path / "out"
    write_dataset(source)
    encode_dataset(source, hasher, out, rows_per_part=1000, max_tasks=MAX_TASKS)
    whole = file_contents(out)
    other = toy(300, seed=8)
    for wrong in (fit_tally(random_state=1), type(hasher)(bits=40).fit(*other)):
        with pytest.raises(Conflict, match=r"functions|bits"):
            encode_dataset(source, wrong, out, rows_per_part=1000)
    for other_codes in (hasher.functions(), fit_tally().partial_fit(*other)):  # which hold no labels, or others
        with pytest.raises(Conflict, match=r"hasher: "):
            encode_dataset(source, other_codes, out, rows_per_part=1000)
    with pytest.raises(Conflict, match=r"parts: "):
        encode_dataset(source, hasher, out, rows_per_part=999)
    np.save(source / "shard-3.labels.npy", toy(1299, seed=9).Y)
    with pytest.raises(Conflict, match=r"source: shard-3.npy"):
        encode_dataset(source, hasher, out, rows_per_part=1000)
    np.save(source / "shard-9.npy", other.X)
    with pytest.raises(Conflict, match=r"source: shard-"):
        encode_dataset(source, hasher, out, rows_per_part=1000)
    assert file_contents(out) == whole
    with pytest.raises(InvalidInput, match=r"^hasher"):
        encode_dataset(source, HMOH(bits=32).fit(*other), out)
    with pytest.raises(NotFitted):
        encode_dataset(source, type(hasher)(bits=32), out)


def test_a_file_that_changes_during_the_job_is_refused(tmp_path: Path) -> None:
    """By the task that reads it: the manifest was right when it was written."""
    rows, out = write_dataset(tmp_path / "source"), tmp_path / "out"
    (part, *_) = find_source(tmp_path / "source").parts(PART_ROWS)
    (out / "parts").mkdir(parents=True)
    np.save(tmp_path / "source" / "shard-0.npy", rows.X[:700] + 1)
    with pytest.raises(Conflict, match=r"^shard-0.npy has changed"):
        encode_part(fit_tally().functions().state(), tmp_path / "source", None, part, out)
    assert not any((out / "parts").iterdir())


def test_errors_name_the_file_and_the_rows(tmp_path: Path) -> None:
    hasher, source = fit_tally(), tmp_path / "source"
    rows = write_dataset(source, labels=False)
    rows.X[150, 3] = np.nan
    np.save(source / "shard-0.npy", rows.X[:700])
    with pytest.raises(InvalidInput, match=r"^shard-0.npy, rows 0 to 255: features"):
        encode_dataset(source, hasher, tmp_path / "out", rows_per_part=PART_ROWS, max_tasks=MAX_TASKS)
    np.save(source / "shard-0.npy", rows.X[:700, :5])
    with pytest.raises(InvalidInput, match=r"^shard-0.npy, rows .*: features"):
        encode_dataset(source, hasher, tmp_path / "other", rows_per_part=PART_ROWS, max_tasks=MAX_TASKS)
    (source / "shard-0.npy").write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match=r"^shard-0.npy: "):
        encode_dataset(source, hasher, tmp_path / "third")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match=r"^source"):
        encode_dataset(tmp_path / "empty", hasher, tmp_path / "fourth")


def test_a_process_dies_in_the_middle_of_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process that has written the items of part 2 dies before it writes the codes."""
    hasher, rows, out = fit_tally(), write_dataset(tmp_path / "source"), tmp_path / "out"
    marker = tmp_path / "died"

    def encode_or_die(state: bytes, folder: Path, encoder: str | None, part: Any, out: Path, *more: Any) -> Any:
        from stillhash.cluster import jobs

        def die(*_: Any) -> None:
            marker.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)

        if part.number == 2 and not marker.exists():
            jobs.write_segment = die
        return encode_part(state, folder, encoder, part, out, *more)

    monkeypatch.setattr(datasets, "encode_part", encode_or_die)
    done = encode_dataset(tmp_path / "source", hasher, out, rows_per_part=PART_ROWS, max_tasks=MAX_TASKS)
    assert marker.exists() and done.rows == ROWS
    assert np.array_equal(read_all_parts(out)[0], hasher.encode(rows.X, label_lists(rows.Y)))


@pytest.mark.slow
def test_a_node_is_lost(tmp_path: Path, cluster: LocalCluster) -> None:
    hasher, rows, out = fit_tally(), write_dataset(tmp_path / "source"), tmp_path / "out"
    lost = list[str]()

    def remove_node(done: int, *_: Any) -> None:
        if done == 3:
            lost.append(cluster.remove_node())

    try:
        done = encode_dataset(tmp_path / "source", hasher, out, rows_per_part=64, max_tasks=8, progress=remove_node)
    finally:
        if lost:
            cluster.add_node()
    assert lost and done.rows == ROWS
    codes, ids = read_all_parts(out)
    assert np.array_equal(codes, hasher.encode(rows.X, label_lists(rows.Y))) and ids == list(range(ROWS))


def wait_for_parts(driver: subprocess.Popen[bytes], out: Path, count: int) -> None:
    def are_there() -> bool:
        assert driver.poll() is None, f"the driver ended with {driver.returncode}"
        return len(list(out.glob("parts/0*.tiles"))) >= count

    until(are_there, "parts")


@pytest.mark.slow
def test_a_driver_is_killed_twice(tmp_path: Path, cluster: LocalCluster) -> None:
    """At random moments; then every row is encoded once, with the bytes of an undisturbed run."""
    rng = random.Random(run_seed())
    hasher, rows = fit_tally(), write_dataset(tmp_path / "source")
    (tmp_path / "state").write_bytes(hasher.state())
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    size = PART_ROWS // 8
    parts = encode_dataset(tmp_path / "source", hasher, undisturbed, rows_per_part=size, max_tasks=MAX_TASKS).parts
    names = [cluster.address, *map(str, (tmp_path / "source", out, tmp_path / "state"))]
    command = [sys.executable, "-m", "tests.cluster.encoding_driver", *names]
    target = 0
    for _ in range(2):
        target += rng.randrange(1, parts // 3)
        with subprocess.Popen([*command, str(target + MAX_TASKS)], cwd=Path(__file__).parents[2]) as driver:
            wait_for_parts(driver, out, target)
            time.sleep(rng.random() / 50)
            driver.kill()
    with pytest.raises(BadState):
        read_all_parts(out)
    done = encode_dataset(tmp_path / "source", hasher, out, rows_per_part=size, max_tasks=MAX_TASKS)
    assert done.rows == ROWS and 0 < done.new_rows < ROWS
    codes, ids = read_all_parts(out)
    assert np.array_equal(codes, hasher.encode(rows.X, label_lists(rows.Y))) and ids == list(range(ROWS))
    assert file_contents(out) == file_contents(undisturbed)


@pytest.mark.parametrize("fixed", [True, False])
def test_parquet(tmp_path: Path, fixed: bool) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows, out = toy(900, seed=1), tmp_path / "out"
    kind = arrow.list_(arrow.float32(), rows.X.shape[1] if fixed else -1)
    columns = {
        "id": [f"row {n}" for n in range(900)],
        "features": arrow.array(rows.X.tolist(), kind),
        "labels": [[f"label {c}" for c in np.flatnonzero(y)] for y in rows.Y],
        "metadata": [{"n": n} if fixed else f'{{"n": {n}}}' for n in range(900)],
        "unknown": [0] * 900,
    }
    hasher = Tally(bits=32).fit(rows.X[:300], columns["labels"][:300])
    table = arrow.table(columns)
    parquet.write_table(table.slice(0, 650), tmp_path / "a.parquet", row_group_size=100)
    parquet.write_table(table.slice(650), tmp_path / "b.parquet", row_group_size=1000)
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    encode_dataset(files, hasher, out, rows_per_part=PART_ROWS, max_tasks=MAX_TASKS)
    codes, ids = read_all_parts(out)
    assert np.array_equal(codes, hasher.encode(rows.X, columns["labels"])) and ids == columns["id"]
    files[0].write_bytes(files[0].read_bytes()[:-100])
    with pytest.raises(InvalidInput, match=r"^a.parquet: "):
        encode_dataset(files, hasher, out, rows_per_part=PART_ROWS)
    _, items = read_part(out, 2, 2 * PART_ROWS, 32)
    assert items.labels == columns["labels"][2 * PART_ROWS : 3 * PART_ROWS]
    assert items.metadata == [f'{{"n": {n}}}' for n in range(2 * PART_ROWS, 3 * PART_ROWS)]


def test_images(tmp_path: Path) -> None:
    """Broken files are reported, and the others encoded."""
    images = pytest.importorskip("PIL.Image")
    from stillhash.encoders import open_encoder
    from stillhash.encoders.files import encode_files

    rng, folder, out = np.random.default_rng(0), tmp_path / "source", tmp_path / "out"
    (folder / "below").mkdir(parents=True)
    names = sorted(f"{'below/' if n % 2 else ''}{n}.png" for n in range(7))
    for name in names:
        images.fromarray(rng.integers(0, 255, (20, 30, 3), np.uint8)).save(folder / name)
    (folder / "3 broken.jpg").write_bytes(b"no image")
    classic = open_encoder("classic")
    hasher = type(fit_tally())(bits=16).fit(rng.standard_normal((100, classic.dim)))
    done = encode_dataset(folder, hasher, out, encoder="classic", rows_per_part=3, max_tasks=MAX_TASKS)
    assert done.rows == 7 and list(done.broken) == ["3 broken.jpg"]
    codes, ids = read_all_parts(out)
    expected = [entry.features for entry in encode_files("classic", [folder / name for name in names], workers=1)]
    assert ids == names and np.array_equal(codes, hasher.encode(np.stack(expected)))
    assert read_manifest(out).job["origin"]["fingerprint"] == classic.fingerprint
    segment, items = read_part(out, 0, 0, 16)
    assert items.pictures is not None and all(items.pictures) and from_tiles(segment.tiles, segment.rows).shape[1] == 2
