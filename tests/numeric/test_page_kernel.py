"""Kernels of the first page: codes by id, predicted labels, page scores. Each equals its NumPy twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.numeric import kernels, reference
from stillhash.numeric.codes import to_tiles
from stillhash.numeric.exact_scores import snap
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


@pytest.mark.parametrize("lanes", native)
@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize(("bits", "labels"), [(8, 1), (13, 3), (64, 20), (96, 81)])
def test_labels_and_scores_equal_their_twins_and_do_not_depend_on_the_batch(lanes, power, bits, labels):
    rng = np.random.default_rng(bits)
    codes = np.packbits(rng.integers(0, 2, (150, bits), np.uint8), axis=1, bitorder="little")
    V, v = rng.standard_normal((bits, labels), np.float32), rng.standard_normal(labels, np.float32)
    queries, looks = rng.random((4, labels), np.float32), snap(rng.standard_normal((4, bits)).astype(np.float32))
    most, places = np.abs(looks).sum(axis=1), rng.integers(-1, 150, (4, 60))
    with kernels.using(lanes):
        items = kernels.predict_labels(codes, V, v, power)
        np.testing.assert_allclose(items, reference.predict_labels(codes, V, v, power), rtol=2e-4, atol=2e-5)
        some = rng.permutation(150)[:37]
        np.testing.assert_array_equal(kernels.predict_labels(codes[some], V, v, power), items[some])
        arguments = (looks, most, items, queries, (0.3, 1.4))
        scores = kernels.page_scores(codes, places, *arguments)
        np.testing.assert_allclose(scores, reference.page_scores(codes, places, *arguments), rtol=1e-5, atol=1e-5)
        assert np.array_equal(scores == -np.inf, places < 0)
        one = kernels.page_scores(
            codes, places[2:3, 10:20].copy(), looks[2:3], most[2:3], items, queries[2:3], (0.3, 1.4)
        )
        np.testing.assert_array_equal(one, scores[2:3, 10:20])
