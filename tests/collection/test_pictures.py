"""Pictures of items, and features reconstructed from codes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash.collection.validation import MAX_PICTURE_BYTES
from stillhash.errors import InvalidInput, WrongType
from stillhash.hashers.linear import LinearHasher
from stillhash.numeric.codes import signs
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.rescored_page import SIMILAR_FEW_LABELS
from stillhash.numeric.rescoring import Rescorer
from tests.collection.fixtures import rescoring_codes
from tests.support.toys import toy

PNG, JPEG = b"\x89PNG\r\n\x1a\n...", b"\xff\xd8\xff..."
WEBP, GIF = b"RIFF....WEBP...", b"GIF89a..."
X, Y = toy(700)


@pytest.fixture
def collection(tmp_path: Path) -> stillhash.Collection:
    collection = stillhash.open(tmp_path / "c", 48, 32, init_rows=300)
    collection.add(range(300), X[:300], Y[:300], pictures=[PNG, JPEG, WEBP, GIF] + [None] * 296)
    return collection


def hash_functions(path: Path) -> LinearHasher:
    """Read the hash functions from the store."""
    with closing(sqlite3.connect(path / "store.db")) as connection:
        (state,) = connection.execute("SELECT value FROM meta WHERE key = 'functions'").fetchone()
    return LinearHasher.load(state)


def test_pictures_stay_with_their_items(collection: stillhash.Collection, tmp_path: Path) -> None:
    assert [collection.picture(n) for n in range(5)] == [PNG, JPEG, WEBP, GIF, None]
    assert collection.picture("nobody") is None
    collection.upsert([0, 1], X[:2], pictures=[GIF, None])
    collection.delete([2])
    assert [collection.picture(n) for n in range(4)] == [GIF, None, None, GIF]
    collection.compact()
    collection.snapshot(tmp_path / "copy")
    with stillhash.open(tmp_path / "copy", read_only=True) as copy:
        assert [copy.picture(n) for n in range(4)] == [GIF, None, None, GIF]
        assert copy.verify() == []


@pytest.mark.parametrize(
    ("pictures", "error", "match"),
    [
        ([b"<svg onload='x'>"], InvalidInput, "^pictures"),
        ([b""], InvalidInput, "^pictures"),
        (["text"], WrongType, "^pictures"),
        ([PNG, PNG], InvalidInput, "^pictures"),
        (PNG, WrongType, "^pictures"),
        ([PNG + b"x" * MAX_PICTURE_BYTES], InvalidInput, "^pictures"),
    ],
)
def test_invalid_pictures_are_refused(
    collection: stillhash.Collection, pictures: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        collection.add(["new"], X[:1], pictures=pictures)
    assert collection.count() == 300 and collection.get(["new"]) == [None]


@pytest.mark.parametrize("rescore_bits", [0, 2, 8])
def test_reconstructed_features_are_of_the_longest_codes(tmp_path: Path, rescore_bits: int) -> None:
    """Without rescoring codes they have the same codes; with these they are nearly the features that were added."""
    collection = stillhash.open(tmp_path / "c", 48, 32, init_rows=300, rescore_bits=rescore_bits)
    collection.add(range(300), X[:300], Y[:300])
    back = collection.reconstruct(range(300))
    assert back.shape == (300, 48) and back.dtype == np.float32
    functions = hash_functions(tmp_path / "c")
    same = (functions.encode(back) == collection.codes(range(300))).all(axis=1)
    cosines = (unit_rows(functions.prepare(back)) * unit_rows(functions.prepare(X[:300]))).sum(axis=1)
    if rescore_bits:
        assert cosines.min() > {2: 0.85, 8: 0.999}[rescore_bits]
    else:
        assert same.mean() > 0.95 and cosines.mean() < 0.85
    assert collection.reconstruct([7, 3]).tobytes() == back[[7, 3]].tobytes()  # independent of the batch
    assert collection.reconstruct([]).shape == (0, 48)
    with pytest.raises(InvalidInput, match=r"^id"):
        collection.reconstruct([1, "nobody"])
    collection.close()


def test_features_are_of_short_codes_where_rescoring_codes_are_lost(
    collection: stillhash.Collection, tmp_path: Path
) -> None:
    collection.seal()
    collection.close()
    for file in (tmp_path / "c" / "segments").glob("*.rescoring"):
        file.unlink()
    stillhash.repair(tmp_path / "c")
    functions = hash_functions(tmp_path / "c")
    with stillhash.open(tmp_path / "c") as repaired:
        codes = repaired.codes(range(300))
        assert codes is not None
        assert repaired.reconstruct(range(300)).tobytes() == functions.decode(codes).tobytes()


def test_items_without_codes_are_reconstructed_exactly(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "w", 48, 32) as waiting:
        waiting.add(["a", "b", "c"], X[:3])
        waiting.delete(["a"])
        assert waiting.reconstruct(["c", "b"]).tobytes() == X[[2, 1]].tobytes()


def test_recalled_features_find_what_the_items_own_would(collection: stillhash.Collection) -> None:
    collection.add(range(300, 700), X[300:], Y[300:])
    collection.flush()

    def precision(queries: np.ndarray) -> float:
        each = zip(collection.search(queries, 20), Y, strict=False)
        return float(np.mean([bool(set(np.flatnonzero(y)) & set(hit.labels)) for a, y in each for hit in a.hits]))

    assert precision(collection.reconstruct(range(100))) > 0.95 * precision(X[:100])


def test_a_sample_is_of_items_that_are_there(collection: stillhash.Collection, tmp_path: Path) -> None:
    collection.delete(range(290))
    items = collection.sample(200)
    assert {item.id for item in items} <= set(range(290, 300)) and len(items) == len({item.id for item in items})
    assert collection.sample(1) != []
    with pytest.raises(InvalidInput, match=r"^count"):
        collection.sample(0)
    with stillhash.open(tmp_path / "empty", 4) as empty:
        assert empty.sample(3) == []


def test_version_0_is_the_query_against_the_codes(collection: stillhash.Collection, tmp_path: Path) -> None:
    collection.add(range(300, 700), X[300:], Y[300:])
    collection.flush()
    now, before = collection.search(X[0], 700), collection.search(X[0], 700, version=0)
    assert before.version == 0 and before.ranking.startswith("similarity") and now.ranking == "learnt similarity"
    functions = hash_functions(tmp_path / "c")
    similarity = functions.prepare(X[:1].astype(np.float32)) @ functions.W_ + functions.t_
    codes = collection.codes(range(700))
    assert codes is not None
    scores = signs(codes, 32) @ (similarity[0] / np.linalg.norm(similarity))
    assert [hit.score for hit in before.hits] == pytest.approx(
        scores[[hit.id for hit in before.hits]].tolist(), abs=1e-4
    )
    best = np.argsort(-scores, kind="stable")
    page = [hit.id for hit in before.hits[:SIMILAR_FEW_LABELS]]  # the same, by the cosine of their rescoring codes
    assert set(page) == set(best[:SIMILAR_FEW_LABELS].tolist())
    assert [hit.id for hit in before.hits[SIMILAR_FEW_LABELS:]] == best[SIMILAR_FEW_LABELS:].tolist()
    rescorer = Rescorer(48, collection.stats()["rescore_bits"])
    rotated = rescorer.queries(unit_rows(functions.prepare(X[:1])))
    cosines = rescorer.cosines(rotated, rescoring_codes(collection, page)[0][None])[0]
    assert (np.diff(cosines) <= 0).all()
    hamming = collection.search(X[0], 700, version="hamming")
    assert hamming.version == 0 and hamming.ranking == "Hamming distance"
    far = np.unpackbits(functions.encode(X[:1]) ^ codes, axis=1).sum(axis=1)
    assert [hit.score for hit in hamming.hits] == sorted((32.0 - 2 * far).tolist(), reverse=True)
    explanation = collection.search(X[0], 3, explain=0).hits[0].explanation
    assert explanation is not None and explanation.other_version == 0


def test_other_labels_are_stored_and_learnt(collection: stillhash.Collection, tmp_path: Path) -> None:
    collection.add(range(300, 700), X[300:], Y[300:])
    version = collection.flush()
    assert collection.relabel([3, 5], [["a", 7], []]) == 2
    assert [item.labels for item in collection.get([3, 5]) if item] == [[7, "a"], []]
    assert collection.stats()["pending"] == 1  # a row without labels teaches nothing
    assert collection.flush() == version + 1
    collection.relabel([3], ["b"], learn=False)
    assert collection.stats()["pending"] == 0
    with pytest.raises(InvalidInput, match=r"^id"):
        collection.relabel([3, "nobody"], [["x"], ["y"]])
    with pytest.raises(InvalidInput, match=r"^labels"):
        collection.relabel([3], [["x"], ["y"]])
    (item,) = collection.get([3])
    assert item is not None and item.labels == ["b"]


def test_relabelled_pending_row_uses_its_own_features(tmp_path: Path) -> None:
    options: dict[str, Any] = {"init": (X[:300], Y[:300]), "rescore_bits": 0}
    with (
        stillhash.open(tmp_path / "a", 48, 32, **options) as late,
        stillhash.open(tmp_path / "b", 48, 32, **options) as at_once,
    ):
        late.add([1, 2], X[:2], [["x"], ["y"]])
        late.relabel([1], [["z"]])
        at_once.add([2, 1], X[[1, 0]], [["y"], ["z"]])
        assert late.flush() == at_once.flush()
        queries = X[400:420]
        ours, theirs = (c.search(queries, 2) for c in (late, at_once))
        assert [[(h.id, h.score) for h in a.hits] for a in ours] == [[(h.id, h.score) for h in a.hits] for a in theirs]
