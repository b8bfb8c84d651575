"""A data set encoded, learnt and measured by a cluster, against one process; and a driver that is killed twice.

The cluster is real and all of it on this machine, so its nodes share the cores: what is measured is what distribution
costs, and that nothing is lost or done twice when it is interrupted, not how it scales.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from stillhash.bench.timing import Progress, goal, print_frame, silent
from stillhash.cluster import LocalCluster
from stillhash.cluster.bulk import publish
from stillhash.cluster.encoding import encode_dataset
from stillhash.cluster.evaluation import evaluate_dataset
from stillhash.cluster.learning import learn_dataset
from stillhash.cluster.local import LOOPBACK
from stillhash.cluster.manifest import read_plan
from stillhash.cluster.part_files import read_part
from stillhash.errors import InvalidInput, StillhashError
from stillhash.experiments.machine import machine
from stillhash.experiments.metrics import evaluate
from stillhash.experiments.tables import print_table
from stillhash.hashers import Tally
from stillhash.numeric.codes import from_tiles
from stillhash.numeric.validation import Floats, check_integer

DIM, BITS = 256, 64
SHARD = 100_000  # rows of a file
SAMPLE = 3000  # rows that fix the hash functions
LABELS = 40
QUERIES = 64
NOISE = np.float32(6)  # so that rankings are far from perfect
KILLS = 2
DRIVER = f"""
import sys, ray
from pathlib import Path
from stillhash.cluster.encoding import encode_dataset
from stillhash.hashers import load
address, source, out, state, size = sys.argv[1:]
ray.init(address=address, _node_ip_address={LOOPBACK!r}, log_to_driver=False, logging_level="error")
encode_dataset(source, load(Path(state).read_bytes()), out, rows_per_part=int(size))
"""


def run(
    repeats: int = 1,
    quick: bool = False,
    progress: Progress = silent,
    *,
    rows: int = 1_000_000,
    nodes: int = 3,
    rows_per_part: int = 16_384,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Encodes so many rows from .npy shards `repeats` times undisturbed, and once with a driver killed twice."""
    check_integer(rows, "rows", 1000)
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"folder is {str(folder)!r}; a folder that is there is wanted")
    if quick:
        repeats, rows, nodes, rows_per_part = 1, 20_000, 1, 500
    here = machine()
    with tempfile.TemporaryDirectory(prefix=".stillhash-bench-", dir=folder or Path.cwd()) as made:
        where = Path(made)
        progress(f"writing {rows:,} rows")
        fill(where / "source", rows)
        hasher = Tally(bits=BITS).fit(*labelled(SAMPLE, seed=1))
        with LocalCluster(nodes) as cluster:
            progress("encoding, undisturbed and by one process")
            one = encoded(where, hasher, rows_per_part, repeats)
            progress("encoding, with a driver that is killed twice")
            killed = until_killed(where, hasher, rows_per_part, cluster.address, rows)
            progress("learning")
            learning = learnt(where, hasher, rows_per_part)
            progress("publishing")
            published = as_collection(where, hasher, rows)
            progress("measuring")
            measured = compared(where, hasher, rows)
    goals = [
        goal("files that differ after two kills", "<= 0", killed["differing"]),
        goal("rows lost or twice after two kills", "<= 0", killed["astray"]),
        goal("learning, largest relative difference", "<= 1e-5", learning["difference"]),
        goal("mAP, difference", "<= 1e-12", measured["difference"]),
        goal("what is wrong with the collection", "<= 0", published["wrong"]),
    ]
    about = {"rows": rows, "columns": DIM, "bits": BITS, "nodes": nodes + 1, "rows_per_part": rows_per_part}
    parts = {"one": one, "killed": killed, "learning": learning, "published": published, "measured": measured}
    return {"machine": here, "quick": quick, **about, **parts, "goals": goals}


