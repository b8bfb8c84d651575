"""A model of the search cluster: clients, fronts, aggregators and shards, as a discrete-event simulation.

    clients -> fronts -> [aggregators] -> shard replicas

A front, and an aggregator likewise, queues queries for each shard and sends all that wait as one batch, with at most
two batches under way to a replica; replies are merged for each query. A shard searches all requests that wait as one
batch. Sending and receiving also cost time in the I/O thread of a process, which the network card's bytes pass too.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cluster_events import SimNode
from benchmarks.cluster_scenario import Scenario, validate_scenario
from benchmarks.cluster_tiers import SimCoordinator, SimShard
from benchmarks.cluster_world import SimWorld
from stillhash.numeric.validation import Doubles

AGGREGATOR_DEADLINE = 0.8  # of the front's, so that its partial answer arrives in time


class SimAnswer(NamedTuple):
    """One answered query."""

    arrived: float
    answered: float
    missing: float  # share of the shards


@dataclass
class SimOutcome:
    """What came of a scenario."""

    scenario: Scenario
    answers: list[SimAnswer]
    submitted: int
    searches: int  # batches that shards searched
    batch_queries: float  # mean queries of one
    hedged: int  # batches that were sent twice
    utilisation: dict[str, float]  # mean of the processes of each tier, and of the cores of all nodes

    def counted(self) -> list[SimAnswer]:
        """Return the answers between the warm-up and the end of the load."""
        first, last = self.scenario.warm_up, self.scenario.seconds
        return [answer for answer in self.answers if first <= answer.answered <= last]

    def latencies(self) -> Doubles:
        """Return seconds of each counted query."""
        return np.array([answer.answered - answer.arrived for answer in self.counted()])

    def quantile(self, at: float) -> float:
        """Return a quantile of the latencies."""
        latencies = self.latencies()
        return float(np.quantile(latencies, at)) if len(latencies) else float("nan")

    @property
    def throughput(self) -> float:
        """Return complete answers a second."""
        complete = sum(answer.missing == 0 for answer in self.counted())
        return complete / (self.scenario.seconds - self.scenario.warm_up)

    @property
    def partial(self) -> float:
        """Return the share of answers that lack a shard, those that lack all included."""
        counted = self.counted()
        return sum(answer.missing > 0 for answer in counted) / max(1, len(counted))

    def over_time(self, step: float) -> list[tuple[float, float, float]]:
        """Return for each step of time: its start, complete answers a second, and partial ones."""
        steps = max(1, round(self.scenario.seconds / step))
        counts = np.zeros((steps, 2))
        for answer in self.counted():
            counts[min(steps - 1, int(answer.answered / step)), int(answer.missing > 0)] += 1
        return [(place * step, whole / step, short / step) for place, (whole, short) in enumerate(counts.tolist())]


def simulate(scenario: Scenario) -> SimOutcome:
    """Run a scenario."""
    return SimCluster(validate_scenario(scenario)).run()


class SimCluster:
    """The nodes and processes of a scenario, and its clients."""

    def __init__(self, scenario: Scenario) -> None:
        self.world, self.scenario = SimWorld(scenario), scenario
        self.answers: list[SimAnswer] = []
        self.submitted = 0
        whole = SimNode(self.world.clock, scenario.node_cores, background=scenario.background)
        self.shared = whole if scenario.one_node else None
        self.shard_nodes: list[SimNode] = []
        self.shards = [self._replica(number) for number in range(scenario.shards * scenario.replicas)]
        self.aggregators = self._aggregators()
        replicas = self._replica_sets(self.aggregators or self.shards)
        self.fronts = [self._coordinator(replicas, scenario.deadline) for _ in range(scenario.fronts)]

    def _replica(self, number: int) -> SimShard:
        """Place replica after replica on nodes: all first ones, then, on other nodes, all second ones."""
        scenario = self.scenario
        row, shard = divmod(number, scenario.shards)
        place = row * -(-scenario.shards // scenario.shards_per_node) + shard // scenario.shards_per_node
        if place == len(self.shard_nodes):
            slow = place < scenario.stragglers.slow_nodes
            speed = 1 / scenario.stragglers.slow_factor if slow else 1.0
            self.shard_nodes.append(self.shared or SimNode(self.world.clock, scenario.node_cores, speed))
        return SimShard(self.world, self.shard_nodes[place], scenario.codes / scenario.shards)

    def _replica_sets(self, servers: list[Any]) -> list[list[Any]]:
        count = len(servers) // self.scenario.replicas
        return [servers[number::count] for number in range(count)]

    def _aggregators(self) -> list[SimCoordinator]:
        fan_out = self.scenario.fan_out
        if not fan_out:
            return []
        sets = self._replica_sets(self.shards)
        groups = [sets[first : first + fan_out] for first in range(0, len(sets), fan_out)]
        deadline = AGGREGATOR_DEADLINE * self.scenario.deadline
        return [self._coordinator(group, deadline) for _ in range(self.scenario.replicas) for group in groups]

    def _coordinator(self, targets: list[list[Any]], deadline: float) -> SimCoordinator:
        node = self.shared or SimNode(self.world.clock, 2)  # a core for Python, and one for the I/O thread
        return SimCoordinator(self.world, node, targets, deadline)

    def run(self) -> SimOutcome:
        """Run the clients for the seconds of the scenario, then wait for the last answers."""
        scenario, clock = self.scenario, self.world.clock
        if scenario.rate:
            clock.after(self.world.random("standard_exponential") / scenario.rate, self._arrive)
        else:
            for client in range(scenario.clients):
                clock.at(0.0, self._submit, client)
        if scenario.loss is not None:
            self._plan_loss()
        clock.run(scenario.seconds)
        utilisation = self._utilisation()
        while clock.events and len(self.answers) < self.submitted:
            clock.run(clock.now + scenario.deadline)
        assert len(self.answers) == self.submitted, "every query is answered once"
        world = self.world
        mean = world.batch_queries / max(1, world.batches)
        return SimOutcome(scenario, self.answers, self.submitted, world.batches, mean, world.hedged, utilisation)

    def _arrive(self) -> None:
        if self.world.clock.now < self.scenario.seconds:
            self._submit(self.submitted)
            self.world.clock.after(self.world.random("standard_exponential") / self.scenario.rate, self._arrive)

    def _submit(self, client: int) -> None:
        self.submitted += 1
        front = self.fronts[client % len(self.fronts)]
        front.search(1, partial(self._answer, client, self.world.clock.now), self.scenario.costs.query)

    def _answer(self, client: int, arrived: float, missing: float) -> None:
        now = self.world.clock.now
        self.answers.append(SimAnswer(arrived, now, missing))
        if not self.scenario.rate and now < self.scenario.seconds:
            self._submit(client)

    def _plan_loss(self) -> None:
        loss, node = self.scenario.loss, self.shard_nodes[0]
        assert loss is not None
        self.world.clock.at(loss.at, self._lose, node)
        for coordinator in (*self.fronts, *self.aggregators):
            self.world.clock.at(loss.at + loss.detection, coordinator.replica_lost, node)
            self.world.clock.at(loss.back, coordinator.replica_back, node)
        self.world.clock.at(loss.back, node.restart)

    def _lose(self, node: SimNode) -> None:
        node.lose()
        for shard in self.shards:
            if shard.node is node:
                shard.lose()

    def _utilisation(self) -> dict[str, float]:
        tiers: dict[str, list[Any]] = {"front": [*self.fronts], "aggregator": [*self.aggregators], "shard": self.shards}
        means = {name: float(np.mean([each.utilisation() for each in tier])) for name, tier in tiers.items() if tier}
        cores = float(np.mean([node.utilisation() for node in self.shard_nodes]))
        return {**means, "io": float(np.mean([front.io.utilisation() for front in self.fronts])), "cores": cores}
