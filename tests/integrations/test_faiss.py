from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Index, NamedIndex, Scan
from stillhash.errors import BadState, InvalidInput, NotFitted, WrongType
from stillhash.numeric.codes import signs
from tests.contracts.searchers import random_codes
from tests.support.toys import toy

faiss: Any = pytest.importorskip("faiss", reason="FAISS is an extra")
from stillhash.integrations.faiss import from_faiss, pad_weights, to_faiss, to_faiss_binary  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


def filled(bits: int, rows: int = 700, seed: int = 0) -> Index:
    """An index with removed rows, consecutive ids and others."""
    rng = np.random.default_rng(seed)
    index = Index(bits, threads=1)
    index.add(random_codes(rng, rows, bits))
    index.add(random_codes(rng, 50, bits), rng.choice(5000, 50, replace=False) + rows)
    index.remove(rng.choice(rows, 30, replace=False))
    return index


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from([8, 9, 12, 13, 32, 33, 64, 100, 128, 510]))
def test_inner_products_of_faiss_are_our_scores(seed: int, bits: int) -> None:
    rng = np.random.default_rng(seed)
    index = filled(bits, seed=seed)
    converted = to_faiss(index)
    np.testing.assert_array_equal(converted.ids, index.ids())
    weights = rng.standard_normal((4, bits)).astype(np.float32)
    scores, labels = converted.index.search(pad_weights(weights, bits), len(index))
    ours = index.search(weights, len(index))
    by_id = np.argsort(ours.ids, axis=1)
    theirs_by_id = np.take_along_axis(scores, np.argsort(labels, axis=1), 1)
    np.testing.assert_allclose(
        theirs_by_id, np.take_along_axis(ours.scores, by_id, 1), rtol=0, atol=2e-6 * np.abs(weights).sum(1).max()
    )
    apart = np.diff(ours.scores, axis=1) < -1e-4 * np.abs(weights).sum(1).max()
    clear = np.pad(apart, ((0, 0), (1, 0)), constant_values=True) & np.pad(
        apart, ((0, 0), (0, 1)), constant_values=True
    )
    assert (converted.ids[labels] == ours.ids)[clear].all()


@pytest.mark.parametrize("bits", [8, 12, 13, 64])
def test_whole_weights_have_equal_scores(bits: int) -> None:
    index = filled(bits)
    weights = np.random.default_rng(1).integers(-9, 10, (5, bits)).astype(np.float32)
    scores, labels = to_faiss(index).index.search(pad_weights(weights, bits), 60)
    ours = index.search(weights, 60)
    np.testing.assert_array_equal(scores, ours.scores)
    ids = to_faiss(index).ids
    for q in range(5):  # above the last score, where ties are cut, the same ids
        whole = ours.scores[q] > ours.scores[q, -1]
        assert set(ids[labels[q][whole]]) == set(ours.ids[q][whole])


@pytest.mark.parametrize("bits", [8, 13, 64, 100])
def test_hamming_search_of_faiss_is_ours(bits: int) -> None:
    index = filled(bits)
    queries = random_codes(np.random.default_rng(1), 9, bits)
    binary = to_faiss_binary(index)
    distances, labels = binary.index.search(queries, 40)
    ours = index.search(signs(queries, bits), 40)
    np.testing.assert_array_equal(bits - 2 * distances, ours.scores)
    np.testing.assert_array_equal(binary.ids[labels], ours.ids)


@pytest.mark.parametrize("convert", [to_faiss, to_faiss_binary])
def test_ids_go_through_a_file_of_faiss(convert: Any, tmp_path: Path) -> None:
    index = filled(64)
    named = convert(index).with_ids()
    write = faiss.write_index if convert is to_faiss else faiss.write_index_binary
    write(named, str(tmp_path / "a.faiss"))
    rows = from_faiss(tmp_path / "a.faiss")
    assert (rows.kind, rows.rows, rows.dim) == ("codes", len(index), 64)
    back = rows.to_index()
    np.testing.assert_array_equal(back.ids(), index.ids())
    assert back.codes(index.ids()).tobytes() == index.codes(index.ids()).tobytes() == rows.array().tobytes()
    query = index.codes(index.ids()[:1])
    labels = named.search(query if convert is to_faiss_binary else signs(query, 64), 1)[1]
    assert index.codes(labels[0]).tobytes() == query.tobytes()


def test_padding_is_taken_off_again() -> None:
    index = filled(13)
    for convert in (to_faiss, to_faiss_binary):
        rows = from_faiss(convert(index).index)
        assert rows.dim == 16 and rows.ids is None
        back = rows.to_index(bits=13)
        assert back.bits == 13 and back.codes(back.ids()).tobytes() == index.codes(index.ids()).tobytes()
    with pytest.raises(InvalidInput, match=r"^codes"):
        from_faiss(to_faiss(filled(16)).index).to_index(bits=13)


