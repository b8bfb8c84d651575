"""Cards of items: what leads, a picture, a text or labels; labels cut to fit; ids cut in the middle."""

import json
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

from stillhash.collection import Answer, Collection, Item
from stillhash.collection.ranking import DEFAULT_DEPTH
from stillhash.server.pages.passages import TextHit, text_hit
from stillhash.server.pages.queries import MAX_PAGE_HITS, MAX_PAGES, PageOptions, PageQuery
from stillhash.server.pages.rendering import templates

CARD_LABEL_LENGTH = 26  # characters of the labels that fit beside each other on a card
SMALL_LABEL_LENGTH = 14  # and on a small card
LEADING_LABEL_LENGTH = 44  # in two lines of larger letters, where labels lead
CHIP_LENGTH = 3  # characters that the edges of a label take
ID_TAIL = 8  # characters at the end of an id that are never cut off
JOINERS = {"\u200d", "\ufe0f"}  # between the parts of an emoji
CARD_FIELDS, CARD_FIELD_LENGTH = 3, 40  # of the metadata, on a card without a picture

ViewModel = dict[str, Any]  # what a template shows


class CardLabel(NamedTuple):
    text: str
    shared: bool  # with the query


def describe_items(
    collection: Collection,
    items: Sequence[Item],
    known: Sequence[Any] = (),
    words: str | None = None,
    lexical_field: str | None = None,
    *,
    small: bool = False,
) -> list[ViewModel]:
    """Describe items, hits or others, for the macros of cards.html; known: the labels of the query."""
    pictured = collection.has_picture([item.id for item in items])
    return [
        _describe(item, stored, known, text_hit(item, words, lexical_field), small)
        for item, stored in zip(items, pictured, strict=True)
    ]


def _describe(item: Item, stored: bool, known: Sequence[Any], text: TextHit | None, small: bool) -> ViewModel:
    picture = text is None and (stored or isinstance((item.metadata or {}).get("image"), str))
    leads = text is None and not picture
    length = SMALL_LABEL_LENGTH if small and not text else LEADING_LABEL_LENGTH if leads else CARD_LABEL_LENGTH
    labels, rest = fit_labels(item.labels, known, length)
    return {
        "hit": item,
        "name": json.dumps(item.id),
        "text": text,
        "picture": picture,
        "labels": labels,
        "more_labels": rest,
        "shared_labels": sum(label in known for label in item.labels),
        "fields": short_fields(item) if leads else "",
    }


def fit_labels(labels: Sequence[Any], known: Sequence[Any], length: int) -> tuple[list[CardLabel], list[str]]:
    """Return the labels that a card shows, those of the query first, and the rest; one at least is shown."""
    ordered = sorted((CardLabel(str(label), label in known) for label in labels), key=lambda one: not one.shared)
    left, count = length, 0
    for one in ordered:
        left -= len(one.text) + CHIP_LENGTH
        if count and left < (CHIP_LENGTH + 2) * (count + 1 < len(ordered)):  # unless it is the last, +2 needs its space
            break
        count += 1
    return ordered[:count], [one.text for one in ordered[count:]]


def short_fields(item: Item) -> str:
    """Return the first short values of an item's metadata, for a card without a picture."""
    values = (
        f"{field} {value}"
        for field, value in (item.metadata or {}).items()
        if isinstance(value, (str, int, float)) and field != "image" and len(f"{field} {value}") <= CARD_FIELD_LENGTH
    )
    return " · ".join(value for value, _ in zip(values, range(CARD_FIELDS), strict=False))


def split_id(name: object) -> tuple[str, str]:
    """Return an id in two parts, the first of which may be cut; the second is empty if the id is short."""
    text = str(name)
    start = len(text) - ID_TAIL
    while start > 0 and (unicodedata.combining(text[start]) or {text[start], text[start - 1]} & JOINERS):
        start -= 1  # a letter stays with its accents, and an emoji whole
    return (text, "") if start <= 2 else (text[:start], text[start:])


templates.env.filters["split_id"] = split_id


# ---- hits of the current model, and of an earlier version beside them ----

RANKED_HITS = 60  # of the earlier version, at least, in which the rank of a current hit is looked up

Ranks = dict[str, int]  # of hits, by their ids as JSON


def search_hits(collection: Collection, query: PageQuery, options: PageOptions, version: int | None = None) -> Answer:
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
    now, versions = search_hits(collection, query, options), collection.versions()
    fitted = bool(versions) and query.vector is not None
    then = search_hits(collection, query, options._replace(balance=None), options.against) if fitted else now
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
