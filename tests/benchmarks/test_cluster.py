"""The benches of a cluster at quick sizes: no answer differs, whatever is killed. No time is judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stillhash[cluster]'")

from benchmarks import bulk_encode, cluster, cluster_faults
from benchmarks.cluster_faults import LoadClients, draw_faults, fault_figures
from tests.benchmarks.command import printed

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def run_in_new_process(name: str, folder: Path) -> dict[str, Any]:
    """Run a bench in a process of its own: this one may be part of another cluster."""
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--json"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(folder.iterdir()) == []
    result: dict[str, Any] = json.loads(done.stdout)  # and nothing else on stdout
    return result


def test_a_cluster_answers_like_one_index(tmp_path: Path) -> None:
    result = run_in_new_process("cluster", tmp_path)
    assert result["same"]["different"] == 0 and result["same"]["with_ties"] > 0
    assert [row["clients"] for row in result["clients"]] == [1, 8, 64] and len(result["rates"]) == 3
    assert {row["aggregators"] for row in result["many"]} == {0, 2}
    assert all(row["different"] == 0 for row in result["many"])
    assert any("through aggregators" in line for line in printed(cluster, result, width=130))


def test_no_fault_of_a_cluster_costs_an_answer_or_a_row(tmp_path: Path) -> None:
    result = run_in_new_process("cluster-faults", tmp_path)
    assert [(f["fault"], f["replicas"]) for f in result["faults"]] == [
        (name, replicas) for replicas in (1, 2) for name in cluster_faults.FAULTS
    ]
    for fault in result["faults"]:
        assert fault["wrong"] == fault["errors"] == 0 < fault["right"], fault["messages"]
        assert len(fault["rates"]) == len(fault["seconds"]) > 0
        assert fault.get("lost_rows", 0) == fault.get("doubled_rows", 0) == 0
        assert (fault["fault"] == "writer") == (fault.get("acknowledged", 0) > 0)
    assert any("a node is lost" in line for line in printed(cluster_faults, result, width=180))


def test_rates_around_a_fault(tmp_path: Path) -> None:
    """100 answers a second, none for two seconds, 50 for two, then 100 again."""
    load = LoadClients([], np.zeros((1, 64), np.float32), [b""], 1)
    load.times = [*np.arange(-4.995, 0, 0.01), *np.arange(2.005, 4, 0.02), *np.arange(4.005, 10, 0.01)]
    figures = fault_figures(load, -5.0, 0.0, 10.0)
    assert figures["healthy"] == pytest.approx(100) and figures["share"] == pytest.approx(2 / 3)
    assert figures["longest_s"] == pytest.approx(2.005)
    assert figures["recovered_s"] == pytest.approx(3.8)  # the mean of the second from here on is 90
    draw_faults([{"fault": "a", "replicas": 1, **figures}], {"a": "a fault"}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
    load.times = [*np.arange(-4.995, 0, 0.01)]
    assert fault_figures(load, -5.0, 0.0, 10.0)["recovered_s"] == pytest.approx(9.9)


def test_bulk_encode_loses_nothing_and_is_exact(tmp_path: Path) -> None:
    result = run_in_new_process("bulk-encode", tmp_path)
    assert len(result["goals"]) == 5 and all(goal["met"] for goal in result["goals"]), result["goals"]
    assert any("Driver killed at" in line for line in printed(bulk_encode, result))
