"""Experiments with a collection on disk: late labels, a new class, corrections, active learning, votes, a new encoder.

All search the collection as users do, and all but active learning have default settings. Beside the first three is
float cosine of the same items and queries: of raw features or of centred ones, whichever is better. A few hundred rows
fit the hash functions where there are less than 6,000.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import stillhash
from stillhash.collection import Collection, Vote
from stillhash.collection.learning.encoder_alignment import EncoderIdentity
from stillhash.collection.learning.trainer import MIN_INIT_ROWS
from stillhash.collection.ranking import rank_page
from stillhash.collection.read_view import ReadView, Snapshot
from stillhash.collection.storage.store import Store
from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset, RowIndices, RowMask
from stillhash.experiments.drift import open_stream
from stillhash.experiments.job import Job
from stillhash.experiments.metrics import cosine_scores, evaluate, evaluate_hits
from stillhash.experiments.passes import ROWS_PER_STEP, LabelMatrix, describe_job, replace_labels
from stillhash.hashers import DEFAULT_HASHER, Hasher, load
from stillhash.numeric.labels import Labels
from stillhash.numeric.ranking import order_rows
from stillhash.numeric.rescored_page import StoredItems
from stillhash.numeric.validation import Codes, Floats
from stillhash.search.first_page import search_page

COLLECTION_INIT = 3000  # rows that fit the hash functions, as in a collection by default
LATE_COUNTS = (0, 30, 100, 300, 1000, 3000)  # labels, and all
CLASS_COUNTS = (0, 30, 300)  # labels of the new class, and all
CLOSE_COUNTS = (0, 100)  # labels, and all, at which stored items are searched for and whole rankings are measured
MAP_QUERIES, OWN_ITEMS = 100, 300
RANKED_AT_ONCE, WHOLE_AT_ONCE = 256, 25  # queries
SEARCHED_HITS = 10
LABELS_COME = "labels_come"  # a parameter of a run: how labels get into the collection
CORRECTED_NOISE, LASTING_NOISE, DELETED_ROWS_SHARE = 0.18, 0.2, 0.1
HIDDEN = "page without stored labels"
OLD_ENCODER, ENCODED_AGAIN = "old encoder", "encoded again"
ITEM_DRAWS, CORRECTION_DRAWS, VOTE_DRAWS, CLICK_DRAWS = 3, 4, 5, 6
ACTIVE_COUNTS, ACTIVE_ITEMS, ITEMS_PER_ROUND = (0, 100, 300, 1000), 20_000, 50
RANDOM, SUGGESTED = "random", "suggest_labels"  # choices of the items to label
NEAR_COSINE = 0.97  # of features to those of a stored item, or of a query
VOTED_RANKS = 100  # a vote is on one of the first hits
FOLLOWED_RANKS = 300  # an item that is no longer among these counts as the next one
CLICK_COUNTS = (0, 30, 100, 300, 1000, 3000)  # queries with clicks
SEEN_HITS, MAX_CLICKS, CLICK_VOTE = 30, 10, 0.3
PAIR_COUNTS = (100, 300, 1000, 3000)  # images that both encoders have encoded

Ranker = Callable[[Floats, int], RowIndices]  # queries (m, D) and k -> the numbers of the k best items (m, k)
Measured = dict[str, float]


class StudyRows:
    """The items and queries of a job, and what is measured of a ranking."""

    def __init__(self, job: Job, data: Dataset, drawn: tuple[RowIndices, RowIndices] | None = None) -> None:
        stream = data.stream[: job.rows]
        queries = data.queries[:: max(1, len(data.queries) // job.queries) if job.queries else 1]
        if drawn is not None:
            stream, queries = drawn
        self.job = job
        self.X, self.Y = data.read(stream), data.labels[stream]
        self.Q, self.query_labels = data.read(queries), data.labels[queries]
        self.init_rows = max(MIN_INIT_ROWS, min(job.first, len(stream) // 2))
        sizes = {"rows": len(stream), "queries": len(queries), "database": len(stream)}
        seconds = dict.fromkeys(("learn", "refresh", "encode", "io"), 0.0)
        self.about = {**describe_job(job, data), **sizes, "labelled": 0, "seconds": seconds, "final": True}

    @contextmanager
    def stored(self, Y: LabelMatrix, rows: RowIndices | None = None, **settings: Any) -> Iterator[Collection]:
        """Open a collection of all items, or of these, with labels Y (n, C)."""
        settings |= {"dim": self.X.shape[1], "bits": self.job.bits, "init_rows": self.init_rows}
        settings["params"] = {"random_state": self.job.seed}
        with TemporaryDirectory() as folder, stillhash.open(Path(folder) / "items", **settings) as collection:
            for some in _steps(np.arange(len(self.X)) if rows is None else rows):
                collection.add(some.tolist(), self.X[some], label_lists(Y[some]))
            collection.flush()
            yield collection

    def record(self, measured: Measured, **about: Any) -> dict[str, Any]:
        """Return a record; what a result line has no key for is a group of it."""
        own = {name: measured.get(name) for name in ("map", "precision_10", "ndcg_10")}
        return {**self.about, **about, **own, "groups": {k: v for k, v in measured.items() if k not in own}}

    def page(self, rank: Ranker) -> Measured:
        """Measure the first ten hits."""
        hits = rank(self.Q, SEARCHED_HITS)
        quality = evaluate_hits(hits, self.query_labels, self.Y)
        relevant = self._relevant(hits).any(axis=1)
        measured = {"precision_10": quality.precision_10, "ndcg_10": quality.ndcg_10}
        return measured | {"a relevant hit": float(relevant.mean())}

    def whole(self, rank: Ranker, count: int = MAP_QUERIES) -> Measured:
        """Measure whole rankings, of the first queries."""
        hits = rank(self.Q[:count], len(self.X))
        return {"map": evaluate_hits(hits, self.query_labels[:count], self.Y).map}

    def page_and_items(self, rank: Ranker, whole: Ranker | None = None) -> Measured:
        """Measure the first ten hits, whole rankings, and searches for stored items and for near duplicates of them."""
        rng = np.random.default_rng([self.job.seed, ITEM_DRAWS])
        items = rng.permutation(len(self.X))[:OWN_ITEMS]
        similar = np.stack([turned(x, rng) for x in self.X[items]])
        own = rank(self.X[items], 1) == items[:, None]
        near = (rank(similar, SEARCHED_HITS) == items[:, None]).any(axis=1)
        more = {"own item first": float(own.mean()), "near duplicate": float(near.mean())}
        return self.page(rank) | self.whole(whole or rank) | more

    def by_class(self, new: int, rank: Ranker) -> Measured:
        """Measure the first ten hits of queries of one class, and of all others."""
        relevant, of_class = self._relevant(rank(self.Q, SEARCHED_HITS)).mean(axis=1), self.query_labels[:, new] > 0
        return {"precision_10": float(relevant[of_class].mean()), "others": float(relevant[~of_class].mean())}

    def cosine(self, measure: Callable[[Ranker], Measured]) -> Measured:
        """Measure float cosine, of raw features and of centred ones; of each measure, the better one."""
        mean = self.X[: self.init_rows].mean(axis=0)
        raw, centred = (measure(partial(cosine_ids, self.X - m, m)) for m in (np.zeros_like(mean), mean))
        return {name: max(value, centred[name]) for name, value in raw.items()}

    def _relevant(self, hits: RowIndices) -> RowMask:
        return np.asarray((self.Y[hits] & self.query_labels[:, None]).any(axis=2))


def late_labels(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Store all items without labels, then label them in random order; beside it, all labels at insertion."""
    rows = StudyRows(job, data)
    yield rows.record(rows.cosine(rows.page_and_items), method="cosine")
    order = np.random.default_rng(job.seed).permutation(np.flatnonzero(rows.Y.any(axis=1)))
    with rows.stored(rows.Y) as collection:
        measured = rows.page_and_items(partial(hit_ids, collection), partial(ranked_rows, collection))
        yield rows.record(measured, params={LABELS_COME: "with items"}, labelled=len(order))
    with rows.stored(np.zeros_like(rows.Y)) as collection:
        for start, stop in pairwise([0, *(count for count in LATE_COUNTS if count < len(order)), len(order)]):
            relabel(collection, order[start:stop], rows.Y)
            measure, final = rows.page, stop == len(order)
            if stop in CLOSE_COUNTS or final:
                measure = partial(rows.page_and_items, whole=partial(ranked_rows, collection))
            yield rows.record(measure(partial(hit_ids, collection)), labelled=stop, final=final)


