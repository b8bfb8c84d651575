"""The API is what its OpenAPI document says: requests that fit it and requests that do not, to every address.

STILLHASH_EXAMPLES is how many random requests each address gets; some thousands make a campaign.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

import stillhash
from stillhash.server import Keys, Settings
from tests.collection.fixtures import copied
from tests.server.process import served
from tests.support.seeds import run_seed

EXAMPLES = int(os.environ.get("STILLHASH_EXAMPLES", "8"))
KEY = "a-key-that-may-write"
CHECKS = (  # and not that all that fits is accepted: a schema cannot say how wide vectors are, or which ids there are
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
    told = {
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
    return SchemathesisConfig.from_dict(told)


def failures(recorder: Any) -> list[str]:
    """What was asked, and what is wrong with the answer."""
    return [
        f"{check.name}: {check.failure_info.failure.title}: {check.failure_info.failure.message[:300]}\n"
        f"{check.failure_info.code_sample[:600]}"
        for checks in recorder.checks.values()
        for check in checks
        if check.failure_info is not None
    ]


def test_the_api_is_what_its_schema_says(template: Path, tmp_path: Path) -> None:
    seed = int(run_seed()) % 2**32
    wrong: dict[str, list[str]] = {}
    asked: dict[str, int] = {}
    collection = stillhash.open(copied(template, tmp_path / "c"))
    settings = Settings(snapshots=tmp_path / "snapshots", most_rows=100, keys=Keys(write=(KEY,)))
    with served({"c": collection}, settings) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/v1/openapi.json", config=config(seed))
        addresses = sum(len(methods) for path, methods in schema.raw_schema["paths"].items() if path.startswith("/v1/"))
        for event in from_schema(schema.include(path_regex="^/v1/")).execute():
            if isinstance(event, (events.NonFatalError, events.FatalError)):
                wrong.setdefault("errors", []).append(str(event.info if hasattr(event, "info") else event.exception))
            if isinstance(event, events.ScenarioFinished):
                label = event.recorder.label
                asked[label] = asked.get(label, 0) + len(event.recorder.cases)
                if found := failures(event.recorder):
                    wrong.setdefault(label, []).extend(found)
        assert server.ask("POST", "/v1/collections/c/verify", authorization=f"Bearer {KEY}").json == {"problems": []}
    print(f"seed {seed}: {sum(asked.values())} requests to {len(asked)} addresses")
    assert wrong == {}, "\n\n".join(text for some in wrong.values() for text in some[:3])
    assert len(asked) == addresses > 20
