"""Lay out billions of codes on machines, and simulate them: latency, throughput, faults and price.

Assumed, not measured: the network between nodes, the memory bandwidth of a core when all cores of a machine read, and
the prices. Everything else comes from `cluster_probe`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.cluster_model import SimOutcome, simulate
from benchmarks.cluster_scenario import MessageCosts, Network, NodeLoss, Scenario, ServiceTime, Stragglers
from benchmarks.timing import CODE_BITS, Figures
from stillhash.errors import InvalidInput
from stillhash.experiments.tables import ReportProgress

CODE_BYTES, DISK_ITEM_BYTES = CODE_BITS // 8, 150  # in memory, and on disk beside the codes
SHARD_CODES, SHARD_CORES = 50_000_000, 4
MEMORY_SHARE = 0.7  # of a machine's, for codes, where they are packed as densely as possible
CORE_BYTES_PER_SECOND = 4.8e9  # 12 channels of DDR5-4800 are 460.8 GB/s for the 96 cores of a socket
NETWORK = Network(latency=50e-6, sigma=0.5, bandwidth=1.25e9)  # 10 Gbit/s
FAN_OUT = 16
MOST_QUERIES = 32  # of a batch: without a limit, one replica gets all queries that wait, and the other none
HOURS_PER_MONTH = 730
DISK_PRICE = 0.08  # US dollars a month for a gigabyte of network SSD
STRAGGLERS = Stragglers(share=0.001, factor=10)
HEDGE_AFTER = 3.0  # times the median latency
LOSS_AT, LOSS_DETECTION, LOSS_RESTART, RELOAD_BANDWIDTH = 10.0, 3.0, 20.0, 0.5e9
SWEPT_SHARDS = (25, 50, 100, 200, 400, 800)


@dataclass(frozen=True)
class Machine:
    """A machine to rent."""

    name: str
    cores: int
    memory: float  # GiB
    price: float  # US dollars an hour


# Amazon EC2, us-east-1, Linux, on demand, as public price tables had them in October 2026; a vCPU is a core of an EPYC.
MACHINES = (
    Machine("c7a.2xlarge", 8, 16, 0.41056),
    Machine("c7a.4xlarge", 16, 32, 0.82112),
    Machine("c7a.8xlarge", 32, 64, 1.64224),
)


def parse_price(text: str) -> Machine:
    """Read a machine from NAME:CORES:GIB:DOLLARS."""
    name, *numbers = text.split(":")
    try:
        cores, memory, price = int(numbers[0]), float(numbers[1]), float(numbers[2])
    except (ValueError, IndexError):
        raise InvalidInput(f"price: expected NAME:CORES:GIB:DOLLARS_AN_HOUR, got {text!r}") from None
    if len(numbers) != 3 or cores < 1 or not memory > 0 or not 0 <= price < float("inf"):
        raise InvalidInput(f"price: expected NAME:CORES:GIB:DOLLARS_AN_HOUR with positive numbers, got {text!r}")
    return Machine(name, cores, memory, price)


def make_layout(codes: float, service: ServiceTime, costs: MessageCosts, shards: int = 0) -> Scenario:
    """Return shards of so many cores each on machines of 16 cores, flat, without replicas, for one client."""
    bandwidth = SHARD_CORES * CORE_BYTES_PER_SECOND / CODE_BYTES
    return Scenario(
        codes=codes,
        shards=shards or max(1, round(codes / SHARD_CODES)),
        service=replace(service, memory_bandwidth=bandwidth),
        costs=costs,
        network=NETWORK,
        shard_cores=SHARD_CORES,
        node_cores=4 * SHARD_CORES,
        shards_per_node=4,
        deadline=10.0,
        most_queries=MOST_QUERIES,
    )


def summarise(outcome: SimOutcome) -> Figures:
    """Return the figures of an outcome that tables print."""
    quantiles = {name: 1e3 * outcome.quantile(at) for name, at in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))}
    rates = {"rate": outcome.throughput, "partial": outcome.partial, "batch": outcome.batch_queries}
    return {**quantiles, **rates, "hedged": outcome.hedged / max(1, outcome.searches), **outcome.utilisation}


def compare_topologies(layout: Scenario, clients: int, seconds: float, progress: ReportProgress) -> list[Figures]:
    """Simulate flat and tree, one and two replicas: one client alone, and many at once."""
    rows = []
    for fan_out in (0, FAN_OUT):
        for replicas in (1, 2):
            progress(f"{layout.codes:.0e} codes, fan-out {fan_out or layout.shards}, {replicas} replicas")
            scenario = replace(layout, fan_out=fan_out, replicas=replicas)
            alone = simulate(replace(scenario, clients=1, seconds=seconds))
            busy = simulate(replace(scenario, clients=clients, seconds=seconds, warm_up=seconds / 4))
            about = {"codes": layout.codes, "shards": layout.shards, "topology": "tree" if fan_out else "flat"}
            rows.append({**about, "replicas": replicas, "alone": summarise(alone), "busy": summarise(busy)})
    return rows


def compare_batch_limits(layout: Scenario, clients: int, seconds: float, progress: ReportProgress) -> list[Figures]:
    """Simulate the throughput of two replicas against the largest batch."""
    rows = []
    for most in (8, 16, 32, 64, 1024):
        progress(f"{layout.codes:.0e} codes, batches of up to {most}")
        busy = replace(layout, replicas=2, most_queries=most, clients=clients, seconds=seconds, warm_up=seconds / 4)
        rows.append({"codes": layout.codes, "clients": clients, "most_queries": most, **summarise(simulate(busy))})
    return rows


def compare_stragglers(layout: Scenario, rate: float, seconds: float, progress: ReportProgress) -> list[Figures]:
    """Simulate slow batches and a slow node at a moderate load, with one replica, two, and hedged requests."""
    rows = []
    tree = replace(layout, fan_out=FAN_OUT, rate=rate, seconds=seconds, warm_up=seconds / 10)
    calm = simulate(tree)
    hedge = HEDGE_AFTER * calm.quantile(0.5)
    kinds = {"none": Stragglers(), "slow batches": STRAGGLERS, "a slow node": Stragglers(slow_nodes=1, slow_factor=4)}
    for name, stragglers in kinds.items():
        for replicas, wait in ((1, 0.0), (2, 0.0), (2, hedge)):
            progress(f"{layout.codes:.0e} codes, stragglers: {name}, {replicas} replicas")
            outcome = simulate(replace(tree, stragglers=stragglers, replicas=replicas, hedge=wait))
            about = {"codes": layout.codes, "stragglers": name, "replicas": replicas, "hedge_ms": 1e3 * wait}
            rows.append({**about, "load": rate, **summarise(outcome)})
    return rows


def lose_node(layout: Scenario, rate: float, seconds: float, progress: ReportProgress) -> list[Figures]:
    """Simulate the loss of a node with four shards, with one replica, two, and hedged requests."""
    loss = NodeLoss(
        at=LOSS_AT,
        detection=LOSS_DETECTION,
        restart=LOSS_RESTART,
        reload_bytes=layout.shards_per_node * layout.codes / layout.shards * CODE_BYTES,
        reload_bandwidth=RELOAD_BANDWIDTH,
    )
    rows = []
    for replicas, hedge in ((1, 0.0), (2, 0.0), (2, 0.5)):
        progress(f"{layout.codes:.0e} codes, a node is lost, {replicas} replicas")
        load = replace(layout, fan_out=FAN_OUT, replicas=replicas, rate=rate, seconds=seconds, loss=loss, hedge=hedge)
        outcome = simulate(load)
        about = {"codes": layout.codes, "replicas": replicas, "hedge_ms": 1e3 * hedge, "load": rate, "back": loss.back}
        worst = 1e3 * float(outcome.latencies().max())
        rows.append({**about, **summarise(outcome), "worst": worst, "over_time": outcome.over_time(1.0)})
    return rows


def sweep_shards(layout: Scenario, shards: Sequence[int], queries: int, progress: ReportProgress) -> list[Figures]:
    """Simulate one client against the number of shards, flat and with aggregators."""
    rows = []
    for count in shards:
        for fan_out in (0, FAN_OUT):
            progress(f"{count} shards, fan-out {fan_out or count}")
            scenario = replace(layout, shards=count, fan_out=fan_out, clients=1)
            one = scenario.service.seconds(scenario.codes / count, 1, scenario.shard_cores)
            hops = 1e-4 * (fan_out or count)  # about what messages add, for the length of the simulation
            outcome = simulate(replace(scenario, seconds=queries * (one + hops)))
            rows.append({"shards": count, "topology": "tree" if fan_out else "flat", **summarise(outcome)})
    return rows


def price_layouts(codes: float, service: ServiceTime, machines: Sequence[Machine]) -> list[Figures]:
    """Return machines, scan and price: as laid out above, and with memory as full of codes as it gets."""
    rows, least = [], CODE_BYTES / CORE_BYTES_PER_SECOND  # seconds of a core to read a code while all cores read
    for machine in machines:
        dense = MEMORY_SHARE * machine.memory * 2**30 / CODE_BYTES / machine.cores
        for layout, codes_per_core in (("fast", SHARD_CODES / SHARD_CORES), ("dense", dense)):
            nodes = int(-(-codes // (codes_per_core * machine.cores)))
            cores, month = nodes * machine.cores, nodes * machine.price * HOURS_PER_MONTH
            scan = codes / cores * max(service.read + service.compare, least)
            batch = codes / cores * max(service.read + MOST_QUERIES * service.compare, least)
            about: Figures = {"codes": codes, "machine": machine.name, "layout": layout, "nodes": nodes, "cores": cores}
            prices = {"month": month, "two_replicas": 2 * month, "disk": DISK_PRICE * disk_gigabytes(codes)}
            rows.append({**about, "scan_ms": 1e3 * scan, "rate_bound": MOST_QUERIES / batch, **prices})
    return rows


def disk_gigabytes(codes: float) -> float:
    """Return what one copy of codes and items takes on disk."""
    return codes * (CODE_BYTES + DISK_ITEM_BYTES) / 1e9
