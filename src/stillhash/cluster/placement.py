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
        segments=manifest.segments + tuple(_placed(manifest.shard_rows(), new)),
        next_id=max([manifest.next_id, *(entry.last + 1 for entry in new)]),
    )


def cleared(manifest: ClusterManifest) -> ClusterManifest:
    """Return the manifest without any row; ids begin at 0 again."""
    return manifest._replace(segments=(), patches=(), next_id=0)


def with_shard(manifest: ClusterManifest) -> ClusterManifest:
    """Return the manifest with one more shard, which is empty."""
    return manifest._replace(shards=(*manifest.shards, max(manifest.shards, default=-1) + 1))


def without_shard(manifest: ClusterManifest, shard: int) -> ClusterManifest:
    """Return the manifest without a shard; its segments go to the others."""
    others = tuple(each for each in manifest.shards if each != shard)
    if shard not in manifest.shards or not others:
        raise InvalidInput(f"shard: expected one of several shards, got {shard} of {manifest.shards}")
    staying = [entry for entry in manifest.segments if entry.shard != shard]
    rows = {each: count for each, count in manifest.shard_rows().items() if each != shard}
    moved = {entry.name: entry for entry in _placed(rows, manifest.of_shard(shard))}
    if len(staying) + len(moved) != len(manifest.segments):
        raise InvalidInput(f"segments: expected each name once, got one twice in shard {shard}")
    return manifest._replace(shards=others, segments=tuple(moved.get(e.name, e) for e in manifest.segments))


def plan_moves(manifest: ClusterManifest, balance: float = BALANCE) -> list[Move]:
    """Return moves after which each shard is within this share of the mean, or as near as whole segments allow.

    Each move takes a segment from the largest shard to the smallest one, and brings them closer: the smallest segment
    that suffices, or the largest one.
    """
    sizes, moves = manifest.shard_rows(), dict[str, Move]()
    held = {shard: {entry.name: entry for entry in manifest.of_shard(shard)} for shard in manifest.shards}
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
        moves[best.name] = Move(best, small)
    return [move for move in moves.values() if move.entry.shard != move.shard]


def with_moves(manifest: ClusterManifest, moves: Iterable[Move]) -> ClusterManifest:
    """Return the manifest with these segments in their new shards."""
    shards = {move.entry.name: move.shard for move in moves}
    segments = [entry._replace(shard=shards.get(entry.name, entry.shard)) for entry in manifest.segments]
    return manifest._replace(segments=tuple(segments))


def _size(entry: SegmentEntry) -> tuple[int, str]:
    return entry.live, entry.name


def _placed(rows: dict[int, int], entries: Iterable[SegmentEntry]) -> list[SegmentEntry]:
    """Assign each entry to the smallest shard, the largest entries first; return them in their own order."""
    new, shards = list(entries), dict[int, int]()
    for number in sorted(range(len(new)), key=lambda n: (-new[n].live, n)):
        shards[number] = min(rows, key=lambda shard: (rows[shard], shard))
        rows[shards[number]] += new[number].live
    return [entry._replace(shard=shards[number]) for number, entry in enumerate(new)]
