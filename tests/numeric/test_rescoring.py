"""Rescoring codes: a fixed rotation, levels of a few bits, and exact products. Every kernel equals its NumPy twin."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.errors import InvalidInput
from stillhash.numeric import kernels
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.rescoring import QUERY_LEVELS, RESCORE_BITS, RescoreQueries, Rescorer

DIMS = [*range(1, 71), 511, 513, 1024, 1280]
STD_AT_1280 = {1: 0.025, 2: 0.0125, 4: 0.004, 8: 0.0004}  # of the error of a cosine, a little more than it is


def rows(n: int, dim: int, seed: int = 0) -> np.ndarray:
    return unit_rows(np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32))


def for_each(codes: np.ndarray, queries: int) -> np.ndarray:
    """Return the same codes for each query."""
    return np.broadcast_to(codes, (queries, *codes.shape))


@pytest.mark.parametrize("dim", DIMS)
def test_the_rotation_keeps_lengths_and_angles_and_is_undone(dim: int, lanes: str) -> None:
    rescorer, X = Rescorer(dim, 2), rows(20, dim)
    R = rescorer.rotate(X)
    np.testing.assert_allclose(R @ R.T, X @ X.T, atol=2e-6)
    np.testing.assert_allclose(rescorer.rotate_back(R), X, atol=2e-6)
    np.testing.assert_allclose(rescorer.rotate(rescorer.rotate_back(X)), X, atol=2e-6)


@pytest.mark.parametrize("dim", [1, 2, 3, 6, 8, 13, 40, 100])
def test_the_rotation_is_the_product_of_its_steps(dim: int, lanes: str) -> None:
    p = 1 << dim.bit_length() - 1
    hadamard = np.eye(1)
    while len(hadamard) < p:
        hadamard = np.kron([[1, 1], [1, -1]], hadamard) / np.sqrt(2)
    turn, half = np.eye(dim), np.arange(dim // 2)
    if dim != p:
        turn[half, half] = turn[half, half + dim // 2] = turn[half + dim // 2, half] = np.sqrt(0.5)
        turn[half + dim // 2, half + dim // 2] = -np.sqrt(0.5)
    expected = np.eye(dim)
    stream = hashlib.shake_256(f"stillhash rescoring code of {dim} dimensions".encode()).digest(4 * ((dim + 7) // 8))
    bits = np.unpackbits(np.frombuffer(stream, np.uint8).reshape(4, -1), axis=1, count=dim, bitorder="little")
    for r, signs in enumerate(bits * 2.0 - 1):
        mix, part = np.eye(dim), slice(dim - p, dim) if r % 2 else slice(p)
        mix[part, part] = hadamard
        expected = turn @ mix @ np.diag(signs) @ expected
    X = rows(9, dim)
    np.testing.assert_allclose(Rescorer(dim, 1).rotate(X), X @ expected.T, atol=1e-6)


@pytest.mark.parametrize("dim", [96, 1024, 1280])
def test_coordinates_of_a_rotated_axis_are_about_gaussian(dim: int) -> None:
    axes = Rescorer(dim, 1).rotate(np.eye(dim, dtype=np.float32)) * np.sqrt(dim)
    assert np.abs(axes).max() < 7
    assert abs(np.mean(axes**4) - 3) < 0.4


@settings(max_examples=60)
@given(st.integers(0, 40), st.integers(1, 300), st.sampled_from(RESCORE_BITS), st.integers(0, 2**32))
def test_all_lanes_give_the_same_to_the_last_bit(n: int, dim: int, bits: int, seed: int) -> None:
    rescorer, X, Q = Rescorer(dim, bits), rows(n, dim, seed), rows(3, dim, seed + 1)
    X[: n // 8] = 0
    results = []
    for lanes in kernels.available():
        with kernels.using(lanes):
            codes, queries = rescorer.encode(X, threads=2), rescorer.queries(Q)
            cosines = rescorer.cosines(queries, for_each(codes, 3))
            rotated = rescorer.rotate(X), rescorer.rotate_back(X)
            results.append((*rotated, codes, rescorer.levels(codes), rescorer.decode(codes), *queries, cosines))
    for one, other in itertools.pairwise(results):
        for a, b in zip(one, other, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("bits", RESCORE_BITS)
@pytest.mark.parametrize("dim", [1024, 1280, 4097])
def test_large_rows_are_the_same_on_all_lanes(dim: int, bits: int) -> None:
    rescorer, X = Rescorer(dim, bits), rows(150, dim)
    codes = []
    for lanes in kernels.available():
        with kernels.using(lanes):
            codes.append(rescorer.encode(X, threads=2))
            np.testing.assert_array_equal(rescorer.encode(X[7:8])[0], codes[-1][7])
    assert all(np.array_equal(codes[0], some) for some in codes)


@pytest.mark.parametrize("bits", RESCORE_BITS)
def test_cosines_are_estimated_without_bias(bits: int, lanes: str) -> None:
    rescorer, Q = Rescorer(1280, bits), rows(8, 1280, 1)
    X = unit_rows(rows(400, 1280, 2) + np.repeat(Q, 50, axis=0) * np.linspace(0, 2, 400, dtype=np.float32)[:, None])
    errors = rescorer.cosines(rescorer.queries(Q), for_each(rescorer.encode(X), 8)) - Q @ X.T
    assert errors.std() < STD_AT_1280[bits]
    assert abs(errors.mean()) < 5 * STD_AT_1280[bits] / np.sqrt(400)


@pytest.mark.parametrize(("bits", "cosine"), [(1, 0.78), (2, 0.93), (4, 0.99), (8, 0.9999)])
@pytest.mark.parametrize("dim", [64, 200, 1280])
def test_decoded_rows_are_close_to_the_rows(dim: int, bits: int, cosine: float, lanes: str) -> None:
    rescorer, X = Rescorer(dim, bits), rows(50, dim)
    codes = rescorer.encode(X)
    decoded = rescorer.decode(codes)
    assert codes.shape == (50, rescorer.width) and codes.dtype == np.uint8 and decoded.dtype == np.float32
    assert (unit_rows(decoded) * X).sum(axis=1).mean() > cosine - 0.01
    np.testing.assert_allclose(np.linalg.norm(decoded, axis=1), 1, atol=0.15)
    levels = rescorer.levels(codes)
    assert (levels % 2 == 1).all() and np.abs(levels).max() <= 2**bits - 1
    np.testing.assert_allclose((rescorer.rotate(X) * levels).sum(axis=1) * rescorer.corrections(codes), 1, rtol=1e-5)
    assert (np.sign(levels) == np.where(rescorer.rotate(X) >= 0, 1, -1)).all()


@pytest.mark.parametrize("bits", RESCORE_BITS)
def test_zero_and_lost_rows_have_no_levels_and_cosine_zero(bits: int, lanes: str) -> None:
    rescorer, X = Rescorer(100, bits), rows(6, 100)
    X[2] = 0
    codes = rescorer.encode(X)
    codes[4] = 0xFF
    assert np.flatnonzero(rescorer.corrections(codes) == 0).tolist() == [2, 4]
    assert np.flatnonzero(~rescorer.levels(codes).any(axis=1)).tolist() == [2, 4]
    assert np.flatnonzero(~rescorer.decode(codes).any(axis=1)).tolist() == [2, 4]
    Q = np.concatenate([X[:1], np.zeros((1, 100), np.float32)])
    queries = rescorer.queries(Q)
    cosines = rescorer.cosines(queries, for_each(codes, 2))
    assert np.flatnonzero(cosines[0] == 0).tolist() == [2, 4]
    assert not cosines[1].any() and not queries.levels[1].any()


@pytest.mark.parametrize("bits", RESCORE_BITS)
@pytest.mark.parametrize("dim", [1, 7, 64, 131, 40_000])
def test_products_are_exact_and_bits_past_the_end_count_nothing(dim: int, bits: int, lanes: str) -> None:
    rng = np.random.default_rng(dim)
    codes = rng.integers(0, 256, (3, 5, Rescorer(dim, bits).width), np.uint8)
    codes[..., -4:] = np.frombuffer(np.float32(1).tobytes(), np.uint8)
    codes[0, 0, :-4], codes[0, 1, :-4] = 0xFF, 0
    queries = rng.integers(-QUERY_LEVELS, QUERY_LEVELS + 1, (3, dim)).astype(np.int16)
    queries[0] = QUERY_LEVELS
    products = kernels.rescore_products(codes, queries, bits)
    levels = np.array([kernels.rescore_levels(some, dim, bits) for some in codes]).astype(np.int64)
    np.testing.assert_array_equal(products, np.einsum("mnd,md->mn", levels, queries.astype(np.int64)))
    assert products[0, 0] == -products[0, 1] == dim * QUERY_LEVELS * (2**bits - 1)


@pytest.mark.parametrize("bits", RESCORE_BITS)
def test_a_cosine_does_not_depend_on_the_batch(bits: int, lanes: str) -> None:
    rescorer, Q = Rescorer(90, bits), rows(5, 90, 1)
    codes = rescorer.encode(rows(5 * 30, 90)).reshape(5, 30, -1)
    queries = rescorer.queries(Q)
    cosines = rescorer.cosines(queries, codes)
    np.testing.assert_array_equal(rescorer.queries(Q[3:4]).levels, queries.levels[3:4])
    for some in (np.array([3]), slice(3, 4), np.arange(5) == 3, [3]):
        np.testing.assert_array_equal(rescorer.cosines(queries.rows(some), codes[3:4, 10:20])[0], cosines[3, 10:20])


def test_queries_keep_four_digits() -> None:
    rescorer, Q = Rescorer(300, 2), rows(10, 300) * np.geomspace(1e-30, 1, 10, dtype=np.float32)[:, None]
    queries = rescorer.queries(Q)
    assert isinstance(queries, RescoreQueries) and queries.levels.dtype == np.int16
    assert (np.abs(queries.levels).max(axis=1) == QUERY_LEVELS).all()
    off = np.abs(queries.levels * queries.scale[:, None] - rescorer.rotate(Q))
    assert (off <= queries.scale[:, None] * 0.501).all()


def test_no_rows_have_no_codes(lanes: str) -> None:
    rescorer, none = Rescorer(20, 4), np.empty((0, 20), np.float32)
    codes = rescorer.encode(none)
    assert codes.shape == (0, rescorer.width) == (0, 16)
    assert rescorer.levels(codes).shape == rescorer.decode(codes).shape == (0, 20)
    assert rescorer.cosines(rescorer.queries(none), np.empty((0, 3, 16), np.uint8)).shape == (0, 3)
    assert rescorer.cosines(rescorer.queries(rows(2, 20)), np.empty((2, 0, 16), np.uint8)).shape == (2, 0)


@pytest.mark.parametrize("bits", [0, 3, 16, True])
def test_other_numbers_of_bits_are_refused(bits: int) -> None:
    with pytest.raises(InvalidInput, match="bits"):
        Rescorer(10, bits)


def test_codes_never_change(lanes: str) -> None:
    """Collections store these codes, so they must stay the same in all versions."""
    digest = hashlib.sha256()
    for dim, bits in itertools.product((1, 2, 3, 10, 64, 100, 768, 1280), RESCORE_BITS):
        x = np.arange(1, dim + 1) ** 2 % 31 - 10  # whole numbers, so that their norm is the same everywhere
        unit = (x / np.sqrt(float((x * x).sum()))).astype(np.float32)
        digest.update(Rescorer(dim, bits).encode(unit[None]).tobytes())
    assert digest.hexdigest() == "dbe95c6d71445cd3b556f9edcb9b622cf5dead0ff6b12d0b3133aa2802dcad62"
