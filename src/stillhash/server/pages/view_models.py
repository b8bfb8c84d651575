"""What the search view shows: a query, and the hits of two versions of the model side by side."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple
from urllib.parse import urlencode

from stillhash.collection import Answer, Collection, Hit, Item
from stillhash.collection.types import Explanation
from stillhash.errors import InvalidInput, NotFound
from stillhash.numeric.validation import Floats
from stillhash.server.query_cache import Given

HITS = 12  # of each column
DEEP = 60  # hits of the earlier version among which later ones are looked for


class Query(NamedTuple):
    vector: Floats
    name: str  # the item's id as JSON, or the token of what was given
    item: Item | None
    about: str

    @property
    def ask(self) -> dict[str, str]:
        """How addresses name it."""
        return {"like": self.name} if self.item is not None else {"q": self.name}

    @property
    def address(self) -> str:
        return urlencode(self.ask)

    @property
    def labels(self) -> list[Any]:
        return self.item.labels if self.item is not None else []


class Card(NamedTuple):
    """A hit as it is drawn."""

    name: str  # the item's id as JSON
    key: str  # of its elements on the page: an id may hold anything
    title: str
    labels: list[Any]
    matches: bool  # it has a label of the query
    score: str
    rank: int
    was: int | None  # its rank in the other column
    before: int | None  # its rank before a thumb
    thumb: bool | None


class Column(NamedTuple):
    cards: list[Card]
    version: int
    ranking: str
    matching: int  # hits that share a label with the query
    shared: float  # labels of the query that a hit has, on average


class Results(NamedTuple):
    then: Column
    now: Column
    against: int  # the version on the left
    versions: list[dict[str, Any]]  # that it may be, the latest first
    moved: int | None  # hits that a thumb moved

    @property
    def by_cosine(self) -> bool:
        return self.now.ranking.startswith("cosine")


def item_named(collection: Collection, told: str) -> Item:
    """An item by its id, as JSON or, where a visitor typed it, as it is."""
    ids: list[Any] = [told] if told and told.isprintable() else []
    try:
        parsed = json.loads(told)
    except (ValueError, RecursionError):
        parsed = None
    if (type(parsed) is int and abs(parsed) < 2**63) or (type(parsed) is str and parsed and parsed.isprintable()):
        ids.insert(0, parsed)
    item = next((item for item in collection.get(ids) if item is not None), None)
    if item is None:
        raise NotFound(f"there is no item {told if len(told) < 80 else told[:80] + '…'!r}")
    return item


def labels_told(text: str, before: list[Any]) -> list[Any]:
    """Labels as a visitor writes them, with commas between; a number that was one stays one."""
    known = {str(label): label for label in before}
    return [known.get(word, word) for word in dict.fromkeys(part.strip() for part in text.split(",")) if word]


def query_like(collection: Collection, told: str) -> Query:
    item = item_named(collection, told)
    return Query(collection.reconstruct([item.id])[0], json.dumps(item.id), item, str(item.id))


def query_given(given: Given, token: str) -> Query:
    return Query(given.vector, token, None, given.about)


def results(
    collection: Collection, query: Query, against: int, thumbs: dict[str, bool], before: list[str] | None = None
) -> Results:
    """Both columns. `before` is the ranking before a thumb, to show what that changed."""
    then, now = (_found(collection, query, DEEP, version) for version in (against, None))
    deep = [json.dumps(hit.id) for hit in then.hits]
    right = _column(collection, query, now, deep, thumbs, before)
    moved = None if before is None else sum(card.before != card.rank for card in right.cards)
    left = _column(collection, query, then, [], {}, None)
    return Results(left, right, against, collection.versions()[::-1], moved)


def ranking(collection: Collection, query: Query) -> list[str]:
    """The items of the column 'now', best first and somewhat deeper than it shows."""
    return [json.dumps(hit.id) for hit in _found(collection, query, DEEP, None).hits]


def _found(collection: Collection, query: Query, k: int, version: int | None, explain: bool | int = False) -> Answer:
    """The best hits, other than the item that is asked for."""
    answer: Answer = collection.search(query.vector, k + 1, version=version, explain=explain)
    own = query.item.id if query.item is not None else None
    hits = [hit for hit in answer.hits if hit.id != own or type(hit.id) is not type(own)]
    return Answer(hits[:k], answer.version, answer.ranking, answer.missing)


def _column(
    collection: Collection,
    query: Query,
    answer: Answer,
    other: list[str],
    thumbs: dict[str, bool],
    before: list[str] | None,
) -> Column:
    cards = []
    for rank, hit in enumerate(answer.hits[:HITS], 1):
        name = json.dumps(hit.id)
        card = Card(
            name,
            hashlib.sha256(name.encode()).hexdigest()[:12],
            str(hit.id),
            hit.labels,
            any(label in query.labels for label in hit.labels),
            worded(hit.score, answer, collection.bits),
            rank,
            _rank(other, name),
            _rank(before or [], name),
            thumbs.get(name),
        )
        cards.append(card)
    shared = sum(label in query.labels for card in cards for label in card.labels) / max(1, len(cards))
    return Column(cards, answer.version, answer.ranking, sum(card.matches for card in cards), shared)


def _rank(names: list[str], name: str) -> int | None:
    return names.index(name) + 1 if name in names else None


def worded(score: float, answer: Answer, bits: int) -> str:
    """A score; where it counts bits, as the distance it stands for."""
    if answer.version == 0 and not answer.ranking.startswith("cosine"):
        return f"distance {round((bits - score) / 2)}"
    return f"score {score:.4g}"


class Why(NamedTuple):
    """Why a hit is where it is."""

    hit: Hit
    explanation: Explanation
    rank: int
    score: str
    version: int
    other_rank: int
    other_score: str


def why(collection: Collection, query: Query, told: str, against: int, *, left: bool) -> Why:
    """How a hit of one column came about, compared with the other column's version."""
    now = collection.search(query.vector, 1).version
    version, other = (against, now) if left else (None, against)
    answer: Answer = collection.search(query.vector, HITS + 1, version=version, explain=other)
    hit = next((hit for hit in answer.hits if json.dumps(hit.id) == told), None)
    if hit is None:
        raise NotFound("the ranking has moved on, and this item is no longer among the hits; search again")
    if hit.explanation is None:
        raise InvalidInput("there is nothing to explain yet: hits are ranked by raw features, not by codes")
    own = query.item.id if query.item is not None else None
    itself = next((h.explanation for h in answer.hits if h.id == own and type(h.id) is type(own)), None)
    e = hit.explanation
    return Why(
        hit,
        e,
        e.rank - (itself is not None and itself.rank < e.rank),
        worded(hit.score, answer, collection.bits),
        answer.version,
        e.other_rank - (itself is not None and itself.other_rank < e.other_rank),
        worded(e.other_score, Answer([], e.other_version, ""), collection.bits),
    )
