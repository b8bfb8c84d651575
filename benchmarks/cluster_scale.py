"""How large a cluster can get: measure costs here, validate the model against real processes, and extrapolate.

Measured: the scan, messages of a `ClusterIndex` and its shards, merging, and small real clusters on this machine.
Modelled: everything about more than one machine. The error of the model on this machine is printed with it.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape

from benchmarks import cluster_layouts as layouts
from benchmarks.cluster_layouts import MACHINES, Machine, make_layout, parse_price
from benchmarks.cluster_plots import draw_scale
from benchmarks.cluster_probe import (
    fit_error,
    fit_service,
    measure_costs_of_messages,
    measure_poll,
    measure_scan,
)
from benchmarks.cluster_scenario import MessageCosts, Network, Scenario, ServiceTime
from benchmarks.cluster_validation import closed_loop, validate
from benchmarks.miwq import check_plot
from benchmarks.timing import Figures, Sections
from stillhash.cluster.connections import MAX_IN_FLIGHT
from stillhash.cluster.dispatcher import MAX_MESSAGE_QUERIES
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.threads import usable_cores

VALIDATED_SHARDS, VALIDATED_CLIENTS = (1, 2, 4, 8), (1, 8, 64)
POLLED_SOCKETS = (1, 16, 64, 256)
MODELLED_TABLES = {
    "topologies": (
        "Modelled: one client alone, and many at once",
        """codes: {codes:.0e} | shards: {shards} | : {topology} | replicas: {replicas} | alone ms: {alone[p50]:.1f} |
        p99: {alone[p99]:.1f} | queries/s: {busy[rate]:.0f} | p50 ms: {busy[p50]:.0f} | front: {busy[front]:.0%} |
        shard: {busy[shard]:.0%}""",
    ),
    "limits": (
        "Modelled: the largest batch, with two replicas",
        """codes: {codes:.0e} | clients: {clients} | largest batch: {most_queries} | queries/s: {rate:.0f} |
        p50 ms: {p50:.0f} | shard: {shard:.0%}""",
    ),
    "stragglers": (
        "Modelled: stragglers, Poisson arrivals, a tree",
        """codes: {codes:.0e} | : {stragglers} | replicas: {replicas} | hedge ms: {hedge_ms:.0f} |
        queries/s: {load:.0f} | p50 ms: {p50:.1f} | p99: {p99:.1f} | p99.9: {p999:.1f} | hedged: {hedged:.2%}""",
    ),
    "loss": (
        "Modelled: a node is lost, Poisson arrivals, a tree",
        """codes: {codes:.0e} | replicas: {replicas} | hedge ms: {hedge_ms:.0f} | queries/s: {load:.0f} |
        back at s: {back:.1f} | partial: {partial:.1%} | p50 ms: {p50:.1f} | p99.9: {p999:.0f} | worst: {worst:.0f}""",
    ),
    "sweep": (
        "Modelled: one client against the number of shards",
        "shards: {shards} | : {topology} | p50 ms: {p50:.1f} | p99: {p99:.1f} | front: {front:.0%}",
    ),
    "prices": (
        "Computed: machines and US dollars a month",
        """codes: {codes:.0e} | : {machine} | : {layout} | nodes: {nodes} | scan ms: {scan_ms:.0f} |
        queries/s: {rate_bound:.0f} | month: {month:,.0f} | two replicas: {two_replicas:,.0f} | disk: {disk:,.0f}""",
    ),
}


def run(
    repeats: int, quick: bool, progress: ReportProgress, price: Sequence[str] = (), plot: Path | None = None
) -> Figures:
    """Measure, validate, extrapolate, and draw the plot."""
    check_plot(plot)
    machines = [parse_price(text) for text in price] or list(MACHINES)
    measured, service, large, costs, latency = measure(repeats, quick, progress)
    shards, clients = validated(quick)
    codes, seconds = (20_000, 0.2) if quick else (2_000_000, 1.0)
    scenario = here(codes, service, costs, latency)
    progress("starting shard processes")
    with closed_loop(shards, codes, seconds) as real:
        different = real.different_answers(codes, 2 if quick else 50)
        rows = validate(real.measure, scenario, shards, clients, 1 if quick else repeats, progress)
    errors = error_summary(rows)
    extrapolated = extrapolate(large, costs, machines, quick, progress)
    if plot is not None:
        draw_scale(extrapolated["sweep"], extrapolated["loss"], plot)
    goals = [
        ("answers of the real processes that differ from one index", "<= 0", different),
        ("largest relative error of the fitted scan", "<= 0.25", measured["fit_error"]),
        ("model of p50, median relative error", "<= 0.3", errors["p50"]),
        ("model of throughput, median relative error", "<= 0.3", errors["rate"]),
    ]
    validation = {"codes": codes, "rows": rows, "errors": errors}
    return {"measured": measured, "validation": validation, **extrapolated, "plot": str(plot or ""), "goals": goals}


def measure(
    repeats: int, quick: bool, progress: ReportProgress
) -> tuple[Figures, ServiceTime, ServiceTime, MessageCosts, float]:
    """Measure costs; return all figures, the scan of small and of large shards, messages, and the latency here."""
    small_sizes = (5000, 20_000) if quick else (250_000, 1_000_000, 2_000_000)
    large_sizes = (20_000, 40_000) if quick else (2_000_000, 8_000_000, 32_000_000)
    progress("the scan")
    small, large = (measure_scan(sizes, 1, repeats) for sizes in (small_sizes, large_sizes))
    threads = min(2, usable_cores())
    more = measure_scan(large_sizes[:1], threads, repeats)
    costs, latency, messages = measure_costs_of_messages(200 if quick else 2000, progress)
    polls = {str(count): measure_poll(count, 50 if quick else 500) for count in POLLED_SOCKETS[: 2 if quick else None]}
    service, large_service = fit_service(small), fit_service(large)
    error = max(fit_error(service, small), fit_error(large_service, large))
    scan = {"small": small, "large": large, "threads": more}
    fits = {name: fit_figures(fit) for name, fit in (("small", service), ("large", large_service))}
    figures = {"scan": scan, "fits": fits, "fit_error": error, "messages": messages, "polls": polls}
    return figures, service, large_service, costs, latency


def fit_figures(service: ServiceTime) -> Figures:
    """Return the parts of a fit, ready for JSON."""
    return {name: seconds for name, seconds in asdict(service).items() if name != "memory_bandwidth"}


def here(codes: int, service: ServiceTime, costs: MessageCosts, latency: float) -> Scenario:
    """Return the scenario of this machine: the front and all shards share its cores."""
    return Scenario(
        codes=codes,
        shards=1,
        service=service,
        costs=costs,
        network=Network(latency=latency),
        one_node=True,
        node_cores=usable_cores(),
        in_flight=MAX_IN_FLIGHT,
        most_queries=MAX_MESSAGE_QUERIES,
        seconds=1.0,
        warm_up=0.1,
    )


def validated(quick: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of shards and of clients that are compared."""
    return (VALIDATED_SHARDS[:2], VALIDATED_CLIENTS[:2]) if quick else (VALIDATED_SHARDS, VALIDATED_CLIENTS)


