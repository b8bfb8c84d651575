"""Segments move between shards in steps: searches stay exact, and a move that was interrupted is finished later."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash.cluster import ClusterIndex, ClusterReader, segment_moves
from stillhash.cluster.manifest import ClusterManifest, latest_number, read_manifest
from stillhash.cluster.placement import plan_moves
from stillhash.errors import Closed, InvalidInput, Unreachable
from tests.cluster.moving_writer import STEP_ROWS
from tests.cluster.publisher_process import NoProcesses
from tests.cluster.search_load import DEADLINE, ROWS, SEGMENTS, reference_index, search_load, wait_until
from tests.cluster.shard_threads import ShardThreads, thread_index

ROOT = Path(__file__).parents[2]
SEGMENT = ROWS // SEGMENTS


class Interrupted(Exception):
    """What a progress callback raises to end a move."""


def interrupt(done: int, rows: int) -> None:
    raise Interrupted


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_moves, "MOVE_STEP_ROWS", STEP_ROWS)
    assert STEP_ROWS == SEGMENT  # so one segment moves in a step


def fill(index: ClusterIndex, codes: np.ndarray) -> None:
    for part in np.split(codes, SEGMENTS):
        index.add(part)


def assert_same(index: ClusterReader, reference: Any, weights: np.ndarray) -> None:
    hits, expected = index.search(weights, 50), reference.search(weights, 50)
    assert hits.ids.tobytes() == expected.ids.tobytes() and hits.scores.tobytes() == expected.scores.tobytes()


def moved_rows(before: ClusterManifest, after: ClusterManifest) -> int:
    shards = {entry.name: entry.shard for entry in before.segments}
    return sum(entry.live for entry in after.segments if shards[entry.name] != entry.shard)


@pytest.mark.medium
def test_each_step_is_one_commit_that_the_shards_load_before_the_next(tmp_path: Path) -> None:
    reference, codes, weights = reference_index()
    servers = ShardThreads(tmp_path)
    options: Any = {"storage": tmp_path, "processes": servers, "deadline": DEADLINE}
    with ClusterIndex(64, 1, 2, **options) as index, ClusterReader(tmp_path, deadline=DEADLINE) as reader:
        fill(index, codes)
        reader.refresh()
        first, seen = index.manifest.number, list[tuple[int, int]]()

        def look(done: int, rows: int) -> None:
            seen.append((done, rows))
            status = index.status()
            counts = {name: status["segment_moves"][name] for name in ("segments", "of_segments", "rows", "of_rows")}
            assert counts == {"segments": len(seen), "of_segments": rows // SEGMENT, "rows": done, "of_rows": rows}
            assert status["shards"][1]["rows"] == done and not status["shards"][1]["leaving"]
            # The step is loaded by all replicas that are connected: on a busy machine one may still be starting.
            assert done in [servers.servers[1, replica].status()["rows"] for replica in range(2)]

        with search_load(index, reference, weights, 2) as load, search_load(reader, reference, weights, 2) as read:
            assert index.add_shard(look) == 1
        assert set(load.outcomes) == set(read.outcomes) == {"right"}, (load.outcomes, read.outcomes)
        rows = seen[-1][1]
        assert rows >= 0.4 * ROWS and seen == [(done, rows) for done in range(SEGMENT, rows + 1, SEGMENT)]
        manifests = [read_manifest(index.storage, number) for number in range(first + 1, index.manifest.number + 1)]
        assert manifests[0].shards == (0, 1)
        steps = [moved_rows(a, b) for a, b in itertools.pairwise(manifests)]
        assert steps == len(seen) * [STEP_ROWS]
        assert index.status()["segment_moves"] is None and index.rebalance() == 0
        assert_same(index, reference, weights)


def test_an_interrupted_move_is_finished_by_the_next_writer(tmp_path: Path) -> None:
    reference, codes, weights = reference_index()

    def interrupt(done: int, rows: int) -> None:
        if done >= 2 * SEGMENT:
            raise Interrupted

    with thread_index(tmp_path, 64, 1, deadline=DEADLINE) as index:
        fill(index, codes)
        with pytest.raises(Interrupted):
            index.add_shard(interrupt)
        assert index.status()["segment_moves"] is None
        assert index.manifest.shard_rows() == {0: ROWS - 2 * SEGMENT, 1: 2 * SEGMENT}
        assert_same(index, reference, weights)
        assert index.remove([0, 1]) == reference.remove([0, 1]) == 2  # writes go on
    with thread_index(tmp_path, 64, deadline=DEADLINE) as index:
        left = len(plan_moves(index.manifest))
        assert left > 0 and index.rebalance() == left and plan_moves(index.manifest) == []
        assert_same(index, reference, weights)


def test_a_shard_that_is_being_removed_gets_no_rows_and_is_removed_later(tmp_path: Path) -> None:
    reference, codes, weights = reference_index()

    with thread_index(tmp_path, 64, 3, deadline=DEADLINE) as index:
        fill(index, codes)
        with pytest.raises(Interrupted):
            index.remove_shard(1, interrupt)
        rows = index.manifest.shard_rows()[1]
        assert 0 < rows == ROWS // 3 - SEGMENT
        assert [shard["leaving"] for shard in index.status()["shards"]] == [False, True, False]
        for _ in range(3):  # it is the smallest, and gets nothing
            index.add(codes[:500])
            reference.add(codes[:500])
        assert index.manifest.shard_rows()[1] == rows
        with pytest.raises(InvalidInput, match="shard"):
            index.remove_shard(5)
        index.remove_shard(0)  # the rest goes to the only shard that stays
        assert index.manifest.shards == (2,) and index.manifest.leaving == ()
        with pytest.raises(InvalidInput, match="shard"):
            index.remove_shard(2)
        assert_same(index, reference, weights)


def test_the_next_writer_finishes_a_removal_and_stops_the_shard(tmp_path: Path) -> None:
    reference, codes, weights = reference_index()

    with thread_index(tmp_path, 64, 3, deadline=DEADLINE) as index:
        fill(index, codes)
        with pytest.raises(Interrupted):
            index.remove_shard(0, interrupt)
    servers = ShardThreads(tmp_path)
    with ClusterIndex(64, storage=tmp_path, processes=servers, deadline=DEADLINE) as index:
        assert {shard for shard, _ in servers.servers} == {0, 1, 2}
        assert index.rebalance() == ROWS // 3 // SEGMENT - 1
        assert {shard for shard, _ in servers.servers} == {1, 2} == set(index.manifest.shards)
        assert_same(index, reference, weights)


def test_a_shard_that_is_away_ends_the_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a bounded time, with a valid index, which the next call balances."""
    reference, codes, weights = reference_index()
    servers = ShardThreads(tmp_path)
    with ClusterIndex(64, 1, storage=tmp_path, processes=servers, deadline=DEADLINE) as index:
        fill(index, codes)

        def lose(done: int, rows: int) -> None:
            if (1, 0) in servers.servers:
                servers.stop(1)
                wait_until(lambda: not index.readiness()["ready"], "notice of the closed connection")

        monkeypatch.setattr(segment_moves, "MOVE_STEP_SECONDS", 0.5)
        with pytest.raises(Unreachable, match=rf"^shards \[1\].* {SEGMENT} of "):
            index.add_shard(lose)
        assert index.manifest.shard_rows()[1] == SEGMENT  # nothing is given to a shard that is away
        monkeypatch.setattr(segment_moves, "MOVE_STEP_SECONDS", DEADLINE)
        servers.start(1)
        left = len(plan_moves(index.manifest))
        assert left > 0 and index.rebalance() == left
        assert plan_moves(index.manifest) == []
        assert_same(index, reference, weights)


