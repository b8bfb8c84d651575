"""Plan a publication: what a manifest says of the collection it is of, and which segments to write again."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from stillhash.cluster.manifest import CLUSTER_SEGMENT_ROWS, ClusterManifest, SegmentEntry
from stillhash.cluster.partition import PATCH_ROWS
from stillhash.errors import BadState

TIER_ROWS = (1 << 12, 1 << 16, 1 << 19)  # segments of fewer live rows than one of these are merged with each other,
TIER_SEGMENTS = 8  # as soon as a shard has so many of them
MAX_PATCHES = 8  # files; then they become one


class PublishedSource(NamedTuple):
    """Which commit of which collection a manifest is of."""

    collection: str  # its id, in hexadecimal digits
    seq: int
    generation: int
    last_row: int  # rows up to this one are published, unless they were deleted before
    catalog_key: str
    items: int  # those that wait for hash functions too, which are not published
    writer: str = ""  # the URL of the server that writes the collection
    clean_from: int = 0  # the first manifest without what was forgotten; those before it are to be deleted
    labelled_share: float | None = None  # of the items; None in a manifest that an earlier release wrote

    def to_json(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> "PublishedSource | None":
        """Return what a manifest says; None if it is of no collection."""
        if not text:
            return None
        try:
            fields: dict[str, Any] = json.loads(text)
            return cls(**{name: fields[name] for name in cls._fields if name in fields})
        except (ValueError, KeyError, TypeError) as error:
            raise BadState(f"source: expected a commit of a collection, got {text!r:.100}") from error


def plan_rewrites(
    manifest: ClusterManifest, patched: Mapping[str, int], forgetting: bool = False
) -> list[list[SegmentEntry]]:
    """Return groups of segments to be written again, each as one: small ones, and those with much that is outdated.

    patched: how many items of each segment are in patches. forgetting: all segments with anything that is outdated.
    """
    groups = [[entry] for entry in _patched_most(manifest, patched)]
    chosen = {entry.name for group in groups for entry in group}
    left = CLUSTER_SEGMENT_ROWS  # so that a publication does not take long
    for shard in manifest.shards:
        entries = [entry for entry in manifest.of_shard(shard) if entry.name not in chosen]
        for group in _outdated(entries):
            if sum(entry.live for entry in group) <= left:
                left -= sum(entry.live for entry in group)
                groups.append(group)
    if forgetting:
        chosen = {entry.name for group in groups for entry in group}
        outdated = (entry for entry in manifest.segments if entry.deleted or patched.get(entry.name, 0))
        groups += [[entry] for entry in outdated if entry.name not in chosen]
    return groups


def _patched_most(manifest: ClusterManifest, patched: Mapping[str, int]) -> list[SegmentEntry]:
    """Return the segments with most patched items, if all of these would soon be too many for one patch."""
    left, chosen = sum(patched.values()), []
    if left > PATCH_ROWS // 2:
        for entry in sorted(manifest.segments, key=lambda entry: (-patched.get(entry.name, 0), entry.name)):
            if left <= PATCH_ROWS // 4:
                break
            left -= patched.get(entry.name, 0)
            chosen.append(entry)
    return chosen


def _outdated(entries: list[SegmentEntry]) -> list[list[SegmentEntry]]:
    """Return groups of small segments of a shard, or single ones of which more than half is deleted."""
    for most in TIER_ROWS:
        small = sorted((entry for entry in entries if entry.live < most), key=lambda entry: entry.live)
        if len(small) >= TIER_SEGMENTS:
            return [small]
    return [[entry] for entry in entries if 2 * entry.deleted > entry.rows]
