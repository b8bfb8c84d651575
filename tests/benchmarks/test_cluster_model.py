"""The model of a cluster agrees with closed forms, and answers every query once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster_events import SimClock, SimNode, SimProcess
from benchmarks.cluster_model import SimCluster, SimOutcome, simulate
from benchmarks.cluster_scenario import MessageCosts, Network, NodeLoss, Scenario, ServiceTime, Stragglers
from stillhash.errors import InvalidInput

ONE_SECOND = ServiceTime(start=1.0)
FREE = MessageCosts()
QUEUE = Scenario(
    codes=1, shards=1, service=ONE_SECOND, seconds=40_000, warm_up=500, deadline=1e6, in_flight=10**6, most_queries=1
)
PAIR = Scenario(
    codes=100,
    shards=4,
    service=ServiceTime(start=1e-3, compare=1e-5),
    costs=MessageCosts(query=1e-5, send=1e-5, receive=1e-5, merge=1e-5, io=1e-6),
    network=Network(latency=1e-4, sigma=0.3, bandwidth=1e9),
    replicas=2,
    clients=8,
    seconds=8.0,
    deadline=1.0,
)


def single_server(load: float, exponential: bool) -> SimOutcome:
    """Run Poisson arrivals at one server that takes one query at a time, a second each on average."""
    stragglers = Stragglers(exponential=exponential)
    return simulate(replace(QUEUE, rate=load, most_batches=1, stragglers=stragglers))


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_waiting_times_are_those_of_m_m_1_and_m_d_1(load: float) -> None:
    exponential = single_server(load, True)
    assert exponential.latencies().mean() == pytest.approx(1 / (1 - load), rel=0.1)
    assert exponential.quantile(0.99) == pytest.approx(np.log(100) / (1 - load), rel=0.15)
    fixed = single_server(load, False)
    assert fixed.latencies().mean() == pytest.approx(1 + load / (2 * (1 - load)), rel=0.08)
    for outcome in (exponential, fixed):
        assert outcome.utilisation["shard"] == pytest.approx(load, rel=0.05)
        assert outcome.throughput == pytest.approx(load, rel=0.05)


def test_shared_cores_are_insensitive_to_the_distribution_of_work() -> None:
    """With processor sharing, the mean time in an M/G/1 queue is s / (1 - load), whatever the distribution."""
    load, rng = 0.7, np.random.default_rng(3)
    for work in (np.ones(30_000), rng.standard_exponential(30_000)):
        clock, ends = SimClock(), np.zeros(len(work))
        node = SimNode(clock, 1)
        arrivals = np.cumsum(rng.standard_exponential(len(work)) / load)

        def end(number: int, clock: SimClock = clock, ends: np.ndarray = ends) -> None:
            ends[number] = clock.now

        for number, (arrival, seconds) in enumerate(zip(arrivals.tolist(), work.tolist(), strict=True)):
            clock.at(arrival, node.run, seconds, 1, end, number)
        clock.run(1e9)
        assert (ends - arrivals).mean() == pytest.approx(1 / (1 - load), rel=0.1)
        assert node.busy == pytest.approx(work.sum())


def test_threads_share_cores_fairly() -> None:
    clock, ends = SimClock(), dict[str, float]()
    node = SimNode(clock, 2)
    for name, work, threads in (("wide", 4.0, 2), ("a", 1.0, 1), ("b", 1.0, 1)):
        node.run(work, threads, lambda name=name: ends.setdefault(name, clock.now))
    clock.run(100)
    # Four threads on two cores: each gets half a core until a and b end at 2; then the rest, 2 core-seconds, gets both.
    assert ends == {"a": 2.0, "b": 2.0, "wide": 3.0}


def test_a_process_runs_one_task_at_a_time() -> None:
    clock, ends = SimClock(), list[float]()
    process = SimProcess(SimNode(clock, 8))
    for _ in range(3):
        process.submit(1.0, lambda: ends.append(clock.now))
    clock.run(6.0)
    assert ends == [1.0, 2.0, 3.0] and process.utilisation() == 0.5


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_fork_and_join_of_fixed_servers_is_a_sum(shards: int) -> None:
    costs = MessageCosts(
        query=1.0, send=2.0, send_query=0.5, receive=3.0, merge=4.0, merge_source=0.25, shard=5.0, shard_query=6.0
    )
    service = ServiceTime(start=7.0, read=1.0, compare=2.0, per_query=8.0)
    quiet = Scenario(
        codes=30.0 * shards, shards=shards, service=service, costs=costs, network=Network(latency=9.0), seconds=2000.0
    )
    outcome = simulate(replace(quiet, shard_cores=2, node_cores=2, deadline=1e6))
    search = 5 + 6 + 7 + 8 + 30 * (1 + 2) / 2
    # The first reply comes while requests are sent or after; the replies are received one after another.
    first = 1 + 2.5 + 9 + search + 9
    last_sent = 1 + 2.5 * shards
    received = first
    for number in range(shards):
        received = max(received, first + 2.5 * number, last_sent) + 3
    assert outcome.latencies() == pytest.approx(received + 4 + 0.25 * shards)


def test_batches_grow_with_the_load_up_to_their_limits() -> None:
    busy = replace(QUEUE, clients=24, most_queries=100, seconds=2000, warm_up=100)
    for in_flight in (1, 2):  # one group of queries is searched, one waits in the front; with two, one in the shard too
        outcome, groups = simulate(replace(busy, in_flight=in_flight)), in_flight + 1
        assert outcome.batch_queries == pytest.approx(24 / groups, rel=0.05)
        assert outcome.throughput == pytest.approx(24 / groups, rel=0.05)
        assert outcome.quantile(0.5) == pytest.approx(groups, rel=0.05)
    limited = simulate(replace(busy, in_flight=2, most_queries=3, most_batches=1))
    assert limited.throughput == pytest.approx(3, rel=0.05)
    alone = simulate(replace(busy, in_flight=2, most_queries=1, most_batches=1))
    assert alone.throughput == pytest.approx(1, rel=0.05) and alone.batch_queries == 1


def test_a_batch_costs_what_it_should() -> None:
    service = ServiceTime(start=1, read=0.1, compare=0.02, per_query=0.5, memory_bandwidth=25)
    assert service.seconds(100, 3) == pytest.approx(1 + 100 * (0.1 + 3 * 0.02) + 1.5)
    assert service.seconds(100, 3, cores=2) == pytest.approx(1 + 100 * 0.16 / 2 + 1.5)
    assert service.seconds(100, 3, cores=64) == pytest.approx(1 + 100 / 25 + 1.5)  # memory is the limit


@pytest.mark.slow
def test_hedging_reduces_the_tail() -> None:
    slow = replace(PAIR, clients=2, seconds=10.0, stragglers=Stragglers(share=0.002, factor=50))
    plain, hedged = simulate(slow), simulate(replace(slow, hedge=8e-3))
    assert plain.hedged == 0 < hedged.hedged
    assert hedged.quantile(0.995) < plain.quantile(0.995) / 3
    assert hedged.quantile(0.5) < plain.quantile(0.5) * 1.25


def test_a_slow_node_delays_what_has_no_other_replica() -> None:
    slow = Stragglers(slow_nodes=1, slow_factor=10)
    one = replace(PAIR, replicas=1, clients=1, seconds=2.0)
    assert simulate(replace(one, stragglers=slow)).quantile(0.5) > 5 * simulate(one).quantile(0.5)


@pytest.mark.slow
def test_loss_of_a_node_with_two_replicas_keeps_the_throughput() -> None:
    loss = NodeLoss(at=2.0, detection=0.2, restart=3.0, reload_bytes=1e9, reload_bandwidth=1e9)
    assert loss.back == pytest.approx(6.2)
    before = simulate(PAIR)
    outcome = simulate(replace(PAIR, loss=loss))
    assert outcome.partial == 0
    rates = [complete for _, complete, _ in outcome.over_time(1.0)]
    assert min(rates[3:]) > 0.6 * before.throughput and rates[-1] > 0.9 * before.throughput
    assert outcome.quantile(1.0) < 0.3  # those that were on the node wait until its loss is noticed


def test_loss_of_a_node_without_replicas_gives_partial_answers_until_it_is_back() -> None:
    loss = NodeLoss(at=2.0, detection=0.5, restart=2.5)
    outcome = simulate(replace(PAIR, replicas=1, loss=loss, costs=MessageCosts(query=1e-3)))
    for start, complete, partial in outcome.over_time(1.0):
        if 3.0 <= start < 5.0:
            assert complete == 0 < partial
        if start < 2.0 or start >= 6.0:
            assert partial == 0 < complete
    assert {round(answer.missing, 6) for answer in outcome.answers} == {0.0, 0.25}


def test_without_detection_queries_end_at_the_deadline() -> None:
    outcome = simulate(replace(PAIR, replicas=1, loss=NodeLoss(at=2.0, detection=100.0)))
    assert outcome.partial > 0
    assert outcome.latencies().max() == pytest.approx(PAIR.deadline)


def test_a_tree_loses_no_shard_and_spares_the_front() -> None:
    many = replace(PAIR, shards=32, replicas=1, seconds=0.5, clients=16)
    flat, tree = simulate(many), simulate(replace(many, fan_out=8))
    assert flat.partial == tree.partial == 0
    assert tree.utilisation["front"] < flat.utilisation["front"] and "aggregator" in tree.utilisation
    assert tree.throughput > 0.95 * flat.throughput
    lost = simulate(replace(many, fan_out=8, loss=NodeLoss(at=0.2, detection=0.1)))
    assert {round(answer.missing, 6) for answer in lost.answers} == {0.0, round(1 / 32, 6)}


SCENARIOS = st.builds(
    Scenario,
    codes=st.just(1000.0),
    shards=st.integers(1, 9),
    replicas=st.integers(1, 3),
    service=st.builds(ServiceTime, start=st.floats(0, 0.05), compare=st.floats(0, 1e-4)),
    costs=st.builds(MessageCosts, query=st.floats(0.002, 0.01), send=st.floats(0, 0.01), io=st.floats(0, 0.001)),
    network=st.builds(Network, latency=st.floats(0, 0.01), sigma=st.sampled_from([0.0, 0.5])),
    shard_cores=st.integers(1, 3),
    node_cores=st.integers(1, 4),
    shards_per_node=st.integers(1, 3),
    one_node=st.booleans(),
    fronts=st.integers(1, 3),
    fan_out=st.integers(0, 4),
    clients=st.integers(1, 12),
    rate=st.sampled_from([0.0, 0.0, 50.0]),
    seconds=st.just(1.0),
    deadline=st.floats(0.05, 2.0),
    in_flight=st.integers(1, 3),
    most_queries=st.integers(1, 8),
    hedge=st.sampled_from([0.0, 0.02]),
    stragglers=st.builds(Stragglers, share=st.sampled_from([0.0, 0.1]), factor=st.just(10.0)),
    loss=st.none() | st.builds(NodeLoss, at=st.floats(0.1, 0.9), detection=st.floats(0, 0.3), restart=st.floats(0, 1)),
    seed=st.integers(0, 100),
)


@settings(max_examples=60, deadline=None)
@given(scenario=SCENARIOS)
def test_every_query_gets_one_answer_and_no_tier_works_more_than_all_the_time(scenario: Scenario) -> None:
    if scenario.one_node and scenario.loss is not None:
        scenario = replace(scenario, one_node=False)  # or the front would be lost too
    cluster = SimCluster(scenario)
    outcome = cluster.run()
    assert len(outcome.answers) == outcome.submitted > 0
    assert all(0 <= answer.missing <= 1 + 1e-9 for answer in outcome.answers)
    assert all(0 <= value <= 1 + 1e-9 for value in outcome.utilisation.values())
    assert all(a.answered >= a.arrived for a in outcome.answers)
    again = simulate(scenario)
    assert again.answers == outcome.answers and again.utilisation == outcome.utilisation


def test_clients_that_are_answered_in_no_time_are_refused() -> None:
    clock = SimClock()
    clock.most_events = 1000

    def again() -> None:
        clock.after(0.0, again)

    again()
    with pytest.raises(InvalidInput, match="events"):
        clock.run(1.0)


@pytest.mark.parametrize(
    "wrong", [{"shards": 0}, {"replicas": 0}, {"codes": 0}, {"rate": -1.0}, {"clients": 0}, {"warm_up": 9.0}]
)
def test_impossible_scenarios_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        simulate(replace(PAIR, **wrong))  # type: ignore[arg-type]
