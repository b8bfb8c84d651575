"""Rank texts without labels: by the words that they share, by the cosine of features, and by two rankings fused."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from stillhash.collection.rank_fusion import RANK_OFFSET
from stillhash.errors import MissingExtra
from stillhash.numeric.ranking import order_rows
from stillhash.numeric.validation import Floats

BM25_K1, BM25_B = 1.5, 0.75  # the usual parameters


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


def cosine_scores(items: Floats, queries: Floats) -> Floats:
    """Return the cosine (m, n) of features; 0 where features are."""
    a, b = (X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-30) for X in (queries, items))
    return np.asarray(a @ b.T, np.float32)


def fuse_ranks(*rankings: Floats) -> Floats:
    """Return the scores (m, n) of reciprocal rank fusion: 1 / (60 + rank) of each ranking, added."""
    return np.asarray(sum(1 / (RANK_OFFSET + _ranks(scores)) for scores in rankings), np.float32)


def _ranks(scores: Floats) -> Any:
    """Return the rank (m, n) of each item, from 1; among equals the smaller number comes first."""
    ranks = np.empty(scores.shape)
    np.put_along_axis(ranks, order_rows(scores), np.arange(1.0, scores.shape[1] + 1)[None], axis=1)
    return ranks


def _bm25s() -> Any:
    try:
        return import_module("bm25s")
    except ImportError as error:
        raise MissingExtra(f"BM25 needs bm25s: pip install 'stillhash[text-study]' ({error})") from None
