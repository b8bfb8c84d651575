"""The bench of the tables at quick sizes: it is exact, well-formed, and notices what it is there to notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import fixtures, miwq, timing
from benchmarks.scan import brute_force
from benchmarks.timing import CODE_LENGTHS
from stillhash.errors import InvalidInput
from stillhash.hashers import OHSL
from stillhash.numeric import kernels
from stillhash.numeric.codes import from_tiles, pack, signs
from stillhash.search import MIWQ, Hits
from tests.benchmarks.command import printed, run_bench

pytestmark = pytest.mark.skipif(kernels.lanes() == "numpy", reason="tables pay only on native kernels")


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    plot = tmp_path_factory.mktemp("plots") / "crossover.png"
    return run_bench("miwq", "--repeats", "2", "--plot", str(plot))


@pytest.mark.slow
def test_result_has_rows_tables_and_goals(benched: dict[str, Any]) -> None:
    assert benched["skipped"] == []
    assert len(benched["rows"]) == len(CODE_LENGTHS) * len(fixtures.WEIGHT_KINDS) * len(miwq.SEARCHED_K)
    for row in benched["rows"]:
        assert row["exact"] and row["unlike"] == 0
        assert all(ms > 0 for ms in row["ms"].values()) and row["scan/miwq"]["median"] > 0
        assert row["on_tables"] == 0 and "no tables" in row["why"][0]  # they do not pay for so few codes
        assert row["index/best"]["p50"] <= row["index/best"]["p90"] <= row["index/best"]["max"]
    for table in benched["tables"]:
        # The starts of a few buckets weigh more than the rows of so small a table.
        assert table["bytes_per_code"] > table["tables"] * (4 + table["bits"] / 8)
    names = [goal["name"] for goal in benched["goals"]]
    assert len(names) == len(set(names)) == 2 + 2 + 2 * len(CODE_LENGTHS) + 1


@pytest.mark.slow
def test_hits_are_those_of_brute_force(benched: dict[str, Any]) -> None:
    counts = benched["exactness"]
    assert counts["cases"] == 300 and counts["wrong_hits"] == 0
    assert counts["tied_hits"] > 100 and counts["histories"] > 10


@pytest.mark.slow
def test_the_plot_is_a_picture(benched: dict[str, Any]) -> None:
    assert Path(benched["plot"]).read_bytes().startswith(b"\x89PNG")
    assert {(p["codes"], p["bits"], p["k"]) for p in benched["crossover"]} == {
        (codes, bits, k) for codes in (miwq.MIN_MIWQ_CODES, 8000) for bits in CODE_LENGTHS for k in miwq.SEARCHED_K
    }


@pytest.mark.slow
def test_tables_fit_a_hundred_columns(benched: dict[str, Any]) -> None:
    lines = printed(miwq, benched | {"skipped": [10**9]})
    assert "Goals" in lines and "1,000,000,000 codes were left out: too little memory." in lines
    assert all("…" not in line for line in lines)
    assert all(any(line.startswith(goal["name"]) for line in lines) for goal in benched["goals"])


def test_brute_force_is_the_definition() -> None:
    codes = np.array([[0b01], [0b10], [0b01], [0b11]], np.uint8)
    weights = np.array([[2, 1] + [0] * 6], np.float32)
    hits = brute_force(np.array([7, 5, 3, 9]), codes, weights, 6)
    assert hits.ids.tolist() == [[9, 3, 7, 5, -1, -1]]
    assert hits.scores.tolist() == [[3, 1, 1, -1, -np.inf, -np.inf]]
    allowed = np.arange(8) != 3
    assert brute_force(np.array([7, 5, 3, 9]), codes, weights, 3, allowed).ids.tolist() == [[7, 5, -1]]


@pytest.mark.parametrize("cases", [1, 6, 13])
def test_exactly_so_many_queries_are_compared(cases: int) -> None:
    counts = miwq.compare_histories(cases)
    assert counts["cases"] == cases and counts["wrong_hits"] == 0


@pytest.mark.parametrize("fault", ["ties", "removed rows"])
def test_faults_are_noticed(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    class Faulty(MIWQ):
        def search(self, weights: Any, k: int, *, allowed: Any = None) -> Hits:
            scores, ids = super().search(weights, k, allowed=allowed)
            order = np.lexsort((-ids if fault == "ties" else ids, -scores))
            return Hits(np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1))

        def remove(self, ids: Any) -> int:
            return super().remove(ids[1:] if fault == "removed rows" else ids)

    monkeypatch.setattr(miwq, "MIWQ", Faulty)
    assert miwq.compare_histories(200)["wrong_hits"] > 0


def test_unlike_answers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty(MIWQ):
        def search(self, weights: Any, k: int, *, allowed: Any = None) -> Hits:
            scores, ids = super().search(weights, k, allowed=allowed)
            return Hits(scores, ids + (k == 10))

    monkeypatch.setattr(miwq, "MIWQ", Hasty)
    weights = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)
    _, rows = miwq.contest(fixtures.make_codes("gaussian", 32, 6000, 1)[0], 6000, weights)
    assert [row["unlike"] for row in rows] == [0, 2, 0]


# ---- codes and weights ----


def test_weights_that_are_all_alike_are_refused() -> None:
    rng = np.random.default_rng(0)
    direction, noise = rng.standard_normal(32), 0.1 * rng.standard_normal((40, 32))
    with pytest.raises(InvalidInput, match=r"^weights"):
        fixtures.median_cosine(direction + noise)
    with pytest.raises(InvalidInput, match=r"^weights"):  # both ways along one line: the plain median is near zero
        fixtures.median_cosine(direction * rng.choice([-1, 1], (40, 1)) + noise)
    assert fixtures.median_cosine(rng.standard_normal((40, 32))) < 0.2


def test_learnt_codes_keep_the_marginals_of_real_ones() -> None:
    weights, projections = fixtures.learn_codes(32, 3, quick=True)
    assert weights.shape == (fixtures.MIN_LEARNT_QUERIES, 32)
    assert fixtures.median_cosine(weights) < fixtures.MAX_COSINE
    codes = from_tiles(fixtures.resample(projections, 20_000), 20_000)
    real = signs(pack(projections), 32).mean(axis=0)
    np.testing.assert_allclose(signs(codes, 32).mean(axis=0), real, atol=0.1)


def test_projections_are_what_encode_takes_the_signs_of() -> None:
    X, _ = fixtures.FeatureSource(1).rows(400)
    hasher = OHSL(32, unit_norm=False).fit(X[:300])
    np.testing.assert_array_equal(pack(fixtures.project(hasher, X)), hasher.encode(X))


def test_rows_have_labels_and_the_norm() -> None:
    X, labels = fixtures.FeatureSource(0).rows(500)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), fixtures.ROW_NORM, rtol=1e-5)
    assert X.min() == 0 and labels.any(axis=1).all() and 2.5 < labels.sum() / 500 < 3.5


# ---- options ----


@pytest.mark.parametrize(
    ("argument", "value"), [("codes", (10,)), ("repeats", 0), ("cases", 0), ("plot", Path("/no/such/folder/plot.png"))]
)
def test_bad_options_are_refused(argument: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"^{argument}"):
        timing.run_bench(miwq, quick=False, **{"repeats": 1, "codes": (8000,), "cases": 1, argument: value})


def test_sizes_beyond_the_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert miwq.fit_in_memory([10_000, 10**12]) == ([10_000], [10**12])
    monkeypatch.setattr(miwq, "BYTES_PER_CODE", 10**12)
    with pytest.raises(InvalidInput, match=r"^codes"):
        miwq.fit_in_memory([10_000])
