"""The bench of the tables runs at quick sizes: it is exact, well-formed, and notices what it is there to notice."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from stillhash.bench import fixtures, miwq
from stillhash.errors import InvalidInput
from stillhash.hashers import OHSL
from stillhash.numeric import kernels
from stillhash.numeric.codes import from_tiles, pack, signs
from stillhash.search import MIWQ, Hits

pytestmark = pytest.mark.skipif(kernels.lanes() == "numpy", reason="tables pay only on native kernels")


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return miwq.run(repeats=2, quick=True, plot=tmp_path_factory.mktemp("plots") / "crossover.png")


def test_result_is_json_with_machine_rows_and_goals(benched: dict[str, Any]) -> None:
    assert json.loads(json.dumps(benched)) == benched
    assert benched["quick"] is True and benched["skipped"] == [] and benched["machine"]["cpu"]
    assert len(benched["rows"]) == len(miwq.BITS) * len(fixtures.KINDS) * len(miwq.KS)
    for row in benched["rows"]:
        assert row["exact"] and row["unlike"] == 0
        assert all(ms > 0 for ms in row["ms"].values()) and row["scan/miwq"]["median"] > 0
        assert row["on_tables"] == 0 and "no tables" in row["why"][0]  # they do not pay for so few codes
        assert row["index/best"]["p50"] <= row["index/best"]["p90"] <= row["index/best"]["max"]
    for table in benched["tables"]:
        # The starts of a few buckets weigh more than the rows of so small a table.
        assert table["bytes_per_code"] > table["tables"] * (4 + table["bits"] / 8)
    names = [goal["name"] for goal in benched["goals"]]
    assert len(names) == len(set(names)) == 2 + 2 + 2 * len(miwq.BITS) + 1


def test_hits_are_those_of_brute_force(benched: dict[str, Any]) -> None:
    found = benched["exactness"]
    assert found["cases"] == 300 and found["wrong_hits"] == 0
    assert found["tied_hits"] > 100 and found["histories"] > 10


def test_the_plot_is_a_picture(benched: dict[str, Any]) -> None:
    assert Path(benched["plot"]).read_bytes().startswith(b"\x89PNG")
    assert {(p["codes"], p["bits"], p["k"]) for p in benched["crossover"]} == {
        (codes, bits, k) for codes in (miwq.LEAST, 8000) for bits in miwq.BITS for k in miwq.KS
    }


def test_tables_fit_a_hundred_columns(benched: dict[str, Any]) -> None:
    out = io.StringIO()
    miwq.show(benched | {"skipped": [10**9]}, Console(file=out, width=100))
    lines = out.getvalue().splitlines()
    assert "Goals" in lines and "1,000,000,000 codes were left out: too little memory." in lines
    assert all("…" not in line for line in lines)
    assert all(any(line.startswith(goal["name"]) for line in lines) for goal in benched["goals"])


def test_brute_force_is_the_definition() -> None:
    codes = np.array([[0b01], [0b10], [0b01], [0b11]], np.uint8)
    weights = np.array([[2, 1] + [0] * 6], np.float32)
    found = miwq.brute_force(np.array([7, 5, 3, 9]), codes, weights, 6)
    assert found.ids.tolist() == [[9, 3, 7, 5, -1, -1]]
    assert found.scores.tolist() == [[3, 1, 1, -1, -np.inf, -np.inf]]
    allowed = np.arange(8) != 3
    assert miwq.brute_force(np.array([7, 5, 3, 9]), codes, weights, 3, allowed).ids.tolist() == [[7, 5, -1]]


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
    assert miwq.compared(200)["wrong_hits"] > 0


def test_unlike_answers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty(MIWQ):
        def search(self, weights: Any, k: int, *, allowed: Any = None) -> Hits:
            scores, ids = super().search(weights, k, allowed=allowed)
            return Hits(scores, ids + (k == 10))

    monkeypatch.setattr(miwq, "MIWQ", Hasty)
    weights = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)
    _, rows = miwq.contest(fixtures.random_tiles(32, 6000), 6000, weights)
    assert [row["unlike"] for row in rows] == [0, 2, 0]


# ---- what is searched ----


def test_weights_that_are_all_alike_are_refused() -> None:
    rng = np.random.default_rng(0)
    direction, noise = rng.standard_normal(32), 0.1 * rng.standard_normal((40, 32))
    with pytest.raises(InvalidInput, match=r"median \|cosine\|"):
        fixtures.diversity(direction + noise)
    with pytest.raises(InvalidInput, match="is wanted"):  # both ways along one line: the plain median is near zero
        fixtures.diversity(direction * rng.choice([-1, 1], (40, 1)) + noise)
    assert fixtures.diversity(rng.standard_normal((40, 32))) < 0.2


def test_learnt_codes_keep_the_marginals_of_real_ones() -> None:
    found = fixtures.learnt(32, 3, quick=True)
    assert found.weights.shape == (fixtures.ASKED, 32) and found.cosine < fixtures.DIVERSE
    codes = from_tiles(fixtures.resampled(found.projections, 20_000), 20_000)
    real = signs(pack(found.projections), 32).mean(axis=0)
    np.testing.assert_allclose(signs(codes, 32).mean(axis=0), real, atol=0.1)


def test_projections_are_what_encode_takes_the_signs_of() -> None:
    X, _ = fixtures.World(1).rows(400)
    hasher = OHSL(32, unit_norm=False).fit(X[:300])
    np.testing.assert_array_equal(pack(fixtures.projected(hasher, X)), hasher.encode(X))


def test_rows_have_labels_and_the_norm() -> None:
    X, labels = fixtures.World(0).rows(500)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), fixtures.NORM, rtol=1e-5)
    assert X.min() == 0 and labels.any(axis=1).all() and 2.5 < labels.sum() / 500 < 3.5


# ---- the door ----


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"codes": (10,)}, "codes is 10"),
        ({"repeats": 0}, "repeats is 0"),
        ({"cases": 0}, "cases is 0"),
        ({"plot": Path("/no/such/folder/plot.png")}, "plot is"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        miwq.run(**options)


def test_sizes_without_room_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert miwq.fitting([10_000, 10**12]) == ([10_000], [10**12])
    monkeypatch.setattr(miwq, "ROOM", 10**12)
    with pytest.raises(InvalidInput, match="there is memory for 0"):
        miwq.fitting([10_000])
