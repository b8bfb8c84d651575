"""Kernels of the first page by rescoring codes equal their NumPy twins, which are its definition."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.numeric import kernels
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.kernels import PageCandidates, PageLabels, PageQueries
from stillhash.numeric.labels import Labels
from stillhash.numeric.rescored_page import LabelRegression, label_vectors
from stillhash.numeric.rescoring import Rescorer

native = [lanes for lanes in kernels.available() if lanes != "numpy"]
QUERIES = 3


def unit(X):
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)


def random_page(rng, bits, rescore_bits, labels, most):
    """Return candidates, queries and a model; some candidates are alike, lost, or near duplicates of their query."""
    dim, counts = int(rng.integers(1, 40)), rng.integers(0, most + 1, QUERIES)
    floats = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    rescorer, Q = Rescorer(dim, rescore_bits), unit(floats(QUERIES, dim))
    X = unit(np.repeat(Q, counts, axis=0) * np.float32(rng.integers(0, 3)) + floats(counts.sum(), dim))
    X[rng.random(len(X)) < 0.1] = 0
    rescoring_codes = rescorer.encode(X)
    rescoring_codes[rng.random(len(X)) < 0.05] = 0xFF
    codes = rng.integers(0, 256, (QUERIES, max(1, counts.max()), (bits + 7) // 8), np.uint8)
    codes[..., -1] &= 255 >> (-bits % 8)
    sets = [rng.permutation(labels + 4)[: rng.integers(0, 4)] for _ in X]
    alike = rng.integers(0, max(1, len(X)), len(X)) if rng.random() < 0.5 else np.arange(len(X))
    sets = [sets[row] for row in alike]
    indptr = np.cumsum([0, *map(len, sets)])
    indices = np.concatenate([np.empty(0, np.int64), *sets]).astype(np.int64)
    votes = floats(QUERIES, bits) if rng.random() < 0.5 else floats(QUERIES, 0)
    strength = np.where(rng.random(QUERIES) < 0.2, 0, rng.random(QUERIES)).astype(np.float32)
    share, fixed = float(rng.random()), bool(rng.random() < 0.3)
    predicted = unit(np.maximum(floats(QUERIES, labels), 0)).astype(np.float32)
    queries = PageQueries(*rescorer.queries(Q), votes, predicted, strength, share, fixed)
    V, weights = floats(bits, labels), rng.random(labels, np.float32)
    model = PageLabels(floats(dim, labels), floats(labels), V, floats(labels), float(rng.integers(1, 7) / 2), weights)
    candidates = PageCandidates(codes, counts.astype(np.int64), rescoring_codes[alike], indptr, indices)
    return candidates, queries, model, rescore_bits


def run(page, lanes):
    candidates, queries, model, bits = page
    with kernels.using(lanes):
        return kernels.rescored_page(candidates, queries, model._replace(V=kernels.label_table(model.V)), bits)


def one_query(page, q):
    candidates, queries, model, bits = page
    counts = candidates.counts
    start, count = int(counts[:q].sum()), int(counts[q])
    indptr = candidates.indptr[start : start + count + 1]
    indices = candidates.indices[indptr[0] : indptr[-1]]
    own = candidates.rescoring_codes[start : start + count], indptr - indptr[0], indices
    rows = [part[q : q + 1] for part in queries[:5]]
    return (
        PageCandidates(candidates.codes[q : q + 1, :count], counts[q : q + 1], *own),
        PageQueries(*rows, *queries[5:]),
        model,
        bits,
    )


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([8, 13, 64]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 3, 20, 37]),
    st.sampled_from([5, 60, 200]),
)
def test_scores_are_those_of_the_twin_and_do_not_depend_on_the_batch(seed, bits, rescore_bits, labels, most):
    page = random_page(np.random.default_rng(seed), bits, rescore_bits, labels, most)
    counts = page[0].counts
    expected, expected_tiers, expected_strength = run(page, "numpy")
    for lanes in native:
        parts, tiers, strength = run(page, lanes)
        np.testing.assert_allclose(strength, expected_strength, atol=1e-5)
        np.testing.assert_array_equal(parts[1], expected[1])
        for q, count in enumerate(counts.tolist()):
            same = tiers[q, :count] == expected_tiers[q, :count]  # which of equal scores are finalists is open
            assert same.all() if count <= 64 else (np.sort(tiers[q]) == np.sort(expected_tiers[q])).all()
            np.testing.assert_allclose(parts[:, q, :count][:, same], expected[:, q, :count][:, same], atol=1e-5)
            own, own_tiers, own_strength = run(one_query(page, q), lanes)
            np.testing.assert_array_equal(own[:, 0], parts[:, q, :count])
            np.testing.assert_array_equal(own_tiers[0], tiers[q, :count])
            assert own_strength[0] == strength[q]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 40), st.integers(0, 40))
def test_candidates_are_merged_in_order_each_once(seed, first, more):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 4, (60, 2), np.uint8)  # few codes: many ties
    weights = snap(rng.integers(-2, 3, (QUERIES, 16)).astype(np.float32))
    exact = (weights @ (np.unpackbits(table, axis=1, bitorder="little") * 2.0 - 1).T).astype(np.float32)
    ids = np.full((QUERIES, first + more), -1)
    for q in range(QUERIES):
        present = rng.integers(0, first + 1), rng.integers(0, more + 1)
        best = rng.permutation(60)[: present[0]]
        ids[q, : present[0]] = best[np.lexsort((best, -exact[q, best]))]
        ids[q, first : first + present[1]] = rng.permutation(60)[: present[1]]
    codes = table[ids] * (ids >= 0)[..., None].astype(np.uint8)
    scores = np.take_along_axis(exact, np.maximum(ids[:, :first], 0), 1)
    for lanes in kernels.available():
        with kernels.using(lanes):
            merged = kernels.merge_candidates(scores, ids, codes, weights)
        for q in range(QUERIES):
            every = np.unique(ids[q][ids[q] >= 0])
            every = every[np.lexsort((every, -exact[q, every]))]
            count = len(every)
            assert merged[3][q] == count and (merged[1][q, count:] == -1).all()
            assert np.array_equal(merged[1][q, :count], every)
            assert np.array_equal(merged[0][q, :count], exact[q, every])
            assert np.array_equal(merged[2][q, :count], table[every])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([np.uint8, np.uint16, np.uint32]), st.booleans())
def test_what_rows_have_is_read_from_the_part_that_has_it(seed, kind, unreadable):
    rng = np.random.default_rng(seed)
    stored, sets, array_parts, label_parts = {}, {}, [], []
    for part in range(3):  # rows 0 to 39, some of 100 to 139, some of 200 to 239
        numbers = np.arange(100 * part, 100 * part + 40)
        numbers = np.sort(rng.permutation(numbers)[: rng.integers(1, 41)]) if part else numbers
        where = int(numbers[0]), int(numbers[-1]), numbers if part else None
        arrays = None if unreadable and part == 1 else rng.integers(0, 256, (len(numbers), 5), np.uint8)
        array_parts.append((*where, None, arrays))
        stored |= {} if arrays is None else dict(zip(numbers.tolist(), arrays, strict=True))
        label_parts.append(random_sets(rng, where, numbers, kind, sets))
    changed = rng.integers(0, 240, 30)  # in the order of their changes, some twice
    order = np.argsort(changed, kind="stable")
    ordered = int(changed.min()), int(changed.max()), changed[order]
    label_parts.append(random_sets(rng, ordered, changed, kind, sets, order))
    rows = rng.integers(0, 240, 80)
    for lanes in kernels.available():
        with kernels.using(lanes):
            arrays, read = kernels.read_arrays(array_parts, rows, 5), kernels.read_labels(label_parts, rows)
            lost = [(*part[:4], None, None, None) if n == 3 else part for n, part in enumerate(label_parts)]
            assert (kernels.read_labels(lost, rows) is None) == bool(np.isin(rows, changed).any())
        assert [row.tolist() for row in arrays] == [stored.get(r, np.full(5, 255)).tolist() for r in rows.tolist()]
        indptr, indices = read
        lists = [indices[start:end].tolist() for start, end in pairwise(indptr)]
        assert lists == [sets.get(row, []) for row in rows.tolist()]


def random_sets(rng, where, numbers, kind, sets, order=None):
    starts = np.cumsum([0, *rng.integers(0, 4, 20)])
    labels, codes = rng.integers(0, 99, starts[-1]), rng.integers(0, 20, len(numbers)).astype(kind)
    for number, code in zip(numbers.tolist(), codes.tolist(), strict=True):
        sets[number] = labels[starts[code] : starts[code + 1]].tolist()
    return *where, order, codes, starts, labels


@pytest.mark.parametrize("bits", [4, 8, 13, 64])
def test_tables_of_nibbles_sum_to_the_product(bits):
    rng = np.random.default_rng(bits)
    V = rng.integers(-9, 10, (bits, 5)).astype(np.float32)
    code = rng.integers(0, 2, bits, np.uint8)
    nibbles = np.packbits(code, bitorder="little")
    for lanes in kernels.available():
        with kernels.using(lanes):
            table = kernels.label_table(V)
        parts = [table[2 * n, byte & 15] + table[2 * n + 1, byte >> 4] for n, byte in enumerate(nibbles.tolist())]
        assert np.array_equal(sum(parts), (code * np.float32(2) - 1) @ V)


def test_labels_that_the_model_does_not_predict_have_columns_of_their_own():
    regression = LabelRegression(*(np.zeros((1, 2), np.float32),) * 4, 1.0, ["a", "b"])
    names = ["c", "b", 7]
    assert regression.columns(names).tolist() == [2, 1, 4]
    names += ["a", "d"]  # a store appends names as it reads them
    assert regression.columns(names).tolist() == [2, 1, 4, 0, 6]
    assert regression.columns(["b"]).tolist() == [1]
    labels = Labels(np.array([0, 2, 3, 3]), np.array([1, 2, 3]), names)
    expected = np.array([[0, 0.5**0.5, 0.5**0.5], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(label_vectors(labels, ["a", "b"]), expected, rtol=1e-6)
