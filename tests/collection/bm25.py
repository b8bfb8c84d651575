"""The slow twin of the lexical index: BM25 from its definition, over the texts of all items."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any

K1, B = 1.2, 0.75
LEAST_IDF = 1e-6  # of a term that more than half of the texts have


def tokens(text: str) -> list[str]:
    """Split a text as the tokenizer does, for letters of Europe: no case, no accents, no punctuation."""
    plain = "".join(mark for mark in unicodedata.normalize("NFD", text) if not unicodedata.combining(mark))
    return re.findall(r"[^\W_]+", plain.lower())


def terms(words: str) -> list[list[str]]:
    """Return the tokens of each word, and of each phrase in double quotes, once each."""
    parts = [phrase or word for phrase, word in re.findall(r'"([^"]*)"|([^\s"]+)', words)]
    return [tokens(part) for part in {part.strip().casefold(): part for part in parts}.values()]


def text_of(metadata: dict[str, Any] | None, field: str) -> str | None:
    value: Any = metadata
    for key in field.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def occurrences(phrase: list[str], document: list[str]) -> int:
    last = len(document) - len(phrase)
    return sum(document[at : at + len(phrase)] == phrase for at in range(last + 1)) if phrase else 0


def bm25(texts: dict[int, str], words: str) -> list[tuple[int, float]]:
    """Return the rows with any of the terms and their scores, best first, ties by row."""
    documents = {row: tokens(text) for row, text in texts.items()}
    mean = sum(map(len, documents.values())) / max(1, len(documents))
    scores = dict.fromkeys(documents, 0.0)
    hits = set()
    for phrase in terms(words):
        counts = {row: occurrences(phrase, document) for row, document in documents.items()}
        having = [row for row, count in counts.items() if count]
        idf = max(LEAST_IDF, math.log((len(documents) - len(having) + 0.5) / (len(having) + 0.5)))
        for row in having:
            length = 1 - B + B * len(documents[row]) / mean
            scores[row] += idf * counts[row] * (K1 + 1) / (counts[row] + K1 * length)
            hits.add(row)
    return sorted(((row, scores[row]) for row in hits), key=lambda hit: (-float(f"{hit[1]:.9g}"), hit[0]))
