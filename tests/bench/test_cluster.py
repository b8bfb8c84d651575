"""The benches of a cluster at quick sizes: no answer differs, whatever is killed. No time is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stillhash[cluster]'")

from stillhash.bench import bulk_encoding, cluster
from tests.bench.command import printed

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def run_in_new_process(name: str, folder: Path) -> dict[str, Any]:
    """Run a bench in a process of its own: this one may be part of another cluster."""
    command = [sys.executable, "-m", "stillhash", "bench", name, "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(folder.iterdir()) == []
    result: dict[str, Any] = json.loads(done.stdout)  # and nothing else on stdout
    return result


def test_a_cluster_under_load_and_killed(tmp_path: Path) -> None:
    result = run_in_new_process("cluster", tmp_path)
    assert result["same"]["different"] == 0 and result["same"]["with_ties"] > 0
    for fault in result["faults"].values():
        assert fault["wrong"] == fault["refused"] == 0 < fault["right"] and fault["actors"] > 0
    assert any("kill -9 of an actor" in line for line in printed(cluster, result, width=130))


def test_bulk_encoding_loses_nothing_and_is_exact(tmp_path: Path) -> None:
    result = run_in_new_process("bulk-encode", tmp_path)
    assert len(result["goals"]) == 5 and all(goal["met"] for goal in result["goals"]), result["goals"]
    assert any("Driver killed at" in line for line in printed(bulk_encoding, result))
