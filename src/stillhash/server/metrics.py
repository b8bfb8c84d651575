"""What Prometheus is told: how long requests take, by route, and how each collection stands when it asks."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stillhash.server.write_queue import Desk

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
KNOWN = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")


class Metrics:
    def __init__(self, desks: dict[str, Desk]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Standing(desks))
        labels = "method", "route", "status"
        self._seconds = Histogram(
            "stillhash_request_seconds", "Time of requests.", labels, buckets=SECONDS, registry=self.registry
        )

    def asked(self, method: str, route: str, status: int, seconds: float) -> None:
        self._seconds.labels(method if method in KNOWN else "other", route, str(status)).observe(seconds)

    def told(self) -> bytes:
        return generate_latest(self.registry)


class _Standing(Collector):
    """Looks at each collection when it is asked."""

    def __init__(self, desks: dict[str, Desk]) -> None:
        self.desks = desks

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        gauges = {
            name: GaugeMetricFamily(f"stillhash_{name}", about, labels=["collection"])
            for name, about in (
                ("rows", "Items that are stored."),
                ("version", "Version of the model that answers."),
                ("queue_depth", "Writes that wait or are being done."),
                ("pending", "Labelled rows that wait to be learnt."),
                ("index_bytes", "Memory of the index."),
                ("disk_bytes", "Bytes on disk."),
                ("drift_alarms", "Falls of quality that were noticed."),
                ("quality_map", "Mean average precision on the last labelled rows, before they were learnt."),
                ("quality_precision", "Precision of the ten best hits, likewise."),
                ("quality_hamming_map", "Mean average precision of Hamming ranking, likewise."),
            )
        }
        for name, desk in self.desks.items():
            stats = desk.collection.stats()
            told = {
                "rows": stats["items"],
                "queue_depth": desk.waiting,
                "drift_alarms": len(stats["drift_alarms"]),
                **{key: stats[key] for key in ("version", "pending", "index_bytes", "disk_bytes")},
            }
            if quality := stats["quality"]:
                told |= {"quality_map": quality["map"], "quality_precision": quality["precision"]}
                told |= {"quality_hamming_map": quality["hamming"]} if "hamming" in quality else {}
            for key, value in told.items():
                gauges[key].add_metric([name], float(value))
        return gauges.values()
