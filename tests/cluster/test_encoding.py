from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash.cluster import LocalCluster, encoding
from stillhash.cluster.encoding import encode_dataset, encode_part
from stillhash.cluster.manifest import read_plan
from stillhash.cluster.part_files import read_part
from stillhash.cluster.sources import find_source
from stillhash.errors import BadState, Conflict, InvalidInput, NotFitted
from stillhash.hashers import HMOH
from stillhash.numeric.codes import from_tiles
from tests.cluster.fixtures import PART, ROWS, all_codes, contents, fitted, named, shards
from tests.support.seeds import run_seed
from tests.support.toys import toy

pytestmark = pytest.mark.usefixtures("cluster")
FEW = 4  # tasks at once: as many processes start


def test_every_row_is_encoded_once_and_in_order(tmp_path: Path) -> None:
    hasher, rows, told = fitted(), shards(tmp_path / "source"), list[tuple[int, int, int]]()
    out = tmp_path / "out"
    done = encode_dataset(
        tmp_path / "source", hasher, out, rows_per_part=PART, at_once=FEW, progress=lambda *now: told.append(now[:3])
    )
    codes, ids = all_codes(out)
    assert np.array_equal(codes, hasher.encode(rows.X)) and ids == list(range(ROWS))
    assert done[:4] == (-(-ROWS // PART), ROWS, ROWS, {})
    assert [now[0] for now in told] == list(range(1, done.parts + 1)) and told[-1] == (done.parts, done.parts, ROWS)
    _, items = read_part(out, 3, 3 * PART, 32)
    assert items.labels == named(rows.Y[3 * PART : 4 * PART])
    before = contents(out)
    again = encode_dataset(tmp_path / "source", hasher.functions(), out, rows_per_part=PART, at_once=FEW)
    assert (again.rows, again.made) == (ROWS, 0) and contents(out) == before


def test_a_part_that_is_damaged_or_gone_is_made_again(tmp_path: Path) -> None:
    hasher, out = fitted(), tmp_path / "out"
    shards(tmp_path / "source")
    encode_dataset(tmp_path / "source", hasher, out, rows_per_part=PART, at_once=FEW)
    whole = contents(out)
    (out / "parts" / "00000001.tiles").unlink()
    damaged = bytearray((out / "parts" / "00000002.items").read_bytes())
    damaged[100] ^= 1
    (out / "parts" / "00000002.items").write_bytes(damaged)
    (out / "parts" / ".00000003.tiles.123").write_bytes(b"begun")
    done = encode_dataset(tmp_path / "source", hasher, out, rows_per_part=PART, at_once=FEW)
    assert done.made == 2 * PART and contents(out) == whole


def test_other_work_is_refused(tmp_path: Path) -> None:
    hasher, source, out = fitted(), tmp_path / "source", tmp_path / "out"
    shards(source)
    encode_dataset(source, hasher, out, rows_per_part=1000, at_once=FEW)
    whole = contents(out)
    other = toy(300, seed=8)
    for wrong in (fitted(random_state=1), type(hasher)(bits=40).fit(*other)):
        with pytest.raises(Conflict, match=r"its (functions|bits) is"):
            encode_dataset(source, wrong, out, rows_per_part=1000)
    with pytest.raises(Conflict, match="parts"):
        encode_dataset(source, hasher, out, rows_per_part=999)
    np.save(source / "shard-3.labels.npy", toy(1299, seed=9).Y)
    with pytest.raises(Conflict, match=r"shard-3.npy of the source has changed"):
        encode_dataset(source, hasher, out, rows_per_part=1000)
    np.save(source / "shard-9.npy", other.X)
    with pytest.raises(Conflict, match=r"has changed|has now shard-9"):
        encode_dataset(source, hasher, out, rows_per_part=1000)
    assert contents(out) == whole
    with pytest.raises(InvalidInput, match="codes go stale"):
        encode_dataset(source, HMOH(bits=32).fit(*other), out)
    with pytest.raises(NotFitted):
        encode_dataset(source, type(hasher)(bits=32), out)


def test_a_file_that_changes_while_work_is_under_way_is_refused(tmp_path: Path) -> None:
    """By the task that reads it: the plan was right when it was made."""
    rows, out = shards(tmp_path / "source"), tmp_path / "out"
    (part, *_) = find_source(tmp_path / "source").parts(PART)
    (out / "parts").mkdir(parents=True)
    np.save(tmp_path / "source" / "shard-0.npy", rows.X[:700] + 1)
    with pytest.raises(Conflict, match=r"^shard-0.npy has changed"):
        encode_part(fitted().functions().state(), str(tmp_path / "source"), None, part, str(out))
    assert not any((out / "parts").iterdir())


def test_what_is_wrong_with_a_file_is_told_with_its_place(tmp_path: Path) -> None:
    hasher, source = fitted(), tmp_path / "source"
    rows = shards(source, labels=False)
    rows.X[150, 3] = np.nan
    np.save(source / "shard-0.npy", rows.X[:700])
    with pytest.raises(InvalidInput, match=r"shard-0.npy, rows 0 to 255: features"):
        encode_dataset(source, hasher, tmp_path / "out", rows_per_part=PART, at_once=FEW)
    np.save(source / "shard-0.npy", rows.X[:700, :5])
    with pytest.raises(InvalidInput, match="features has 5 features"):
        encode_dataset(source, hasher, tmp_path / "other", rows_per_part=PART, at_once=FEW)
    (source / "shard-0.npy").write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match=r"^shard-0.npy: "):
        encode_dataset(source, hasher, tmp_path / "third")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match=r"^source"):
        encode_dataset(tmp_path / "empty", hasher, tmp_path / "fourth")


