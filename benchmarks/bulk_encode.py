"""Encode, learn and evaluate a dataset by a cluster, against one process; and kill the driver twice.

The cluster is real and all of it on this machine, so its nodes share the cores: what is measured is what distribution
costs, and that nothing is lost or done twice when it is interrupted, not how it scales.
"""

import logging
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import ray
from numpy.typing import NDArray

from benchmarks.fixtures import labelled_features
from benchmarks.timing import CODE_BITS, Figures, Sections, temporary_folder
from stillhash.cluster import LocalCluster
from stillhash.cluster.bulk import publish
from stillhash.cluster.datasets import encode_dataset, learn_dataset
from stillhash.cluster.evaluation import evaluate_dataset
from stillhash.cluster.jobs import read_manifest, read_part
from stillhash.cluster.local import LOOPBACK
from stillhash.errors import StillhashError
from stillhash.experiments.metrics import evaluate
from stillhash.experiments.tables import ReportProgress, TableData
from stillhash.hashers import Tally
from stillhash.numeric.codes import from_tiles
from stillhash.numeric.validation import Floats

BULK_DIM, BULK_LABELS, BULK_QUERIES = 256, 40, 64
ROWS_PER_FILE = 100_000
BULK_FIT_ROWS = 3000  # rows that fix the hash functions
FEATURE_NOISE = 6.0  # so that rankings are far from perfect
DRIVER_KILLS = 2


def run(quick: bool, progress: ReportProgress, folder: Path | None = None) -> Figures:
    """Encode rows from .npy files undisturbed, and again with a driver killed twice; then learn, publish, evaluate."""
    rows, nodes, rows_per_part = (20_000, 1, 500) if quick else (1_000_000, 3, 16_384)
    hasher = Tally(bits=CODE_BITS).fit(*labelled(BULK_FIT_ROWS, seed=1))
    with temporary_folder(folder) as temporary, LocalCluster(nodes) as cluster:
        progress(f"writing {rows:,} rows")
        write_source(temporary / "source", rows)
        progress("encoding, undisturbed and by one process")
        one = encode_undisturbed(temporary, hasher, rows_per_part)
        progress("encoding, with a driver that is killed twice")
        killed = encode_with_kills(temporary, hasher, rows_per_part, cluster.address, rows)
        progress("learning")
        learning, hasher = learn(temporary, hasher, rows_per_part)
        progress("publishing")
        published = publish_collection(temporary, hasher, rows)
        progress("evaluating")
        measured = evaluate_both(temporary, hasher)
    goals = [
        ("files that differ after two kills", "<= 0", killed["differing"]),
        ("rows lost or twice after two kills", "<= 0", killed["astray"]),
        ("learning, largest relative difference", "<= 1e-5", learning["difference"]),
        ("mAP, difference", "<= 1e-12", measured["difference"]),
        ("items of the collection wrong or missing", "<= 0", published["wrong"]),
    ]
    about = {"rows": rows, "columns": BULK_DIM, "bits": CODE_BITS, "nodes": nodes + 1, "rows_per_part": rows_per_part}
    parts = {"one": one, "killed": killed, "learning": learning, "published": published, "measured": measured}
    return {**about, **parts, "goals": goals}


def labelled(rows: int, seed: int) -> tuple[Floats, list[int]]:
    return labelled_features(rows, BULK_DIM, seed, labels=BULK_LABELS, noise=FEATURE_NOISE)


def write_source(source: Path, rows: int) -> None:
    source.mkdir()
    for number, start in enumerate(range(0, rows, ROWS_PER_FILE)):
        X, labels = labelled(min(ROWS_PER_FILE, rows - start), seed=2 + number)
        np.save(source / f"{number:05d}.npy", X)
        np.save(source / f"{number:05d}.labels.npy", np.array(labels))


def read_source(source: Path) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
    """Yield features and labels of each file."""
    for path in sorted(source.glob("*.labels.npy")):
        yield np.load(path.with_name(path.name.replace(".labels", "")), mmap_mode="r"), np.load(path)


def encode_undisturbed(folder: Path, hasher: Tally, size: int) -> dict[str, float]:
    """Return rows a second of the cluster, and of one process that only encodes."""
    done = encode_dataset(folder / "source", hasher, folder / "whole", rows_per_part=size)
    began = time.perf_counter()
    for X, labels in read_source(folder / "source"):
        hasher.encode(X, labels)
    alone = done.rows / (time.perf_counter() - began)
    return {"rows_per_s": done.rows / done.seconds, "alone_rows_per_s": alone}


