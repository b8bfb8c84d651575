"""The map of a collection: its coordinates are those of a plain PCA, and its items a fixed sample."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.collection.label_names import stored_label_names
from stillhash.collection.layout import MIN_MAIN_CHANCE, hash_rows, sample_rows
from stillhash.collection.storage.store import Store
from stillhash.collection.stored_models import load_functions, load_model
from stillhash.errors import InvalidInput, NotFitted
from stillhash.hashers import LinearHasher, Model
from stillhash.numeric import reference
from stillhash.numeric.codes import signs
from tests.collection.fixtures import BITS, DIM, INIT, LEARN, begin, some_rows

SIDES: tuple[Any, ...] = ("features", "labels")


def learnt_state(path: Path) -> tuple[LinearHasher, Model]:
    store = Store(path, writer=False)
    try:
        with store.reading() as connection:
            functions, version = load_functions(connection), store.versions.describe(connection)[-1]["version"]
            assert functions is not None
            return functions, load_model(store, connection, version)
    finally:
        store.close()


def plain_pca(X: np.ndarray) -> np.ndarray:
    """Principal components as a textbook has them: centre, covariance, eigenvectors; then our sign and scale."""
    centred = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
    _, vectors = np.linalg.eigh(centred.T @ centred / len(X))
    places = centred @ vectors[:, [-1, -2]]
    places *= np.sign((places**3).sum(axis=0))
    return np.asarray(places / np.abs(places).max())


def rebuilt(functions: LinearHasher, codes: np.ndarray) -> np.ndarray:
    """Features as codes give them back, in their own space."""
    first = functions.label_bits_ if 4 * (functions.bits - functions.label_bits_) >= functions.bits else 0
    return signs(codes, functions.bits)[:, first:].astype(np.float64) @ functions.W_[:, first:].T.astype(np.float64)


def predicted(model: Model, codes: np.ndarray) -> np.ndarray:
    assert model.V is not None and model.v is not None
    return reference.predict_labels(codes, model.V, model.v, model.item_power)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bits", [16, 24, 128])
def test_coordinates_are_those_of_a_plain_pca(tmp_path: Path, bits: int, seed: int) -> None:
    rows = 400 + 37 * seed
    with stillhash.open(tmp_path / "c", DIM, bits, init_rows=INIT, learn_rows=LEARN) as collection:
        collection.add(list(range(rows)), *some_rows(rows, seed))
        if seed:
            collection.seal()
            collection.upsert([f"x{n}" for n in range(20)], *some_rows(20, seed + 9))
            collection.delete(list(range(0, 60, 3)))
        by_features, by_labels = (collection.layout(by=side) for side in SIDES)
        codes = collection.codes(by_features.ids)
        assert codes is not None
        functions, model = learnt_state(tmp_path / "c")
        assert by_features.ids == by_labels.ids and len(by_features.ids) == collection.count() == by_features.items
        assert by_features.coordinates.shape == (collection.count(), 2)
        assert by_features.coordinates.dtype == np.float32
        assert by_features.coordinates == pytest.approx(plain_pca(rebuilt(functions, codes)), abs=2e-4)
        assert by_labels.coordinates == pytest.approx(plain_pca(predicted(model, codes)), abs=2e-4)
        assert (by_features.by, by_labels.by) == SIDES
        assert by_features.version == collection.stats()["version"]


@pytest.mark.parametrize("side", SIDES)
def test_main_labels(tmp_path: Path, side: Any) -> None:
    collection, _ = begin(tmp_path / "c", 500)
    with collection:
        layout, (_, model) = collection.layout(by=side), learnt_state(tmp_path / "c")
        with collection._view.pinned() as snapshot:
            names = stored_label_names(collection._store, snapshot)
        codes = collection.codes(layout.ids)
        assert codes is not None
        chances = predicted(model, codes)
        expected: list[str | None] = []
        for place, item in enumerate(collection.get(layout.ids)):
            assert item is not None
            best = names[chances[place].argmax()] if chances[place].max() >= MIN_MAIN_CHANCE else None
            own = sorted(item.labels, key=lambda name: -chances[place, names.index(name)])
            expected.append(own[0] if own else best)
            assert layout.predicted[place] == (not own and best is not None)
        assert [None if n < 0 else layout.labels[n] for n in layout.main.tolist()] == expected
        counts = Counter(expected)
        assert [counts[name] for name in layout.labels] == sorted(
            (counts[name] for name in layout.labels), reverse=True
        )
        assert layout.predicted.any() and not layout.predicted.all()


def test_before_anything_is_learnt(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", DIM, BITS, init_rows=INIT, learn_rows=10_000) as collection:
        with pytest.raises(NotFitted, match=r"^layout"):
            collection.layout()
        X, labels, _ = some_rows(320)
        collection.fit(X)
        collection.add(list(range(320)), X, labels)
        layout = collection.layout()
        assert [layout.labels[n] for n in layout.main.tolist() if n >= 0] == [some[0] for some in labels if some]
        assert not layout.predicted.any()
        with pytest.raises(NotFitted, match=r"^by"):
            collection.layout(by="labels")


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_items(tmp_path: Path, rows: int) -> None:
    collection, _ = begin(tmp_path / "c")
    with collection:
        collection.delete(list(range(320 - rows)))
        for side in SIDES:
            layout = collection.layout(by=side)
            assert len(layout.ids) == len(layout.coordinates) == len(layout.main) == rows
            assert np.isfinite(layout.coordinates).all() and (np.abs(layout.coordinates) <= 1).all()


def test_the_sample_is_fixed_and_changes_little(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    with collection:
        first = collection.layout(100, seed=5)
        assert first.ids == collection.layout(100, seed=5).ids and len(set(first.ids)) == 100
        assert first.ids != collection.layout(100, seed=6).ids
        with stillhash.open(tmp_path / "c", read_only=True) as reader:
            again = reader.layout(100, seed=5)
            assert again.ids == first.ids and (again.coordinates == first.coordinates).all()
        collection.seal()
        collection.delete([name for name in range(320) if name not in first.ids])
        collection.compact()
        assert collection.layout(100, seed=5).ids == first.ids == collection.layout(seed=1).ids
        collection.add([f"x{n}" for n in range(30)], *some_rows(30, 4))
        assert len(set(collection.layout(100, seed=5).ids) & set(first.ids)) >= 65


def test_the_sample_is_at_random() -> None:
    rows = np.arange(10_000)
    counts = sum(np.bincount(sample_rows(rows, 2000, seed), minlength=len(rows)) for seed in range(50))
    blocks = np.asarray(counts).reshape(20, -1).sum(axis=1)  # 5,000 expected in each
    assert abs(blocks - 5000).max() < 400 and len(set(hash_rows(rows, 0).tolist())) == len(rows)


def test_ready_codes(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(256, size=(50, 2), dtype=np.uint8)
    with stillhash.open(tmp_path / "c", bits=16, codes_only=True) as collection:
        collection.add(list(range(50)), codes)
        assert collection.layout().coordinates == pytest.approx(plain_pca(signs(codes, 16)), abs=1e-4)


@pytest.mark.parametrize(
    "arguments", [{"items": 0}, {"items": 1.5}, {"items": 10**6}, {"by": "looks"}, {"seed": -1}, {"seed": float("nan")}]
)
def test_invalid_arguments(tmp_path: Path, arguments: dict[str, Any]) -> None:
    collection: Collection
    collection, _ = begin(tmp_path / "c", 20)
    with collection, pytest.raises(InvalidInput, match=f"^{next(iter(arguments))}"):
        collection.layout(**arguments)
