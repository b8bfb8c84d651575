"""What the demo's collection answers at the end: a stored scene finds itself, and a vote moves its own item."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stillhash.collection import Collection
from stillhash.experiments.scenes import Scenes
from stillhash.numeric.validation import Floats

STORED_QUERIES = 100
VOTED_RANK = 8


class Tour(NamedTuple):
    """Results, as JSON can represent them."""

    stored: int  # scenes of the collection that were the query
    first: int  # that are their own first hit
    query: list[int]  # digits of the query that is voted on
    liked: list[int]  # digits of the hit that is liked
    rank_before: int
    rank_liked: int
    rank_undone: int

    def lines(self) -> Iterator[str]:
        """Yield sentences for a terminal."""
        yield f"Exact match: of {self.stored} stored scenes as queries, {self.first} are their own first hit."
        query, liked = (", ".join(map(str, digits)) for digits in (self.query, self.liked))
        yield (
            f"A vote: a query shows {query}, and its hit at rank {self.rank_before} shows {liked}. Liked, the hit "
            f"moves to rank {self.rank_liked}; with the vote taken back it is at rank {self.rank_undone}."
        )


def take_tour(collection: Collection, database: Scenes, queries: Scenes) -> Tour:
    """Search a collection of all scenes, whose ids are their numbers, by stored scenes, and vote."""
    stored = np.linspace(0, len(database.labels) - 1, STORED_QUERIES).astype(int).tolist()
    answers = collection.search(database.features[stored], 1)
    first = sum(answer.hits[0].id == row for answer, row in zip(answers, stored, strict=True))
    query = queries.features[0]
    hit = collection.search(query, VOTED_RANK).hits[-1]
    collection.feedback(query, hit.id, "up")
    liked = _rank(collection, query, hit.id)
    collection.feedback(query, hit.id, 0)  # takes the vote back
    undone = _rank(collection, query, hit.id)
    digits = np.flatnonzero(queries.labels[0]).tolist()
    return Tour(len(stored), first, digits, list(hit.labels), VOTED_RANK, liked, undone)


def _rank(collection: Collection, query: Floats, id: str | int) -> int:
    """Return the rank of an item, from 1."""
    return [hit.id for hit in collection.search(query, 1000).hits].index(id) + 1
