"""Learning from a data set on a cluster: what a Tally learns are sums, so machines learn parts and the sums are added.

The result is that of one pass over all rows on one machine, but for the last digits of float64; also with a half-life,
where the sums of earlier parts fade by the rows that came after.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any, NamedTuple

import ray

from stillhash.cluster.encoding import Progress, silent
from stillhash.cluster.manifest import fix, name, planned, tidy
from stillhash.cluster.sources import SourcePart, find_source, read_part_rows
from stillhash.cluster.tasks import cancel, got, task
from stillhash.collection.storage.sealed_files import read_sealed, write_sealed
from stillhash.collection.types import check_path
from stillhash.errors import BadState, InvalidInput
from stillhash.hashers import METHODS, Hasher, Tally, load
from stillhash.numeric.sufficient_stats import SufficientStats

SUMS = "sums"
CHUNK = 256  # rows that are learnt at a time: products within a chunk are float32, and few of them round little
MERGING = [name for name, method in METHODS.items() if issubclass(method, Tally) and method.chunk_invariant]


class Learnt(NamedTuple):
    hasher: Tally
    rows: int  # that had labels
    seconds: float


def learn_dataset(
    source: Any,
    hasher: Hasher,
    *,
    out: str | Path | None = None,
    encoder: str | None = None,
    rows_per_part: int = 131_072,
    progress: Progress = silent,
) -> Learnt:
    """What a fitted hasher has learnt once it has seen all labelled rows of a source; it stays as it is itself.

    source, encoder, rows_per_part : as for `encode_dataset`.
    out : a folder that keeps the sums of parts, so that a run that was interrupted goes on when it is called again.
    """
    began = time.perf_counter()
    base = _merging(hasher)
    state = base.state()
    found = find_source(source, encoder)
    parts = found.parts(rows_per_part)
    folder = None if out is None else check_path(out)
    if folder is not None:
        plan = planned(found, parts, {"learns": hashlib.sha256(state).hexdigest()})
        fix(plan, folder)
    shared = ray.put(state)
    learn, merge = task(learn_part, returns=2), task(merged, returns=2)
    kept = None if folder is None else str(folder)
    level = [learn.remote(shared, str(found.folder), encoder, part, kept) for part in parts]
    waiting = {rows: part for (_, rows), part in zip(level, parts, strict=True)}
    while len(level) > 1:  # neighbours, so that labels come in the order of the rows
        pairs = [level[n : n + 2] for n in range(0, len(level), 2)]
        level = [merge.remote(*pair[0], *pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    try:
        seen = 0
        while waiting:
            (done,), _ = ray.wait(list(waiting))
            got(done)
            part = waiting.pop(done)
            seen += part.end - part.first
            progress(len(parts) - len(waiting), len(parts), seen, seen / max(1e-9, time.perf_counter() - began))
        learnt, rows = got(list(level[0]))
    except BaseException:
        cancel([*waiting, level[0][1]])
        raise
    if not rows:
        raise InvalidInput(f"source is {source!r}; none of its rows has labels")
    if folder is not None:
        tidy(plan, folder, (SUMS,))
    total, rows = merged(state, 0, learnt, rows)
    return Learnt(Tally.load(total), rows, time.perf_counter() - began)


def learn_part(state: bytes, folder: str, encoder: str | None, part: SourcePart, out: str | None) -> tuple[bytes, int]:
    """A task: what a hasher that knows nothing yet learns from a part, and from how many rows."""
    kept = None if out is None else Path(out) / "parts" / name(part.number, SUMS)
    if kept is not None:
        try:
            told = read_sealed(kept)
            return told[8:], int.from_bytes(told[:8], "little")
        except BadState:
            pass  # it is not there, or not whole
    hasher = Tally.load(state)
    hasher.stats_ = SufficientStats(hasher.n_features_in_, hasher.bits)
    taught = 0
    for rows in read_part_rows(Path(folder), encoder, part, hasher.n_features_in_):
        for some in (slice(s, s + CHUNK) for s in range(0, len(rows.labels), CHUNK)):
            hasher.partial_fit(rows.features[some], rows.labels[some])
        taught += sum(map(bool, rows.labels))
    learnt = hasher.state()
    if kept is not None:
        write_sealed(kept, [taught.to_bytes(8, "little") + learnt])
    return learnt, taught


def merged(earlier: bytes, rows: int, later: bytes, more: int) -> tuple[bytes, int]:
    """A task: what both have learnt, the first from rows that came before those of the second."""
    hasher = Tally.load(earlier)
    if hasher.half_life is not None:
        hasher.stats_.decay(0.5 ** (more / hasher.half_life))
    return hasher.merge(Tally.load(later)).state(), rows + more


def _merging(hasher: Hasher) -> Tally:
    """A copy, if it is of a method whose parts add up."""
    if hasher.name not in MERGING:
        raise InvalidInput(
            f"hasher is {hasher!r}; learning in parts wants one that can be merged: {', '.join(MERGING)}"
        )
    copy = load(hasher.state())
    assert isinstance(copy, Tally)
    return copy
