"""What all processes of a model share: the clock, random numbers, and messages."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cluster_events import SimClock, SimProcess
from benchmarks.cluster_scenario import Scenario

RANDOM_BLOCK = 4096


class SimWorld:
    """What all processes of a simulation share: the clock, the scenario and its random numbers."""

    def __init__(self, scenario: Scenario) -> None:
        self.clock, self.scenario = SimClock(), scenario
        self.rng = np.random.default_rng(scenario.seed)
        self.blocks: dict[str, list[float]] = {}
        self.batches = self.batch_queries = self.hedged = self.coordinators = 0

    def random(self, kind: str) -> float:
        """Return a number of the generator's distribution `kind`, from a block of them."""
        block = self.blocks.get(kind)
        if not block:
            block = self.blocks[kind] = getattr(self.rng, kind)(size=RANDOM_BLOCK).tolist()
        return block.pop()

    def latency(self) -> float:
        """Return the seconds of one message on its way."""
        network = self.scenario.network
        if not network.sigma:
            return network.latency
        return network.latency * float(np.exp(network.sigma * self.random("standard_normal")))

    def slowness(self) -> float:
        """Return how many times as long as usual the next batch takes."""
        stragglers = self.scenario.stragglers
        slow = stragglers.factor if stragglers.share and self.random("random") < stragglers.share else 1.0
        return slow * self.random("standard_exponential") if stragglers.exponential else slow


def transmit(
    world: SimWorld, sender: SimProcess, receiver: SimProcess, size: int, arrive: Callable[..., None], *args: Any
) -> None:
    """Send a message: through the I/O thread of one process, the network, and the I/O thread of the other."""
    work = world.scenario.costs.io + size / world.scenario.network.bandwidth
    sender.submit(work, _travel, world, receiver, work, arrive, args)


def _travel(
    world: SimWorld, receiver: SimProcess, work: float, arrive: Callable[..., None], args: tuple[Any, ...]
) -> None:
    world.clock.after(world.latency(), receiver.submit, work, arrive, *args)
