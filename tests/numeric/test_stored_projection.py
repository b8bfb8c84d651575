from __future__ import annotations

import numpy as np
import pytest

from stillhash.numeric import kernels
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.rescoring import Rescorer
from stillhash.numeric.sufficient_stats import StoredProjection

RNG = np.random.default_rng(0)
X = unit_rows(RNG.standard_normal((300, 72)).astype(np.float32))
W = (RNG.standard_normal((72, 24)) * np.exp2(RNG.integers(-9, 9, 24))).astype(np.float32)
T = RNG.standard_normal(24).astype(np.float32)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_it_is_the_hash_functions_of_decoded_rows(bits: int) -> None:
    rescorer = Rescorer(72, bits)
    codes = rescorer.encode(X)
    values = StoredProjection(rescorer, W, T).values(rescorer.levels(codes))
    scale = np.linalg.norm(W, axis=0)
    np.testing.assert_allclose((values - T) / scale, rescorer.decode(codes) @ W / scale, rtol=0, atol=5e-5)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("lanes", kernels.available())
def test_values_are_the_same_to_the_bit_in_any_batch_and_order_of_features(bits: int, lanes: str) -> None:
    rescorer = Rescorer(72, bits)
    projection = StoredProjection(rescorer, W, T)
    levels = rescorer.levels(rescorer.encode(X))
    whole = projection.values(levels)
    with kernels.using(lanes):
        one_by_one = np.concatenate([StoredProjection(rescorer, W, T).values(row[None]) for row in levels])
    assert one_by_one.tobytes() == whole.tobytes()
    turned = StoredProjection(rescorer, W, T)
    order = RNG.permutation(72)
    turned._W = np.ascontiguousarray(turned._W[order])
    assert turned.values(np.ascontiguousarray(levels[:, order])).tobytes() == whole.tobytes()


def test_a_hash_function_that_is_zero_is_its_threshold() -> None:
    rescorer, zero = Rescorer(72, 2), W.copy()
    zero[:, 3] = 0
    values = StoredProjection(rescorer, zero, T).values(rescorer.levels(rescorer.encode(X)))
    assert np.isfinite(values).all() and (values[:, 3] == T[3]).all()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_codes_that_hold_labels_have_others_without_them(bits: int) -> None:
    functions = RNG.standard_normal((512, 32)).astype(np.float32)
    rows = RNG.standard_normal((500, 512)) + 0.3 * RNG.standard_normal((500, 32)) @ functions.T  # they vary most there
    rows = unit_rows(rows.astype(np.float32))
    rescorer = Rescorer(512, bits)
    projection = StoredProjection(rescorer, functions, np.zeros(32, np.float32))
    values = projection.values(rescorer.levels(rescorer.encode(rows)))
    stored = np.where(rows @ functions >= 0, np.float32(1), np.float32(-1))
    none, held = np.zeros(500, bool), np.arange(500) % 2 == 0
    assert projection.without_labels(values, stored, none, 16) is None
    labelled = stored.copy()
    labelled[::2, :16] *= RNG.choice([-1, 1], (250, 16))
    plain = projection.without_labels(values, labelled, held, 16)
    assert plain is not None
    assert (plain[1::2] == stored[1::2]).all() and (plain[:, 16:] == stored[:, 16:]).all()
    assert (plain[::2, :16] == stored[::2, :16]).mean() > 0.8 > 0.6 > (labelled[::2, :16] == stored[::2, :16]).mean()
