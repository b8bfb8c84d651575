from __future__ import annotations

import numpy as np
import pytest

from stillhash.experiments.metrics import evaluate, evaluate_scores
from stillhash.numeric.codes import pack, signs
from tests.numeric.test_quality_kernel import plain_average_precision


def test_evaluate_equals_the_plain_measures() -> None:
    rng = np.random.default_rng(0)
    codes = pack(rng.standard_normal((500, 16)).astype(np.float32))
    weights = rng.integers(-3, 4, (70, 16)).astype(np.float32)
    query_labels, items = rng.random((70, 6)) < 0.3, rng.random((500, 6)) < 0.3
    done: list[int] = []
    quality = evaluate(weights, codes, query_labels, items, progress=done.append)
    assert sum(done) == 70
    scores = weights @ signs(codes, 16).T
    assert evaluate_scores(lambda some: scores[some], query_labels, items) == quality
    both, either = (query_labels[:, None] & items).sum(axis=2), (query_labels[:, None] | items).sum(axis=2)
    grades = both / np.maximum(either, 1)
    plain = [plain_average_precision(s, g > 0) for s, g in zip(scores, grades, strict=True)]
    assert quality.map == pytest.approx(np.mean(plain))
    assert quality.expected_map == pytest.approx(quality.map, abs=0.05) and quality.expected_map != quality.map
    first = np.take_along_axis(grades, np.argsort(-scores, axis=1, kind="stable"), 1)
    assert quality.precision_10 == pytest.approx(np.mean(first[:, :10] > 0))
    assert quality.precision_100 == pytest.approx(np.mean(first[:, :100] > 0))
    discount = 1 / np.log2(np.arange(2, 12))
    best = np.sort(grades, axis=1)[:, ::-1][:, :10] @ discount
    assert quality.ndcg_10 == pytest.approx(np.mean(first[:, :10] @ discount / np.maximum(best, 1e-9)))
