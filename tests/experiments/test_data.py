"""Feature folders in every format, and the paper's splits, on small files made here."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io

from stillhash.errors import InvalidInput
from stillhash.experiments.data import (
    Dataset,
    draw_queries,
    open_dataset,
    repeat,
    simulate_features,
    simulated,
)

RNG = np.random.default_rng(0)
X = RNG.random((30, 6)).astype(np.float32)
Y = (RNG.random((30, 4)) < 0.4).astype(np.uint8)
QUERIES = np.array([3, 7, 20])


def write_npy(folder: Path) -> None:
    np.save(folder / "features.npy", X)
    np.save(folder / "labels.npy", Y)
    np.save(folder / "queries.npy", QUERIES)


def write_npz_parts(folder: Path) -> None:
    for i, part in enumerate(np.array_split(X, 11)):  # features_10 comes after features_9
        np.savez(folder / f"features_{i}.npz", x=part)
    packed = np.packbits(Y, axis=1)
    np.savez(folder / "meta.npz", labels_packed=packed, num_labels=4, query_rows=QUERIES)


def write_mat(folder: Path) -> None:
    scipy.io.savemat(folder / "coco.mat", {"fc7": X, "labels": Y, "queries": QUERIES})


def write_mat73(folder: Path) -> None:
    with h5py.File(folder / "nus.mat", "w", userblock_size=512) as file:
        file["fc7"], file["labels"], file["queries"] = X.T, Y.T, QUERIES[None]
    header = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    with (folder / "nus.mat").open("r+b") as raw:
        raw.write(header)


def write_h5(folder: Path) -> None:
    with h5py.File(folder / "set.h5", "w") as file:
        file["features"], file["labels"], file["queries"] = X, Y, QUERIES


@pytest.mark.parametrize("write", [write_npy, write_npz_parts, write_mat, write_mat73, write_h5])
def test_every_format_reads_the_same(tmp_path: Path, write: object) -> None:
    write(tmp_path)  # type: ignore[operator]
    data = open_dataset(tmp_path)
    np.testing.assert_allclose(data.read(np.arange(30)), X)
    np.testing.assert_array_equal(data.labels, Y)
    assert data.queries.tolist() == QUERIES.tolist() and data.dim == 6 and len(data) == 30
    assert data.stream.tolist() == [r for r in range(30) if r not in QUERIES]
    np.testing.assert_allclose(data.read(np.array([29, 0, 13])), X[[29, 0, 13]])


def test_npy_features_stay_on_disk(tmp_path: Path) -> None:
    write_npy(tmp_path)
    assert isinstance(open_dataset(tmp_path).parts[0], np.memmap)


def test_class_numbers_become_an_indicator_matrix_and_scale_is_applied(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=np.arange(12, dtype=np.uint8).reshape(4, 3), label=[5, 2, 5, 9], scale=0.5)
    data = open_dataset(tmp_path)
    assert data.labels.tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert data.read(np.array([3])).tolist() == [[4.5, 5.0, 5.5]]


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"labels": Y}, "^features"),
        ({"x": X}, "^labels"),
        ({"x": X, "labels": Y[:5]}, "^labels.*got 5"),
        ({"x": X, "labels": Y + 3}, "^labels.*indicator"),
        ({"x": X, "labels": Y, "queries": [40]}, "^queries"),
    ],
)
def test_broken_folders_are_explained(tmp_path: Path, files: dict[str, object], match: str) -> None:
    np.savez(tmp_path / "all.npz", **files)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=match):
        open_dataset(tmp_path)


def test_a_missing_folder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^data"):
        open_dataset(tmp_path / "nothing")


def test_queries_are_drawn_per_class_and_never_twice() -> None:
    labels = (np.random.default_rng(1).random((2000, 10)) < 0.15).astype(np.uint8)
    queries = draw_queries(labels, 20, seed=3)
    assert len(queries) == len(set(queries.tolist())) == 200
    assert (labels[queries].sum(axis=0) >= 20).all()
    assert draw_queries(labels, 20, seed=3).tolist() == queries.tolist() != draw_queries(labels, 20, seed=4).tolist()


def test_simulated_features_carry_the_labels_and_say_what_they_are() -> None:
    labels = np.eye(5, dtype=np.uint8)[np.arange(500) % 5]
    features = simulate_features(labels, 64, noise=0.25, seed=0)
    assert features.shape == (500, 64) and (features >= 0).all() and np.isfinite(features).all()
    means = np.stack([features[c::5].mean(axis=0) for c in range(5)])
    nearest = np.argmin(((features[:, None] - means) ** 2).sum(axis=2), axis=1)
    assert (nearest == np.arange(500) % 5).mean() > 0.9
    data = simulated("nuswide21", labels, np.arange(10), dim=16)
    assert isinstance(data, Dataset) and data.name == "nuswide21-simulated"


def test_labels_alone_can_be_opened_with_simulated_features(tmp_path: Path) -> None:
    eyes = np.eye(5, dtype=np.uint8)[np.arange(500) // 100]  # sorted, as a release may be
    np.savez(
        tmp_path / "meta.npz", labels5_packed=np.packbits(eyes, axis=1), labels9_packed=np.zeros((500, 2), np.uint8)
    )
    with pytest.raises(InvalidInput, match=r"^features"):
        open_dataset(tmp_path)
    data = open_dataset(f"simulated:{tmp_path}")
    assert data.name == f"{tmp_path.name}-simulated" and data.dim == 512
    assert (data.labels.sum(axis=0) == 100).all() and not (data.labels == eyes).all()
    assert (data.labels[data.queries].sum(axis=0) == 50).all()


def test_a_stream_can_be_repeated_on_disk(tmp_path: Path) -> None:
    data = Dataset("small", (X,), 2.0, Y, QUERIES)
    repeat(data, 70, tmp_path / "long")
    long = open_dataset(tmp_path / "long")
    assert len(long.stream) == 70 and len(long.queries) == 3
    np.testing.assert_array_equal(long.read(long.stream[27:54]), data.read(data.stream))
    np.testing.assert_array_equal(long.labels[long.stream[:27]], Y[data.stream])
    np.testing.assert_array_equal(long.read(long.queries), data.read(QUERIES))
