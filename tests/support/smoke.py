"""A short trial of an installed stillhash, with nothing but what it depends on: `python tests/support/smoke.py`.

It learns, searches, compares all kernels that run here with NumPy's to the bit, and stores and reopens a collection.
"""

import json
import platform
import sys
import tempfile

import numpy as np

import stillhash
from stillhash.numeric import kernels

DIM, BITS, ROWS, K = 48, 64, 3_000, 10


def main() -> None:
    information = stillhash.info()
    assert information["kernels"] == "native", information
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, DIM))
    labels = rng.integers(5, size=ROWS)
    rows = (centres[labels] + 0.6 * rng.normal(size=(ROWS, DIM))).astype(np.float32)
    compare_kernels(rows, labels)
    with tempfile.TemporaryDirectory() as folder:
        store_and_reopen(f"{folder}/items", rows, labels)
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(json.dumps({"python": platform.python_version(), "machine": platform.machine(), "gil": gil, **information}))


def compare_kernels(rows: np.ndarray, labels: np.ndarray) -> None:
    """Check that every kernel of this machine gives the same hits, ties included."""
    hasher = stillhash.Tally(bits=BITS).fit(rows[:1_000], labels[:1_000]).partial_fit(rows, labels)
    codes, weights = hasher.encode(rows), hasher.weigh(rows[:20])
    answers = {}
    for lanes in kernels.available():
        with kernels.using(lanes):
            index = stillhash.Scan(BITS)
            index.add(codes)
            answers[lanes] = index.search(weights, K)
    for lanes, hits in answers.items():
        assert np.array_equal(hits.ids, answers["numpy"].ids), lanes
        assert np.array_equal(hits.scores, answers["numpy"].scores), lanes


def store_and_reopen(path: str, rows: np.ndarray, labels: np.ndarray) -> None:
    """Check that a collection learns and that its answers outlive it."""
    with stillhash.open(path, dim=DIM) as items:
        items.add([f"row-{i}" for i in range(ROWS)], rows, labels=[f"class-{label}" for label in labels])
        before = items.search(rows[0], k=K).hits
        same = sum(f"class-{labels[0]}" in hit.labels for hit in before)
        assert same >= K - 1, before
    with stillhash.open(path) as items:
        assert len(items) == ROWS
        assert [hit.id for hit in items.search(rows[0], k=K).hits] == [hit.id for hit in before]


if __name__ == "__main__":
    main()
