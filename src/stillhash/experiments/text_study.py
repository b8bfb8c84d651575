"""Run the experiments with texts: quality against labels, known at insertion or late, and over time.

Their data is a folder of `text_corpora`. Beside the methods of the library there are rankings that learn nothing, float
cosine and BM25, and `METHOD+bm25`, the fusion of a method with BM25.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset, RowIndices
from stillhash.experiments.job import Job
from stillhash.experiments.known_labels import LabelMatrix
from stillhash.experiments.metrics import evaluate, evaluate_scores
from stillhash.experiments.passes import Pass, by_rows, describe_job
from stillhash.experiments.text_collection import in_collection
from stillhash.experiments.text_corpora import read_texts
from stillhash.experiments.text_ranking import bm25_scores, cosine_scores, fuse_ranks, tokenize
from stillhash.hashers import METHODS, Hasher
from stillhash.numeric.kernels import RankingQuality
from stillhash.numeric.ranking import Ranking, rank_scores
from stillhash.numeric.validation import Codes, Floats

TEXT_LABEL_COUNTS = (0, 10, 30, 100, 300, 1000, 3000)  # and all
TEXT_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
UNLEARNT = ("cosine", "bm25")  # rankings that learn nothing
FUSED = "+bm25"  # after the name of a method
TIME_CHUNK = 250  # texts that search for earlier ones, before they are stored
OFTEN = 10  # times that a label is learnt
LEARNS_UNTIL = "learns_until"  # the last month whose labels are known, among the parameters of a job over time


class TextPass(Pass):
    """A pass whose ranking may be fused with BM25."""

    def __init__(self, job: Job, data: Dataset) -> None:
        super().__init__(replace(job, method=job.method.removesuffix(FUSED)), data)
        self.about["method"] = job.method
        self.fused = job.method.endswith(FUSED)

    def _evaluate(self, queries: RowIndices) -> tuple[dict[str, Any], Ranking]:
        if not self.fused:
            return super()._evaluate(queries)
        ranking = self.hasher.ranking(self.data.read(queries))
        words = _words_of(self.job.data, self.data, queries, self.stream)

        def scorer(some: slice) -> Floats:
            return fuse_ranks(rank_scores(ranking.rows(some), self.codes), words[some])

        labels = self.data.labels
        return evaluate_scores(scorer, labels[queries], labels[self.stream], threads=1)._asdict(), ranking


def at_insertion(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Store all texts for each number of labels, so many of them with their labels, and measure at the end."""
    return _by_count(job, data, TEXT_LABEL_COUNTS)


