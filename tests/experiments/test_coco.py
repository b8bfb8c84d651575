"""On real data: the reference points of the paper's method, where the data is at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stillhash import METHODS
from stillhash.experiments.metrics import evaluate


def test_ohsl_reaches_its_reference_points_on_coco(data_folder: Path) -> None:
    """32 bits, one seed, the whole stream once, all queries: within 0.02 of what an independent prototype measured."""
    folder = data_folder / "coco100k_mnv2"
    if not folder.exists():
        pytest.skip(f"STILLHASH_DATA has no coco100k_mnv2: {data_folder}")
    with np.load(folder / "meta.npz") as meta:
        labels = np.unpackbits(meta["labels_packed"], axis=1)[:, : int(meta["num_labels"])]
        is_query = np.zeros(len(labels), bool)
        is_query[meta["query_rows"]] = True
    features = np.concatenate([np.load(folder / f"features_{i}.npz")["x"] for i in range(4)])
    items, queries = features[~is_query], features[is_query]
    quality = {}
    for name in ("pca-itq", "ohsl", "ohsl-sym"):
        hasher = METHODS[name](bits=32).fit(items[:300])
        for s in range(0, len(items), 1000):
            hasher.partial_fit(items[s : s + 1000], labels[~is_query][s : s + 1000])
        quality[name] = evaluate(hasher.weigh(queries), hasher.encode(items), labels[is_query], labels[~is_query]).map
    assert quality == pytest.approx({"pca-itq": 0.527, "ohsl": 0.583, "ohsl-sym": 0.526}, abs=0.02)
