"""Kernels of the first page: codes by id, predicted labels, page scores. Each equals its NumPy twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.errors import InvalidInput
from stillhash.numeric import kernels, reference
from stillhash.numeric.codes import to_tiles
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.kernels import Ends
from stillhash.search import Scan
from stillhash.search.blocks import Block

native = [lanes for lanes in kernels.available() if lanes != "numpy"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([8, 13, 64]), st.booleans(), st.booleans())
def test_codes_by_id_are_those_of_their_rows(seed, bits, ascending, masked):
    rng = np.random.default_rng(seed)
    rows = 1500
    codes = np.packbits(rng.integers(0, 2, (rows, bits), np.uint8), axis=1, bitorder="little")
    ids = np.concatenate([np.arange(700), rng.choice(np.arange(1000, 9000), 800, replace=False)])
    if ascending:
        ids[700:].sort()
    live = np.full(256, 255, np.uint8)
    live[:50] = 0 if masked else 255  # the first 400 rows
    blocks = [
        Block(to_tiles(codes[:700], bits), 700, 0, None, live),
        Block(to_tiles(codes[700:], bits), 800, 0, ids[700:], None),
    ]
    some = rng.permutation(rows)[:200]
    for lanes in kernels.available():
        with kernels.using(lanes):
            read = kernels.read_codes(blocks, ids[some], codes.shape[1])
            if not ascending:
                assert read is None or np.array_equal(read, codes[some])
            elif masked and (some < 400).any():
                assert read is None
            else:
                assert np.array_equal(read, codes[some])
            assert kernels.read_codes(blocks, np.array([9999]), codes.shape[1]) is None


def test_an_index_of_unordered_ids_gives_their_codes():
    rng = np.random.default_rng(0)
    codes, ids = rng.integers(0, 256, (3000, 4), np.uint8), rng.permutation(9000)[:3000]
    index = Scan(32)
    index.add(codes[:1500], ids[:1500])
    index.add(codes[1500:], ids[1500:])
    some = rng.permutation(3000)[:400]
    assert np.array_equal(index.codes(ids[some]), codes[some])
    again = np.concatenate([some, some[:50]])  # ids may come more than once
    assert np.array_equal(index.codes(ids[again]), codes[again])
    with pytest.raises(InvalidInput, match="ids: expected ids of the index, got 1 "):
        index.codes(np.array([9001, 9001]))


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize(("bits", "labels"), [(8, 1), (13, 3), (64, 20), (96, 81)])
def test_labels_and_scores_equal_their_twins_and_do_not_depend_on_the_batch(power, bits, labels):
    rng = np.random.default_rng(bits)
    codes = np.packbits(rng.integers(0, 2, (4, 40, bits), np.uint8), axis=2, bitorder="little")
    V, v = rng.standard_normal((bits, labels), np.float32), rng.standard_normal(labels, np.float32)
    queries, similarity = rng.random((4, labels), np.float32), snap(rng.standard_normal((4, bits)).astype(np.float32))
    most, shares = np.abs(similarity).sum(axis=1), (0.3, 1.4)
    model = V, v, power
    expected = reference.page_scores(codes, *model, queries, similarity, most, shares)
    results = []
    for lanes in native:
        with kernels.using(lanes):
            items = kernels.predict_labels(codes[0], *model)
            np.testing.assert_allclose(items, reference.predict_labels(codes[0], *model), rtol=2e-4, atol=2e-5)
            some = rng.permutation(40)[:17]
            np.testing.assert_array_equal(kernels.predict_labels(codes[0, some], *model), items[some])
            scores = kernels.page_scores(codes, *model, queries, similarity, most, shares)
            np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
            part = codes[2:3, 10:20].copy(), *model, queries[2:3], similarity[2:3], most[2:3], shares
            np.testing.assert_array_equal(kernels.page_scores(*part), scores[2:3, 10:20])
            results.append(scores)
    assert all(np.array_equal(results[0], some) for some in results)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 4), st.integers(0, 30), st.integers(1, 40))
def test_a_page_is_arranged_as_by_its_twin(seed, queries, hits, k):
    rng = np.random.default_rng(seed)
    pages = int(rng.integers(0, hits + 1))
    scores = -np.sort(-rng.integers(0, 9, (queries, hits)).astype(np.float32), axis=1)
    ids = np.array([rng.permutation(60)[:hits] for _ in range(queries)], np.int64).reshape(queries, hits)
    for q in range(queries):
        present = int(rng.integers(0, hits + 1))
        scores[q, present:], ids[q, present:] = -np.inf, -1
    again = rng.integers(0, 4, (queries, pages)).astype(np.float32)
    tiers = rng.integers(0, 3, (queries, pages))
    counts = rng.integers(0, 4, (queries, 3))
    end_ids = [rng.permutation(60)[:count] for count in counts.sum(axis=1)]
    codes = rng.integers(0, 256, (int(counts.sum()), 2), np.uint8)
    ends = Ends(codes, np.concatenate([np.empty(0, np.int64), *end_ids]), counts)
    weights = snap(rng.standard_normal((queries, 16)).astype(np.float32))
    expected = reference.arrange_page((scores, ids), again, weights, ends, k, tiers)
    for lanes in native:
        with kernels.using(lanes):
            page = kernels.arrange_page((scores, ids), again, weights, ends, k, tiers)
        for part, twin in zip(page, expected, strict=True):
            assert np.array_equal(part, twin)
