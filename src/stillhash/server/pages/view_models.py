"""View models of the search page: a query, and the hits of two versions of the model side by side."""

import json
from typing import Any, NamedTuple

from stillhash.collection import Answer, Collection, Hit, Item
from stillhash.errors import InvalidInput, NotFound
from stillhash.numeric.validation import Floats
from stillhash.server.pages.passages import text_hit
from stillhash.server.query_cache import HitVote, active_votes

COLUMN_HITS = 12
RANKED_HITS = 60  # of the earlier version, in which the rank of a current hit is looked up

ViewModel = dict[str, Any]  # what a template shows
Ranks = dict[str, int]  # of hits, by their ids as JSON


class PageQuery(NamedTuple):
    vector: Floats | None  # None for words alone
    name: str  # the item's id as JSON, the token of an upload, or the words
    item: Item | None
    title: str
    words: str | None = None  # that a visitor typed
    lexical_field: str | None = None  # whose words are searched for, too

    @property
    def params(self) -> dict[str, str]:
        """The parameters that name it in addresses."""
        if self.words is not None:
            return {"words": self.words}
        return {"like": self.name} if self.item is not None else {"q": self.name}

    @property
    def kind(self) -> str:
        """What the hits are, for people."""
        if self.words is None:
            return "Similar to item" if self.item is not None else "Similar to your upload"
        if self.vector is None:
            return "Items with these words"
        return "Similar to these words" if self.lexical_field is None else "Similar to these words, or with them"

    @property
    def labels(self) -> list[Any]:
        return self.item.labels if self.item is not None else []

    def is_item(self, hit: Hit) -> bool:
        """Return whether this hit is the query's own item; 1 and "1" and true are different ids."""
        return self.item is not None and hit.id == self.item.id and type(hit.id) is type(self.item.id)


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


def item_query(collection: Collection, text: str) -> PageQuery:
    item = find_item(collection, text)
    return PageQuery(collection.reconstruct([item.id])[0], json.dumps(item.id), item, str(item.id))


def words_query(collection: Collection, words: str, vector: Floats | None) -> PageQuery:
    """Return the query of words that a visitor typed, and of their features where there are some."""
    return PageQuery(vector, f"words {words}", None, words, words, collection.lexical_field)


def parse_labels(text: str, current: list[Any]) -> list[Any]:
    """Parse labels separated by commas; a current label that is a number stays one."""
    known = {str(label): label for label in current}
    return [known.get(word, word) for word in dict.fromkeys(part.strip() for part in text.split(",")) if word]


def search(collection: Collection, query: PageQuery, version: int | None = None) -> Answer:
    """Return the best hits without the query's own item, more than a column shows."""
    if query.words is not None and query.lexical_field is not None:
        if query.vector is None:
            return collection.lexical_search(query.words, RANKED_HITS)
        return collection.hybrid_search(query.vector, query.words, RANKED_HITS, version=version)
    answer: Answer = collection.search(query.vector, RANKED_HITS + 1, version=version)
    hits = [hit for hit in answer.hits if not query.is_item(hit)]
    return Answer(hits[:RANKED_HITS], answer.version, answer.ranking, answer.missing)


def rank_by_name(answer: Answer) -> Ranks:
    return {json.dumps(hit.id): rank for rank, hit in enumerate(answer.hits, 1)}


def compare(
    collection: Collection, query: PageQuery, against: int, votes: dict[str, HitVote], previous: Ranks | None = None
) -> ViewModel:
    """Search with both versions. `previous` has the ranks before a thumb, to show what moved."""
    now, versions = search(collection, query), collection.versions()
    fitted = bool(versions) and query.vector is not None
    then = search(collection, query, against) if fitted else now
    then_ranks, thumbs = rank_by_name(then), active_votes(votes, versions)
    then_cards, now_cards = _cards(query, then), _cards(query, now)
    for card in now_cards:
        name = card["name"]
        card |= {"other_rank": then_ranks.get(name), "thumb": thumbs.get(name)}
        if previous is not None and previous.get(name) != card["rank"]:
            card |= {"moved": True, "previous_rank": previous.get(name)}
    return {
        "then": {"answer": then, "cards": then_cards},
        "now": {"answer": now, "cards": now_cards},
        "fitted": fitted,
        "against": against,
        "versions": versions[::-1],
    }


def _cards(query: PageQuery, answer: Answer) -> list[ViewModel]:
    """Describe the hits of a column."""
    return [
        {
            "hit": hit,
            "name": json.dumps(hit.id),
            "rank": rank,
            "text": text_hit(hit, query.words, query.lexical_field),
            "shared_labels": sum(label in query.labels for label in hit.labels),
        }
        for rank, hit in enumerate(answer.hits[:COLUMN_HITS], 1)
    ]


def explain_hit(collection: Collection, query: PageQuery, name: str, against: int, *, left: bool) -> ViewModel:
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
    return {
        "hit": hit,
        "explanation": explanation,
        "answer": answer,
        "rank": explanation.rank - (own is not None and own.rank < explanation.rank),
        "other_rank": explanation.other_rank - (own is not None and own.other_rank < explanation.other_rank),
    }
