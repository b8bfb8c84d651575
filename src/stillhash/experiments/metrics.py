"""Measure the quality of a ranking.

Relevant means: shares at least one label with the query; the grade of an item is the Jaccard of the two label sets. All
measures rank the whole database by score; equal scores keep database order (faithful to the published code, so shuffle
the database first) or, for `expected_map`, count as every order at once.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import kernels
from stillhash.numeric.kernels import RankingQuality
from stillhash.numeric.labels import jaccard
from stillhash.numeric.ranking import Ranking, rank_scores
from stillhash.numeric.threads import one_thread, usable_cores
from stillhash.numeric.validation import Codes, Floats

# What tables show: the fields of RankingQuality, with their names there.
MEASURE_NAMES = {"map": "mAP", "precision_10": "P@10", "precision_100": "P@100", "ndcg_10": "nDCG@10"}
Scorer = Callable[[slice], Floats]  # some of the queries -> their scores of all items, (m, n) float32


def evaluate(
    ranking: Ranking | Floats,
    codes: Codes,
    query_labels: NDArray[Any],
    item_labels: NDArray[Any],
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> RankingQuality:
    """Rank all codes for each query, or by weights alone, and measure as `evaluate_scores` does."""
    whole = ranking if isinstance(ranking, Ranking) else Ranking(ranking)

    def scorer(some: slice) -> Floats:
        return rank_scores(whole.rows(some), codes)

    return evaluate_scores(scorer, query_labels, item_labels, threads=threads, progress=progress)


@one_thread
def evaluate_scores(
    scorer: Scorer,
    query_labels: NDArray[Any],
    item_labels: NDArray[Any],
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> RankingQuality:
    """Rank all items for each query and average. Labels are indicator matrices; `progress` gets the queries done."""
    items = np.ascontiguousarray(item_labels, np.float32).T  # (labels, n)
    labels = np.ascontiguousarray(query_labels, np.float32)
    item_sizes = items.sum(axis=0)
    batch = max(1, min(64, 2**25 // max(1, len(item_sizes))))

    def measure(start: int) -> NDArray[np.float64]:
        some = slice(start, start + batch)
        grades = jaccard(labels[some] @ items, labels[some].sum(axis=1), item_sizes)
        values = kernels.rank_quality(scorer(some), grades)
        if progress:
            progress(len(values))
        return values

    with ThreadPoolExecutor(threads or usable_cores()) as pool:
        everything = np.concatenate(list(pool.map(measure, range(0, len(labels), batch))))
    return RankingQuality(*everything.mean(axis=0).tolist())


def evaluate_hits(
    hits: NDArray[np.int64], query_labels: NDArray[np.uint8], item_labels: NDArray[np.uint8]
) -> RankingQuality:
    """Measure the first k hits (m, k) of each query, which are numbers of items; all other items come after them."""
    scores_of_ranks = np.arange(hits.shape[1], 0, -1, dtype=np.float32)[None]

    def scorer(some: slice) -> Floats:
        scores = np.zeros((len(hits[some]), len(item_labels)), np.float32)
        np.put_along_axis(scores, hits[some], scores_of_ranks, axis=1)
        return scores

    return evaluate_scores(scorer, query_labels, item_labels, threads=1)


def cosine_scores(items: Floats, queries: Floats) -> Floats:
    """Return the cosine (m, n) of features; 0 where features are."""
    a, b = (X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-30) for X in (queries, items))
    return np.asarray(a @ b.T, np.float32)
