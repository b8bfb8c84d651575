"""Why a hit is where it is, in words: similarity, labels that are stored or predicted, and what placed it."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest

import stillhash
from stillhash.collection.types import Explanation, LabelShare
from stillhash.server.pages.explanations import label_sentence, score_sentence
from tests.server.live_server import LiveServer, live_server
from tests.support.toys import toy


def shares(**labels: float) -> list[LabelShare]:
    return [LabelShare(label, share) for label, share in labels.items()]


@pytest.mark.parametrize(
    ("query", "hit", "shared", "stored", "sentence"),
    [
        ({"cat": 0.9}, {"cat": 0.8}, {"cat": 0.8}, ["cat"], "Same labels: cat. They agree by 76 %."),
        (
            {"cat": 0.5, "dog": 0.5},
            {"cat": 0.4, "dog": 0.3, "sea": 0.3},
            {"cat": 0.4, "dog": 0.3},
            ["cat", "sea"],
            "Same labels: cat and dog. The hit does not have dog; it is predicted of it. The hit has sea too."
            " They agree by 76 %.",
        ),
        (
            {"cat": 0.9},
            {"cat": 0.8},
            {"cat": 0.8},
            [],
            "Same labels: cat. The hit has no labels yet; they are predicted of it. They agree by 76 %.",
        ),
        ({"cat": 0.9}, {"dog": 0.8}, {}, ["dog"], "Other labels: the query seems to have cat, the hit dog."),
        ({"cat": 0.9}, {}, {}, [], "Other labels: the query seems to have cat, the hit none that is known."),
        ({}, {}, {}, [], "No label is known of either."),
    ],
)
def test_labels_in_words(
    query: dict[str, float], hit: dict[str, float], shared: dict[str, float], stored: list[str], sentence: str
) -> None:
    why = Explanation([], [], 1, 0, 0.0, 1, 0.9, 0.76, shares(**query), shares(**hit), shares(**shared))
    assert label_sentence(why, stored) == sentence


def test_parts_of_the_page_score_in_words() -> None:
    why = Explanation([], [], 1, 0, 0.0, 1, similarity=0.5, labels=0.9, label_weight=0.8, page_score=0.82)
    sentence = "Labels count 80 % in this search, similarity 20 %: of 0.82, labels gave 0.72 and similarity 0.10."
    assert score_sentence(why) == sentence
    assert "similarity 0.10 and votes 0.03." in score_sentence(replace(why, page_score=0.85))
    for part in ({"label_weight": 0.0}, {"page_score": None}, {"labels": None}):
        assert score_sentence(replace(why, **part)) == ""


def why_text(server: LiveServer, like: int, hit: int, **options: str) -> str:
    reply = server.request("GET", f"/c/c/explain?{urlencode({'like': like, 'id': hit, **options})}")
    assert reply.status == 200
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", reply.data.decode())).split())


@pytest.mark.medium
def test_labels_come_into_the_words_once_they_are_stored(tmp_path: Path) -> None:
    X, Y = toy(700, 24, 6)
    collection = stillhash.open(tmp_path / "c", 24, 64, init_rows=300, learn_rows=100)
    collection.add(range(700), X)
    with live_server({"c": collection}) as server:
        answer = collection.search(collection.reconstruct([77])[0], 3, explain=True)
        hit = answer.hits[-1]
        assert hit.explanation is not None and hit.explanation.similarity is not None
        similar = f"similar by {round(100 * hit.explanation.similarity)} %"
        text = why_text(server, 77, int(hit.id))
        assert hit.placed == "similarity" and similar in text
        assert "Labels do not count in this search" in text and "Same labels" not in text and "labels gave" not in text
        collection.relabel(range(700), [[f"label {c}" for c in np.flatnonzero(y)] for y in Y])
        collection.flush()
        hit = next(hit for hit in collection.search(X[77], 9).hits if hit.placed == "labels")
        text = why_text(server, 77, int(hit.id))
        assert "Labels count " in text and " labels gave " in text
        assert "Same labels: label " in text and "They agree by " in text and "similar by " in text
        assert "Labels do not count in this search" in why_text(server, 77, int(hit.id), balance="0")
