"""View models of the search page: a query, and the hits of two versions of the model side by side."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple
from urllib.parse import urlencode

from stillhash.collection import Answer, Collection, Hit, Item
from stillhash.collection.types import Explanation
from stillhash.errors import InvalidInput, NotFound
from stillhash.numeric.validation import Floats
from stillhash.server.query_cache import UploadedQuery

COLUMN_HITS = 12
RANKED_HITS = 60  # of the earlier version, in which the rank of a current hit is looked up


class PageQuery(NamedTuple):
    vector: Floats
    name: str  # the item's id as JSON, or the token of an upload
    item: Item | None
    title: str

    @property
    def params(self) -> dict[str, str]:
        """The parameters that name it in addresses."""
        return {"like": self.name} if self.item is not None else {"q": self.name}

    @property
    def address(self) -> str:
        return urlencode(self.params)

    @property
    def labels(self) -> list[Any]:
        return self.item.labels if self.item is not None else []

    def is_item(self, hit: Hit) -> bool:
        """Return whether this hit is the query's own item; 1 and "1" and true are different ids."""
        return self.item is not None and hit.id == self.item.id and type(hit.id) is type(self.item.id)


class Card(NamedTuple):
    """A hit on the page."""

    name: str  # the item's id as JSON
    key: str  # of its HTML elements: an id may hold any character
    title: str
    labels: list[Any]
    matches: bool  # it has a label of the query
    score: str
    rank: int
    other_rank: int | None  # in the other column
    previous_rank: int | None  # before a thumb
    thumb: bool | None


class Column(NamedTuple):
    cards: list[Card]
    version: int
    ranking: str
    matching: int  # hits that share a label with the query
    shared: float  # labels of the query that a hit has, on average


class Comparison(NamedTuple):
    then: Column
    now: Column
    against: int  # version on the left
    versions: list[dict[str, Any]]  # to choose from, the latest first
    moved: int | None  # hits that a thumb moved

    @property
    def by_cosine(self) -> bool:
        return self.now.ranking.startswith("cosine")


def find_item(collection: Collection, text: str) -> Item:
    """Find an item by its id as JSON, or as a visitor typed it."""
    ids: list[Any] = [text] if text and text.isprintable() else []
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if (type(parsed) is int and abs(parsed) < 2**63) or (type(parsed) is str and parsed and parsed.isprintable()):
        ids.insert(0, parsed)
    item = next((item for item in collection.get(ids) if item is not None), None)
    if item is None:
        raise NotFound(f"No item {text if len(text) < 80 else text[:80] + '…'!r}")
    return item


def parse_labels(text: str, current: list[Any]) -> list[Any]:
    """Parse labels separated by commas; a current label that is a number stays one."""
    known = {str(label): label for label in current}
    return [known.get(word, word) for word in dict.fromkeys(part.strip() for part in text.split(",")) if word]


def item_query(collection: Collection, text: str) -> PageQuery:
    item = find_item(collection, text)
    return PageQuery(collection.reconstruct([item.id])[0], json.dumps(item.id), item, str(item.id))


def upload_query(upload: UploadedQuery, token: str) -> PageQuery:
    return PageQuery(upload.vector, token, None, upload.title)


def compare(
    collection: Collection, query: PageQuery, against: int, thumbs: dict[str, bool], previous: list[str] | None = None
) -> Comparison:
    """Search with both versions. `previous` is the ranking before a thumb, to show what moved."""
    then, now = (_search(collection, query, version) for version in (against, None))
    then_ranking = [json.dumps(hit.id) for hit in then.hits]
    right = _column(collection, query, now, then_ranking, thumbs, previous or [])
    moved = None if previous is None else sum(card.previous_rank != card.rank for card in right.cards)
    left = _column(collection, query, then, [], {}, [])
    return Comparison(left, right, against, collection.versions()[::-1], moved)


def ranking(collection: Collection, query: PageQuery) -> list[str]:
    """Return the ids (as JSON) of the current hits, best first and more than a column shows."""
    return [json.dumps(hit.id) for hit in _search(collection, query, None).hits]


def _search(collection: Collection, query: PageQuery, version: int | None) -> Answer:
    """Return the best hits without the query's own item."""
    answer: Answer = collection.search(query.vector, RANKED_HITS + 1, version=version)
    hits = [hit for hit in answer.hits if not query.is_item(hit)]
    return Answer(hits[:RANKED_HITS], answer.version, answer.ranking, answer.missing)


def _column(
    collection: Collection,
    query: PageQuery,
    answer: Answer,
    other: list[str],
    thumbs: dict[str, bool],
    previous: list[str],
) -> Column:
    cards = []
    for rank, hit in enumerate(answer.hits[:COLUMN_HITS], 1):
        name = json.dumps(hit.id)
        card = Card(
            name,
            hashlib.sha256(name.encode()).hexdigest()[:12],
            str(hit.id),
            hit.labels,
            any(label in query.labels for label in hit.labels),
            format_score(hit.score, answer, collection.bits),
            rank,
            _rank(other, name),
            _rank(previous, name),
            thumbs.get(name),
        )
        cards.append(card)
    shared = sum(label in query.labels for card in cards for label in card.labels) / max(1, len(cards))
    return Column(cards, answer.version, answer.ranking, sum(card.matches for card in cards), shared)


def _rank(names: list[str], name: str) -> int | None:
    return names.index(name) + 1 if name in names else None


def format_score(score: float, answer: Answer, bits: int) -> str:
    """Format a score; where it counts bits, as a Hamming distance."""
    if answer.version == 0 and not answer.ranking.startswith("cosine"):
        return f"distance {round((bits - score) / 2)}"
    return f"score {score:.4g}"


class ExplainedHit(NamedTuple):
    hit: Hit
    explanation: Explanation
    rank: int
    score: str
    version: int
    other_rank: int
    other_score: str


def explain_hit(collection: Collection, query: PageQuery, name: str, against: int, *, left: bool) -> ExplainedHit:
    """Explain a hit of one column, and compare it with the other column's version."""
    now = collection.search(query.vector, 1).version
    version, other = (against, now) if left else (None, against)
    answer: Answer = collection.search(query.vector, COLUMN_HITS + 1, version=version, explain=other)
    hit = next((hit for hit in answer.hits if json.dumps(hit.id) == name), None)
    if hit is None:
        raise NotFound("the ranking has changed and this item is no longer among the hits. Search again")
    explanation = hit.explanation
    if explanation is None:
        raise InvalidInput("nothing to explain: hits are still ranked by raw features, not by codes")
    own = next((hit.explanation for hit in answer.hits if query.is_item(hit)), None)
    return ExplainedHit(
        hit,
        explanation,
        explanation.rank - (own is not None and own.rank < explanation.rank),
        format_score(hit.score, answer, collection.bits),
        answer.version,
        explanation.other_rank - (own is not None and own.other_rank < explanation.other_rank),
        format_score(explanation.other_score, Answer([], explanation.other_version, ""), collection.bits),
    )