def test_a_lost_shard_can_be_removed(tmp_path: Path) -> None:
    reference, codes, weights = reference_index()
    servers = ShardThreads(tmp_path)
    with ClusterIndex(64, 3, storage=tmp_path, processes=servers, deadline=DEADLINE) as index:
        fill(index, codes)
        servers.servers[1, 0].stop()
        index.remove_shard(1)
        assert index.manifest.shards == (0, 2)
        assert_same(index, reference, weights)


def test_a_writer_that_closes_does_not_wait_for_the_whole_move(tmp_path: Path) -> None:
    _, codes, _ = reference_index()
    index = thread_index(tmp_path, 64, 1, deadline=DEADLINE)
    fill(index, codes)
    with pytest.raises(Closed, match=rf"{SEGMENT} of "):
        index.add_shard(lambda done, rows: index.stop_moves())
    index.close()
    assert read_manifest(index.storage, latest_number(index.storage)).shard_rows()[1] == SEGMENT


@pytest.mark.slow
def test_a_writer_is_killed_while_segments_move(tmp_path: Path) -> None:
    reference, codes, weights = reference_index()
    servers = ShardThreads(tmp_path)
    with thread_index(tmp_path, 64, 1) as index:
        fill(index, codes)
    servers.ensure([0, 1], 1)
    command = [sys.executable, "-m", "tests.cluster.moving_writer", str(tmp_path), "64"]
    reader = ClusterReader(tmp_path, deadline=DEADLINE)
    with reader, search_load(reader, reference, weights) as load:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
            assert writer.stdout is not None
            assert [int(writer.stdout.readline()) for _ in range(2)] == [SEGMENT, 2 * SEGMENT]
            writer.kill()
            assert "end\n" not in writer.stdout.readlines()
        moved = reader.refresh().shard_rows()[1]
        assert 2 * SEGMENT <= moved < ROWS // 2
        options: Any = {"storage": tmp_path, "processes": NoProcesses(), "lease_seconds": 0.5}
        with ClusterIndex(64, **options) as index:
            assert index.rebalance() > 0 and plan_moves(index.manifest) == []
            assert index.manifest.shards == (0, 1) and index.manifest.rows == ROWS
    servers.close()
    assert set(load.outcomes) == {"right"}, load.outcomes
