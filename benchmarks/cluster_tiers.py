"""The tiers of the model: shards that search batches, and coordinators (fronts, aggregators) that fan out and merge."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from benchmarks.cluster_events import SimNode, SimProcess
from benchmarks.cluster_world import SimWorld, transmit


class SimServer(Protocol):
    """What a link leads to: a replica of a shard, or of an aggregator with its shards."""

    node: SimNode
    io: SimProcess

    def receive(self, batch: "SimBatch") -> None: ...


class SimRequest:
    """A query of a client, or the batch of a front, at one coordinator."""

    __slots__ = ("answer", "arrived", "left", "missing", "open", "queries")

    def __init__(self, queries: int, arrived: float, targets: int, answer: Callable[[float], None]) -> None:
        self.queries, self.arrived, self.answer = queries, arrived, answer
        self.left = set(range(targets))
        self.missing = 0.0
        self.open = True


class SimBatch:
    """Requests that travel to one replica together; `missing` is filled in by an aggregator."""

    __slots__ = ("answered", "link", "missing", "queries", "requests", "sender", "target")

    def __init__(
        self, sender: "SimCoordinator", target: "SimTarget", link: "SimLink", requests: list[SimRequest]
    ) -> None:
        self.sender, self.target, self.link, self.requests = sender, target, link, requests
        self.queries = sum(request.queries for request in requests)
        self.answered = False
        self.missing = 0.0


class SimLink:
    """A coordinator's view of one replica."""

    def __init__(self, server: SimServer) -> None:
        self.server = server
        self.alive = True
        self.batches: list[SimBatch] = []


class SimTarget:
    """A coordinator's queue for one shard, or one aggregator, and the replicas of it."""

    def __init__(self, number: int, servers: list[SimServer], turn: int) -> None:
        self.number, self.turn = number, turn % len(servers)
        self.links = [SimLink(server) for server in servers]
        self.waiting: deque[SimRequest] = deque()
        self.sending = False

    def free_link(self, in_flight: int, other_than: SimLink | None = None) -> SimLink | None:
        """Return the live replica with the fewest batches, if one has space for another; ties take turns."""
        turns = self.links[self.turn :] + self.links[: self.turn]
        free = [each for each in turns if each.alive and each is not other_than and len(each.batches) < in_flight]
        return min(free, key=lambda link: len(link.batches), default=None)


class SimShard:
    """A process that searches all requests that wait as one batch."""

    def __init__(self, world: SimWorld, node: SimNode, codes: float) -> None:
        self.world, self.node, self.codes = world, node, codes
        self.io = SimProcess(node)
        self.waiting: list[SimBatch] = []
        self.searching = False
        self.started = self.occupied = 0.0

    def receive(self, batch: SimBatch) -> None:
        self.waiting.append(batch)
        if not self.searching:
            self._start()

    def lose(self) -> None:
        """Forget everything, as the node was lost."""
        if self.searching:
            self.occupied += self.world.clock.now - self.started
        self.waiting, self.searching = [], False
        self.io.lose()

    def utilisation(self) -> float:
        now = self.world.clock.now
        return (self.occupied + (now - self.started if self.searching else 0.0)) / now if now else 0.0

    def _start(self) -> None:
        scenario, costs = self.world.scenario, self.world.scenario.costs
        take = max(1, scenario.most_batches)
        batches, self.waiting = self.waiting[:take], self.waiting[take:]
        queries = sum(batch.queries for batch in batches)
        self.searching, self.started = True, self.world.clock.now
        self.world.batches += 1
        self.world.batch_queries += queries
        slow = self.world.slowness()
        serial = len(batches) * costs.shard + queries * costs.shard_query + scenario.service.serial(queries)
        scan = scenario.service.scan(self.codes, queries, scenario.shard_cores)
        self.node.run(slow * serial, 1, self.node.run, slow * scan, scenario.shard_cores, self._end, batches)

    def _end(self, batches: list[SimBatch]) -> None:
        self.searching = False
        self.occupied += self.world.clock.now - self.started
        if self.waiting:
            self._start()
        size = self.world.scenario.costs.reply_bytes
        for batch in batches:
            transmit(self.world, self.io, batch.sender.io, batch.queries * size, batch.sender.reply_arrived, batch)


