"""Collections that record their encoder, and alignments from another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.collection.learning.encoder_alignment import EncoderIdentity
from stillhash.errors import Conflict, InvalidInput
from tests.support.toys import toy

OURS = EncoderIdentity("old", "0" * 64, 48)
THEIRS = EncoderIdentity("new", "f" * 64, 70)
VIEW = np.random.default_rng(5).standard_normal((48, 70))


def seen_by_theirs(X: np.ndarray) -> np.ndarray:
    """Return the same rows as another encoder would encode them."""
    return np.maximum(X @ VIEW, 0).astype(np.float32)


@pytest.fixture
def collection(tmp_path: Path) -> stillhash.Collection:
    X, Y = toy(1200)
    collection = stillhash.open(tmp_path / "c", bits=32, encoder=OURS, init_rows=300)
    collection.add(range(1200), X, Y)
    collection.flush()
    return collection


def test_collection_records_its_encoder(collection: stillhash.Collection, tmp_path: Path) -> None:
    assert collection.encoder == OURS and collection.dim == 48
    collection.close()
    with stillhash.open(tmp_path / "c", encoder=OURS) as again:
        assert again.encoder == OURS
    with pytest.raises(Conflict, match=r"^encoder: .*0{12}.*f{12}"):
        stillhash.open(tmp_path / "c", encoder=THEIRS)
    stillhash.open(tmp_path / "c").close()  # the refused one released the lock


def test_collection_without_encoder_refuses_encoders(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", 48) as collection:
        assert collection.encoder is None
    with pytest.raises(Conflict, match=r"^encoder"):
        stillhash.open(tmp_path / "c", encoder=OURS)
    with pytest.raises(InvalidInput, match=r"^dim"):
        stillhash.open(tmp_path / "d", 5, encoder=OURS)
    assert not (tmp_path / "d").exists()


@pytest.mark.slow
def test_aligned_encoder_queries_while_codes_stay(collection: stillhash.Collection, tmp_path: Path) -> None:
    X, Y = toy(500, seed=3)
    queries, labels = X[300:], Y[300:]
    codes = collection.reconstruct(range(1200)).tobytes()
    with pytest.raises(Conflict, match=r"^encoder"):
        collection.translate(seen_by_theirs(queries), THEIRS)
    alignment = collection.align(THEIRS, seen_by_theirs(X[:300]), X[:300])
    assert alignment["pairs"] == 300 and 0.3 < alignment["explained"] <= 1
    assert collection.alignments() == [{"fingerprint": THEIRS.fingerprint, **alignment}]
    assert collection.reconstruct(range(1200)).tobytes() == codes

    def precision(queries: np.ndarray) -> float:
        each = zip(collection.search(queries, 10), labels, strict=True)
        return float(np.mean([bool(set(np.flatnonzero(y)) & set(hit.labels)) for a, y in each for hit in a.hits]))

    aligned = collection.translate(seen_by_theirs(queries), THEIRS)
    strangers = np.resize(seen_by_theirs(queries)[:, :48], queries.shape)  # without an alignment
    assert precision(aligned) > 0.9 * precision(queries) > precision(strangers)
    assert collection.translate(queries, OURS).tobytes() == queries.tobytes()
    collection.close()
    with stillhash.open(tmp_path / "c", encoder=THEIRS, read_only=True) as reader:  # the alignment is stored
        assert reader.translate(seen_by_theirs(queries), THEIRS).tobytes() == aligned.tobytes()
        with pytest.raises(Conflict):
            reader.align(THEIRS, seen_by_theirs(X[:300]), X[:300])


def test_invalid_pairs_are_refused(collection: stillhash.Collection) -> None:
    X = toy(30).X
    Z = seen_by_theirs(X)
    for theirs, ours, match in (
        (Z[:10], X[:10], "^theirs"),
        (Z, X[:29], "^theirs"),
        (X, X, "^theirs"),
        (Z, Z, "^ours"),
        (Z * np.nan, X, "^theirs"),
    ):
        with pytest.raises(InvalidInput, match=match):
            collection.align(THEIRS, theirs, ours)
    with pytest.raises(InvalidInput, match=r"^encoder"):
        collection.align(OURS, X, X)
    assert collection.alignments() == []
