"""Index a folder of images, and measure speed, memory, recovery from kills and what learning gains.

The images are generated (shapes.py). `stillhash index` indexes them in a process of its own: once undisturbed while its
memory is watched, and once killed twice and started again, after which nothing may be missing, double or different.
Then images that it has not seen are searched for, as before learning and by the learnt similarity.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from stillhash.encoders import open_encoder
from stillhash.errors import Unsupported
from stillhash.experiments.metrics import MEASURE_COLUMNS
from stillhash.experiments.shapes import image, write_shapes
from stillhash.experiments.tables import ReportProgress, TableData, format_table, silent
from stillhash.numeric import kernels
from stillhash.numeric.kernels import RankingQuality
from stillhash.numeric.validation import check_integer

INDEXING_KILLS = 2
ITEM_SEED, QUERY_SEED = 0, 1  # so that no query is an item
MEMORY_INTERVAL = 0.1  # seconds between two looks at its memory


def run(
    count: int = 5000, queries: int = 500, size: int = 96, workers: int | None = None, progress: ReportProgress = silent
) -> dict[str, Any]:
    """Index `count` images and search for `queries` others."""
    check_integer(count, "count", 400)
    with tempfile.TemporaryDirectory(prefix="stillhash-gallery-") as name:
        folder = Path(name)
        progress(f"making {count:,} images")
        write_shapes(folder / "images", count, ITEM_SEED, size=size)
        progress("indexing")
        whole = _index(folder / "images", folder / "whole", workers)
        progress("indexing, killed on the way")
        stops = [count * kill // (INDEXING_KILLS + 1) for kill in range(1, INDEXING_KILLS + 1)]
        kills = [_index(folder / "images", folder / "killed", workers, stop) for stop in stops]
        last = _index(folder / "images", folder / "killed", workers)
        progress(f"searching for {queries:,} other images")
        whole_path, killed_path = folder / "whole", folder / "killed"
        with stillhash.open(whole_path, read_only=True) as a, stillhash.open(killed_path, read_only=True) as b:
            ids = [f"{n:06}.jpg" for n in range(count)]
            expected, items = a.get(ids), b.get(ids)
            differing = sum(one != two for one, two in zip(expected, items, strict=True))
            resumed = {"missing": items.count(None), "double": b.count() - count, "differing": differing}
            before, learnt = (_quality(a, queries, size, version) for version in (0, None))
    speed = {"images": count, "pixels": size, "workers": workers, "per_second": whole["images_per_second"]}
    speed |= {key: whole[key] for key in ("memory_mb", "memory_later_mb")}
    restarts = {"killed_at": [kill["items"] for kill in kills], "skipped": last["skipped"]}
    return {**speed, **restarts, **resumed, "queries": queries, "before": before, "learnt": learnt}


def _index(folder: Path, path: Path, workers: int | None, stop: int | None = None) -> dict[str, Any]:
    """Run the command, killed after `stop` items if given; return its result and its memory."""
    if sys.platform == "win32":
        raise Unsupported("this study: expected Linux, got Windows")
    more = [] if workers is None else ["--workers", str(workers)]
    command = [sys.executable, "-m", "stillhash", "index", str(folder), str(path), "--json", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", start_new_session=True)
    memory = []
    while process.poll() is None:
        memory.append(_memory(process.pid))
        if stop is not None and _items(path) >= stop:
            os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(MEMORY_INTERVAL)
    output, _ = process.communicate()
    if process.returncode < 0:
        return {"items": _items(path)}
    half = memory[len(memory) // 2 :] or [0.0]
    first = memory[len(memory) // 4 : len(memory) // 2] or [0.0]
    return {**json.loads(output), "memory_mb": round(max(first)), "memory_later_mb": round(max(half))}


def _items(path: Path) -> int:
    if not (path / "store.db").is_file():
        return 0
    with stillhash.open(path, read_only=True) as collection:
        return collection.count()


def _memory(pid: int) -> float:
    """Return the memory of a process and its children, in MB; shared pages count for each."""
    if sys.platform == "win32":
        raise Unsupported("this study: expected Linux, got Windows")
    processes = [pid, *_proc_words(f"{pid}/task/{pid}/children")]
    resident = chain.from_iterable(_proc_words(f"{process}/statm")[1:2] for process in processes)
    return sum(map(int, resident)) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _proc_words(name: str) -> list[str]:
    """Return the words of a file of /proc; none if its process has ended."""
    try:
        return Path("/proc", name).read_text(encoding="utf-8").split()
    except OSError:
        return []


def _quality(collection: stillhash.Collection, queries: int, size: int, version: int | None) -> dict[str, float]:
    """Measure the ranking of all items, for images that are not among them."""
    encoder, grades = open_encoder("classic"), []
    for start in range(0, queries, 50):
        some = [image(QUERY_SEED, n, size) for n in range(start, min(start + 50, queries))]
        answers = collection.search(encoder.encode([one for one, _ in some]), collection.count(), version=version)
        for (_, labels), answer in zip(some, answers, strict=True):
            sets = [(set(labels) & set(hit.labels), set(labels) | set(hit.labels)) for hit in answer.hits]
            grades.append([len(both) / max(1, len(either)) for both, either in sets])
    ranked = np.array(grades, np.float32)
    falling = np.broadcast_to(-np.arange(ranked.shape[1], dtype=np.float32), ranked.shape)
    return RankingQuality(*kernels.rank_quality(falling, ranked).mean(axis=0).tolist())._asdict()


def tables(result: dict[str, Any]) -> list[TableData | str]:
    kills = " and ".join(f"{n:,}" for n in result["killed_at"])
    names = {"before": "before learning", "learnt": "after one pass of learning"}
    rankings = [{"name": name, **result[key]} for key, name in names.items()]
    return [
        f"{result['images']:,} images of {result['pixels']} pixels: {result['per_second']:g} a second; memory of all "
        f"processes {result['memory_mb']} MB early, {result['memory_later_mb']} MB at most later",
        f"killed at {kills} items and started again: {result['missing']} missing, {result['double']} double, "
        f"{result['differing']} different",
        format_table(f"{result['queries']:,} other images", f": {{name}} | {MEASURE_COLUMNS}", rankings),
    ]
