"""A process that asks a collection over and over while another one writes, and what an answer comes to.

Answers are many and long, so only their digests are kept; answers that follow each other and are equal count as one.
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
QUESTIONS: dict[str, dict[str, Any]] = {"all": {"k": 1000}, "few": {"k": 12}, "marked": {"k": 10, "where": ROUND}}
REOPEN = 100  # questions until the collection is opened anew


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def answered(collection: Collection, question: str) -> str:
    """What a collection answers: versions, ids, scores, labels and metadata."""
    answers = collection.search(QUERIES, **QUESTIONS[question])
    return digest([[a.version, [[h.id, h.score, h.labels, h.metadata] for h in a.hits]] for a in answers])


def wanted(twin: Twin) -> dict[str, str]:
    """What it should answer to each question."""
    rankings = [twin.ranking(query) for query in QUERIES]
    marked = [[hit for hit in ranking if hit[1] in MARKED] for ranking in rankings]
    return {
        question: digest([[twin.version, [told(twin, hit) for hit in hits[: asked["k"]]]] for hits in among])
        for (question, asked), among in zip(QUESTIONS.items(), (rankings, rankings, marked), strict=True)
    }


def told(twin: Twin, hit: tuple[float, Any]) -> list[Any]:
    score, id_ = hit
    return [id_, score, twin.items[id_].labels, twin.items[id_].metadata]


def look(path: str) -> None:
    """Asks until the input ends, then tells each question, its answer, when it was last asked, and how often."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    reader = stillhash.open(path, read_only=True)
    print("ready", flush=True)
    seen: dict[str, list[tuple[str, float, int]]] = {question: [] for question in QUESTIONS}
    asked = 0
    while not ended.is_set() or asked < len(QUESTIONS):
        question = list(QUESTIONS)[asked % len(QUESTIONS)]
        start, found, past = time.monotonic(), answered(reader, question), seen[question]
        times = past.pop()[2] if past and past[-1][0] == found else 0
        past.append((found, start, times + 1))
        asked += 1
        if asked % REOPEN == 0:
            reader.close()
            reader = stillhash.open(path, read_only=True)
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    look(sys.argv[1])
