"""What a collection of the demo's scenes answers: a stored scene finds itself, and a vote moves its own item."""

import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stillhash.collection import Answer, Collection, open
from stillhash.experiments.scenes import Scenes
from stillhash.numeric.validation import Floats

TOUR_INIT_SCENES = 300  # scenes that fix the hash functions, without labels
STORED_QUERIES, FIRST_HITS = 100, 10
VOTED_RANK = 8


class Tour(NamedTuple):
    """Results, as JSON can represent them."""

    stored: int  # scenes of the collection that were the query
    first: int  # that are their own first hit,
    tied: int  # or would be, but for an earlier scene with the same code
    query: list[int]  # digits of the query that is voted on
    liked: list[int]  # digits of the hit that is liked
    rank_before: int
    rank_liked: int
    rank_undone: int

    def lines(self) -> Iterator[str]:
        """Yield sentences for a terminal."""
        same = f", {self.tied} come after a scene with the same code" if self.tied else ""
        yield f"Exact match: of {self.stored} stored scenes as queries, {self.first} are their own first hit{same}."
        query, liked = (", ".join(map(str, digits)) for digits in (self.query, self.liked))
        yield (
            f"A vote: a query shows {query}, and its hit at rank {self.rank_before} shows {liked}. Liked, the hit "
            f"moves to rank {self.rank_liked}; with the vote taken back it is at rank {self.rank_undone}."
        )


def take_tour(database: Scenes, queries: Scenes, bits: int, method: str) -> Tour:
    """Store all scenes in a collection that learns their labels, search it, and vote."""
    dim, count = database.features.shape[1], len(database.labels)
    with (
        tempfile.TemporaryDirectory(prefix="stillhash-demo-") as folder,
        open(f"{folder}/scenes", dim, bits, method=method, init=database.features[:TOUR_INIT_SCENES]) as collection,
    ):
        collection.add(range(count), database.features, database.labels)
        collection.flush()
        stored = np.linspace(0, count - 1, STORED_QUERIES).astype(int).tolist()
        answers = collection.search(database.features[stored], FIRST_HITS)
        first = sum(answer.hits[0].id == row for answer, row in zip(answers, stored, strict=True))
        tied = sum(_is_tied(answer, row) for answer, row in zip(answers, stored, strict=True))
        query = queries.features[0]
        hit = collection.search(query, VOTED_RANK).hits[-1]
        collection.feedback(query, hit.id, "up")
        liked = _rank(collection, query, hit.id)
        collection.feedback(query, hit.id, 0)  # takes the vote back
        undone = _rank(collection, query, hit.id)
    digits = np.flatnonzero(queries.labels[0]).tolist()
    return Tour(STORED_QUERIES, first, tied, digits, list(hit.labels), VOTED_RANK, liked, undone)


def _is_tied(answer: Answer, row: int) -> bool:
    """Return whether the item is not the first hit, but has the score of the first one."""
    return any(hit.id == row and hit.score == answer.hits[0].score for hit in answer.hits[1:])


def _rank(collection: Collection, query: Floats, id: str | int) -> int:
    """Return the rank of an item, from 1."""
    return [hit.id for hit in collection.search(query, 1000).hits].index(id) + 1
