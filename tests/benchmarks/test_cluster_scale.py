"""The bench of a cluster's scale at quick sizes: fits, real processes, prices. No time is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("zmq", reason="pyzmq is not installed: pip install 'stillhash[cluster]'")

from benchmarks import cluster_scale
from benchmarks.cluster_layouts import MACHINES, Machine, make_layout, parse_price, price_layouts
from benchmarks.cluster_model import simulate
from benchmarks.cluster_probe import fit_error, fit_positive, fit_service
from benchmarks.cluster_processes import cpu_seconds
from benchmarks.cluster_scenario import MessageCosts, Scenario, ServiceTime
from benchmarks.cluster_validation import closed_loop, validate
from stillhash.errors import InvalidInput
from tests.benchmarks.command import printed, run_bench

SERVICE = ServiceTime(start=2e-5, read=1e-10, compare=2e-10, per_query=1e-5)


def test_a_fit_finds_the_service_time_that_rows_were_made_with() -> None:
    rows = [
        {"codes": codes, "queries": queries, "seconds": SERVICE.seconds(codes, queries)}
        for codes in (10**5, 10**6, 10**7)
        for queries in (1, 8, 64)
    ]
    fit = fit_service(rows)
    assert fit_error(fit, rows) < 1e-9
    for name in ("start", "read", "compare", "per_query"):
        assert getattr(fit, name) == pytest.approx(getattr(SERVICE, name))
    rows[0]["seconds"] *= 2
    assert 0.3 < fit_error(fit, rows) < 0.7


@given(seed=st.integers(0, 10**6))
def test_a_fit_has_no_negative_part(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert fit_positive(rng.random((6, 3)), rng.standard_normal(6)).min() >= 0


def test_a_model_validated_against_itself_has_no_error() -> None:
    costs = MessageCosts(query=1e-4, send=1e-4, receive=1e-4, merge=1e-5, shard=1e-4)
    scenario = Scenario(codes=1e6, shards=1, service=SERVICE, costs=costs, one_node=True, node_cores=2, seconds=0.5)

    def twice_as_slow(shards: int, clients: int) -> np.ndarray:
        return 2 * simulate(replace(scenario, shards=shards, clients=clients)).latencies()

    rows = validate(twice_as_slow, scenario, (1, 2), (1, 4), 1, lambda _: None)
    assert [(row["shards"], row["clients"]) for row in rows] == [(1, 1), (1, 4), (2, 1), (2, 4)]
    for row in rows:
        # Other programs that run meanwhile make the model slower.
        assert row["error_p50"] >= -0.5 - 1e-9 and row["error_rate"] <= 1 + 1e-9
        if not row["background"]:
            assert row["error_p50"] == pytest.approx(-0.5) and row["error_rate"] == pytest.approx(1)


@pytest.mark.slow
def test_real_processes_answer_as_one_index() -> None:
    with closed_loop((1, 3), 3000, 0.2) as real:
        assert real.different_answers(3000, 20) == 0
        latencies = real.measure(3, 4)
        assert len(latencies) >= 4 and (latencies > 0).all()
        assert real.different_answers(2997, 20) > 0  # other rows than the processes have
        before = [cpu_seconds(pid) for pid in real.clusters[3].pids]
        real.measure(3, 1)
        after = [cpu_seconds(pid) for pid in real.clusters[3].pids]
        assert all(a.python > b.python and a.io > b.io for a, b in zip(after, before, strict=True))


def test_prices_are_read_and_refused() -> None:
    assert parse_price("big:64:256:3.5") == Machine("big", 64, 256.0, 3.5)
    for wrong in ("big", "big:64:256", "big:64:256:3.5:1", "big:x:1:1", "big:0:1:1", "big:1:-1:1", "big:1:1:inf"):
        with pytest.raises(InvalidInput, match="price"):
            parse_price(wrong)


def test_a_price_is_machines_times_hours() -> None:
    fast, dense = price_layouts(1e9, SERVICE, [Machine("m", 10, 10.0, 2.0)])
    assert fast["nodes"] == 8 and fast["month"] == 8 * 2.0 * 730 and fast["two_replicas"] == 2 * fast["month"]
    assert dense["nodes"] == 2  # 8 GB of codes in 7 of 10 GiB
    assert dense["scan_ms"] == pytest.approx(4 * fast["scan_ms"])
    assert fast["disk"] == pytest.approx(158 * 0.08)


def test_a_layout_has_whole_shards_and_enough_cores() -> None:
    layout = make_layout(1e10, SERVICE, MessageCosts())
    assert layout.shards == 200 and layout.node_cores == layout.shards_per_node * layout.shard_cores
    assert {machine.cores for machine in MACHINES} == {8, 16, 32}


@pytest.mark.slow
def test_the_command_measures_validates_and_extrapolates(tmp_path: Path) -> None:
    plot = tmp_path / "scale.png"
    result = run_bench("cluster-scale", "--repeats", "1", "--plot", str(plot), "--price", "tiny:4:8:0.1")
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert result["goals"][0]["measured"] == 0 and result["goals"][0]["met"]
    assert {row["shards"] for row in result["validation"]["rows"]} == {1, 2}
    assert {row["topology"] for row in result["topologies"]} == {"flat", "tree"}
    assert {row["machine"] for row in result["prices"]} == {"tiny"}
    one, two, hedged = result["loss"]
    assert one["partial"] > 0 == two["partial"] == hedged["partial"]
    lines = printed(cluster_scale, result, width=130)
    assert any(line.startswith("Validation") for line in lines) and not any("…" in line for line in lines)
