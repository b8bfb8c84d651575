"""The metrics are valid for Prometheus, and true."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from tests.collection.fixtures import DIM
from tests.server.live_server import LiveServer

PATH = "/v1/collections/c"
ROUTE = "/v1/collections/{name}"


def samples(server: LiveServer) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and the values of its labels."""
    reply = server.request("GET", "/v1/metrics")
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(reply.data.decode()))
    assert all(family.documentation for family in families)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_gauges_equal_the_stats(serving: Callable[..., LiveServer]) -> None:
    server = serving()
    stats = server.request("GET", f"{PATH}/stats").json
    values = {
        name[0].removeprefix("stillhash_"): value for name, value in samples(server).items() if name[1:] == ("c",)
    }
    assert values.pop("rows") == stats["items"] == 320
    assert values.pop("queue_depth") == 0 and values.pop("drift_alarms") == len(stats["drift_alarms"])
    for name in ("map", "precision", "ndcg"):
        assert values.pop(f"quality_{name}") == stats["quality"][name]
        assert values.pop(f"quality_before_{name}") == stats["quality"]["before"][name]
    assert values == {name: stats[name] for name in ("version", "pending", "index_bytes", "disk_bytes")}
    server.request("POST", f"{PATH}/delete", {"ids": [1, 2, 3]})
    server.request("POST", f"{PATH}/rollback", {"version": 1})
    now = samples(server)
    assert now["stillhash_rows", "c"] == 317 and now["stillhash_version", "c"] == stats["version"] + 1


def test_requests_are_counted_by_route_and_status(serving: Callable[..., LiveServer]) -> None:
    server = serving()
    for _ in range(3):
        assert server.request("POST", f"{PATH}/search", {"query": [1.0] * DIM}).status == 200
    assert server.request("POST", f"{PATH}/search", {}).status == 422
    assert server.request("GET", "/v1/collections/none/count").status == 404
    for path in ("/one", "/two?x=y", "/v1/three"):  # a path could be anything, so it is not a label
        assert server.request("GET", path).status == 404
    assert server.request("PROPFIND", "/v1/health").status == 405
    assert server.request("GET", "/v1/health", host="evil.example").status == 403
    values = samples(server)
    counts = {name[1:]: value for name, value in values.items() if name[0] == "stillhash_request_seconds_count"}
    assert counts.pop(("POST", f"{ROUTE}/search", "200")) == 3
    assert counts.pop(("POST", f"{ROUTE}/search", "422")) == 1
    assert counts.pop(("GET", f"{ROUTE}/count", "404")) == 1
    assert counts.pop(("GET", "unknown", "404")) == 3
    assert counts.pop(("GET", "unknown", "403")) == 1
    assert sum(counts.values()) == 1 and {name[0] for name in counts} == {"other"}
    assert samples(server)["stillhash_request_seconds_count", "GET", "/v1/metrics", "200"] == 1
