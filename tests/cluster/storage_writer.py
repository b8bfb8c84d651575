"""A writer that commits numbered steps to a storage, and what must be there after each.

    python -m tests.cluster.storage_writer record FOLDER LOG STEPS          on a disk whose power may be cut
    python -m tests.cluster.storage_writer faults FOLDER FAULTS SEED KIND   on a disk that fails, and then works again

Both run with the library of tests/collection/disk.py preloaded. The second prints JSON: how many calls of the kind
there are, how many faults were tried, how many of them were reported, and what went wrong.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import traceback
from pathlib import Path

import numpy as np

from stillhash.cluster.compaction import with_compaction
from stillhash.cluster.deletions import without_ids
from stillhash.cluster.garbage import collect_garbage
from stillhash.cluster.manifest import ClusterManifest, commit_manifest, first_manifest, latest_number, read_latest
from stillhash.cluster.placement import place
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.segment_files import write_segments
from stillhash.cluster.storage import Storage
from stillhash.errors import BadState, NotFound, StoreFailed
from tests.cluster.manifests import BITS, codes_of, compact_shard, content, expected
from tests.collection import disk

STEP_ROWS, MOST_ATTEMPTS, NO_CALL = 60, 200, 10**9


def ids_after(number: int) -> set[int]:
    """Return the ids that exist after the manifest of this number."""
    held = set[int]()
    for step in range(2, number + 1):
        held |= set(added_in(step).tolist())
        held -= set(removed_in(step).tolist())
    return held


def added_in(step: int) -> np.ndarray:
    first = step * 2 * STEP_ROWS
    return np.arange(first, first + STEP_ROWS * (1 + step % 2), 1 + step % 2)


def removed_in(step: int) -> np.ndarray:
    """Return a few ids of the step before, or many."""
    return added_in(step - 1)[:: 2 if step % 3 else 20]


def take_step(storage: Storage) -> ClusterManifest:
    """Commit the next number, and return its manifest."""
    if not latest_number(storage):
        manifest = first_manifest(BITS, [0, 1])
    else:
        before = read_latest(storage)
        ids = added_in(before.number + 1)
        manifest = place(before, write_segments(storage, codes_of(ids), ids, BITS, shards=2, most_rows=40))
        cache = SegmentCache(storage)
        manifest, _ = without_ids(cache, manifest, removed_in(before.number + 1))
        if before.number % 2:
            for shard in manifest.shards:
                manifest = with_compaction(manifest, compact_shard(cache, manifest, 200, shard))
        manifest = manifest.next(1)
    commit_manifest(storage, manifest)
    if manifest.number % 3 == 0:
        collect_garbage(storage, keep=2, older_than=0)
    return manifest


def check(storage: Storage) -> int:
    """Compare all that the latest manifest names with what must be there; return its number."""
    try:
        manifest = read_latest(storage)
    except NotFound:
        return 0
    assert content(storage, manifest) == expected(ids_after(manifest.number))
    return manifest.number


def record(folder: Path, log: Path, steps: int) -> None:
    """Take steps on a disk that logs all changes, and mark those that are acknowledged."""
    disk.watch(folder, log)
    storage = Storage(folder / "storage")
    for number in range(1, steps + 1):
        assert take_step(storage).number == number
        disk.mark(number)


def with_fault(folder: Path, kind: str, at: int, steps: int = 7) -> tuple[int, int, int]:
    """Take steps while a call fails; after each failure the disk works again, and what is there must be whole.

    Returns how many calls there were, how many failed, and how many failures were reported.
    """
    disk.fail(kind, at, torn=at % 2 == 0)
    reported, calls, failed = 0, 0, 0
    storage, number = None, 0
    for _ in range(MOST_ATTEMPTS):
        try:
            storage = storage or Storage(folder / "storage")
            while number < steps:
                number = take_step(storage).number
            break
        except (StoreFailed, BadState):
            reported += 1
            calls, failed = calls + disk.call_count(), failed + disk.failed_calls()
            disk.recover()
            if storage is not None:
                after = check(storage)
                assert after in (number, number + 1), f"manifest {number} was acknowledged, {after} is there"
                number = after
    calls, failed = calls + disk.call_count(), failed + disk.failed_calls()
    disk.recover()
    assert storage is not None and check(storage) == number == steps
    visible = {path.name for path in (folder / "storage").rglob("*") if path.is_file() and path.name[0] != "."}
    assert collect_garbage(storage, keep=2, older_than=-1) is not None
    left = {path.name for path in (folder / "storage").rglob("*") if path.is_file()}
    named = {name.rpartition("/")[2] for name in read_latest(storage).files()}
    assert named <= left <= visible and check(storage) == steps
    return calls, failed, reported


def faults(folder: Path, count: int, seed: int, kind: str) -> None:
    """Try faults of a kind at chosen calls, each in a folder of its own."""
    disk.watch(folder)
    calls, _, _ = with_fault(folder, kind, 0 if kind == "shaky" else NO_CALL)
    shutil.rmtree(folder / "storage")
    result: dict[str, object] = {"calls": calls}
    tried, failed_calls, all_reported, wrong = 0, 0, 0, []
    for at in sorted(random.Random(seed).sample(range(1, calls + 1), min(count, calls))):
        try:
            _, failed, reported = with_fault(folder, kind, at)
            failed_calls, all_reported = failed_calls + failed, all_reported + reported
        except Exception:
            wrong.append(f"{kind} at {at}: {traceback.format_exc()}")
            disk.recover()
        tried += 1
        shutil.rmtree(folder / "storage", ignore_errors=True)
    print(json.dumps({**result, "tried": tried, "failed": failed_calls, "reported": all_reported, "wrong": wrong}))


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        faults(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
