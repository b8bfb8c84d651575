"""Small manifests, segments and a plain model of them, for tests of the durable layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.compaction import Compaction, MergeItems, compact_group, plan_compaction
from stillhash.cluster.deletions import load_deletions
from stillhash.cluster.manifest import ClusterManifest, SegmentEntry
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.storage import Storage
from stillhash.numeric.codes import from_tiles
from stillhash.search.blocks import is_set

BITS = 64


def codes_of(ids: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return a code for each id: the id itself, times an odd number."""
    return (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.uint8).reshape(-1, 8)


def entry(number: int, rows: int = 100, first: int = 0, shard: int = 0, **fields: object) -> SegmentEntry:
    """Return an entry of a segment that no file exists for."""
    sample = SegmentEntry(f"segments/{number:032x}.seg", rows, f"{number:016x}", first, first + rows - 1, shard, True)
    return sample._replace(**fields)


def content(storage: Storage, manifest: ClusterManifest, cache: SegmentCache | None = None) -> dict[int, bytes]:
    """Return the code of each id that a manifest names, read from the files; an id that is there twice is an error."""
    cache, held = SegmentCache(storage) if cache is None else cache, dict[int, bytes]()
    for each in manifest.segments:
        segment = cache.open(each, manifest.bits)
        rows = np.arange(segment.rows)
        live = ~is_set(load_deletions(storage, each), rows)
        numbers, codes = segment.row_numbers(), from_tiles(segment.tiles, segment.rows)
        assert (segment.rows, int(numbers[0]), int(numbers[-1])) == (each.rows, each.first, each.last)
        for row in rows[live].tolist():
            assert int(numbers[row]) not in held, f"id {numbers[row]} is stored twice"
            held[int(numbers[row])] = codes[row].tobytes()
    return held


def compact_shard(
    cache: SegmentCache,
    manifest: ClusterManifest,
    most_rows: int,
    shard: int = 0,
    merge_items: MergeItems | None = None,
) -> Compaction:
    """Rewrite all groups of a shard that are due, as `compact_index` does with a commit for each."""
    groups = plan_compaction(manifest, shard, most_rows=most_rows)
    new = [entry for group in groups for entry in compact_group(cache, manifest, group, merge_items)]
    return Compaction(tuple(entry for group in groups for entry in group), tuple(new))


def expected(ids: object) -> dict[int, bytes]:
    """Return what `content` returns for these ids."""
    names = np.array(sorted(ids), np.int64)  # type: ignore[call-overload]
    return {int(name): code.tobytes() for name, code in zip(names, codes_of(names), strict=True)}


def names_below(folder: Path) -> set[str]:
    """Return all files below a folder, unfinished ones too."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
