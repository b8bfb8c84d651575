"""What the model of a cluster takes: measured costs, the network, the layout, the load and the faults."""

from dataclasses import dataclass

from stillhash.errors import InvalidInput


@dataclass(frozen=True)
class ServiceTime:
    """Seconds that a shard needs for a batch: start + codes / cores * (read + q * compare) + q * per_query."""

    start: float = 0.0
    read: float = 0.0  # a code, once for a batch
    compare: float = 0.0  # a code, for each query
    per_query: float = 0.0
    memory_bandwidth: float = float("inf")  # codes a second that the shard's node reads for it, whatever its cores

    def serial(self, queries: int) -> float:
        """Return the core-seconds of one thread."""
        return self.start + queries * self.per_query

    def scan(self, codes: float, queries: int, cores: int) -> float:
        """Return the core-seconds of all threads that scan, those that wait for memory included."""
        return codes * max(self.read + queries * self.compare, cores / self.memory_bandwidth)

    def seconds(self, codes: float, queries: int, cores: int = 1) -> float:
        """Return the time on idle cores."""
        return self.serial(queries) + self.scan(codes, queries, cores) / cores


@dataclass(frozen=True)
class MessageCosts:
    """Core-seconds of a coordinator (front or aggregator) and of a shard, outside the search."""

    query: float = 0.0  # accept a query, and wake its caller
    send: float = 0.0  # a batch to one shard
    send_query: float = 0.0  # each query in it
    receive: float = 0.0  # a reply
    receive_query: float = 0.0  # each query in it
    merge: float = 0.0  # a query
    merge_source: float = 0.0  # a query, for each shard
    shard: float = 0.0  # receive a batch in the shard and send its reply
    shard_query: float = 0.0
    io: float = 0.0  # a message in the I/O thread, at each end
    request_bytes: int = 256  # a query: 64 weights
    reply_bytes: int = 120  # a query: 10 hits


@dataclass(frozen=True)
class Network:
    """One-way latency between processes, log-normal, and the bandwidth of a node."""

    latency: float = 0.0  # median seconds
    sigma: float = 0.0  # standard deviation of its logarithm
    bandwidth: float = float("inf")  # bytes a second


@dataclass(frozen=True)
class Stragglers:
    """What makes some searches slow: a share of all batches, or some nodes."""

    share: float = 0.0  # of the batches
    factor: float = 1.0  # how many times as long they take
    slow_nodes: int = 0
    slow_factor: float = 1.0
    exponential: bool = False  # service times are exponential with the same mean


@dataclass(frozen=True)
class NodeLoss:
    """Loss of one node of shards: it is noticed after `detection`, and replaced after restart and reload."""

    at: float
    detection: float = 3.0
    restart: float = 30.0
    reload_bytes: float = 0.0
    reload_bandwidth: float = 1e9

    @property
    def back(self) -> float:
        return self.at + self.detection + self.restart + self.reload_bytes / self.reload_bandwidth


@dataclass(frozen=True)
class Scenario:
    """A cluster, its load and its faults."""

    codes: float
    shards: int
    service: ServiceTime
    costs: MessageCosts = MessageCosts()
    network: Network = Network()
    replicas: int = 1
    shard_cores: int = 1  # threads of a shard's scan
    node_cores: float = 1
    shards_per_node: int = 1
    one_node: bool = False  # everything, fronts included, on one node of node_cores
    background: float = 0.0  # threads of other programs on that one node
    fronts: int = 1
    fan_out: int = 0  # shards of an aggregator; 0: none, fronts talk to shards
    clients: int = 1  # closed loop; ignored with a rate
    rate: float = 0.0  # queries a second, Poisson
    seconds: float = 1.0
    warm_up: float = 0.0  # seconds that are not counted
    deadline: float = 10.0
    in_flight: int = 2  # batches to a replica
    most_queries: int = 1024  # of a batch that is sent
    most_batches: int = 1024  # that a shard searches together
    hedge: float = 0.0  # seconds until a batch goes to another replica too; 0: never
    stragglers: Stragglers = Stragglers()
    loss: NodeLoss | None = None
    seed: int = 0


def validate_scenario(scenario: Scenario) -> Scenario:
    """Refuse what cannot be simulated."""
    whole = (
        "shards",
        "replicas",
        "shard_cores",
        "shards_per_node",
        "fronts",
        "in_flight",
        "most_queries",
        "most_batches",
    )
    for name in whole:
        if getattr(scenario, name) < 1:
            raise InvalidInput(f"{name}: expected at least 1, got {getattr(scenario, name)}")
    for name in ("codes", "seconds", "deadline", "node_cores"):
        if not getattr(scenario, name) > 0:
            raise InvalidInput(f"{name}: expected more than 0, got {getattr(scenario, name)}")
    for name in ("fan_out", "clients", "rate", "hedge", "warm_up"):
        if getattr(scenario, name) < 0:
            raise InvalidInput(f"{name}: expected at least 0, got {getattr(scenario, name)}")
    if not scenario.rate and not scenario.clients:
        raise InvalidInput("clients: expected at least 1 without a rate, got 0")
    if scenario.warm_up >= scenario.seconds:
        raise InvalidInput(f"warm_up: expected less than {scenario.seconds} seconds, got {scenario.warm_up}")
    return scenario