def new_class(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Label all items but those of one class, each in turn, then those; all are stored without labels."""
    rows = StudyRows(job, data)
    if (rows.Y.sum(axis=1, dtype=np.int64) != 1).any():
        raise InvalidInput(f"labels: expected one label on each row of {data.name}, got rows with none or several")
    order = np.random.default_rng(job.seed).permutation(len(rows.Y))
    with rows.stored(np.zeros_like(rows.Y)) as base, TemporaryDirectory() as folder:
        for new in np.flatnonzero(rows.query_labels.any(axis=0)).tolist():
            of_class, measure = order[rows.Y[order, new] > 0], partial(rows.by_class, new)
            about = {"params": {"new_class": new}}
            yield rows.record(rows.cosine(measure), **about, method="cosine")
            base.snapshot(Path(folder) / str(new))
            with stillhash.open(Path(folder) / str(new)) as collection:
                relabel(collection, np.setdiff1d(order, of_class), rows.Y)
                counts = [*(count for count in CLASS_COUNTS if count < len(of_class)), len(of_class)]
                for start, stop in pairwise([0, *counts]):
                    relabel(collection, of_class[start:stop], rows.Y)
                    measured = measure(partial(hit_ids, collection))
                    yield rows.record(measured, **about, labelled=stop, final=stop == len(of_class))


class LabelCorrection(NamedTuple):
    """Labels at insertion, the right ones, and the items that are right to have; a last class is for a new name."""

    stored: LabelMatrix
    right: LabelMatrix
    rows: RowIndices
    is_applied: bool = True


def make_corrections(Y: LabelMatrix, init_rows: int, rng: np.random.Generator) -> dict[str, LabelCorrection]:
    """Return the corrections by name; the classes that they are about are the two most frequent ones."""
    n, (one, other) = len(Y), np.argsort(-Y.sum(axis=0, dtype=np.int64), kind="stable")[:2]
    Y = np.pad(Y, ((0, 0), (0, 1)))
    swapped, renamed, removed, every = Y.copy(), Y.copy(), Y.copy(), np.arange(n)
    swapped[:, [one, other]] = Y[:, [other, one]]
    renamed[:, [one, -1]] = Y[:, [-1, one]]
    removed[:, one] = 0
    deleted = init_rows + rng.permutation(n - init_rows)[: round(DELETED_ROWS_SHARE * n)]
    return {
        "two classes swapped": LabelCorrection(swapped, Y, every),
        f"{CORRECTED_NOISE:.0%} wrong labels": LabelCorrection(replace_labels(Y, CORRECTED_NOISE, rng), Y, every),
        "a class renamed": LabelCorrection(Y, renamed, every),
        "a label removed": LabelCorrection(Y, removed, every),
        f"{DELETED_ROWS_SHARE:.0%} of the rows deleted": LabelCorrection(Y, Y, np.setdiff1d(every, deleted)),
        f"{LASTING_NOISE:.0%} wrong labels, not corrected": LabelCorrection(
            replace_labels(Y, LASTING_NOISE, rng), Y, every, is_applied=False
        ),
    }


def corrections(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Store items, then correct their labels; beside it, a collection that was right from the start.

    Where wrong labels stay, the last record is of a page that does not see which labels are stored, of both.
    """
    rows = StudyRows(job, data)
    yield rows.record(rows.cosine(rows.page), method="cosine")
    rng = np.random.default_rng([job.seed, CORRECTION_DRAWS])
    for name, correction in make_corrections(rows.Y, rows.init_rows, rng).items():
        hidden: list[Measured] = []
        with rows.stored(correction.right, correction.rows) as collection:
            right = rows.page(partial(hit_ids, collection))
            if not correction.is_applied:
                hidden.append(rows.page(partial(rows_without_labels, collection)))
        with rows.stored(correction.stored) as collection:
            before = rows.page(partial(hit_ids, collection))
            if correction.is_applied:
                changed = (correction.stored != correction.right).any(axis=1)
                relabel(collection, np.flatnonzero(changed), correction.right)
                collection.delete(np.setdiff1d(np.arange(len(rows.X)), correction.rows).tolist())
                collection.flush()
            else:
                hidden.append(rows.page(partial(rows_without_labels, collection)))
            after, problems = rows.page(partial(hit_ids, collection)), collection.verify()
        compared = {"before": before["precision_10"], "right": right["precision_10"], "verified": float(not problems)}
        yield rows.record(after | compared, params={"correction": name}) | {"problems": problems}
        if hidden:
            compared = {"before": hidden[1]["precision_10"], "right": hidden[0]["precision_10"]}
            yield rows.record(hidden[1] | compared, params={"correction": f"{name}; {HIDDEN}"})


def active(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Label items that `suggest_labels` chooses, round after round, and as many random ones; features kept or not.

    A seed has items, queries and hash functions of its own, the same for both choices. Queries rank all items by the
    short codes and the model, as a collection without rescoring codes does.
    """
    rng, pool = np.random.default_rng(job.seed), data.stream[: job.rows]
    items = np.sort(rng.permutation(pool)[: min(ACTIVE_ITEMS, 4 * len(pool) // 5)])
    rows = StudyRows(job, data, (items, np.sort(rng.permutation(data.queries)[: job.queries])))
    counts = [count for count in ACTIVE_COUNTS if count <= len(items)]
    for keep, choice in product((True, False), (RANDOM, SUGGESTED)):
        draws, labelled = np.random.default_rng(job.seed), np.empty(0, np.int64)
        about = {"params": {"choice": choice, "features": "kept" if keep else "codes alone"}}
        first = rows.X[: rows.init_rows]
        fitted = DEFAULT_HASHER(job.bits, double_sums=keep, random_state=job.seed).fit(first).state()
        with rows.stored(np.zeros_like(rows.Y), init=first, keep_features=keep, rescore_bits=0) as collection:
            for count in counts:
                while (left := count - len(labelled)) > 0:
                    chosen = draws.permutation(np.setdiff1d(np.arange(len(items)), labelled))[:left]
                    if choice == SUGGESTED:
                        seed = int(draws.integers(2**31))
                        suggestions = collection.suggest_labels(min(left, ITEMS_PER_ROUND), seed=seed)
                        chosen = np.array([each.id for each in suggestions], np.int64)
                    relabel(collection, chosen, rows.Y)
                    labelled = np.concatenate([labelled, chosen])
                quality = rank_all(rows, collection, load(fitted), labelled)
                yield rows.record(quality, **about, labelled=count, final=count == counts[-1])


def rank_all(rows: StudyRows, collection: Collection, hasher: Hasher, labelled: RowIndices) -> Measured:
    """Measure whole rankings, by a hasher that learns what the collection has learnt: the order of rows is free."""
    codes = collection.codes(range(len(rows.X)))
    assert codes is not None  # all have codes after `flush`
    if len(labelled):
        features = collection.reconstruct(labelled.tolist())
        hasher.partial_fit(features, label_lists(rows.Y[labelled]), codes[labelled])
    hasher.count_unlabelled(len(rows.X) - len(labelled))
    quality = evaluate(hasher.ranking(rows.Q), codes, rows.query_labels, rows.Y, threads=1)
    return {name: getattr(quality, name) for name in ("map", "precision_10", "ndcg_10")}


def feedback(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Vote on single hits where all items have labels; then click on hits where none has."""
    rows = StudyRows(job, data)
    yield rows.record(cast_votes(rows), params={"feedback": "votes"}, labelled=int(rows.Y.any(axis=1).sum()))
    yield from click(rows)


def cast_votes(rows: StudyRows) -> Measured:
    """Vote on a random hit of every second query, by its true labels: each vote alone, then all; others have none."""
    rng = np.random.default_rng([rows.job.seed, VOTE_DRAWS])
    order = rng.permutation(np.flatnonzero(rows.query_labels.any(axis=1)))
    voting, others = order[::2], order[1::2]
    pages: dict[str, list[list[RowIndices]]] = {"other hits": [[], []], "a similar query": [[], []]}
    counts, votes = dict.fromkeys(("liked", "fell", "disliked", "rose"), 0), list[Vote]()
    with rows.stored(rows.Y) as collection:
        pages["other queries"] = [[*hit_ids(collection, rows.Q[others], SEARCHED_HITS)]]
        for number in voting.tolist():
            query, similar = rows.Q[number], turned(rows.Q[number], rng)
            pairs = (query, FOLLOWED_RANKS), (similar, SEARCHED_HITS)
            before, near_before = (hit_ids(collection, some[None], k)[0] for some, k in pairs)
            rank = int(rng.integers(min(VOTED_RANKS, len(before))))
            item, up = int(before[rank]), bool((rows.Y[before[rank]] & rows.query_labels[number]).any())
            votes.append(Vote(query, item, "up" if up else "down", f"user {number}"))
            collection.feedback_many(votes[-1:])
            after, near_after = (hit_ids(collection, some[None], k)[0] for some, k in pairs)
            collection.feedback_many([votes[-1]._replace(vote=0)])
            new_rank = int(np.flatnonzero(after == item)[0]) if item in after else FOLLOWED_RANKS
            counts["liked" if up else "disliked"] += 1
            counts["fell"] += up and new_rank > rank
            counts["rose"] += not up and new_rank < rank
            for hits, where in ((before, 0), (after, 1)):
                pages["other hits"][where].append(hits[hits != item][:SEARCHED_HITS])
            pages["a similar query"][0].append(near_before)
            pages["a similar query"][1].append(near_after)
        collection.feedback_many(votes)
        pages["other queries"].append([*hit_ids(collection, rows.Q[others], SEARCHED_HITS)])
    measured = {name: float(count) for name, count in counts.items()}
    for name, both in pages.items():
        labels = rows.query_labels[others if name == "other queries" else voting]
        for when, hits in zip(("before", "after"), both, strict=True):
            measured[f"{name} {when}"] = evaluate_hits(np.stack(hits), labels, rows.Y).ndcg_10
    return measured


def click(rows: StudyRows) -> Iterator[dict[str, Any]]:
    """Click the first relevant ones of the first hits of stored items, which have no labels; then measure the queries.

    Users see the hits as they are before anybody clicks.
    """
    rng = np.random.default_rng([rows.job.seed, CLICK_DRAWS])
    items = rng.permutation(np.flatnonzero(rows.Y.any(axis=1)))[: CLICK_COUNTS[-1]]
    with rows.stored(np.zeros_like(rows.Y)) as collection:
        seen = hit_ids(collection, rows.X[items], SEEN_HITS + 1)
        for start, stop in pairwise([0, *(count for count in CLICK_COUNTS if count < len(items)), len(items)]):
            votes = []
            for item, hits in zip(items[start:stop].tolist(), seen[start:stop], strict=True):
                others = hits[hits != item][:SEEN_HITS]
                relevant = np.flatnonzero((rows.Y[others] & rows.Y[item]).any(axis=1))[:MAX_CLICKS]
                user = rows.X[item], f"user {item}"
                votes += [Vote(user[0], int(others[n]), CLICK_VOTE, user[1], n + 1) for n in relevant.tolist()]
            if votes:
                collection.feedback_many(votes)
            measured, final = rows.page(partial(hit_ids, collection)), stop == len(items)
            yield rows.record(measured, params={"feedback": "clicks"}, labelled=stop, final=final)


def align(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Search items of one encoder by queries of another one, through an alignment by images that both have encoded.

    `new` of the job's params is the other encoder's data: the same images in the same rows, as far as both go. The
    queries are those of the smaller one; its other images are the items. Beside it are the queries of the first encoder
    itself, and everything encoded again by the other one.
    """
    new = open_stream(job.params["new"])
    smaller, count = (new if len(new) <= len(data) else data), min(len(data), len(new))
    if (data.labels[:count] != new.labels[:count]).any():
        raise InvalidInput(f"new: expected the labels of {data.name} in the same rows, got others in {new.name}")
    items = np.setdiff1d(np.arange(count), smaller.queries)
    queries = smaller.queries[:: max(1, len(smaller.queries) // job.queries) if job.queries else 1]
    old, again = (StudyRows(job, each, (items, queries)) for each in (data, new))
    chance = float((old.query_labels.astype(np.float32) @ old.Y.T > 0).mean())

    def measured(rows: StudyRows, collection: Collection, encoder: EncoderIdentity | None = None) -> Measured:
        def translated(Q: Floats) -> Floats:
            return Q if encoder is None else collection.translate(Q, encoder)

        page = rows.page(lambda Q, k: hit_ids(collection, translated(Q), k))
        return page | rows.whole(lambda Q, k: ranked_rows(collection, translated(Q), k), len(queries))

    def record(name: str, measured: Measured) -> dict[str, Any]:
        about = {"dataset": f"{data.name} to {new.name}", "params": {"queries": name}, "chance": chance}
        return old.record(measured, **about)

    order = np.random.default_rng(job.seed).permutation(len(items))
    with old.stored(old.Y) as collection:
        yield record(OLD_ENCODER, measured(old, collection))
        for pairs in sorted({min(pairs, len(items)) for pairs in PAIR_COUNTS}):
            both, encoder = np.sort(order[:pairs]), EncoderIdentity(new.name, f"{pairs} pairs", new.dim)
            explained = collection.align(encoder, again.X[both], old.X[both])["explained"]
            yield record(f"{pairs:,} images in both", measured(again, collection, encoder) | {"explained": explained})
    with again.stored(again.Y) as collection:
        yield record(ENCODED_AGAIN, measured(again, collection))


LABEL_STUDIES: dict[str, Callable[[Job, Dataset], Iterator[dict[str, Any]]]] = {
    "late-labels": late_labels,
    "new-class": new_class,
    "corrections": corrections,
    "active": active,
    "feedback": feedback,
    "align": align,
}


def study_jobs(
    study: str,
    data: str,
    bits: tuple[int, ...],
    seeds: int,
    queries: int | None,
    rows: int | None = None,
    **params: Any,
) -> list[Job]:
    """Return one job for each length and seed."""
    every = product(range(seeds), bits)
    sizes: dict[str, Any] = {"queries": queries, "rows": rows, "first": COLLECTION_INIT}
    return [Job(study, data, DEFAULT_HASHER.name, length, seed, params, **sizes) for seed, length in every]


def cosine_ids(items: Floats, mean: Floats, queries: Floats, k: int) -> RowIndices:
    """Return the k items of the highest cosine; these are centred, and queries are not yet."""
    parts = (queries[s : s + RANKED_AT_ONCE] - mean for s in range(0, len(queries), RANKED_AT_ONCE))
    return np.concatenate([order_rows(cosine_scores(items, part))[:, :k] for part in parts])


def relabel(collection: Collection, rows: RowIndices, Y: LabelMatrix) -> None:
    """Give items the labels that they have in Y (n, C), and learn them."""
    for some in _steps(rows):
        collection.relabel(some.tolist(), label_lists(Y[some]))
    collection.flush()


def label_lists(Y: LabelMatrix) -> list[list[int]]:
    return [np.flatnonzero(labels).tolist() for labels in Y]


def _steps(rows: RowIndices) -> Iterator[RowIndices]:
    return (rows[s : s + ROWS_PER_STEP] for s in range(0, len(rows), ROWS_PER_STEP))


def hit_ids(collection: Collection, queries: Floats, k: int) -> NDArray[np.int64]:
    """Return the ids (m, k) of the first k hits of each query; all are numbers."""
    return np.array([[hit.id for hit in answer.hits] for answer in collection.search(queries, k)], np.int64)


@contextmanager
def pinned(collection: Collection) -> Iterator[tuple[Store, Snapshot]]:
    """Read the latest commit of a collection beside it."""
    store = Store(collection.path, writer=False)
    view = ReadView(store)
    try:
        with view.pinned() as snapshot:
            yield store, snapshot
    finally:
        view.close()
        store.close()


def ranked_rows(collection: Collection, queries: Floats, k: int) -> RowIndices:
    """Return the rows (m, k) of the first k hits as `search` has them, without making hits: for whole rankings.

    Rows are ids, where all items were stored in order and none was replaced.
    """
    with pinned(collection) as (store, snapshot):
        model = snapshot.version, snapshot.model, None
        parts = (queries[s : s + WHOLE_AT_ONCE] for s in range(0, len(queries), WHOLE_AT_ONCE))
        return np.concatenate([rank_page(store, snapshot, some, k, *model).ids for some in parts])


def rows_without_labels(collection: Collection, queries: Floats, k: int) -> RowIndices:
    """Return what `ranked_rows` does, with a page that does not see which labels are stored, for queries not stored.

    Labels that are predicted of queries and codes count alone, as much as they do where neighbours have labels.
    """
    with pinned(collection) as (_, snapshot):
        assert snapshot.functions is not None and snapshot.page_items is not None
        page = snapshot.page_model(snapshot.model)
        ranking = snapshot.functions.rank_checked(snapshot.model, queries, page=page)
        assert ranking.page is not None
        ranking = ranking._replace(page=ranking.page._replace(labelled_share=0.0))
        return search_page(snapshot.index, ranking, k, stored=UnlabelledItems(snapshot.page_items)).ids


class UnlabelledItems(NamedTuple):
    """What the first page reads of its candidates, as if none had labels now."""

    items: StoredItems

    def rescoring_codes(self, ids: RowIndices) -> Codes:
        return self.items.rescoring_codes(ids)

    def labels(self, ids: RowIndices) -> Labels:
        return Labels.empty(len(ids))


def turned(query: Floats, rng: np.random.Generator) -> Floats:
    """Return the query turned in a random direction, to a cosine of NEAR_COSINE."""
    noise = rng.standard_normal(len(query)).astype(np.float32)
    noise -= query * (noise @ query) / max(float(query @ query), 1e-30)
    noise *= np.linalg.norm(query) / np.linalg.norm(noise)
    return np.asarray(NEAR_COSINE * query + np.sqrt(1 - NEAR_COSINE**2) * noise, np.float32)
