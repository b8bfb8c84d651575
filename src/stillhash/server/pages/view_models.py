"""View models of the hits: those of the current model, and of an earlier version beside them."""

import json
from collections.abc import Sequence
from typing import Any

from stillhash.collection import Answer, Collection, Item
from stillhash.collection.lexical_reader import DEFAULT_DEPTH
from stillhash.server.pages.cards import ViewModel, describe_items
from stillhash.server.pages.queries import MAX_PAGE_HITS, MAX_PAGES, PageOptions, PageQuery

RANKED_HITS = 60  # of the earlier version, at least, in which the rank of a current hit is looked up

Ranks = dict[str, int]  # of hits, by their ids as JSON


def search(collection: Collection, query: PageQuery, options: PageOptions, version: int | None = None) -> Answer:
    """Return the best hits without the query's own item: RANKED_HITS, or one more than this page needs."""
    most, where = max(RANKED_HITS, options.last + 1), options.where
    if query.words is not None and query.lexical_field is not None:
        if query.vector is None:
            return collection.lexical_search(query.words, most, where=where)
        shared: dict[str, Any] = {"where": where, "version": version, "balance": options.balance}
        # more of them than the depth would change the order of the first
        return collection.hybrid_search(query.vector, query.words, min(most, DEFAULT_DEPTH), **shared)
    answer: Answer = collection.search(query.vector, most + 1, where=where, version=version, balance=options.balance)
    hits = [hit for hit in answer.hits if not query.is_item(hit)]
    return Answer(hits[:most], answer.version, answer.ranking, answer.missing, answer.balance)


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
    then_cards = _cards(collection, query, then, options, small=True)
    now_cards = _cards(collection, query, now, options, small=False)
    for card in now_cards:
        name = card["name"]
        card |= {"other_rank": then_ranks.get(name), "thumb": votes.get(name)}
        if previous is not None and previous.get(name) != card["rank"]:
            card |= {"moved": True, "previous_rank": previous.get(name)}
    return {
        "then": {"answer": then, "cards": then_cards},
        "now": {"answer": now, "cards": now_cards},
        "ranked": len(then.hits),
        "fitted": fitted,
        "votable": query.vector is not None,
        "against": options.against,
        "versions": versions[::-1],
        "automatic": _automatic_balance(collection, query, options, now) if fitted else None,
        **next_hits(options, len(now.hits) > options.last),
    }


def next_hits(options: PageOptions, has_more: bool) -> ViewModel:
    """Return how many hits to show next on this page, and the numbers of the pages beside it; None for none."""
    grows = has_more and options.page == 1 and options.hits < MAX_PAGE_HITS
    return {
        "more_hits": min(options.hits + PageOptions().hits, MAX_PAGE_HITS) if grows else None,
        "next_page": options.page + 1 if has_more and not grows and options.page < MAX_PAGES else None,
        "previous_page": options.page - 1 if options.page > 1 else None,
    }


def _automatic_balance(collection: Collection, query: PageQuery, options: PageOptions, now: Answer) -> float | None:
    """Return the balance that follows from what was learnt, whichever the visitor chose."""
    if options.balance is None:
        return now.balance
    answer: Answer = collection.search(query.vector, 1)
    return answer.balance


def _cards(
    collection: Collection, query: PageQuery, answer: Answer, options: PageOptions, *, small: bool
) -> list[ViewModel]:
    """Describe the hits of a column, of one page."""
    first = options.last - options.hits
    hits: Sequence[Item] = answer.hits[first : options.last]
    cards = describe_items(collection, hits, query.labels, query.words, query.lexical_field, small=small)
    return [card | {"rank": rank} for rank, card in enumerate(cards, first + 1)]
