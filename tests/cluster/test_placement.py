"""Which shard holds which segment: new ones go to the smallest, moves balance, and no row is lost by either."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.cluster.manifest import ClusterManifest, first_manifest
from stillhash.cluster.placement import (
    BALANCE,
    cleared,
    place,
    plan_departures,
    plan_moves,
    split_steps,
    with_leaving,
    with_moves,
    with_shard,
    without_left,
)
from stillhash.errors import InvalidInput
from tests.cluster.manifests import entry


@st.composite
def manifests(draw: st.DrawFn, most_segments: int = 40, most_rows: int = 1000) -> ClusterManifest:
    """Draw an index whose segments are in any shards, some with deleted rows."""
    shards = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True))
    sizes = draw(st.lists(st.integers(1, most_rows), max_size=most_segments))
    segments = [
        entry(n, rows, 2000 * n, draw(st.sampled_from(shards)), deleted=draw(st.integers(0, rows - 1)))
        for n, rows in enumerate(sizes)
    ]
    return first_manifest(64, shards)._replace(segments=tuple(segments), next_id=2000 * len(sizes))


def without_places(manifest: ClusterManifest) -> list[object]:
    return [each._replace(shard=0) for each in manifest.segments]


def difference_of(manifest: ClusterManifest) -> int:
    rows = manifest.shard_rows().values()
    return max(rows) - min(rows)


@settings(deadline=None)
@given(manifests(), st.lists(st.integers(1, 1000), max_size=20))
def test_new_segments_go_to_the_smallest_shard(manifest: ClusterManifest, sizes: list[int]) -> None:
    new = [entry(1000 + n, rows, 10**6 + 2000 * n, -1) for n, rows in enumerate(sizes)]
    after = place(manifest, new)
    assert after.segments[: len(manifest.segments)] == manifest.segments
    assert [each._replace(shard=-1) for each in after.segments[len(manifest.segments) :]] == new
    assert after.next_id == max([manifest.next_id, *(each.last + 1 for each in new)])
    sizes_now = manifest.shard_rows()
    for each in sorted(after.segments[len(manifest.segments) :], key=lambda each: -each.live):
        assert sizes_now[each.shard] == min(sizes_now.values())
        sizes_now[each.shard] += each.live


@settings(deadline=None)
@given(manifests())
def test_moves_balance_and_lose_nothing(manifest: ClusterManifest) -> None:
    moves = plan_moves(manifest)
    after = with_moves(manifest, moves)
    assert without_places(after) == without_places(manifest) and difference_of(after) <= difference_of(manifest)
    assert len({move.entry.name for move in moves}) == len(moves)
    assert all(move.entry in manifest.segments and move.shard != move.entry.shard for move in moves)
    rows, mean = after.shard_rows(), after.rows / len(after.shards)
    if all(each.live <= BALANCE * mean for each in after.segments):
        assert all(abs(count - mean) <= BALANCE * mean for count in rows.values())
        assert plan_moves(after) == []


def fewest_rows(manifest: ClusterManifest) -> int | None:
    """Return the fewest rows whose moves balance the shards, by trying all; None if none do."""
    mean, best = manifest.rows / len(manifest.shards), None
    for shards in itertools.product(manifest.shards, repeat=len(manifest.segments)):
        placed = [each._replace(shard=shard) for each, shard in zip(manifest.segments, shards, strict=True)]
        rows = manifest._replace(segments=tuple(placed)).shard_rows().values()
        if all(abs(count - mean) <= BALANCE * mean for count in rows):
            moved = sum(a.live for a, b in zip(manifest.segments, placed, strict=True) if a.shard != b.shard)
            best = moved if best is None else min(best, moved)
    return best


@pytest.mark.parametrize("full", [1, 2])
def test_a_new_shard_gets_the_fewest_rows_that_balance(full: int) -> None:
    segments = tuple(entry(n, 100, 100 * n, n % full) for n in range(10 if full == 1 else 9))
    manifest = with_shard(first_manifest(64, range(full))._replace(segments=segments))
    moves = plan_moves(manifest)
    assert sum(move.entry.live for move in moves) == fewest_rows(manifest) and moves
    assert {move.shard for move in moves} == {full}


@settings(deadline=None, max_examples=40)
@given(manifests(most_segments=6, most_rows=100))
def test_moves_are_not_many_more_rows_than_the_fewest(manifest: ClusterManifest) -> None:
    """A plan that balances moves at most the size of a segment more, for each move, than the best of all plans."""
    moves, fewest = plan_moves(manifest), fewest_rows(manifest)
    rows, mean = with_moves(manifest, moves).shard_rows().values(), manifest.rows / len(manifest.shards)
    if fewest is not None and all(abs(count - mean) <= BALANCE * mean for count in rows):
        moved = sum(move.entry.live for move in moves)
        assert fewest <= moved <= fewest + len(moves) * max((each.live for each in manifest.segments), default=0)


@settings(deadline=None)
@given(manifests(), st.integers(0, 10))
def test_a_shard_that_is_removed_leaves_its_segments_to_others(manifest: ClusterManifest, done: int) -> None:
    """Also if the move was interrupted after some segments, and rows came meanwhile."""
    shard = manifest.shards[0]
    if len(manifest.shards) == 1:
        with pytest.raises(InvalidInput, match="shard"):
            with_leaving(manifest, shard)
        return
    leaving = with_leaving(manifest, shard)
    assert (leaving.segments, leaving.shards, leaving.leaving) == (manifest.segments, manifest.shards, (shard,))
    assert with_leaving(leaving, shard) == leaving
    assert (without_left(leaving) == leaving) == bool(manifest.of_shard(shard))
    moves = plan_departures(leaving)
    assert {move.entry for move in moves} == set(manifest.of_shard(shard))
    halfway = place(with_moves(leaving, moves[:done]), [entry(1000, 5, 10**6, -1)])
    assert halfway.segments[-1].shard != shard
    after = without_left(with_moves(halfway, plan_departures(halfway)))
    assert set(after.shards) == set(manifest.shards) - {shard} and after.leaving == ()
    assert without_places(after) == without_places(halfway)
    for old, new in zip(manifest.segments, after.segments, strict=False):
        assert new.shard in after.shards and (old.shard == shard or new == old)
    with pytest.raises(InvalidInput, match="shard"):
        with_leaving(after, shard)


@settings(deadline=None)
@given(manifests())
def test_balancing_empties_shards_that_are_removed(manifest: ClusterManifest) -> None:
    leaving = manifest.shards[: len(manifest.shards) // 2]
    for shard in leaving:
        manifest = with_leaving(manifest, shard)
    after = without_left(with_moves(manifest, plan_moves(manifest)))
    assert without_places(after) == without_places(manifest) and set(after.shards) == set(manifest.staying)
    mean = after.rows / len(after.shards)
    if all(each.live <= BALANCE * mean for each in after.segments):
        assert all(abs(count - mean) <= BALANCE * mean for count in after.shard_rows().values())


@settings(deadline=None)
@given(manifests(), st.integers(1, 3000), st.integers(1, 10))
def test_steps_are_bounded_and_together_the_whole_plan(manifest: ClusterManifest, rows: int, segments: int) -> None:
    moves = plan_moves(manifest)
    steps = split_steps(moves, rows, segments)
    assert [move for step in steps for move in step] == moves and all(steps)
    stepwise = manifest
    for step, after in itertools.zip_longest(steps, steps[1:]):
        size = sum(move.entry.rows for move in step)
        assert len(step) == 1 or (size <= rows and len(step) <= segments)
        if after is not None:  # no step could have been longer
            assert len(step) == segments or size + after[0].entry.rows > rows
        stepwise = with_moves(stepwise, step)
    assert stepwise == with_moves(manifest, moves)


@settings(deadline=None)
@given(manifests(), st.integers(0, 10))
def test_a_plan_that_was_interrupted_is_finished_by_the_next(manifest: ClusterManifest, done: int) -> None:
    halfway = with_moves(manifest, plan_moves(manifest)[:done])
    after = with_moves(halfway, plan_moves(halfway))
    assert without_places(after) == without_places(manifest)
    mean = after.rows / len(after.shards)
    if all(each.live <= BALANCE * mean for each in after.segments):
        assert all(abs(count - mean) <= BALANCE * mean for count in after.shard_rows().values())


def test_clearing_keeps_the_shards() -> None:
    manifest = place(first_manifest(64, [3, 5]), [entry(1)])
    assert cleared(manifest) == first_manifest(64, [3, 5])
    assert with_shard(manifest).shards == (3, 5, 6)
