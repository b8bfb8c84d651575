from __future__ import annotations

import numpy as np
import pytest

from stillhash.experiments.metrics import evaluate
from stillhash.numeric.codes import pack, signs
from tests.numeric.test_quality_kernel import plain_average_precision


def test_evaluate_equals_the_plain_measures() -> None:
    rng = np.random.default_rng(0)
    codes = pack(rng.standard_normal((500, 16)).astype(np.float32))
    weights = rng.integers(-3, 4, (70, 16)).astype(np.float32)
    query_labels, items = rng.random((70, 6)) < 0.3, rng.random((500, 6)) < 0.3
    done: list[int] = []
    quality = evaluate(weights, codes, query_labels, items, k=20, progress=done.append)
    scores, shared = weights @ signs(codes, 16).T, query_labels.astype(int) @ items.T.astype(int)
    plain = [plain_average_precision(s, r > 0) for s, r in zip(scores, shared, strict=True)]
    order = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    assert quality.map == pytest.approx(np.mean(plain))
    assert quality.expected_map == pytest.approx(quality.map, abs=0.05) and quality.expected_map != quality.map
    assert quality.precision == pytest.approx(np.mean(np.take_along_axis(shared, order, 1) > 0))
    gains, discount = 2.0**shared - 1, 1 / np.log2(np.arange(2, 22))
    best = np.sort(gains, axis=1)[:, ::-1][:, :20] @ discount
    assert quality.ndcg == pytest.approx(
        np.mean(np.take_along_axis(gains, order, 1) @ discount / np.maximum(best, 1e-9))
    )
    assert sum(done) == 70