class SimCoordinator:
    """A front or an aggregator: queue queries for each target, send batches, merge replies, give up at the deadline."""

    def __init__(self, world: SimWorld, node: SimNode, targets: list[list[Any]], deadline: float) -> None:
        self.world, self.node, self.deadline = world, node, deadline
        self.io, self.process = SimProcess(node), SimProcess(node)
        world.coordinators += 1  # each begins with another replica
        self.targets = [SimTarget(number, servers, world.coordinators) for number, servers in enumerate(targets)]

    def utilisation(self) -> float:
        return self.process.utilisation()

    def search(self, queries: int, answer: Callable[[float], None], work: float) -> None:
        """Accept queries; `answer` gets the share of the targets that are missing, once."""
        request = SimRequest(queries, self.world.clock.now, len(self.targets), answer)
        self.process.submit(work, self._enqueue, request)
        self.world.clock.after(self.deadline, self._expire, request)

    def receive(self, batch: SimBatch) -> None:
        """Accept a batch of a front, as an aggregator."""
        costs = self.world.scenario.costs
        self.search(batch.queries, partial(self._reply, batch), costs.receive + batch.queries * costs.receive_query)

    def _reply(self, batch: SimBatch, missing: float) -> None:
        costs, batch.missing = self.world.scenario.costs, missing
        work = costs.send + batch.queries * costs.send_query
        self.process.submit(work, self._send_reply, batch)

    def _send_reply(self, batch: SimBatch) -> None:
        size = batch.queries * self.world.scenario.costs.reply_bytes
        transmit(self.world, self.io, batch.sender.io, size, batch.sender.reply_arrived, batch)

    def _enqueue(self, request: SimRequest) -> None:
        for target in self.targets:
            if request.open:
                target.waiting.append(request)
                self._offer(target)

    def _offer(self, target: SimTarget) -> None:
        """Let the process send what waits, if a replica has space; without a live one, it is missing."""
        if not any(link.alive for link in target.links):
            while target.waiting:
                self._close_target(target.waiting.popleft(), target.number, 1.0)
        elif target.waiting and not target.sending and target.free_link(self.world.scenario.in_flight):
            target.sending = True
            requests: list[SimRequest] = []
            self.process.submit(partial(self._compose, target, requests), self._send_waiting, target, requests)

    def _compose(self, target: SimTarget, requests: list[SimRequest]) -> float:
        """Take all queries that wait when the process gets to it; return the work of sending them."""
        costs, queries = self.world.scenario.costs, 0
        while target.waiting and queries < self.world.scenario.most_queries:
            request = target.waiting.popleft()
            if request.open and target.number in request.left:
                requests.append(request)
                queries += request.queries
        return costs.send + queries * costs.send_query if requests else 0.0

    def _send_waiting(self, target: SimTarget, requests: list[SimRequest]) -> None:
        target.sending = False
        if requests:
            link = target.free_link(self.world.scenario.in_flight)
            if link is None:
                target.waiting.extendleft(reversed(requests))
            else:
                self._send(SimBatch(self, target, link, requests))
        self._offer(target)

    def _send(self, batch: SimBatch) -> None:
        if batch not in batch.link.batches:  # a hedged one is there already
            batch.link.batches.append(batch)
        batch.target.turn = (batch.target.turn + 1) % len(batch.target.links)
        size = batch.queries * self.world.scenario.costs.request_bytes
        transmit(self.world, self.io, batch.link.server.io, size, batch.link.server.receive, batch)
        if self.world.scenario.hedge:
            self.world.clock.after(self.world.scenario.hedge, self._hedge, batch)

    def _hedge(self, batch: SimBatch) -> None:
        """Send what has not been answered to another replica too."""
        requests = [each for each in batch.requests if each.open and batch.target.number in each.left]
        link = batch.target.free_link(self.world.scenario.in_flight, other_than=batch.link)
        if batch.answered or not requests or link is None:
            return
        self.world.hedged += 1
        costs, other = self.world.scenario.costs, SimBatch(self, batch.target, link, requests)
        link.batches.append(other)
        self.process.submit(costs.send + other.queries * costs.send_query, self._send, other)

    def reply_arrived(self, batch: SimBatch) -> None:
        """Receive a reply; `batch.missing` is what an aggregator did not get."""
        costs = self.world.scenario.costs
        self.process.submit(costs.receive + batch.queries * costs.receive_query, self._received, batch)

    def _received(self, batch: SimBatch) -> None:
        batch.answered = True
        if batch in batch.link.batches:
            batch.link.batches.remove(batch)
        for request in batch.requests:
            self._close_target(request, batch.target.number, batch.missing)
        self._offer(batch.target)

    def _close_target(self, request: SimRequest, number: int, missing: float) -> None:
        if request.open and number in request.left:
            request.left.remove(number)
            request.missing += missing / len(self.targets)
            if not request.left:
                request.open = False
                costs = self.world.scenario.costs
                work = request.queries * (costs.merge + len(self.targets) * costs.merge_source)
                self.process.submit(work, request.answer, request.missing)

    def _expire(self, request: SimRequest) -> None:
        if request.open:
            request.open = False
            request.answer(request.missing + len(request.left) / len(self.targets))

    def replica_lost(self, node: SimNode) -> None:
        """Notice a lost node: send what its replicas had not answered to others."""
        for target in self.targets:
            for link in target.links:
                if link.server.node is node:
                    link.alive = False
                    requests = [each for batch in link.batches for each in batch.requests]
                    target.waiting.extendleft(sorted(requests, key=lambda each: -each.arrived))
                    link.batches.clear()
            self._offer(target)

    def replica_back(self, node: SimNode) -> None:
        """Use the replicas of a node again."""
        for target in self.targets:
            for link in target.links:
                link.alive = link.alive or link.server.node is node
            self._offer(target)
