"""The first ten hits with few labels: no worse than with none, whether labels come with the items or later."""

from __future__ import annotations

import numpy as np
import pytest

from stillhash import Tally
from stillhash.experiments.metrics import evaluate

TOPICS, ROWS, QUERIES = 40, 3000, 200


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return features (n, 64) and topics (n, TOPICS): a few topics have most rows, and most have few."""
    rng = np.random.default_rng(3)
    shares = 1 / np.arange(1, TOPICS + 1)
    topic = rng.choice(TOPICS, ROWS + QUERIES, p=shares / shares.sum())
    features = rng.normal(size=(TOPICS, 64))[topic] + 1.6 * rng.normal(size=(len(topic), 64))
    return features.astype(np.float32), np.eye(TOPICS, dtype=bool)[topic]


def first_page(rows: tuple[np.ndarray, np.ndarray], labelled: int, bits: int, *, late: bool) -> float:
    """Return P@10 with so many labelled rows, which are stored with their labels or get them when all are stored."""
    X, Y = rows[0][:ROWS], rows[1][:ROWS]
    labels: list[list[int]] = [[] for _ in range(ROWS)]
    for row in np.random.default_rng(0).permutation(ROWS)[:labelled].tolist():
        labels[row] = np.flatnonzero(Y[row]).tolist()
    if late:
        hasher = Tally(bits).fit(X[:2000])
        codes = hasher.encode(X)
    else:
        hasher = Tally(bits).fit(X[:2000], labels[:2000])
        codes = hasher.encode(X, labels)
    hasher.partial_fit(X, labels, codes)
    return evaluate(hasher.ranking(rows[0][ROWS:]), codes, rows[1][ROWS:], Y, threads=1).precision_10


@pytest.mark.medium
@pytest.mark.parametrize("late", [False, True], ids=["with the items", "late"])
@pytest.mark.parametrize("bits", [64, 128])
def test_few_labels_do_not_make_the_first_page_worse(
    rows: tuple[np.ndarray, np.ndarray], bits: int, late: bool
) -> None:
    without = first_page(rows, 0, bits, late=late)
    few = {labelled: first_page(rows, labelled, bits, late=late) for labelled in (10, 30, 100, 300)}
    assert min(few.values()) > without - 0.01, (without, few)
    assert first_page(rows, ROWS, bits, late=late) > without + 0.02


def test_labels_count_less_for_queries_unlike_all_labelled_rows(rows: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = rows
    known = Y[:, :3].any(axis=1)  # only these topics have labels
    hasher = Tally(64).fit(X[:2000])
    hasher.partial_fit(X[:ROWS][known[:ROWS]], Y[:ROWS, :3][known[:ROWS]])
    lengths = np.linalg.norm(hasher.ranking(X[ROWS:]).labels, axis=1)
    assert lengths.max() <= 1 + 1e-6
    assert lengths[known[ROWS:]].mean() > 1.3 * lengths[~known[ROWS:]].mean()
    chosen = np.linalg.norm(hasher.ranking(X[ROWS:], balance=0.5).labels, axis=1)
    np.testing.assert_allclose(chosen, 1, rtol=1e-5)  # a balance that a caller chooses is as it is