def error_summary(rows: list[Figures]) -> Figures:
    """Return the median and the largest absolute error of p50 and of the throughput."""
    errors = {name: [abs(row[f"error_{name}"]) for row in rows] for name in ("p50", "rate")}
    largest = {f"{name}_max": max(values) for name, values in errors.items()}
    return {**{name: statistics.median(values) for name, values in errors.items()}, **largest}


def extrapolate(
    service: ServiceTime, costs: MessageCosts, machines: list[Machine], quick: bool, progress: ReportProgress
) -> Figures:
    """Simulate a billion codes and ten."""
    sizes, seconds, clients = ((2e8,), 0.5, 8) if quick else ((1e9, 1e10), 4.0, 64)
    topologies, stragglers, prices = [], [], []
    for codes in sizes:
        layout = make_layout(codes, service, costs)
        rows = layouts.compare_topologies(layout, clients, seconds, progress)
        topologies += rows
        load = 0.3 * rows[0]["busy"]["rate"]
        length = 0.5 if quick else 2e10 / codes + 2
        stragglers += layouts.compare_stragglers(layout, load, length, progress)
        prices += layouts.price_layouts(codes, service, machines)
    small = make_layout(sizes[0], service, costs)
    loss_load = 0.3 * topologies[0]["busy"]["rate"]
    loss = layouts.lose_node(small, loss_load, 15.0 if quick else 45.0, progress)
    limits = layouts.compare_batch_limits(small, clients, seconds, progress)
    swept = (4, 8) if quick else layouts.SWEPT_SHARDS
    sweep = layouts.sweep_shards(make_layout(sizes[-1], service, costs), swept, 5 if quick else 40, progress)
    parts = {"topologies": topologies, "stragglers": stragglers, "loss": loss, "limits": limits}
    return {**parts, "sweep": sweep, "prices": prices}


def tables(result: Figures) -> Sections:
    """Return what is measured, the validation, and what is modelled."""
    measured, validation = result["measured"], result["validation"]
    scans = [row for part in ("small", "large", "threads") for row in measured["scan"][part]]
    for row in scans:
        row |= {"million": row["codes"] / 1e6, "ms": 1e3 * row["seconds"]}
        row["giga"] = row["codes"] * row["queries"] / row["seconds"] / 1e9
    costs = measured["messages"]["costs"].items()
    micros = [{"what": name, "us": 1e6 * seconds} for name, seconds in costs if "bytes" not in name]
    polls = ", ".join(f"{count}: {1e6 * seconds:.1f}" for count, seconds in measured["polls"].items())
    scan_columns = """M codes: {million:g} | queries: {queries} | threads: {threads} | ms: {ms:.3f} |
        G codes x queries/s: {giga:.2f}"""
    columns = """shards: {shards} | clients: {clients} | other threads: {background:.1f} | p50 ms: {real:.2f} |
        model: {model:.2f} | error: {error_p50:+.0%} | queries/s: {real_rate:.0f} | model : {model_rate:.0f} |
        error : {error_rate:+.0%}"""
    rows = [{**row, "real": 1e3 * row["real_p50"], "model": 1e3 * row["model_p50"]} for row in validation["rows"]]
    title = f"Validation: {validation['codes']:,} codes in real processes on this machine; medians of rounds"
    return [
        format_table("Measured: batches over random codes, k = 10", scan_columns, scans),
        format_table("Measured: core-microseconds of messages", ": {what} | us: {us:.2f}", micros),
        f"A poll of so many sockets, us: {polls}\n",
        format_table(title, columns, rows),
        *(format_table(*frame, result[name]) for name, frame in MODELLED_TABLES.items()),
        *([f"Plot: {escape(result['plot'])}"] if result["plot"] else []),
    ]
