"""The choice of a device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import stillhash
from stillhash import Index, index_for
from stillhash.cli.main import app
from stillhash.errors import InvalidInput, MissingExtra, Unsupported
from stillhash.search import GpuScan, searcher_for
from tests.support.gpu import gpu_reason

needs_no_gpu = pytest.mark.skipif(not gpu_reason(), reason="there is a GPU")
needs_gpu = pytest.mark.skipif(bool(gpu_reason()), reason=gpu_reason() or "there is a GPU")


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x", "cpu:0", "auto:1", "cuda:-1", 0])
def test_an_unknown_device_is_refused(device: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^device"):
        searcher_for(device)
    with pytest.raises(InvalidInput, match=r"^device"):
        stillhash.open(tmp_path / "a", 8, device=device)
    assert not (tmp_path / "a").exists()


def test_the_cpu_has_the_index_that_chooses() -> None:
    assert type(index_for(64, device="cpu", threads=1)) is Index and index_for(64, device="cpu").bits == 64


@needs_no_gpu
def test_without_a_gpu_auto_is_the_cpu_and_cuda_an_error(tmp_path: Path) -> None:
    assert type(index_for(64)) is Index
    with pytest.raises((MissingExtra, Unsupported), match=r"^device"):
        index_for(64, device="cuda")
    with pytest.raises((MissingExtra, Unsupported), match=r"^device"):
        stillhash.open(tmp_path / "a", 8, device="cuda")
    assert not (tmp_path / "a").exists()


def test_a_searcher_and_a_device_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^device"):
        stillhash.open(tmp_path / "a", 8, searcher=GpuScan, device="cuda")


@pytest.mark.medium
def test_serve_refuses_an_unknown_device(tmp_path: Path) -> None:
    stillhash.open(tmp_path / "a", 8).close()
    outcome = CliRunner().invoke(app, ["serve", str(tmp_path / "a"), "--port", "0", "--device", "gpu"])
    assert isinstance(outcome.exception, InvalidInput) and str(outcome.exception).startswith("device")


def fill(path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 16)).astype(np.float32)
    labels = [["left" if x[0] < 0 else "right", "low" if x[1] < 0 else "high"] for x in X]
    with stillhash.open(path, 16, 64, init_rows=300) as collection:
        collection.add(range(2000), X, labels, [{"n": i % 9} for i in range(2000)])
        collection.compact()
        collection.add(range(2000, 2600), rng.standard_normal((600, 16)).astype(np.float32), metadata=[{"n": 1}] * 600)
        collection.delete(range(100, 300))


def answers(collection: stillhash.Collection) -> list[object]:
    queries = np.random.default_rng(1).standard_normal((6, 16)).astype(np.float32)
    found = [collection.search(queries, 10), collection.search(queries, 10, where={"n": 3})]
    return [[(hit.id, hit.score, hit.placed) for hit in answer.hits] for part in found for answer in part]


@pytest.mark.parametrize("kind", ["twin", pytest.param("gpu", marks=needs_gpu)])
def test_a_collection_answers_the_same_on_a_card(kind: str, tmp_path: Path) -> None:
    from tests.support.gpu import TwinScan

    fill(tmp_path / "a")
    with stillhash.open(tmp_path / "a", read_only=True) as collection:
        expected = answers(collection)
    option = {"searcher": TwinScan} if kind == "twin" else {"device": "cuda"}
    with stillhash.open(tmp_path / "a", **option) as collection:
        assert answers(collection) == expected
        (query,) = collection.reconstruct([7])
        assert "labels" in {hit.placed for hit in collection.search(query, 10).hits}  # by rescoring codes
        assert collection.stats()["plan"] == "scan"
