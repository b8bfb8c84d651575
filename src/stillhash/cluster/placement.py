"""Decide which shard holds which segment. These functions read and write nothing: they return the next manifest."""

from collections.abc import Iterable
from typing import NamedTuple

from stillhash.cluster.manifest import ClusterManifest, SegmentEntry
from stillhash.errors import InvalidInput

BALANCE = 0.2  # shards have this share more or less than the mean, at most, where segments allow it


class Move(NamedTuple):
    """A segment that changes its shard."""

    entry: SegmentEntry
    shard: int  # the new one


def place(manifest: ClusterManifest, entries: Iterable[SegmentEntry]) -> ClusterManifest:
    """Return the manifest with these entries, each in the shard that is the smallest then; the largest come first."""
    new = list(entries)
    return manifest._replace(
        segments=manifest.segments + tuple(_placed(_staying_rows(manifest), new)),
        next_id=max([manifest.next_id, *(entry.last + 1 for entry in new)]),
    )


def cleared(manifest: ClusterManifest) -> ClusterManifest:
    """Return the manifest without any row; ids begin at 0 again."""
    return manifest._replace(segments=(), patches=(), next_id=0)


def with_shard(manifest: ClusterManifest) -> ClusterManifest:
    """Return the manifest with one more shard, which is empty."""
    return manifest._replace(shards=(*manifest.shards, max(manifest.shards, default=-1) + 1))


def with_leaving(manifest: ClusterManifest, shard: int) -> ClusterManifest:
    """Return the manifest with a shard that is to be removed: it gets no more segments, and keeps those it has."""
    if shard not in manifest.shards or not set(manifest.staying) - {shard}:
        raise InvalidInput(f"shard: expected one of several shards, got {shard} of {manifest.shards}")
    return manifest._replace(leaving=tuple(sorted({*manifest.leaving, shard})))


def without_left(manifest: ClusterManifest) -> ClusterManifest:
    """Return the manifest without the shards that are to be removed and have no segment any more."""
    held = {entry.shard for entry in manifest.segments}
    gone = {shard for shard in manifest.leaving if shard not in held}
    shards, leaving = (tuple(s for s in some if s not in gone) for some in (manifest.shards, manifest.leaving))
    return manifest._replace(shards=shards, leaving=leaving)


def plan_departures(manifest: ClusterManifest) -> list[Move]:
    """Return the moves that empty the shards that are to be removed: each segment to the smallest of the others."""
    segments = [entry for entry in manifest.segments if entry.shard in manifest.leaving]
    placed = _placed(_staying_rows(manifest), segments)
    return [Move(entry, moved.shard) for entry, moved in zip(segments, placed, strict=True)]


def plan_moves(manifest: ClusterManifest, balance: float = BALANCE) -> list[Move]:
    """Return moves after which each shard is within this share of the mean, or as near as whole segments allow.

    Shards that are to be removed are emptied first. Then each move takes a segment from the largest shard to the
    smallest one, and brings them closer: the smallest segment that suffices, or the largest one.
    """
    moves = {move.entry.name: move for move in plan_departures(manifest)}
    emptied = with_moves(manifest, moves.values())
    sizes = _staying_rows(emptied)
    before = {entry.name: entry for entry in manifest.segments}
    held = {shard: {entry.name: entry for entry in emptied.of_shard(shard)} for shard in sizes}
    mean = sum(sizes.values()) / max(1, len(sizes))
    while sizes:
        large, small = max(sizes, key=lambda s: (sizes[s], s)), min(sizes, key=lambda s: (sizes[s], s))
        lacking = max(sizes[large] - mean, mean - sizes[small]) - balance * mean
        gap = sizes[large] - sizes[small]
        movable = [entry for entry in held[large].values() if 0 < entry.live < gap]
        if lacking <= 0 or not movable:
            break
        enough = [entry for entry in movable if entry.live >= lacking]
        best = min(enough, key=_size) if enough else max(movable, key=_size)
        held[small][best.name] = held[large].pop(best.name)
        sizes[large] -= best.live
        sizes[small] += best.live
        moves[best.name] = Move(before[best.name], small)
    return [move for move in moves.values() if move.entry.shard != move.shard]


def split_steps(moves: Iterable[Move], rows: int, segments: int) -> list[list[Move]]:
    """Return the moves in steps of at most so many rows, deleted ones included, and segments; at least one segment."""
    steps: list[list[Move]] = []
    left_rows = left_segments = 0
    for move in moves:
        if not steps or move.entry.rows > left_rows or not left_segments:
            steps.append([])
            left_rows, left_segments = rows, segments
        steps[-1].append(move)
        left_rows, left_segments = left_rows - move.entry.rows, left_segments - 1
    return steps


def with_moves(manifest: ClusterManifest, moves: Iterable[Move]) -> ClusterManifest:
    """Return the manifest with these segments in their new shards; those that it has no longer are left out."""
    shards = {move.entry.name: move.shard for move in moves if move.shard in manifest.shards}
    segments = [entry._replace(shard=shards.get(entry.name, entry.shard)) for entry in manifest.segments]
    return manifest._replace(segments=tuple(segments))


def _staying_rows(manifest: ClusterManifest) -> dict[int, int]:
    """Return the rows of each shard that is not to be removed."""
    rows = manifest.shard_rows()
    return {shard: rows[shard] for shard in manifest.staying}


def _size(entry: SegmentEntry) -> tuple[int, str]:
    return entry.live, entry.name


def _placed(rows: dict[int, int], entries: Iterable[SegmentEntry]) -> list[SegmentEntry]:
    """Assign each entry to the smallest shard, the largest entries first; return them in their own order."""
    new, shards = list(entries), dict[int, int]()
    for number in sorted(range(len(new)), key=lambda n: (-new[n].live, n)):
        shards[number] = min(rows, key=lambda shard: (rows[shard], shard))
        rows[shards[number]] += new[number].live
    return [entry._replace(shard=shards[number]) for number, entry in enumerate(new)]
