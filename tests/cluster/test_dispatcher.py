"""Random faults of shards and aggregators: every call ends in time, and says exactly which shards its hits are of.

Real sockets and servers in threads. Whatever replicas do, and whoever is asked twice, no reply counts twice.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stillhash import Index
from stillhash.cluster import ClusterReader
from stillhash.cluster.calls import Call
from stillhash.cluster.endpoints import Endpoint
from stillhash.cluster.message_server import Received
from stillhash.cluster.messages import Message, pack
from stillhash.cluster.requests import SearchRequest
from stillhash.cluster.shard_server import ShardServer
from stillhash.errors import Closed, StillhashError, Unreachable
from stillhash.search import Hits
from stillhash.search.merge import Floors, drop_below, merge_all, merge_top, no_floors
from tests.cluster.faulty_servers import FAULTS, FaultyServers
from tests.cluster.search_load import DEADLINE, wait_until
from tests.cluster.shard_threads import thread_index
from tests.contracts.searchers import random_codes

ROWS_OF_SHARD, CALLERS = 300, 6
FLOORS = Floors(np.array([35.0, 25.0], np.float32), np.full(2, -np.inf, np.float32))
SLACK = 10.0  # seconds after the deadline; a call that waits for a lost reply waits for longer


class FaultyCluster:
    """Servers that fail on demand, a reader, and one index of the same rows to compare with."""

    def __init__(self, folder: Path, shards: int, replicas: int, aggregators: int) -> None:
        rng = np.random.default_rng(shards)
        self.codes = random_codes(rng, ROWS_OF_SHARD * shards, 64, 100)
        self.weights = rng.integers(-2, 3, (16, 64)).astype(np.float32)
        self.reference = Index(64, threads=1)
        self.reference.add(self.codes)
        with thread_index(folder, 64, shards) as index:
            for part in np.split(self.codes, shards):
                index.add(part)
        self.servers = FaultyServers(str(folder), shards, replicas, aggregators)
        self.reader = ClusterReader(folder)
        self.rows = self.reader.manifest.shard_rows()
        self.shard_ids = {
            shard: np.concatenate([np.arange(e.first, e.last + 1) for e in self.reader.manifest.of_shard(shard)])
            for shard in self.rows
        }

    def wait_healthy(self) -> None:
        self.servers.heal()
        names = set(self.servers.names)
        wait_until(lambda: {e.name for e, up in self.reader.coordinator.endpoints() if up} == names, "connections")

    def call(self, rng: random.Random) -> tuple[Call, float]:
        """Make one call with a random deadline, and check that its replies are right; it, and how late it ended."""
        coordinator, number = self.reader.coordinator, self.reader.manifest.number
        q, k, partial = rng.randrange(14), rng.choice([1, 10, 400]), rng.random() < 0.5
        until = time.monotonic() + rng.choice([0.02, 0.2, 0.5, 1.5])
        kind = rng.choice(["top", "top", "range", "codes"])
        if kind == "codes":
            ids = np.sort(rng.sample(range(len(self.codes)), 5))
            call = coordinator.ask("codes", Message({}, [ids]), number, self.rows, until)
        else:
            thresholds = np.array([20.0, 30.0]) if kind == "range" else None
            floors = None if kind == "range" else rng.choice([None, no_floors(2), FLOORS])
            request = SearchRequest(self.weights[q : q + 2], 0 if kind == "range" else k, floors, thresholds)
            call = coordinator.search(request, number, self.rows, until, partial=partial)
        late = time.monotonic() - until
        missing = self.check_shards(call)
        if kind == "codes":
            self.check_codes(call, ids, missing)
        else:
            self.check_hits(call, q, k if kind == "top" else 0, floors or no_floors(2), missing)
        return call, late

    def check_shards(self, call: Call) -> set[int]:
        """Check that no shard replied twice, and that those which did not are named; return these."""
        answered: list[int] = []
        for reply in call.replies:
            answered += set(reply.shards) - set(reply.header.get("missing", ()))
        assert len(answered) == len(set(answered)), f"shards that count twice: {answered}"
        missing = set(self.rows) - set(answered)
        assert missing == call.waiting and call.missing == pytest.approx(len(missing) / len(self.rows))
        if missing and not (call.partial and call.replies):
            with pytest.raises(Unreachable, match="shards"):
                call.raise_error()
        else:
            call.raise_error()
        return missing

    def check_hits(self, call: Call, q: int, k: int, floors: Floors, missing: set[int]) -> None:
        allowed = np.ones(len(self.codes), bool)
        for shard in missing:
            allowed[self.shard_ids[shard]] = False
        weights = self.weights[q : q + 2]
        if k:
            hits = [Hits(*drop_below(merge_top([reply.hits[0] for reply in call.replies], k, 2), floors))]
            expected = [Hits(*drop_below(self.reference.search(weights, k, allowed=allowed), floors))]
        else:
            hits = [merge_all([reply.hits[n] for reply in call.replies]) for n in range(2)]
            expected = self.reference.range_search(weights, np.array([20.0, 30.0]), allowed=allowed)
        for part, right in zip(hits, expected, strict=True):
            assert part.ids.tobytes() == right.ids.tobytes() and part.scores.tobytes() == right.scores.tobytes()

    def check_codes(self, call: Call, ids: np.ndarray, missing: set[int]) -> None:
        lost = np.concatenate([np.empty(0, int), *(self.shard_ids[shard] for shard in missing)])
        names = np.concatenate([np.empty(0, int), *(reply.arrays[0] for reply in call.replies)])
        assert sorted(names) == sorted(set(ids.tolist()) - set(lost.tolist()))
        for reply in call.replies:
            assert reply.arrays[1].tobytes() == self.codes[reply.arrays[0]].tobytes()

    def close(self) -> None:
        self.reader.close()
        self.servers.close()


@contextmanager
def callers(cluster: FaultyCluster, seed: int) -> Iterator[list[tuple[Call, float]]]:
    """Make random calls in threads; what a check raises is raised at the end."""
    stop, failures = threading.Event(), list[BaseException]()
    ended: list[tuple[Call, float]] = []

    def repeat(number: int) -> None:
        rng = random.Random(seed * CALLERS + number)
        while not stop.is_set():
            try:
                ended.append(cluster.call(rng))
            except BaseException as failure:
                failures.append(failure)
                return

    threads = [threading.Thread(target=repeat, args=(number,), daemon=True) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        stop.set()
        for thread in threads:
            thread.join(60.0)
    assert not any(thread.is_alive() for thread in threads), "a call has not ended"
    for failure in failures:
        raise failure


@pytest.fixture(scope="module", params=[(3, 2, 0), (20, 1, 2)], ids=["replicas", "aggregators"])
def faulty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    faulty = FaultyCluster(tmp_path_factory.mktemp("index"), *request.param)
    yield faulty
    faulty.close()


STEPS = st.lists(
    st.tuples(st.integers(0, 1000), st.sampled_from(FAULTS), st.sampled_from([0.0, 0.02, 0.1, 0.4])), max_size=12
)


@pytest.mark.slow
@settings(max_examples=8, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # each takes seconds
@given(steps=STEPS, seed=st.integers(0, 2**32))
def test_calls_end_in_time_and_are_right_whatever_fails(
    faulty: FaultyCluster, steps: list[tuple[int, str, float]], seed: int
) -> None:
    faulty.wait_healthy()
    with callers(faulty, seed) as ended:
        for number, fault, seconds in steps:
            time.sleep(seconds)
            names = faulty.servers.names
            faulty.servers.set_fault(names[number % len(names)], fault)
        time.sleep(0.3)
    assert ended and max(late for _, late in ended) < SLACK
    faulty.wait_healthy()
    call = faulty.call(random.Random(0))[0]
    deadline = time.monotonic() + DEADLINE
    while call.waiting and time.monotonic() < deadline:  # short deadlines on a busy machine
        call = faulty.call(random.Random(seed))[0]
        seed += 1
    assert not call.waiting


@pytest.fixture
def small(tmp_path: Path) -> Iterator[FaultyCluster]:
    small = FaultyCluster(tmp_path, 2, 1, 0)
    small.wait_healthy()
    yield small
    small.close()


def test_calls_that_came_too_late_do_not_block_those_after_them(small: FaultyCluster) -> None:
    """A replica has two messages at a time, so each needs a reply, also if nobody waits for it any more."""
    server = small.servers.servers["shard-0-0"]
    for deadline in (0.2, 0.2, 0.2, 0.2):
        server.set_fault("stuck")
        small.reader.deadline = deadline
        with pytest.raises(Unreachable, match="shards 0 of 2"):
            small.reader.codes([0, 1])
        with pytest.raises(Unreachable, match="shards 0 of 2"):
            small.reader.search(small.weights, 3)
        server.set_fault("healthy")
        small.reader.deadline = 30.0
        assert small.reader.search(small.weights, 3).missing == 0


def test_a_port_that_is_another_shard_s_by_now_is_not_asked(small: FaultyCluster) -> None:
    """A killed process leaves its endpoint behind, and the next one to start may get its port."""
    small.servers.set_fault("shard-0-0", "killed")
    other = small.servers.servers["shard-1-0"].endpoint
    left = Endpoint("shard-0-0", "shard", 0, other.address, other.pid, other.node)
    small.reader.storage.replace(left.file, left.to_json())
    wait_until(lambda: left in [e for e, up in small.reader.coordinator.endpoints() if up], "the connection")
    small.reader.deadline = 1.0
    with pytest.raises(Unreachable, match="expected 'shard-0-0'"):
        small.reader.search(small.weights, 5)
    small.servers.heal()
    small.reader.deadline = DEADLINE
    hits = small.reader.search(small.weights, 5)
    assert hits.ids.tobytes() == small.reference.search(small.weights, 5).ids.tobytes()


def test_calls_for_a_shard_that_is_away_do_not_add_up(small: FaultyCluster) -> None:
    small.servers.set_fault("shard-0-0", "stopped")
    wait_until(lambda: small.reader.readiness()["missing"] == [0], "loss of a shard")
    small.reader.partial, small.reader.deadline = True, 0.05
    dispatcher = small.reader.coordinator._dispatcher
    for _ in range(30):
        assert small.reader.search(small.weights, 1).missing == 0.5
    wait_until(lambda: not any(dispatcher._queues.values()), "an empty queue")


@pytest.mark.parametrize(
    "header",
    [
        {"call": "search"},
        {"call": "search", "requests": None},
        {"call": "search", "requests": [[]]},
        {"call": "search", "requests": [{}]},
        {"call": "search", "requests": [{"k": 1, "floors": True, "range": False, "allowed": None, "where": None}]},
        {"call": "search", "number": "x"},
        {"call": "search", "number": float("inf")},
        {"call": "search", "number": 10**30, "seconds": float("nan")},
        {"call": "codes"},
        {"call": "nonsense"},
        {"call": None, "seconds": []},
    ],
)
def test_a_message_that_makes_no_sense_is_refused_and_does_no_harm(small: FaultyCluster, header: dict) -> None:
    server = small.servers.servers["shard-0-0"]
    number = small.reader.manifest.number
    weights = np.ones((2, 64), np.float32)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(server.endpoint.address)
        for frames in (
            pack({"number": number, "seconds": 5.0, "to": server.name, **header}, [weights, weights[0], weights[0]]),
            pack({"to": server.name}),
            [b"{}"],
            [b"[]", b""],
        ):
            socket.send_multipart([b"1", *frames])
            assert socket.poll(60_000) and b'"error"' in socket.recv_multipart()[1]
    small.reader.deadline = DEADLINE
    assert small.reader.search(small.weights, 3).missing == 0


def test_a_call_that_comes_as_the_index_closes_ends(small: FaultyCluster) -> None:
    ended = []

    def search() -> None:
        try:
            while True:
                small.reader.search(small.weights[:1], 1)
        except StillhashError as error:
            ended.append(error)

    threads = [threading.Thread(target=search, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    small.reader.close()
    for thread in threads:
        thread.join(DEADLINE)
    assert [type(error) for error in ended] == [Closed] * 8


def test_a_search_of_a_state_that_is_dropped_meanwhile_is_asked_again(tmp_path: Path) -> None:
    """A commit may be dropped between the look at it and the search."""

    class Forgetful(ShardServer):
        def _search(self, number: int, messages: list[Received]) -> None:
            super()._search(number - 1 if self.forget else number, messages)
            self.forget = False

        forget = True

    with thread_index(tmp_path, 64, 1) as index:
        index.add(random_codes(np.random.default_rng(0), 10, 64))
        index._processes.stop(0)
        server = Forgetful(index.storage.url, 0, "0-0")
        index.deadline = DEADLINE
        assert index.search(np.ones(64), 3).missing == 0
        server.stop()
