"""The API does what its OpenAPI document says: valid and invalid requests to every route.

STILLHASH_EXAMPLES is the number of random requests to each route; a campaign takes some thousands.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

import stillhash
from stillhash.server import Keys, Settings
from tests.collection.fixtures import copied
from tests.server.live_server import live_server
from tests.support.seeds import run_seed

EXAMPLES = int(os.environ.get("STILLHASH_EXAMPLES", "8"))
KEY = "a-key-that-may-do-all"
CHECKS = (  # not that every valid request is accepted: a schema cannot say how wide vectors are, or which ids exist
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


@schemathesis.serializer("application/x-ndjson")
def as_lines(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def config(seed: int) -> SchemathesisConfig:
    settings = {
        "seed": seed,
        "headers": {"Authorization": f"Bearer {KEY}"},
        "parameters": {"path.name": "c"},
        "checks": {
            "enabled": False,
            **{name: {"enabled": True} for name in CHECKS},
            "negative_data_rejection": {"enabled": True, "expected-statuses": ["4xx"]},  # 413 included
        },
        "generation": {
            "max-examples": EXAMPLES,
            "deterministic": bool(os.environ.get("CI")),
            "database": "none",
            "with-security-parameters": False,
        },
        "phases": {"stateful": {"enabled": False}},
    }
    return SchemathesisConfig.from_dict(settings)


def was_busy(recorder: Any, case: str) -> bool:
    response = recorder.interactions[case].response
    return response is not None and response.status_code == 503 and b"tasks: " in (response.content or b"")


def failures(recorder: Any) -> list[str]:
    """Return the problems of responses, with their requests; a full queue of tasks is none of them."""
    return [
        f"{check.name}: {check.failure_info.failure.title}: {check.failure_info.failure.message[:300]}\n"
        f"{check.failure_info.code_sample[:600]}"
        for case, checks in recorder.checks.items()
        for check in checks
        if check.failure_info is not None and not (check.name == "not_a_server_error" and was_busy(recorder, case))
    ]


@pytest.mark.slow
def test_api_conforms_to_its_schema(template: Path, tmp_path: Path) -> None:
    seed = int(run_seed()) % 2**32
    problems: dict[str, list[str]] = {}
    requests: dict[str, int] = {}
    collection = stillhash.open(copied(template, tmp_path / "c"))
    (tmp_path / "collections").mkdir()
    folders = {"snapshots": tmp_path / "snapshots", "collections_folder": tmp_path / "collections"}
    settings = Settings(**folders, max_rows=100, max_collections=5, keys=Keys(admin=(KEY,)))
    with live_server({"c": collection}, settings) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/v1/openapi.json", config=config(seed))
        routes = sum(len(methods) for path, methods in schema.raw_schema["paths"].items() if path.startswith("/v1/"))
        for event in from_schema(schema.include(path_regex="^/v1/")).execute():
            if isinstance(event, (events.NonFatalError, events.FatalError)):
                problems.setdefault("errors", []).append(str(event.info if hasattr(event, "info") else event.exception))
            if isinstance(event, events.ScenarioFinished):
                label = event.recorder.label
                requests[label] = requests.get(label, 0) + len(event.recorder.cases)
                if messages := failures(event.recorder):
                    problems.setdefault(label, []).extend(messages)
        assert server.request("POST", "/v1/collections/c/verify", authorization=f"Bearer {KEY}").json == {
            "problems": []
        }
    print(f"seed {seed}: {sum(requests.values())} requests to {len(requests)} routes")
    assert problems == {}, "\n\n".join(text for some in problems.values() for text in some[:3])
    assert len(requests) == routes > 20
