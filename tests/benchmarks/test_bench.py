"""The benches of kernels at quick sizes: results are exact and well-formed. No time is judged here."""

from __future__ import annotations

from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import encode, learn, scan, timing
from benchmarks.__main__ import BENCHES, main, open_bench, option_parser
from benchmarks.scan import brute_force
from stillhash.errors import InvalidInput
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.exact_scores import snap
from stillhash.search import Hits, Scan
from tests.benchmarks.command import printed, run_bench


@cache
def quick_result(bench: Any) -> dict[str, Any]:
    return run_bench(bench.__name__.rsplit(".", 1)[1], "--repeats", "2")


@pytest.fixture(params=[learn, encode, scan], ids=["learn", "encode", "scan"])
def benched(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    return request.param, quick_result(request.param)


@pytest.mark.slow
def test_result_has_machine_rows_and_goals(benched: tuple[Any, dict[str, Any]]) -> None:
    _, result = benched
    assert {"cpu", "cores", "lanes", "numpy", "stillhash", "load"} == set(result["machine"])
    assert result["rows"]
    for goal in result["goals"]:
        assert {"name", "goal", "measured", "met"} == set(goal)
    for row in result["rows"]:
        assert row["bits"] in (32, 64, 96, 128)
        assert all(ms > 0 for ms in row["ms"].values())


@pytest.mark.slow
def test_results_are_exact(benched: tuple[Any, dict[str, Any]]) -> None:
    bench, result = benched
    if bench is encode and kernels.lanes() == "numpy":
        pytest.skip("NumPy's products round a row differently in different batches")
    assert all(row["exact"] for row in result["rows"])


@pytest.mark.slow
def test_tables_fit_a_hundred_columns(benched: tuple[Any, dict[str, Any]]) -> None:
    lines = printed(*benched)
    assert "Goals" in lines
    # A table too wide for the console is cut with an ellipsis.
    assert all(len(line) <= 100 and "…" not in line for line in lines)
    assert all(any(line.startswith(goal["name"]) for line in lines) for goal in benched[1]["goals"])


def test_learning_is_checked_at_every_share_of_clipped_steps() -> None:
    result = quick_result(learn)
    assert all(row["exact"] for row in result["exactness"])
    assert {row["norm"] for row in result["exactness"]} == set(learn.FEATURE_NORMS)
    for row in result["exactness"]:
        assert row["passive"] + row["unclipped"] + row["clipped"] == pytest.approx(1)
    clipped = {row["norm"]: row["clipped"] for row in result["exactness"] if row["bits"] == 64}
    assert clipped[1] > 0.9 and 0.05 < clipped[10] < 0.95 and clipped[100] < 0.01


def test_encode_notices_a_wrong_code() -> None:
    class Careless(encode.LSH):
        def encode(self, X: Any) -> Any:
            codes = super().encode(X)
            codes[:, 0] ^= np.uint8(len(X) > 1)
            return codes

    X = np.random.default_rng(0).standard_normal((50, 64), dtype=np.float32)
    result = encode.compare(Careless(32).fit(X), X)
    assert result["wrong_bits"] > 40 and result["rows_apart"] == 50 and not result["exact"]


# ---- scan ----


def test_brute_force_is_a_full_sort() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (3000, 2), dtype=np.uint8)
    weights = rng.integers(-2, 3, (1, 13)).astype(np.float32)  # the last byte is not full
    scores = (signs(codes, 13) @ snap(weights)[0]).astype(np.float32)
    order = np.lexsort((np.arange(3000), -scores))[:25]
    hits = brute_force(np.arange(3000), codes, weights, 25)
    np.testing.assert_array_equal(hits.ids, [order])
    np.testing.assert_array_equal(hits.scores, [scores[order]])


def test_scan_notices_ties_in_the_wrong_order() -> None:
    class Backwards(Scan):
        def search(self, weights: Any, k: int, *, allowed: Any = None) -> Hits:
            scores, ids = super().search(weights, k, allowed=allowed)
            order = np.lexsort((-ids, -scores))
            return Hits(np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1))

    codes = np.random.default_rng(0).integers(0, 256, (3000, 4), dtype=np.uint8)
    for kind, exact in ((Scan, True), (Backwards, False)):
        index = kind(32)
        index.add(codes)
        result = scan.compare(codes, np.random.default_rng(1), index)
        assert result["tied_hits"] > 0
        assert result["exact"] is exact


