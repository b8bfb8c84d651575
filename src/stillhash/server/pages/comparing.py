"""The page that compares two versions of the model, side by side on the same queries."""

import json
from typing import Any

from fastapi import Request
from starlette.responses import Response

from stillhash.collection import Collection, Item
from stillhash.collection.learning.probe import QueryComparison, VersionComparison
from stillhash.collection.types import VersionName
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.cards import SMALL_LABEL_LENGTH, ViewModel, fit_labels
from stillhash.server.pages.passages import text_hit
from stillhash.server.pages.rendering import page_router, parse_integer, render
from stillhash.server.pages.snippets import comparison_code

LINKED_QUERIES = 5  # with the largest gains, and as many with the largest losses

router = page_router("read")


@router.get("/c/{name}/compare")
async def compare(request: Request, executor: ExecutorParam, a: str = "0", b: str = "", at: str = "1") -> Response:
    """Show the first ten hits of a query by version `a` and by version `b`, the current one if empty.

    at: the place of the query, from 1, the largest gain; the last has the largest loss.
    """
    one, other, place = _version(a, "a"), _version(b, "b") if b else None, parse_integer(at, "at")
    view = await executor.read(lambda c: _read_comparison(c, one, other, place), "slow")
    code = comparison_code(executor.name, view["comparison"])
    return render(request, "learning_compare.html", executor, code=code, **view)


def _version(text: str, field: str) -> VersionName:
    return "hamming" if text == "hamming" else parse_integer(text, field)


def _read_comparison(collection: Collection, one: VersionName, other: VersionName | None, at: int) -> ViewModel:
    comparison = collection.compare_versions(one, other)
    place = max(1, min(at, len(comparison.queries)))
    query = comparison.queries[place - 1]
    return {
        "comparison": comparison,
        "at": place,
        "query": _cards(collection, [query.id], query)[0],
        "sides": [_side(collection, comparison, query, side) for side in (0, 1)],
        "changed": query.ndcg[1] - query.ndcg[0],
        "linked": _linked(comparison),
        "versions": collection.versions()[::-1],
    }


def _side(collection: Collection, comparison: VersionComparison, query: QueryComparison, side: int) -> ViewModel:
    """Return the hits by one version; those that the other has not among its ten are marked."""
    cards, others = _cards(collection, query.hits[side], query), set(map(json.dumps, query.hits[1 - side]))
    for card in cards:
        card["only_here"] = card["name"] not in others
    shared = sum(card["relevant"] for card in cards)
    return {"version": comparison.versions[side], "cards": cards, "shared": shared, "ndcg": query.ndcg[side]}


def _cards(collection: Collection, ids: list[Any], query: QueryComparison) -> list[ViewModel]:
    """Describe items; one that was deleted in the meantime has its id alone."""
    return [
        {
            "id": id_,
            "name": json.dumps(id_),
            "rank": rank,
            "labels": item.labels if item is not None else [],
            "chips": _chips(item, query),
            "text": text_hit(item) if item is not None else None,
            "relevant": item is not None and any(label in query.labels for label in item.labels),
        }
        for rank, (id_, item) in enumerate(zip(ids, collection.get(ids), strict=True), 1)
    ]


def _chips(item: Item | None, query: QueryComparison) -> ViewModel:
    """Describe the labels that a small card shows, those of the query first."""
    labels, rest = fit_labels(item.labels if item is not None else [], query.labels, SMALL_LABEL_LENGTH)
    return {"labels": labels, "more_labels": rest}


def _linked(comparison: VersionComparison) -> list[ViewModel]:
    """Return the queries with the largest gains and losses, with their places."""
    count = len(comparison.queries)
    places = dict.fromkeys([*range(min(LINKED_QUERIES, count)), *range(max(0, count - LINKED_QUERIES), count)])
    queries = [(place, comparison.queries[place]) for place in places]
    return [
        {"at": place + 1, "id": query.id, "name": json.dumps(query.id), "change": query.ndcg[1] - query.ndcg[0]}
        for place, query in queries
    ]