def test_a_process_that_dies_in_the_middle_of_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process to have the items of part 2 on disk dies before its codes are."""
    hasher, rows, out = fitted(), shards(tmp_path / "source"), tmp_path / "out"
    mark = tmp_path / "died"

    def dying(state: bytes, folder: str, encoder: str | None, part: Any, out: str) -> Any:
        from stillhash.cluster import part_files

        def dies(*_: Any) -> None:
            mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)

        if part.number == 2 and not mark.exists():
            part_files.write_segment = dies
        return encode_part(state, folder, encoder, part, out)

    monkeypatch.setattr(encoding, "encode_part", dying)
    done = encode_dataset(tmp_path / "source", hasher, out, rows_per_part=PART, at_once=FEW)
    assert mark.exists() and done.rows == ROWS
    assert np.array_equal(all_codes(out)[0], hasher.encode(rows.X))


def test_a_node_that_is_lost(tmp_path: Path, cluster: LocalCluster) -> None:
    hasher, rows, out = fitted(), shards(tmp_path / "source"), tmp_path / "out"
    lost = list[str]()

    def lose(done: int, *_: Any) -> None:
        if done == 3:
            lost.append(cluster.remove_node())

    try:
        done = encode_dataset(tmp_path / "source", hasher, out, rows_per_part=64, at_once=8, progress=lose)
    finally:
        if lost:
            cluster.add_node()
    assert lost and done.rows == ROWS
    codes, ids = all_codes(out)
    assert np.array_equal(codes, hasher.encode(rows.X)) and ids == list(range(ROWS))


def test_a_driver_that_is_killed_twice(tmp_path: Path, cluster: LocalCluster) -> None:
    """At random moments; then every row is there once, in the bytes of a run that nobody disturbed."""
    chance = random.Random(seed := run_seed())
    print(f"STILLHASH_SEED={seed}")
    hasher, rows = fitted(), shards(tmp_path / "source")
    (tmp_path / "state").write_bytes(hasher.state())
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    parts = encode_dataset(tmp_path / "source", hasher, undisturbed, rows_per_part=PART // 8, at_once=FEW).parts
    names = [cluster.address, *map(str, (tmp_path / "source", out, tmp_path / "state"))]
    command = [sys.executable, "-m", "tests.cluster.encoding_driver", *names]
    there = 0
    for killed in range(2):
        wanted = there + chance.randrange(1, parts // 3)
        with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as driver:
            while (there := len(list(out.glob("parts/0*")))) < wanted and driver.poll() is None:
                time.sleep(0.001)
            time.sleep(chance.random() / 50)
            assert driver.poll() is None, f"it ended with {driver.returncode} before it was killed, time {killed}"
            driver.kill()
    with pytest.raises(BadState):
        all_codes(out)
    done = encode_dataset(tmp_path / "source", hasher, out, rows_per_part=PART // 8, at_once=FEW)
    assert done.rows == ROWS and 0 < done.made < ROWS
    codes, ids = all_codes(out)
    assert np.array_equal(codes, hasher.encode(rows.X)) and ids == list(range(ROWS))
    assert contents(out) == contents(undisturbed)


@pytest.mark.parametrize("fixed", [True, False])
def test_parquet(tmp_path: Path, fixed: bool) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    hasher, rows, out = fitted(), toy(900, seed=1), tmp_path / "out"
    kind = arrow.list_(arrow.float32(), rows.X.shape[1] if fixed else -1)
    columns = {
        "id": [f"row {n}" for n in range(900)],
        "features": arrow.array(rows.X.tolist(), kind),
        "labels": [[f"label {c}" for c in np.flatnonzero(y)] for y in rows.Y],
        "metadata": [{"n": n} if fixed else f'{{"n": {n}}}' for n in range(900)],
        "unknown": [0] * 900,
    }
    table = arrow.table(columns)
    parquet.write_table(table.slice(0, 650), tmp_path / "a.parquet", row_group_size=100)
    parquet.write_table(table.slice(650), tmp_path / "b.parquet", row_group_size=1000)
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    encode_dataset(files, hasher, out, rows_per_part=PART, at_once=FEW)
    codes, ids = all_codes(out)
    assert np.array_equal(codes, hasher.encode(rows.X)) and ids == columns["id"]
    files[0].write_bytes(files[0].read_bytes()[:-100])
    with pytest.raises(InvalidInput, match=r"^a.parquet: "):
        encode_dataset(files, hasher, out, rows_per_part=PART)
    _, items = read_part(out, 2, 2 * PART, 32)
    assert items.labels == columns["labels"][2 * PART : 3 * PART]
    assert items.metadata == [f'{{"n": {n}}}' for n in range(2 * PART, 3 * PART)]


def test_images(tmp_path: Path) -> None:
    """Those that are none are told, and cost no others theirs."""
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
    hasher = type(fitted())(bits=16).fit(rng.standard_normal((100, classic.dim)))
    done = encode_dataset(folder, hasher, out, encoder="classic", rows_per_part=3, at_once=FEW)
    assert done.rows == 7 and list(done.broken) == ["3 broken.jpg"]
    codes, ids = all_codes(out)
    known = [entry.features for entry in encode_files("classic", [folder / name for name in names], workers=1)]
    assert ids == names and np.array_equal(codes, hasher.encode(np.stack(known)))
    assert read_plan(out).about["origin"]["fingerprint"] == classic.fingerprint
    segment, items = read_part(out, 0, 0, 16)
    assert items.pictures is not None and all(items.pictures) and from_tiles(segment.tiles, segment.rows).shape[1] == 2
