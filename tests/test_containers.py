"""The image, the compose file, alerts and the dashboard name only what exists, and metrics that the server has."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stillhash.server.metrics import GAUGES
from tests.collection.fixtures import DIM
from tests.server.conftest import serving, template  # noqa: F401
from tests.server.live_server import LiveServer
from tests.support.linters import ROOT, check_schema, lint

yaml = pytest.importorskip("yaml", reason="pip install pyyaml: the compose file is YAML")

DEPLOY = ROOT / "deploy"
SCRIPTS = sorted(DEPLOY.glob("*.sh"))
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
OF_PROMETHEUS = frozenset(("up",))
LABELS_OF_PROMETHEUS = frozenset(("job", "instance"))


def expressions() -> Iterator[str]:
    """Yield the queries of the dashboard and of the alerts."""
    dashboard = json.loads((DEPLOY / "grafana/dashboards/stillhash.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def uses() -> dict[str, set[str]]:
    """Return the metrics of all queries, each with the labels that it is matched by or summed over."""
    labels: dict[str, set[str]] = {}
    for text in expressions():
        grouped = {name for names in re.findall(r"\bby \(([\w, ]+)\)", text) for name in names.split(", ")}
        for name, matchers in re.findall(r"\b((?:stillhash|process)_\w+|up)\b(?:\{(.*?)\})?", text):
            matched = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers))
            labels.setdefault(name, set()).update(matched, grouped if len(grouped) else ())
    return labels


GAUGES_OF_FRONTS = {"manifest", "shards_missing"}  # with the labels of the others (tests/cluster/test_front_server.py)


def scrape(server: LiveServer) -> dict[str, set[str]]:
    """Return the names of all samples, with the names of their labels."""
    families = text_string_to_metric_families(server.request("GET", "/v1/metrics").data.decode())
    return {one.name: set(one.labels) for family in families for one in family.samples}


def test_queries_use_metrics_and_labels_that_the_server_has(serving: Callable[..., LiveServer]) -> None:  # noqa: F811
    server = serving()
    assert server.request("POST", "/v1/collections/c/search", {"query": [1.0] * DIM}).status == 200
    real, used = scrape(server), uses()
    real |= {f"stillhash_{name}": real["stillhash_rows"] for name in GAUGES_OF_FRONTS}
    assert len(used) > 15
    for name, labels in used.items():
        if name in OF_PROMETHEUS or (name.startswith("process_") and sys.platform != "linux"):
            continue
        assert name in real
        assert labels - LABELS_OF_PROMETHEUS <= real[name], name
    assert {f"stillhash_{name}" for name in GAUGES} <= set(used)


def test_the_dashboard_is_laid_out_without_overlaps() -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/stillhash.json").read_text())
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells and place["x"] + place["w"] <= 24, panel["title"]
        cells |= own
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_health_check_answers_for_the_server(serving: Callable[..., LiveServer]) -> None:  # noqa: F811
    def status(url: str) -> int:
        environment = {"STILLHASH_HEALTH_URL": f"{url}/v1/health"}
        return subprocess.run(
            [sys.executable, DEPLOY / "healthcheck.py"], env=environment, capture_output=True
        ).returncode

    assert status(serving().url) == 0
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert status(f"http://127.0.0.1:{unused.getsockname()[1]}") == 1


def test_the_image_copies_files_that_exist_and_are_not_ignored() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M)
    assert len(copied) > 3
    for source in " ".join(copied).split():
        assert (ROOT / source).exists(), source
        assert any(Path(source).match(pattern) for pattern in allowed), source


def test_the_image_is_hardened() -> None:
    assert re.search(r"^USER [1-9]\d*:", DOCKERFILE, re.M) and re.search(r"^VOLUME /data$", DOCKERFILE, re.M)
    assert re.search(r"^HEALTHCHECK .*CMD \[\"python\"", DOCKERFILE, re.M)
    assert not re.search(r"KEYS?=", DOCKERFILE)
    assert COMPOSE["services"]["stillhash"]["stop_grace_period"] == "60s"  # as in deploy/check-image.sh
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"] and service["mem_limit"], name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name


def test_the_compose_file_mounts_what_exists() -> None:
    services: dict[str, Any] = COMPOSE["services"]
    mounts = [each for service in services.values() for each in service.get("volumes", [])]
    for source in (mount.split(":")[0] for mount in mounts):
        assert (ROOT / source).is_dir() if source.startswith("./") else source in COMPOSE["volumes"]
    assert {secret for service in services.values() for secret in service["secrets"]} == set(COMPOSE["secrets"])
    prometheus = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == ["stillhash:8000"]
    assert all((DEPLOY / "prometheus" / file).exists() for file in prometheus["rule_files"])


@pytest.mark.skipif(sys.platform == "win32", reason="the scripts are for POSIX shells")
def test_secrets_are_created_once(tmp_path: Path) -> None:
    script = tmp_path / "create-secrets.sh"
    script.write_bytes((DEPLOY / "create-secrets.sh").read_bytes())

    def secrets() -> dict[str, str]:
        subprocess.run(["/bin/sh", script], check=True, capture_output=True)
        return {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}

    first = secrets()
    assert set(first) == set(COMPOSE["secrets"])
    assert all(re.fullmatch(r"[\w-]{40,}", value) for value in first.values()) and len(set(first.values())) == 3
    assert secrets() == first
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0


def test_scripts_can_be_run_and_pass_shellcheck() -> None:
    assert all(script.read_text().startswith("#!/bin/sh\n") for script in SCRIPTS)
    if sys.platform != "win32":
        assert all(script.stat().st_mode & 0o100 for script in SCRIPTS)
    lint("shellcheck", *SCRIPTS)


def test_the_image_passes_hadolint() -> None:
    lint("hadolint", "Dockerfile")


def test_the_compose_file_fits_its_schema() -> None:
    check_schema("vendor.compose-spec", "compose.yaml")
