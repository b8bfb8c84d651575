"""Measure the quality of a ranking.

Relevant means: shares at least one label with the query. All measures rank the whole database by score; equal
scores keep database order (`map`: faithful to the published code, so shuffle the database first) or count as every
order at once (`expected_map`).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.kernels import RankingQuality
from stillhash.numeric.threads import one_thread, usable_cores
from stillhash.numeric.validation import Codes, Floats


@one_thread
def evaluate(
    weights: Floats,
    codes: Codes,
    query_labels: NDArray[Any],
    item_labels: NDArray[Any],
    *,
    k: int = 100,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> RankingQuality:
    """Rank all codes for each query and average. Labels are indicator matrices; `progress` gets the queries done."""
    bits = weights.shape[1]
    database = signs(codes, bits).T.copy()  # (bits, n)
    items = np.ascontiguousarray(item_labels, np.float32).T  # (labels, n)
    labels = np.ascontiguousarray(query_labels, np.float32)
    batch = max(1, min(64, 2**25 // max(1, len(codes))))

    def measure(start: int) -> NDArray[np.float64]:
        some = slice(start, start + batch)
        values = kernels.rank_quality(weights[some] @ database, labels[some] @ items, k)
        if progress:
            progress(len(values))
        return values

    with ThreadPoolExecutor(threads or usable_cores()) as pool:
        everything = np.concatenate(list(pool.map(measure, range(0, len(weights), batch))))
    return RankingQuality(*everything.mean(axis=0).tolist())
