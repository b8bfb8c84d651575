"""Prometheus metrics: request times by route, gauges of every collection, and of the process."""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stillhash.server.limits import MemoryBudget
from stillhash.server.write_queue import CollectionExecutor

TIME_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)  # seconds
HTTP_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
GAUGES = {
    "rows": "Stored items.",
    "version": "Current version of the model.",
    "queue_depth": "Writes waiting or running.",
    "pending": "Labelled rows not yet learnt.",
    "index_bytes": "Memory of the index.",
    "disk_bytes": "Bytes on disk.",
    "manifest": "Number of the published manifest that a front serves.",
    "shards_missing": "Shards with items of which a front reaches no replica.",
    "drift_alarms": "Detected drops in quality.",
    "quality_map": "Mean average precision on the latest labelled rows, before they were learnt.",
    "quality_precision": "Precision of the ten best hits, likewise.",
    "quality_ndcg": "nDCG of the ten best hits, likewise.",
    "quality_before_map": "Mean average precision of the same rows before learning, ranked by cosine.",
    "quality_before_precision": "Precision of the ten best hits, likewise.",
    "quality_before_ndcg": "nDCG of the ten best hits, likewise.",
}
STATS_GAUGES = ("version", "pending", "index_bytes", "disk_bytes", "manifest", "shards_missing")
QUALITY_MEASURES = ("map", "precision", "ndcg")


class Metrics:
    """Times of requests, and gauges of the stats of each collection, which every scrape reads."""

    def __init__(self, memory: MemoryBudget) -> None:
        self.memory, self.registry = memory, CollectorRegistry()
        labels = ("method", "route", "status")
        self._seconds = Histogram(
            "stillhash_request_seconds", "Time of requests.", labels, buckets=TIME_BUCKETS, registry=self.registry
        )
        ProcessCollector(registry=self.registry)  # memory, processor time and file handles; only Linux has them

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record one request."""
        self._seconds.labels(method if method in HTTP_METHODS else "other", route, str(status)).observe(seconds)

    def render(self, stats: dict[CollectionExecutor, dict[str, Any]]) -> bytes:
        """Return all metrics in Prometheus's text format."""
        gauges = CollectorRegistry()
        gauges.register(CollectionGauges(stats, self.memory))
        return generate_latest(gauges) + generate_latest(self.registry)


class CollectionGauges(Collector):
    """Gauges of one scrape."""

    def __init__(self, stats: dict[CollectionExecutor, dict[str, Any]], memory: MemoryBudget) -> None:
        self.stats, self.memory = stats, memory

    def collect(self) -> Iterable[Metric]:
        """Return the gauges of all collections."""
        gauges = {name: GaugeMetricFamily(f"stillhash_{name}", GAUGES[name], labels=["collection"]) for name in GAUGES}
        for executor, stats in self.stats.items():
            values = {
                "rows": stats["items"],
                "queue_depth": executor.queued,
                "drift_alarms": len(stats["drift_alarms"]),
                **{key: stats[key] for key in STATS_GAUGES if key in stats},  # a front has some, a store others
            }
            if quality := stats["quality"]:
                values |= {f"quality_{key}": quality[key] for key in QUALITY_MEASURES}
                values |= {f"quality_before_{key}": quality["before"][key] for key in QUALITY_MEASURES}
            for key, value in values.items():
                gauges[key].add_metric([executor.name], float(value))
        held = "Bytes that large requests in flight hold, in bodies and answers."
        return [*gauges.values(), GaugeMetricFamily("stillhash_request_bytes", held, self.memory.used)]