def encode_with_kills(folder: Path, hasher: Tally, size: int, address: str, rows: int) -> Figures:
    """Kill a driver process twice, each time a third of the way further; then run one to the end."""
    out, parts, at = folder / "killed", -(-rows // size), []
    (folder / "state").write_bytes(hasher.state())
    arguments = address, folder / "source", out, folder / "state", size
    for kill in range(DRIVER_KILLS):
        driver = get_context("spawn").Process(target=drive, args=arguments)
        driver.start()
        while (done := len(list(out.glob("parts/0*.tiles")))) < parts * (kill + 1) // (DRIVER_KILLS + 1):
            if not driver.is_alive():
                raise StillhashError("the driver ended before it was killed")
            time.sleep(0.002)
        driver.kill()
        driver.join()
        at.append(done)
    last = encode_dataset(folder / "source", hasher, out, rows_per_part=size)
    files, whole = file_bytes(out), file_bytes(folder / "whole")
    differing = sum(files.get(name) != whole.get(name) for name in files.keys() | whole.keys())
    astray = count_misplaced(folder / "source", hasher, out)
    return {"parts": parts, "killed_at": at, "again": last.new_rows, "astray": astray, "differing": differing}


def drive(address: str, source: Path, out: Path, state: Path, size: int) -> None:
    """Encode by the cluster at this address, in a process of its own."""
    ray.init(address=address, _node_ip_address=LOOPBACK, log_to_driver=False, logging_level=logging.ERROR)
    encode_dataset(source, Tally.load(state.read_bytes()), out, rows_per_part=size)


def file_bytes(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def count_misplaced(source: Path, hasher: Tally, out: Path) -> int:
    """Count rows that are not stored exactly once, in their place and with their code."""
    manifest = read_manifest(out)
    parts = [read_part(out, number, first, CODE_BITS) for number, (first, _) in enumerate(manifest.parts)]
    ids = np.concatenate([items.ids for _, items in parts])
    codes = np.concatenate([from_tiles(segment.tiles, segment.rows) for segment, _ in parts])
    expected = np.concatenate([hasher.encode(X, labels) for X, labels in read_source(source)])
    if len(ids) != len(expected):
        return max(len(ids), len(expected))
    return int(((ids != np.arange(len(ids))) | (codes != expected).any(axis=1)).sum())


def learn(folder: Path, hasher: Tally, size: int) -> tuple[dict[str, float], Tally]:
    """Compare the model of the cluster with that of one pass in one process; return also what the cluster learnt."""
    done = learn_dataset(folder / "source", hasher, codes=folder / "whole", rows_per_part=size)
    alone, began = Tally.load(hasher.state()), time.perf_counter()
    for X, labels in read_source(folder / "source"):
        for chunk in (slice(start, start + 1000) for start in range(0, len(X), 1000)):
            alone.partial_fit(X[chunk], labels[chunk], hasher.encode(X[chunk], labels[chunk]))
    seconds = time.perf_counter() - began
    pairs = zip(model_arrays(done.hasher), model_arrays(alone), strict=True)
    difference = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
    return {"seconds": done.seconds, "alone_s": seconds, "rows": done.rows, "difference": difference}, done.hasher


def model_arrays(hasher: Tally) -> list[Floats]:
    """Return the arrays of a model, a row for each label, sorted by label."""
    model, names = hasher.model(), hasher.stats_.names
    order = [names[name] for name in sorted(names, key=str)]
    assert model.U is not None and model.u is not None and model.M is not None
    return [array[order] for array in (model.U.T, model.u, model.M)]


def publish_collection(folder: Path, hasher: Tally, rows: int) -> dict[str, float]:
    began = time.perf_counter()
    with publish(folder / "killed", folder / "collection", hasher, learnt=rows) as collection:
        seconds = time.perf_counter() - began
        wrong = len(collection.verify()) + abs(len(collection) - rows)
        wrong += sum(item is None for item in collection.get(range(0, rows, max(1, rows // 1000))))
    return {"seconds": seconds, "rows_per_s": rows / seconds, "wrong": wrong}


def evaluate_both(folder: Path, hasher: Tally) -> dict[str, float]:
    """Compare the quality that the cluster and one process measure."""
    Q, labels = labelled(BULK_QUERIES, seed=10**6)
    began = time.perf_counter()
    quality = evaluate_dataset(hasher, Q, labels, folder / "killed", max_tasks=4)
    seconds, began = time.perf_counter() - began, time.perf_counter()
    all_labels = np.concatenate([some for _, some in read_source(folder / "source")])
    codes = np.concatenate([hasher.encode(X, some) for X, some in read_source(folder / "source")])
    one_hot = np.eye(BULK_LABELS, dtype=np.uint8)
    alone = evaluate(hasher.ranking(Q), codes, one_hot[labels], one_hot[all_labels])
    times = {"seconds": seconds, "alone_s": time.perf_counter() - began}
    difference = max(abs(a - b) for a, b in zip(quality, alone, strict=True))
    return {"map": quality.map, "difference": difference, "queries": BULK_QUERIES, **times}


def tables(result: Figures) -> Sections:
    one, killed, learning, measured = (result[name] for name in ("one", "killed", "learning", "measured"))
    rows = result["rows"]
    cells = [
        ("encoding, rows/s", f"{one['rows_per_s']:,.0f}", f"{one['alone_rows_per_s']:,.0f}"),
        ("learning, rows/s", f"{rows / learning['seconds']:,.0f}", f"{rows / learning['alone_s']:,.0f}"),
        (f"mAP of {measured['queries']} queries, s", f"{measured['seconds']:.1f}", f"{measured['alone_s']:.1f}"),
        ("publishing, rows/s", f"{result['published']['rows_per_s']:,.0f}", ""),
    ]
    title = f"{rows:,} x {BULK_DIM} to {CODE_BITS} bits, {result['nodes']} nodes on this machine's cores"
    kills = " and ".join(map(str, killed["killed_at"]))
    return [
        TableData(title, ("", "cluster", "one process"), cells),
        f"Driver killed at {kills} of {killed['parts']} parts; the third run made the last {killed['again']:,} rows; "
        f"{killed['differing']} files differ from those of an undisturbed run.\n",
    ]
