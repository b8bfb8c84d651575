"""The comparison with other databases: the same rows and filters for all of them. No time is judged here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import peers, timing
from benchmarks.fixtures import random_features
from benchmarks.peers import FILTERS, GROUPS, PEERS, describe
from benchmarks.timing import TOP_K
from stillhash.errors import InvalidInput, MissingExtra
from tests.benchmarks.command import printed, run_bench

PACKAGES = sorted({package for _, package in PEERS.values()})


def made_up(name: str, ms: float, precision: float) -> dict[str, Any]:
    """Return what is measured of one contender."""
    searches = {kind: {"p50_ms": ms, "p99_ms": 2 * ms} for kind in FILTERS}
    sizes = {"disk_bytes": 49e6, "memory_bytes": 70e6, "rows_per_second": 3760.0, "misfiltered": 0}
    return {"name": name, "version": "1.2", "precision_10": precision, "ndcg_10": precision / 2, **sizes, **searches}


RESULT = {
    "data": "photos",
    "rows_added": 96_000,
    "columns": 1280,
    "queries": 300,
    "rows": [made_up(name, ms + 1, 0.9 - ms / 100) for ms, name in enumerate(PEERS)],
}


@pytest.mark.parametrize("name", PEERS)
def test_every_database_finds_a_row_and_keeps_to_a_filter(name: str, tmp_path: Path) -> None:
    kind, package = PEERS[name]
    pytest.importorskip(package)
    X = random_features(300, 16, seed=0)
    database = kind(tmp_path / "store", 16)
    for some in (slice(0, 200), slice(200, 300)):
        rows = range(300)[some]
        database.add([str(r) for r in rows], X[some], [[f"label {r % 7}"] for r in rows], [describe(r) for r in rows])
    assert database.search(X[207], None)[0] == "207"
    hits = database.search(X[207], 3)
    assert len(hits) == 9 and all(int(hit) % GROUPS < 3 for hit in hits)  # no more rows than these are left
    assert len(database.search(X[207], 50)) == TOP_K
    database.close()


def test_hits_are_judged_by_labels_and_places() -> None:
    items = np.zeros((40, 3), np.uint8)
    items[:15, 0] = items[10:20, 1] = items[20:, 2] = 1
    queries = np.array([[1, 0, 0], [0, 1, 0]], np.uint8)
    hits = np.full((2, TOP_K), -1)
    hits[0] = range(TOP_K)  # the best there are
    hits[1, :4] = 15, 30, 31, 10  # one alike, two others, one half alike, and no more
    quality = peers.judge_hits(hits, queries, items)
    gain = (1 + 0.5 / np.log2(5)) / (sum(1 / np.log2(np.arange(2, 7))) + 0.5 * sum(1 / np.log2(np.arange(7, 12))))
    assert quality["precision_10"] == pytest.approx((1 + 0.2) / 2)
    assert quality["ndcg_10"] == pytest.approx((1 + gain) / 2)


def test_goals_compare_with_the_better_of_the_others() -> None:
    judged = {name: (bound, measured) for name, bound, measured in peers.goals(RESULT["rows"])}
    assert judged["search of 3 %, p50, ours / the fastest"] == ("<= 1", pytest.approx(1 / 3))
    assert judged["P@10, ours - the better"] == (">= 0", pytest.approx(0.02))


def test_the_page_has_a_row_for_each_database() -> None:
    here = {"cpu": "Fast CPU", "cores": 2, "lanes": "avx2", "numpy": "2.4", "load": 0.5}
    lines = peers.to_markdown(RESULT, here).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(PEERS) and {line.count("|") for line in table} == {10}
    assert table[2] == "| stillhash, 64 bits | 3,760 | 49 | 70 | 1.00 | 1.00 | 1.00 | 0.900 | 0.450 |"
    assert any("--data photos --rows 96000 --repeats 300" in line for line in lines)
    assert any(line.startswith("Fast CPU, 2 cores") and "chromadb 1.2" in line for line in lines)


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "lancedb" else object())
    with pytest.raises(MissingExtra, match=r"lancedb: pip install 'stillhash\[bench\]'"):
        timing.run_bench(peers, quick=True, repeats=1, rows=4000)


def test_more_rows_than_there_are_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda _: object())
    for rows in (10, 20_000):
        with pytest.raises(InvalidInput, match=r"^rows"):
            timing.run_bench(peers, quick=False, repeats=1, rows=rows, data="scenes")


@pytest.mark.slow
def test_all_databases_run_beside_each_other(tmp_path: Path) -> None:
    for package in PACKAGES:
        pytest.importorskip(package)
    (tmp_path / "disk").mkdir()
    page = tmp_path / "peers.md"
    result = run_bench("peers", "--repeats", "3", "--folder", str(tmp_path / "disk"), "--markdown", str(page))
    assert [row["name"] for row in result["rows"]] == list(PEERS) and list((tmp_path / "disk").iterdir()) == []
    for row in result["rows"]:
        assert row["misfiltered"] == 0 and row["disk_bytes"] > 1e6 and row["rows_per_second"] > 0
        assert 0.1 < row["precision_10"] <= 1 and 0.1 < row["ndcg_10"] <= 1
    lines = printed(peers, result)
    assert all(len(line) <= 100 and "…" not in line for line in lines)
    assert all(any(line.startswith(name) for line in lines) for name in PEERS)
    assert all(line in page.read_text() for line in peers.to_markdown(result, result["machine"]).splitlines()[2:10])
