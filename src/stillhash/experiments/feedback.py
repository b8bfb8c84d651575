"""Measure feedback: what votes do to their own query, its other hits, similar queries and others; and clicks.

Votes: single votes on random hits by their true labels, in a collection that has learnt labels; each alone, then all of
them together. Clicks: users see the first hits of their queries in a collection without any labels, and click the first
relevant ones; then queries that nobody rows are measured.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.learning.votes import correct, examination_weight
from stillhash.collection.storage.votes import StoredVote
from stillhash.experiments.data import Dataset
from stillhash.experiments.metrics import MEASURE_COLUMNS, evaluate
from stillhash.experiments.tables import ReportProgress, TableData, format_table, silent
from stillhash.hashers import DEFAULT_HASHER, LinearHasher, Model
from stillhash.numeric.labels import jaccard
from stillhash.numeric.validation import Codes, Floats
from stillhash.search import Scan
from stillhash.search.first_page import search_page

FEEDBACK_FIT_ROWS, FEEDBACK_CHUNK = 3000, 1000
PAGE = 10
VOTED_RANKS = 100  # a hit that is voted on is one of so many
SEARCHED_RANKS = 300  # a hit that is not among so many counts as the next
SIMILAR_COSINE = 0.97
CLICK_FIT_ROWS = 2000
SEEN_HITS, MAX_CLICKS, CLICK_VOTE = 30, 10, 0.3
CLICK_COUNTS = (10, 30, 100, 300, 1000, 3000, 10_000)


class CodeDatabase(NamedTuple):
    """Codes and labels that are searched."""

    codes: Codes
    labels: Floats  # (n, C) of 0 and 1
    sizes: Floats  # (n,) labels of each row
    scan: Scan

    def page(
        self, functions: LinearHasher, model: Model, query: Floats, k: int, liked: int | None, disliked: int | None
    ) -> NDArray[np.int64]:
        """Return the first k hits of one query."""
        first, last = ([np.array([] if item is None else [item], np.int64)] for item in (liked, disliked))
        ranking = functions.ranking_by(model, query[None])
        return np.asarray(search_page(self.scan, ranking, k, liked=first, disliked=last).ids[0])

    def ndcg(self, hits: NDArray[np.int64], query_labels: NDArray[np.uint8], without: int | None = None) -> float:
        """Return the nDCG of the first page, without one item if it is named."""
        shared = self.labels @ query_labels.astype(np.float32)
        grades = jaccard(shared[None], query_labels.sum(keepdims=True), self.sizes)[0]
        if without is not None:
            hits = hits[hits != without]
            grades[without] = 0
        discount = 1 / np.log2(np.arange(2, PAGE + 2))
        best = -np.partition(-grades, PAGE)[:PAGE]
        ideal = (np.sort(best)[::-1] * discount).sum()
        return float((grades[hits[:PAGE]] * discount).sum() / ideal) if ideal else 0.0


def run(
    data: Dataset,
    bits: int = 64,
    votes: int = 1000,
    others: int = 1000,
    click_queries: int = 3000,
    progress: ReportProgress = silent,
) -> dict[str, Any]:
    """Cast `votes` votes, measured on `others` other queries, and clicks on `click_queries` queries."""
    rng = np.random.default_rng(0)
    by_votes = _votes(data, bits, votes, others, rng, progress)
    by_clicks = _clicks(data, bits, click_queries, others, rng, progress)
    return {"dataset": data.name, "bits": bits, "votes": by_votes, "clicks": by_clicks}


def tables(result: dict[str, Any]) -> list[TableData | str]:
    """Show the counts of votes, the nDCG of pages, and the measures after clicks."""
    title, votes = f"{result['dataset']}, {result['bits']} bits", result["votes"]
    counts = """votes up: {up} | of them fell: {fell} | votes down: {down} | of them rose: {rose}"""
    pages = """nDCG@10: {name} | before: {before:.4f} | after: {after:.4f} | change: {change:+.4f}"""
    clicks = f"queries with clicks: {{queries}} | {MEASURE_COLUMNS}"
    return [
        format_table(f"{title}: {votes['up'] + votes['down']} votes", counts, [votes]),
        format_table(f"{title}: {votes['up'] + votes['down']} votes", pages, votes["pages"]),
        format_table(f"{title}, no labels: unseen queries after clicks", clicks, result["clicks"]),
    ]


def _votes(
    data: Dataset, bits: int, count: int, others: int, rng: np.random.Generator, progress: ReportProgress
) -> dict[str, Any]:
    stream, Y = data.stream, data.labels[data.stream]
    hasher = DEFAULT_HASHER(bits=bits).fit(data.read(stream[:FEEDBACK_FIT_ROWS]), Y[:FEEDBACK_FIT_ROWS])
    chunk_codes = []
    for s in range(0, len(stream), FEEDBACK_CHUNK):
        progress(f"{s:,} of {len(stream):,} rows learnt")
        X = data.read(stream[s : s + FEEDBACK_CHUNK])
        hasher.partial_fit(X, Y[s : s + FEEDBACK_CHUNK])
        chunk_codes.append(hasher.encode(X))
    database, functions, model = _database(np.concatenate(chunk_codes), Y, bits), hasher.functions(), hasher.model()
    queries = rng.permutation(data.queries[data.labels[data.queries].any(axis=1)])
    unvoted = queries[: min(others, len(queries) // 2)]
    cast, moved = [], {"up": 0, "fell": 0, "down": 0, "rose": 0}
    pages: dict[str, list[tuple[float, float]]] = {"other hits of the query": [], "a similar query": []}
    for number, row in enumerate(rng.choice(queries[len(unvoted) :], count).tolist()):
        if number % 100 == 0:
            progress(f"{number:,} of {count:,} votes")
        query, labels = data.read(np.array([row]))[0], data.labels[row]
        similar = turned(query, rng)
        before = database.page(functions, model, query, SEARCHED_RANKS, None, None)
        rank = int(rng.integers(min(VOTED_RANKS, len(before))))
        item, up = int(before[rank]), bool((Y[before[rank]] & labels).any())
        cast.append(_vote(query, item, 1.0 if up else -1.0, None, database, np.flatnonzero(Y[item]).tolist()))
        corrected = correct(hasher, model, cast[-1:], database.codes)
        voted = (item, None) if up else (None, item)
        after = database.page(functions, corrected, query, SEARCHED_RANKS, *voted)
        new_rank = int(np.flatnonzero(after == item)[0]) if item in after else SEARCHED_RANKS
        moved["up" if up else "down"] += 1
        moved["fell"] += up and new_rank > rank
        moved["rose"] += not up and new_rank < rank
        pages["other hits of the query"].append(
            (database.ndcg(before, labels, item), database.ndcg(after, labels, item))
        )
        near = [database.page(functions, some, similar, PAGE, None, None) for some in (model, corrected)]
        pages["a similar query"].append((database.ndcg(near[0], labels), database.ndcg(near[1], labels)))
    taught = correct(hasher, model, cast, database.codes)
    pages["other queries, after all votes"] = [
        (
            database.ndcg(database.page(functions, model, query, PAGE, None, None), data.labels[row]),
            database.ndcg(database.page(functions, taught, query, PAGE, None, None), data.labels[row]),
        )
        for row, query in zip(unvoted.tolist(), data.read(unvoted), strict=True)
    ]
    return {**moved, "pages": [_change(name, values) for name, values in pages.items()]}


def _clicks(
    data: Dataset, bits: int, count: int, others: int, rng: np.random.Generator, progress: ReportProgress
) -> list[dict[str, Any]]:
    stream, Y = data.stream, data.labels[data.stream]
    hasher = DEFAULT_HASHER(bits=bits).fit(data.read(stream[:CLICK_FIT_ROWS]))
    codes = np.concatenate(
        [hasher.encode(data.read(stream[s : s + FEEDBACK_CHUNK])) for s in range(0, len(stream), FEEDBACK_CHUNK)]
    )
    database, functions, model = _database(codes, Y, bits), hasher.functions(), hasher.model()
    rows = rng.permutation(np.flatnonzero(Y.any(axis=1)))[:count]
    votes: list[list[StoredVote]] = []
    for number, row in enumerate(rows.tolist()):
        if number % 500 == 0:
            progress(f"clicks on {number:,} of {len(rows):,} queries")
        query = data.read(stream[[row]])[0]
        page = database.page(functions, model, query, SEEN_HITS + 1, None, None)
        page = page[page != row][:SEEN_HITS]
        clicks = np.flatnonzero((Y[page] & Y[row]).any(axis=1))[:MAX_CLICKS].tolist()
        votes.append([_vote(query, int(page[at]), CLICK_VOTE, at + 1, database, []) for at in clicks])
    unseen = rng.permutation(data.queries)[:others]
    sizes = [size for size in CLICK_COUNTS if size < len(rows)]
    lines = []
    for size in [0, *sizes, len(rows)]:
        progress(f"measuring clicks on {size:,} queries")
        taught = correct(hasher, model, [vote for some in votes[:size] for vote in some], database.codes)
        ranking = functions.ranking_by(taught, data.read(unseen))
        lines.append({"queries": size, **evaluate(ranking, codes, data.labels[unseen], Y)._asdict()})
    return lines


def _vote(
    query: Floats, item: int, vote: float, position: int | None, database: CodeDatabase, labels: list[int]
) -> StoredVote:
    weight = vote * examination_weight(position)
    return StoredVote(query.tobytes(), item, "", weight, position, database.codes[item].tobytes(), labels)


def _database(codes: Codes, Y: NDArray[np.uint8], bits: int) -> CodeDatabase:
    index = Scan(bits)
    index.add(codes)
    labels = Y.astype(np.float32)
    return CodeDatabase(codes, labels, labels.sum(axis=1), index)


def turned(query: Floats, rng: np.random.Generator) -> Floats:
    """Return the query turned in a random direction, to a cosine of SIMILAR_COSINE."""
    noise = rng.standard_normal(len(query)).astype(np.float32)
    noise -= query * (noise @ query) / max(float(query @ query), 1e-30)
    noise *= np.linalg.norm(query) / np.linalg.norm(noise)
    return np.asarray(SIMILAR_COSINE * query + np.sqrt(1 - SIMILAR_COSINE**2) * noise, np.float32)


def _change(name: str, values: list[tuple[float, float]]) -> dict[str, Any]:
    before, after = np.mean(values, axis=0).tolist()
    return {"name": name, "before": before, "after": after, "change": after - before}
