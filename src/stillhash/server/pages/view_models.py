"""View models of the hits: those of the current model, and of an earlier version beside them."""

import json
from typing import Any

from stillhash.collection import Answer, Collection
from stillhash.server.pages.passages import text_hit
from stillhash.server.pages.queries import PageOptions, PageQuery

RANKED_HITS = 60  # of the earlier version, at least, in which the rank of a current hit is looked up

ViewModel = dict[str, Any]  # what a template shows
Ranks = dict[str, int]  # of hits, by their ids as JSON


def search(collection: Collection, query: PageQuery, options: PageOptions, version: int | None = None) -> Answer:
    """Return the best hits without the query's own item, more than a column shows."""
    most, where = max(RANKED_HITS, options.hits), options.where
    if query.words is not None and query.lexical_field is not None:
        if query.vector is None:
            return collection.lexical_search(query.words, most, where=where)
        return collection.hybrid_search(query.vector, query.words, most, where=where, version=version)
    answer: Answer = collection.search(query.vector, most + 1, where=where, version=version, balance=options.balance)
    hits = [hit for hit in answer.hits if not query.is_item(hit)]
    return Answer(hits[:most], answer.version, answer.ranking, answer.missing)


def rank_by_name(answer: Answer) -> Ranks:
    return {json.dumps(hit.id): rank for rank, hit in enumerate(answer.hits, 1)}


def compare(
    collection: Collection,
    query: PageQuery,
    options: PageOptions,
    votes: dict[str, bool],
    previous: Ranks | None = None,
) -> ViewModel:
    """Search with both versions. `votes` are the visitor's; `previous` has the ranks before a vote, to show moves."""
    now, versions = search(collection, query, options), collection.versions()
    fitted = bool(versions) and query.vector is not None
    then = search(collection, query, options._replace(balance=None), options.against) if fitted else now
    then_ranks = rank_by_name(then)
    then_cards, now_cards = _cards(query, then, options.hits), _cards(query, now, options.hits)
    for card in now_cards:
        name = card["name"]
        card |= {"other_rank": then_ranks.get(name), "thumb": votes.get(name)}
        if previous is not None and previous.get(name) != card["rank"]:
            card |= {"moved": True, "previous_rank": previous.get(name)}
    return {
        "then": {"answer": then, "cards": then_cards},
        "now": {"answer": now, "cards": now_cards},
        "fitted": fitted,
        "against": options.against,
        "versions": versions[::-1],
    }


def _cards(query: PageQuery, answer: Answer, count: int) -> list[ViewModel]:
    """Describe the hits of a column."""
    return [
        {
            "hit": hit,
            "name": json.dumps(hit.id),
            "rank": rank,
            "text": text_hit(hit, query.words, query.lexical_field),
            "shared_labels": sum(label in query.labels for label in hit.labels),
        }
        for rank, hit in enumerate(answer.hits[:count], 1)
    ]