def test_scan_without_faiss_says_so_and_reports_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "installed_faiss", lambda: None)
    steps: list[str] = []
    result = timing.run_bench(scan, quick=True, progress=steps.append, repeats=1, codes=2000)
    assert len(steps) == 2 * len(scan.SCAN_BITS)
    assert result["faiss"] is None and result["codes"] == 2000
    assert not any("FastScan" in goal["name"] for goal in result["goals"])
    assert any("FAISS is not installed" in line for line in printed(scan, result))


def test_scan_compares_with_faiss() -> None:
    faiss = pytest.importorskip("faiss")
    before = faiss.omp_get_max_threads()
    result = timing.run_bench(scan, quick=True, repeats=1, codes=5000)
    row = next(row for row in result["rows"] if row["bits"] == scan.FAISS_BITS)
    assert 0.8 < row["fast_recall"] <= 1
    assert result["faiss"] == faiss.__version__
    assert faiss.omp_get_max_threads() == before


@pytest.mark.parametrize("lanes", kernels.available())
def test_scan_runs_on_all_lanes(lanes: str) -> None:
    with kernels.using(lanes):
        result = timing.run_bench(scan, quick=True, repeats=1, codes=1000)
    assert all(row["exact"] for row in result["rows"])


def test_too_few_codes_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^codes"):
        timing.run_bench(scan, quick=False, repeats=1, codes=10)


# ---- timing ----


def test_contenders_take_turns_in_shuffled_order() -> None:
    calls: list[tuple[str, int]] = []
    contenders = {name: lambda turn, name=name: calls.append((name, turn)) for name in "abc"}
    times = timing.interleaved(contenders, 20)
    assert calls[:3] == [("a", 0), ("b", 0), ("c", 0)]  # the warm-up
    rounds = [calls[i : i + 3] for i in range(3, len(calls), 3)]
    assert [{turn for _, turn in calls} for calls in rounds] == [{turn} for turn in range(20)]
    orders = {tuple(name for name, _ in calls) for calls in rounds}
    assert len(orders) > 1 and all(set(order) == set("abc") for order in orders)
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 20, "b": 20, "c": 20}


def test_no_repeats_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^repeats"):
        timing.run_bench(scan, quick=True, repeats=0, codes=1000)


def test_a_ratio_compares_each_round_with_itself() -> None:
    times = {"a": [2.0, 40.0, 6.0, 8.0, 20.0], "b": [1.0, 10.0, 2.0, 4.0, 4.0]}
    assert timing.ratio(times, "a/b") == {"median": 3.0, "low": 2.0, "high": 4.0}


def test_speeds_are_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"a": [0.002, 0.009, 0.004], "b": [0.001, 0.003, 0.002]}
    monkeypatch.setattr(timing, "interleaved", lambda *_: times)
    speed = timing.compare_speed({}, 3, "a/b")
    assert speed["ms"] == {"a": 4.0, "b": 2.0} and speed["a/b"]["median"] == 2.0
    assert timing.mean_ms(times)["b"] == pytest.approx(2.0)
    assert timing.quantiles_ms([0.002] * 9, "add_") == {"add_p50_ms": 2.0, "add_p99_ms": 2.0}


@pytest.mark.parametrize(("bound", "met"), [("<= 1.5", True), ("<= 1.4", False), (">= 1.5", True), (">= 1.6", False)])
def test_goals_are_met_at_the_bound(bound: str, met: bool) -> None:
    assert timing.judge("speed", bound, 1.5) == {"name": "speed", "goal": bound, "measured": 1.5, "met": met}


# ---- the command ----


def test_the_command_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0 and main(["nosuch"]) == 2
    out = capsys.readouterr().out
    assert all(name in out for name in BENCHES)


@pytest.mark.parametrize("name", ["scan", "miwq", "filters", "serve-hostile", "gpu-http", "peers"])
def test_every_parameter_is_an_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    bench = open_bench(name)
    with pytest.raises(SystemExit):
        main([name, "--help"])
    out = capsys.readouterr().out
    names = set(signature(bench.run).parameters) - {"progress"}
    assert all(f"--{option}" in out for option in (*names, "json"))


def test_options_are_read_by_their_types_and_refused(capsys: pytest.CaptureFixture[str]) -> None:
    options = vars(option_parser("miwq", open_bench("miwq").run).parse_args(["--codes", "5,60", "--plot", "x.png"]))
    assert options["codes"] == (5, 60) and options["plot"] == Path("x.png") and options["cases"] == 20_000
    assert main(["scan", "--codes", "10"]) == InvalidInput.exit_code
    with pytest.raises(SystemExit):
        main(["gpu", "--codes", "many"])
    assert "--codes: invalid whole_numbers value: 'many'" in capsys.readouterr().err