def test_empty_indexes() -> None:
    for convert in (to_faiss, to_faiss_binary):
        assert convert(Scan(32)).index.ntotal == 0
        rows = from_faiss(convert(Scan(32)).index)
        assert rows.array().shape == (0, 4) and len(rows.to_index()) == 0
    assert from_faiss(faiss.IndexFlatL2(5)).array().shape == (0, 5)


def test_text_ids_stay_beside_the_index() -> None:
    index = NamedIndex(16)
    index.add(random_codes(np.random.default_rng(0), 5, 16), list("edcba"))
    index.remove(["d"])
    converted = to_faiss(index)
    assert converted.ids == list("ecba")
    weights = np.random.default_rng(1).standard_normal((1, 16)).astype(np.float32)
    labels = converted.index.search(weights, 4)[1][0]
    assert [converted.ids[label] for label in labels] == index.search(weights, 4).ids[0].tolist()
    for ids in (converted.ids, ["1", "2", "3", "4"], [1, 2, 3, -4]):
        with pytest.raises(InvalidInput, match=r"^ids"):
            converted._replace(ids=ids).with_ids()


def test_a_collection_scores_alike(tmp_path: Path) -> None:
    X, Y = toy(400)
    with stillhash.open(tmp_path / "c", X.shape[1], 64) as collection:
        collection.add([*range(5), *(f"row {r}" for r in range(5, 400))], X, Y)
        collection.fit()
        collection.delete([3, "row 7"])
        converted, queries = to_faiss(collection), toy(6, seed=3).X
        assert len(converted.ids) == 398
        for version in (None, 0, "hamming"):
            weights = collection.weigh(queries, version=version)
            scores, labels = converted.index.search(weights, 398)
            for q, answer in enumerate(collection.search(queries, 398, version=version)):
                theirs = {converted.ids[label]: score for label, score in zip(labels[q], scores[q], strict=True)}
                assert len(answer.hits) == 398
                for hit in answer.hits:
                    assert hit.score == pytest.approx(theirs[hit.id], abs=1e-5 * float(np.abs(weights[q]).sum()))
        with pytest.raises(InvalidInput):
            collection.weigh(queries[:, 1:])


def test_a_collection_without_hash_functions_is_refused(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", 8, 32) as collection:
        collection.add(["a"], np.ones((1, 8)))
        with pytest.raises(NotFitted, match=r"^source"):
            to_faiss(collection)
        with pytest.raises(NotFitted, match=r"^weigh"):
            collection.weigh(np.ones(8))


@pytest.mark.parametrize("kind", ["flat l2", "flat ip", "pq", "quantised"])
@pytest.mark.parametrize("named", [False, True])
def test_vectors_come_back(kind: str, named: bool, tmp_path: Path) -> None:
    X = toy(400).X
    dim, ids = X.shape[1], np.random.default_rng(0).permutation(4000)[:400].astype(np.int64)
    index = {
        "flat l2": lambda: faiss.IndexFlatL2(dim),
        "flat ip": lambda: faiss.IndexFlatIP(dim),
        "pq": lambda: faiss.IndexPQ(dim, dim // 4, 4),
        "quantised": lambda: faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit),
    }[kind]()
    index.train(X)
    plain = index
    if named:
        index = faiss.IndexIDMap2(plain) if kind == "pq" else faiss.IndexIDMap(plain)
        index.add_with_ids(X, ids)
    else:
        index.add(X)
    faiss.write_index(index, str(tmp_path / "a.faiss"))
    for source in (index, tmp_path / "a.faiss", str(tmp_path / "a.faiss")):
        rows = from_faiss(source)
        assert (rows.kind, rows.rows, rows.dim) == ("vectors", 400, dim)
        np.testing.assert_array_equal(rows.array(), plain.reconstruct_n(0, 400))
        assert [len(block) for block in rows.blocks(150)] == [150, 150, 100]
        assert (rows.ids.tolist() == ids.tolist()) if named else (rows.ids is None)
    if kind.startswith("flat"):
        np.testing.assert_array_equal(rows.array(), X)
    with pytest.raises(InvalidInput, match=r"^index"):
        rows.to_index()


def test_what_is_no_such_index_is_refused(tmp_path: Path) -> None:
    for other in (faiss.IndexHNSWFlat(8, 4), faiss.IndexBinaryHNSW(16, 4), None, 3, np.ones((2, 2))):
        with pytest.raises(WrongType, match=r"^index"):
            from_faiss(other)
    (tmp_path / "a.faiss").write_bytes(b"IxPq and nothing else")
    for path in ("a.faiss", "none", "."):
        with pytest.raises(BadState):
            from_faiss(tmp_path / path)
