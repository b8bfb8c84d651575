"""An embedding that needs no model: the sum of a random vector for each word."""

from __future__ import annotations

import zlib

import numpy as np
from langchain_core.embeddings import Embeddings

FRUIT, VEHICLES = ("apple", "pear", "plum", "quince"), ("bus", "car", "train", "tram")


class WordVectors(Embeddings):
    """Embed texts with words in common near each other."""

    def __init__(self, size: int = 24) -> None:
        self.size = size

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        vectors = [np.random.default_rng(zlib.crc32(word.encode())).normal(size=self.size) for word in text.split()]
        return list(map(float, sum(vectors, np.zeros(self.size))))


def labelled_texts(count: int, seed: int = 0) -> tuple[list[str], list[list[str]]]:
    """Return texts of three words about fruit or vehicles, and which of them as labels."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 2, count)
    texts = [f"{' '.join(rng.choice((FRUIT, VEHICLES)[kind], 3))} {row}" for row, kind in enumerate(kinds)]
    return texts, [["fruit"] if kind == 0 else ["vehicle"] for kind in kinds]