def labelled(rows: int, seed: int) -> tuple[Floats, list[int]]:
    """Rows around centres, one for each label, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(LABELS, size=rows)
    centres = np.random.default_rng(0).standard_normal((LABELS, DIM), dtype=np.float32)
    return rng.standard_normal((rows, DIM), dtype=np.float32) * NOISE + centres[chosen], chosen.tolist()


def fill(source: Path, rows: int) -> None:
    source.mkdir()
    for number, start in enumerate(range(0, rows, SHARD)):
        X, labels = labelled(min(SHARD, rows - start), seed=2 + number)
        np.save(source / f"{number:05d}.npy", X)
        np.save(source / f"{number:05d}.labels.npy", np.array(labels))


def stream(source: Path) -> Any:
    """The shards, one after another."""
    for path in sorted(source.glob("*.labels.npy")):
        yield np.load(path.with_name(path.name.replace(".labels", "")), mmap_mode="r"), np.load(path)


def encoded(where: Path, hasher: Tally, size: int, repeats: int) -> dict[str, float]:
    """Rows a second of the cluster, undisturbed, and of one process that only encodes."""
    speeds, alone = [], []
    for turn in range(repeats):
        out = where / ("whole" if turn == 0 else f"whole-{turn}")
        done = encode_dataset(where / "source", hasher, out, rows_per_part=size)
        speeds.append(done.rows / done.seconds)
        began = time.perf_counter()
        for X, _ in stream(where / "source"):
            hasher.encode(X)
        alone.append(done.rows / (time.perf_counter() - began))
    return {"rows_per_s": float(np.median(speeds)), "alone_rows_per_s": float(np.median(alone))}


def until_killed(where: Path, hasher: Tally, size: int, address: str, rows: int) -> dict[str, Any]:
    """A driver of its own process that is killed, twice, a third of the way further; then one that is left alone."""
    (where / "state").write_bytes(hasher.state())
    out, parts = where / "killed", -(-rows // size)
    command = [sys.executable, "-c", DRIVER, address, *map(str, (where / "source", out, where / "state", size))]
    at = []
    for kill in range(KILLS):
        with subprocess.Popen(command) as driver:
            while (done := len(list(out.glob("parts/0*.tiles")))) < parts * (kill + 1) // (KILLS + 1):
                if driver.poll() is not None:
                    raise StillhashError("the driver ended before it was killed")
                time.sleep(0.002)
            driver.kill()
        at.append(done)
    last = encode_dataset(where / "source", hasher, out, rows_per_part=size)
    files = {path.relative_to(out) for path in out.rglob("*") if path.is_file()}
    whole = {path.relative_to(where / "whole") for path in (where / "whole").rglob("*") if path.is_file()}
    same = [file for file in files & whole if (out / file).read_bytes() == (where / "whole" / file).read_bytes()]
    differing = len(files | whole) - len(same)
    astray = misplaced(where / "source", hasher, out)
    return {"parts": parts, "killed_at": at, "again": last.made, "astray": astray, "differing": differing}


def misplaced(source: Path, hasher: Tally, out: Path) -> int:
    """Rows that are not there just once, in their place and with their code."""
    plan = read_plan(out)
    found = [read_part(out, number, first, BITS) for number, (first, _) in enumerate(plan.parts)]
    ids = np.concatenate([items.ids for _, items in found])
    codes = np.concatenate([from_tiles(segment.tiles, segment.rows) for segment, _ in found])
    wanted = np.concatenate([hasher.encode(X) for X, _ in stream(source)])
    if len(ids) != len(wanted):
        return max(len(ids), len(wanted))
    return int(((ids != np.arange(len(ids))) | (codes != wanted).any(axis=1)).sum())


def learnt(where: Path, hasher: Tally, size: int) -> dict[str, float]:
    """The model of the cluster against that of one pass in one process, in the same order."""
    done = learn_dataset(where / "source", hasher, rows_per_part=size)
    alone, began = Tally.load(hasher.state()), time.perf_counter()
    for X, labels in stream(where / "source"):
        for start in range(0, len(X), 1000):
            alone.partial_fit(X[start : start + 1000], labels[start : start + 1000])
    seconds = time.perf_counter() - began
    order = [list(done.hasher.sums_.names).index(name) for name in alone.sums_.names]
    ours, theirs = done.hasher.model(), alone.model()
    assert ours.U is not None and theirs.U is not None and ours.u is not None and theirs.u is not None
    assert ours.M is not None and theirs.M is not None
    pairs = (ours.U[:, order], theirs.U), (ours.u[order], theirs.u), (ours.M[order], theirs.M)
    difference = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
    vars(hasher).update(vars(done.hasher))  # what follows is measured with what was learnt
    return {"seconds": done.seconds, "alone_s": seconds, "rows": done.rows, "difference": difference}


def as_collection(where: Path, hasher: Tally, rows: int) -> dict[str, float]:
    began = time.perf_counter()
    with publish(where / "killed", where / "collection", hasher, learnt=rows) as collection:
        seconds = time.perf_counter() - began
        wrong = len(collection.verify()) + abs(len(collection) - rows)
        wrong += sum(item is None for item in collection.get(range(0, rows, max(1, rows // 1000))))
    return {"seconds": seconds, "rows_per_s": rows / seconds, "wrong": wrong}


def compared(where: Path, hasher: Tally, rows: int) -> dict[str, float]:
    """mAP by the cluster and by one process."""
    Q, labels = labelled(QUERIES, seed=10**6)
    began = time.perf_counter()
    found = evaluate_dataset(hasher, Q, labels, where / "killed", at_once=4)
    seconds, began = time.perf_counter() - began, time.perf_counter()
    told = np.concatenate([some for _, some in stream(where / "source")])
    codes = np.concatenate([hasher.encode(X) for X, _ in stream(where / "source")])
    alone = evaluate(hasher.weigh(Q), codes, np.eye(LABELS)[labels], np.eye(LABELS, dtype=np.uint8)[told])
    return {
        "map": found.map,
        "difference": max(abs(a - b) for a, b in zip(found, alone, strict=True)),
        "queries": QUERIES,
        "seconds": seconds,
        "alone_s": time.perf_counter() - began,
    }


def show(result: dict[str, Any], console: Console) -> None:
    one, killed, learning, measured = (result[name] for name in ("one", "killed", "learning", "measured"))
    rows = result["rows"]
    print_table(
        console,
        f"{rows:,} x {DIM} to {BITS} bits, {result['nodes']} nodes on this machine's cores",
        ("", "cluster", "one process"),
        [
            ("encoding, rows/s", f"{one['rows_per_s']:,.0f}", f"{one['alone_rows_per_s']:,.0f}"),
            ("learning, rows/s", f"{rows / learning['seconds']:,.0f}", f"{rows / learning['alone_s']:,.0f}"),
            (f"mAP of {measured['queries']} queries, s", f"{measured['seconds']:.1f}", f"{measured['alone_s']:.1f}"),
            ("publishing, rows/s", f"{result['published']['rows_per_s']:,.0f}", ""),
        ],
    )
    at = " and ".join(map(str, killed["killed_at"]))
    console.print(
        f"Driver killed at {at} of {killed['parts']} parts; the third run made the last {killed['again']:,} rows, and "
        f"{killed['differing']} files differ from those of an undisturbed run.\n",
        highlight=False,
        soft_wrap=True,
    )
    print_frame(result, console)
