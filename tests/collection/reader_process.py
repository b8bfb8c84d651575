"""A process that searches a collection again and again while another one writes.

Answers are many and long, so only their digests are kept; equal answers that follow each other count as one.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from typing import Any

import stillhash
from stillhash import Collection
from tests.collection.fixtures import DIM
from tests.collection.reference import Twin
from tests.support.toys import toy

QUERIES = toy(2, DIM, 4, seed=77).X
MARKED = [f"m{i}" for i in range(5)]
ROUND: dict[str, Any] = {"round": {"$exists": True}}
SEARCHES: dict[str, dict[str, Any]] = {"all": {"k": 1000}, "few": {"k": 12}, "marked": {"k": 10, "where": ROUND}}
REOPEN = 100  # searches until the collection is opened again


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def answer_digest(collection: Collection, search: str) -> str:
    """Return a digest of the answers of a collection: versions, ids, scores, labels and metadata."""
    answers = collection.search(QUERIES, **SEARCHES[search])
    return digest([[a.version, [[h.id, h.score, h.labels, h.metadata] for h in a.hits]] for a in answers])


def expected_digests(twin: Twin) -> dict[str, str]:
    """Return the digests of the expected answers, by search."""
    rankings = [twin.ranking(query) for query in QUERIES]
    marked = [twin.ranking(query, ROUND) for query in QUERIES]
    return {
        search: digest([[twin.version, [hit_values(twin, hit) for hit in hits[: options["k"]]]] for hits in among])
        for (search, options), among in zip(SEARCHES.items(), (rankings, rankings, marked), strict=True)
    }


def hit_values(twin: Twin, hit: tuple[float, Any]) -> list[Any]:
    score, id_ = hit
    return [id_, score, twin.items[id_].labels, twin.items[id_].metadata]


class Searcher:
    """Repeats searches and records the digest of each answer, when it was last requested, and how often it came."""

    def __init__(self, path: str) -> None:
        self.path, self.count = path, 0
        self.reader = stillhash.open(path, read_only=True)
        self.answers: dict[str, list[tuple[str, float, int]]] = {search: [] for search in SEARCHES}

    def search_all(self) -> None:
        for search, past in self.answers.items():
            start, answer = time.monotonic(), answer_digest(self.reader, search)
            times = past.pop()[2] if past and past[-1][0] == answer else 0
            past.append((answer, start, times + 1))
            self.count += 1
            if self.count % REOPEN == 0:
                self.reader.close()
                self.reader = stillhash.open(self.path, read_only=True)


def main(path: str) -> None:
    """Search before "ready" is printed, until the input ends, and once after that; then print all answers."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    searcher = Searcher(path)
    searcher.search_all()
    print("ready", flush=True)
    while not ended.is_set():
        searcher.search_all()
    searcher.search_all()
    print(json.dumps(searcher.answers), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
