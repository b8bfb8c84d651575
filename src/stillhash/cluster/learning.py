"""Learn from a data set on a cluster: the statistics of a Tally add up, so tasks learn parts and these are merged.

The result is that of one pass over all rows on one machine, up to the last digits of float64; also with a half-life,
where the statistics of earlier parts decay by the rows that came after.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import NamedTuple

import ray

from stillhash.cluster.part_files import SUMS_SUFFIX, part_path, remove_unfinished, write_manifest
from stillhash.cluster.sources import SourcePart, SourcePaths, find_source, read_part_rows
from stillhash.cluster.tasks import ProgressCallback, cancel, get_result, no_progress, remote_task
from stillhash.collection.storage.sealed_files import read_sealed, write_sealed
from stillhash.collection.validation import check_path
from stillhash.errors import BadState, InvalidInput
from stillhash.hashers import METHODS, Hasher, Tally, load
from stillhash.numeric.sufficient_stats import SufficientStats

LEARN_CHUNK_ROWS = 256  # at a time: products within such a chunk are float32, and few of them round little
MERGEABLE = [name for name, method in METHODS.items() if issubclass(method, Tally) and method.chunk_invariant]


class LearningResult(NamedTuple):
    hasher: Tally
    rows: int  # that had labels
    seconds: float


def learn_dataset(
    source: SourcePaths,
    hasher: Hasher,
    *,
    out: str | Path | None = None,
    encoder: str | None = None,
    rows_per_part: int = 131_072,
    progress: ProgressCallback = no_progress,
) -> LearningResult:
    """Learn from all labelled rows of a source; the result has a new hasher, and the given one stays as it is.

    source, encoder, rows_per_part : as for `encode_dataset`.
    out : a folder for the statistics of parts, so that an interrupted run continues when it is called again.
    """
    began = time.perf_counter()
    state = _check_mergeable(hasher).state()
    files = find_source(source, encoder)
    parts = files.parts(rows_per_part)
    folder = None if out is None else check_path(out)
    if folder is not None:
        manifest = write_manifest(folder, files, parts, {"hasher": hashlib.sha256(state).hexdigest()})
    learn, merge = remote_task(learn_part, returns=2), remote_task(merge_learnt, returns=2)
    state_ref, out_path = ray.put(state), None if folder is None else str(folder)
    level = [learn.remote(state_ref, str(files.folder), encoder, part, out_path) for part in parts]
    running = {rows: part for (_, rows), part in zip(level, parts, strict=True)}
    while len(level) > 1:  # neighbours, so that labels come in the order of the rows
        pairs = [level[n : n + 2] for n in range(0, len(level), 2)]
        level = [merge.remote(*pair[0], *pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    try:
        rows_done = 0
        while running:
            (done,), _ = ray.wait(list(running))
            get_result(done)
            part = running.pop(done)
            rows_done += part.end - part.first
            speed = rows_done / max(1e-9, time.perf_counter() - began)
            progress(len(parts) - len(running), len(parts), rows_done, speed)
        learnt, rows = get_result(list(level[0]))
    except BaseException:
        cancel([*running, level[0][1]])
        raise
    if not rows:
        raise InvalidInput(f"source: expected rows with labels, got none in {source!r}")
    if folder is not None:
        remove_unfinished(folder, manifest, (SUMS_SUFFIX,))
    total, rows = merge_learnt(state, 0, learnt, rows)
    return LearningResult(Tally.load(total), rows, time.perf_counter() - began)


def learn_part(state: bytes, folder: str, encoder: str | None, part: SourcePart, out: str | None) -> tuple[bytes, int]:
    """Learn from a part alone, as a task; the hasher's state, and how many rows had labels."""
    file = None if out is None else part_path(Path(out), part.number, SUMS_SUFFIX)
    if file is not None:
        try:
            content = read_sealed(file)
            return content[8:], int.from_bytes(content[:8], "little")
        except BadState:
            pass  # missing, or damaged
    hasher = Tally.load(state)
    hasher.stats_ = SufficientStats(hasher.n_features_in_, hasher.bits)
    labelled = 0
    for rows in read_part_rows(Path(folder), encoder, part, hasher.n_features_in_):
        for chunk in (slice(s, s + LEARN_CHUNK_ROWS) for s in range(0, len(rows.labels), LEARN_CHUNK_ROWS)):
            hasher.partial_fit(rows.features[chunk], rows.labels[chunk])
        labelled += sum(map(bool, rows.labels))
    learnt = hasher.state()
    if file is not None:
        write_sealed(file, [labelled.to_bytes(8, "little") + learnt])
    return learnt, labelled


def merge_learnt(earlier: bytes, rows: int, later: bytes, more: int) -> tuple[bytes, int]:
    """Merge what two hashers learnt, as a task: the first from rows that came before those of the second."""
    hasher = Tally.load(earlier)
    if hasher.half_life is not None:
        hasher.stats_.decay(0.5 ** (more / hasher.half_life))
    return hasher.merge(Tally.load(later)).state(), rows + more


def _check_mergeable(hasher: Hasher) -> Tally:
    """Return a copy of a hasher whose statistics add up."""
    if hasher.name not in MERGEABLE:
        raise InvalidInput(f"hasher: expected a method that can be merged ({', '.join(MERGEABLE)}), got {hasher!r}")
    copy = load(hasher.state())
    assert isinstance(copy, Tally)
    return copy
