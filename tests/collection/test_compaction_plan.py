"""Which segments a compaction rewrites, and how rows are divided: in order, bounded, and nothing twice."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stillhash.collection.maintenance.compaction import SegmentGroup, SegmentState, group_segments
from stillhash.collection.storage.segments import CodedRows, SegmentRecord, even_rows

MOST = 100
STATES = st.lists(st.tuples(st.integers(1, 3 * MOST), st.integers(0, MOST), st.booleans()), max_size=30)


def states_of(shapes: list[tuple[int, int, bool]]) -> list[SegmentState]:
    """Make segments of so many rows, of which so many are deleted."""
    states, first = [], 0
    for number, (rows, deleted, outdated) in enumerate(shapes, 1):
        record = SegmentRecord(number, f"{number}.tiles", rows, first, first + rows - 1, b"")
        deleted = min(deleted, rows) if outdated else 0
        states.append(SegmentState(record, rows - deleted, outdated))
        first += rows
    return states


def rewritten(states: list[SegmentState], groups: list[SegmentGroup]) -> list[SegmentState]:
    """Return the segments after each group was rewritten."""
    by_first = {group.records[0].number: group for group in groups}
    in_groups = {record.number for group in groups for record in group.records}
    after: list[SegmentState] = []
    for state in states:
        if (group := by_first.get(state.record.number)) is not None:
            rows = even_rows(group.live, MOST)
            sizes = [rows] * (group.live // rows) + [group.live % rows] * (group.live % rows > 0)
            after += [SegmentState(state.record._replace(rows=size), size, False) for size in sizes]
        elif state.record.number not in in_groups:
            after.append(state)
    shapes: list[Any] = [(state.record.rows, 0, state.outdated) for state in after]
    return states_of(shapes)


@given(STATES)
def test_groups_are_neighbours_and_leave_nothing_to_do(shapes: list[tuple[int, int, bool]]) -> None:
    states = states_of(shapes)
    groups = list(group_segments(states, MOST))
    numbers = [record.number for group in groups for record in group.records]
    assert numbers == sorted(set(numbers))
    for group in groups:
        own = [record.number for record in group.records]
        assert own == list(range(own[0], own[-1] + 1))
        assert group.live == sum(state.live for state in states if state.record.number in own)
        whole = max(state.record.rows for state in states if state.record.number in own)
        assert group.live < 1.5 * max(MOST, whole) + MOST  # what is read at a time
    for state in states:
        if state.outdated or state.record.rows > MOST:
            assert state.record.number in numbers
        elif 2 * state.live >= MOST:
            assert state.record.number not in numbers
    after = rewritten(states, groups)
    assert all(0 < state.record.rows <= MOST for state in after)
    assert sum(state.live for state in after) == sum(state.live for state in states)
    assert list(group_segments(after, MOST)) == []
    small = [2 * state.live < MOST for state in after]
    assert not any(one and other for one, other in itertools.pairwise(small))


def test_full_segments_stay_and_small_neighbours_merge() -> None:
    shapes = [(100, 0, False), (30, 0, False), (100, 0, False), (20, 0, False), (20, 0, False), (90, 10, True)]
    groups = [[r.number for r in group.records] for group in group_segments(states_of(shapes), MOST)]
    assert groups == [[4, 5, 6]]


@given(st.integers(0, 1000), st.integers(1, 300))
def test_rows_are_divided_evenly(total: int, most: int) -> None:
    rows = even_rows(total, most)
    assert 1 <= rows <= most
    if total > most:
        assert 2 * rows > most


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 60))
def test_regrouped_rows_are_the_same_rows(sizes: list[int], rows: int) -> None:
    numbers = np.arange(sum(sizes))
    whole = CodedRows(numbers, np.stack([numbers % 251, numbers % 7], axis=1).astype(np.uint8), numbers * 3)
    ends = np.cumsum([0, *sizes]).tolist()
    parts = [whole.select(slice(start, end)) for start, end in itertools.pairwise(ends)]
    again = list(CodedRows.regroup(parts, rows, 16))
    assert [len(part.numbers) for part in again[:-1]] == [rows] * len(again[:-1])
    assert not again or 0 < len(again[-1].numbers) <= rows
    for one, other in zip(CodedRows.join(again, 16), whole, strict=True):
        assert np.array_equal(one, other)