def by_share(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Do the same for each share of texts with labels."""
    return _by_count(job, data, [round(share * len(data.stream)) for share in TEXT_SHARES])


def late(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Store all texts without labels, then learn labels of them in random order; stale codes are refreshed."""
    if job.method in UNLEARNT:
        yield _unlearnt(job, data)
        return
    run = TextPass(job, data)
    for places in run.steps(np.arange(len(run.stream))):
        run.encode(run.read(places))
    order = np.random.default_rng(job.seed).permutation(np.flatnonzero(run.Y.any(axis=1)))
    counts = _below(TEXT_LABEL_COUNTS, len(order))
    before = run.hasher.ranking(data.read(run.queries))
    for start, stop in pairwise([0, *counts]):
        for places in run.steps(order[start:stop]):
            if run.learn(places, run.read(places)):
                run.refresh()
        groups = _by_frequency(run, before, order[:stop]) if run.hasher.fixed_codes and not run.fused else {}
        yield run.record(final=stop == len(order), labelled=stop, groups=groups)


def _by_frequency(run: TextPass, before: Ranking, labelled: RowIndices) -> dict[str, float]:
    """Return P@10 of queries whose most frequent label was learnt often, and of the others, now and before labels."""
    query_labels, now = run.data.labels[run.queries], run.hasher.ranking(run.data.read(run.queries))
    often = np.where(query_labels > 0, run.Y[labelled].sum(axis=0, dtype=np.int64), 0).max(axis=1) >= OFTEN
    groups = {"share learnt often": float(often.mean())}
    for name, some in ((f"learnt {OFTEN} times or more", often), (f"learnt less than {OFTEN} times", ~often)):
        for when, ranking in (("before labels", before), ("now", now)):
            if some.any():
                quality = evaluate(ranking.rows(some), run.codes, query_labels[some], run.Y, threads=1)
                groups[f"P@10, {name}, {when}"] = quality.precision_10
    return groups


def over_time(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Search with each chunk of texts for those before it, then store and learn it; measure by month.

    No text is held out. The first ones, which the initial stage sees, search for nothing.
    """
    months, truth = read_months(Path(job.data), len(data)), data.labels
    job, until = _without_end(job)
    known = truth if until is None else np.where((months <= until)[:, None], truth, np.uint8(0))
    ranker = _open_ranker(job, data, known)
    ranker.add(np.arange(min(job.first, len(data))))
    about = describe_job(job, data) | {"queries": max(0, len(data) - job.first), "database": len(data)}
    about["params"] = job.params | ({} if until is None else {LEARNS_UNTIL: str(until)})
    later = np.unique(months[job.first :])
    for month in later:
        places = np.flatnonzero(months == month)
        places = places[places >= job.first]
        points, values = [], []
        for chunk in (places[s : s + TIME_CHUNK] for s in range(0, len(places), TIME_CHUNK)):
            scores = ranker.scores(chunk)
            labels = truth[chunk], truth[: chunk[0]]
            quality = evaluate_scores(scores.__getitem__, *labels, threads=1)
            points.append([int(chunk[-1]) + 1, quality.map])
            values.append(np.array(quality) * len(chunk))
            ranker.add(chunk)
        means = RankingQuality(*(np.sum(values, axis=0) / len(places)).tolist())
        yield (
            about
            | means._asdict()
            | {
                "rows": int(places[-1]) + 1,
                "seconds": dict.fromkeys(("learn", "refresh", "encode", "io"), 0.0),
                "final": bool(month == later[-1]),
                "period": str(month),
                "prequential": points,
            }
        )


class StreamRanker(Protocol):
    """Ranks the texts so far for texts that come after them."""

    def scores(self, queries: RowIndices) -> Floats:
        """Return scores (m, n) of the n texts so far."""

    def add(self, rows: RowIndices) -> None:
        """Add the next texts."""


class HasherRanker:
    """A method of the library, which learns the known labels."""

    def __init__(self, job: Job, data: Dataset, known: LabelMatrix) -> None:
        self.data, self.known = data, known
        self.hasher: Hasher = METHODS[job.method](bits=job.bits, random_state=job.seed, **job.params)
        first = np.arange(min(job.first, len(data)))
        self.hasher.fit(data.read(first), known[first])
        self.codes: Codes = self.hasher.encode(data.read(first[:0]))
        self.raw = self.hasher.keep(data.read(first[:0]))

    def scores(self, queries: RowIndices) -> Floats:
        return rank_scores(self.hasher.ranking(self.data.read(queries)), self.codes)

    def add(self, rows: RowIndices) -> None:
        X, Y = self.data.read(rows), self.known[rows]
        codes = self.hasher.encode(X, Y) if self.hasher.fixed_codes else None
        self.hasher.partial_fit(X, Y, codes)
        if self.hasher.stale_ and len(self.codes):
            self.codes = self.hasher.refresh(self.raw, lambda: self.data.read(np.arange(len(self.codes))))
        self.codes = np.concatenate([self.codes, self.hasher.encode(X, Y) if codes is None else codes])
        self.raw = np.concatenate([self.raw, self.hasher.keep(X)])


class UnlearntRanker:
    """Float cosine or BM25 of the texts so far."""

    def __init__(self, job: Job, data: Dataset) -> None:
        self.data, self.count, self.by_words = data, 0, job.method == "bm25"
        self.words = _tokens(job.data, len(data)) if self.by_words else []

    def scores(self, queries: RowIndices) -> Floats:
        if self.by_words:
            return bm25_scores(self.words[: self.count], [self.words[row] for row in queries])
        return cosine_scores(self.data.read(np.arange(self.count)), self.data.read(queries))

    def add(self, rows: RowIndices) -> None:
        self.count += len(rows)


def read_months(folder: Path, rows: int) -> NDArray[np.datetime64]:
    """Return the month of each text of a corpus with dates."""
    path = folder / "times.npy"
    if not path.is_file():
        raise InvalidInput(f"data: expected a corpus with dates, such as reuters, got {folder}")
    times = np.load(path)
    if times.shape != (rows,) or (np.diff(times) < 0).any():
        raise InvalidInput(f"times: expected {rows} in ascending order in {folder}, got others")
    return np.asarray(times.astype("datetime64[s]").astype("datetime64[M]"))


def _by_count(job: Job, data: Dataset, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    if job.method in UNLEARNT:
        yield _unlearnt(job, data)
        return
    labelled = int(np.count_nonzero(data.labels[data.stream].any(axis=1)))
    for count in _below(counts, labelled):
        *_, record = by_rows(TextPass(replace(job, labelled_rows=count), data))
        yield record | {"final": count == labelled, "labelled": count}


def _below(counts: Sequence[int], most: int) -> list[int]:
    return [*(count for count in counts if count < most), most]


def _unlearnt(job: Job, data: Dataset) -> dict[str, Any]:
    """Return the one record of a ranking that learns nothing."""
    queries, stream, labels = data.queries, data.stream, data.labels
    if job.method == "bm25":
        scores = _words_of(job.data, data, queries, stream)
    else:
        scores = cosine_scores(data.read(stream), data.read(queries))
    quality = evaluate_scores(scores.__getitem__, labels[queries], labels[stream], threads=1)
    about = {"rows": len(stream), "queries": len(queries), "database": len(stream), "labelled": 0, "final": True}
    seconds = dict.fromkeys(("learn", "refresh", "encode", "io"), 0.0)
    return {**describe_job(job, data), **about, "seconds": seconds, **quality._asdict()}


def _open_ranker(job: Job, data: Dataset, known: LabelMatrix) -> StreamRanker:
    return UnlearntRanker(job, data) if job.method in UNLEARNT else HasherRanker(job, data, known)


def _without_end(job: Job) -> tuple[Job, np.datetime64 | None]:
    """Return a job without the month at which labels end, and that month."""
    until = job.params.get(LEARNS_UNTIL)
    params = {name: value for name, value in job.params.items() if name != LEARNS_UNTIL}
    return replace(job, params=params), None if until is None else np.datetime64(until, "M")


@lru_cache(maxsize=1)
def _tokens(folder: str, rows: int) -> list[list[str]]:
    return tokenize(read_texts(Path(folder), rows))


_word_scores: dict[tuple[str, bytes], Floats] = {}  # of the queries of one corpus


def _words_of(folder: str, data: Dataset, queries: RowIndices, stream: RowIndices) -> Floats:
    """Return the BM25 scores of a corpus, computed once for all jobs of a process on it."""
    key = folder, queries.tobytes() + stream.tobytes()
    if key not in _word_scores:
        words = _tokens(folder, len(data))
        _word_scores.clear()
        _word_scores[key] = bm25_scores([words[row] for row in stream], [words[row] for row in queries])
    return _word_scores[key]


TEXT_EXPERIMENTS: dict[str, Callable[[Job, Dataset], Iterator[dict[str, Any]]]] = {
    "text-insertion": at_insertion,
    "text-late": late,
    "text-shares": by_share,
    "text-time": over_time,
    "text-collection": in_collection,
}
