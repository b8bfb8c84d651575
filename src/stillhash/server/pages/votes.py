"""Votes of visitors on hits: casting one, taking it back, and the list of a visitor's own votes."""

import json
from datetime import UTC, datetime
from typing import NamedTuple

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from stillhash.collection import Collection, Item, VoteEntry
from stillhash.errors import InvalidInput, NotFound
from stillhash.server.auth import ANONYMOUS, Key
from stillhash.server.dependencies import ExecutorParam, app_state
from stillhash.server.page_state import VotedQuery, query_key
from stillhash.server.pages.cards import Ranks, ViewModel, compare, rank_by_name, search_hits
from stillhash.server.pages.queries import PageOptions, PageQuery, find_item, page_address, read_query
from stillhash.server.pages.rendering import form_text, page_router, parse_integer, read_form, render, templates

PAGE_SOURCE = "page"  # of the votes of visitors without a key
MAX_QUERY_VOTES = 1000  # of a visitor on one query, that a page marks
PAGE_VOTES = 50  # of the list of votes, on one page
CASTS: dict[str, float] = {"1": 1.0, "0": -1.0, "none": 0.0}  # what a form says, and the vote

router = page_router("feedback")


def time_ago(time: str, now: datetime | None = None) -> str:
    """Return how long ago a time (ISO 8601) was, in words; the date if that is more than a day."""
    try:
        then = datetime.fromisoformat(time)
    except ValueError:
        return time[:40]
    minutes = int(((now or datetime.now(UTC)) - then.astimezone(UTC)).total_seconds() // 60)
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes} minute{'s' * (minutes > 1)} ago"
    hours = minutes // 60
    return f"{hours} hour{'s' * (hours > 1)} ago" if hours < 24 else then.date().isoformat()


templates.env.filters["ago"] = time_ago


class VoteOutcome(NamedTuple):
    """What a vote has changed, for the line that says so."""

    item: Item
    name: str  # the item's id as JSON
    cast: str  # of CASTS: this vote,
    undo: str  # and the one before it, which takes this one back
    version: int  # that learnt it
    rank_before: int | None  # None: not among the first
    rank: int | None
    new_hits: int  # on this page, apart from the item
    on_page: bool

    @property
    def moved(self) -> str:
        """Say where the item was, and where it is now."""
        if self.rank is None:
            return "now last" if self.cast == "0" else "no longer among the first hits"
        if not self.on_page:
            return f"no longer on this page, now {self.rank}"
        if self.rank_before == self.rank:
            return f"stays at {self.rank}"
        return f"moved to {self.rank}" if self.rank_before is None else f"moved from {self.rank_before} to {self.rank}"


def vote_source(request: Request) -> str:
    """Return whose votes a visitor casts: those of the key, or of the page where there are no keys."""
    key: Key = request.state.key
    return PAGE_SOURCE if key == ANONYMOUS else key.name


def own_votes(collection: Collection, query: PageQuery, source: str) -> dict[str, bool]:
    """Return the votes of a source on the hits of a query, by the ids of the items as JSON: whether they are up."""
    if query.vector is None:
        return {}
    votes = collection.votes(source, MAX_QUERY_VOTES, query=query.vector)
    return {json.dumps(vote.id): vote.vote > 0 for vote in votes}


@router.post("/c/{name}/thumb")
async def thumb(request: Request, executor: ExecutorParam) -> Response:
    """Learn from a vote, or take it back, and show the new results and what moved."""
    form, source = await read_form(request), vote_source(request)
    options, name, cast = PageOptions.parse(form), form_text(form, "id"), form_text(form, "up")
    query = await read_query(request, executor, form)
    vector = query.vector
    if vector is None:
        raise InvalidInput("words: expected an encoder of texts to learn from a thumb")
    if cast not in CASTS:
        raise InvalidInput(f"up: expected one of {', '.join(CASTS)}, got {cast[:40]!r}")

    def learn(collection: Collection) -> tuple[Ranks, Item, str, int]:
        previous, item = search_hits(collection, query, options), find_item(collection, name)
        before = own_votes(collection, query, source).get(json.dumps(item.id))
        version = collection.feedback(vector, item.id, CASTS[cast], source=source)
        undo = "none" if before is None else "1" if before else "0"
        return rank_by_name(previous), item, undo, version

    previous, item, undo, version = await executor.write(learn)
    voted = VotedQuery(query.params, query.title)
    app_state(request).query_cache.add_voted(executor.name, query_key(vector), voted)

    results = await executor.read(lambda c: compare(c, query, options, own_votes(c, query, source), previous))
    outcome = _outcome(results, previous, (item, cast, undo, version))
    context: ViewModel = {"query": query, "options": options, "results": results, "outcome": outcome}
    return render(request, "results.html", executor, **context)


def _outcome(results: ViewModel, previous: Ranks, vote: tuple[Item, str, str, int]) -> VoteOutcome:
    """Return what a vote has changed on a page that had these ranks before."""
    item, cast, undo, version = vote
    name, ranks = json.dumps(item.id), rank_by_name(results["now"]["answer"])
    cards = [card["name"] for card in results["now"]["cards"]]
    known = range(1, len(cards) + 1) if not cards else range(ranks[cards[0]], ranks[cards[-1]] + 1)
    new_hits = sum(other != name and previous.get(other) not in known for other in cards)
    return VoteOutcome(
        item, name, cast, undo, version, previous.get(name), ranks.get(name), new_hits, on_page=name in cards
    )


@router.get("/c/{name}/votes")
async def votes(request: Request, executor: ExecutorParam, after: str = "", undone: str = "") -> Response:
    """List the votes of the visitor, the latest first."""
    source, number = vote_source(request), parse_integer(after, "after") if after else None
    entries = await executor.read(lambda c: c.votes(source, PAGE_VOTES + 1, number))
    further = entries[PAGE_VOTES - 1].number if len(entries) > PAGE_VOTES else None
    cache, listed = app_state(request).query_cache, entries[:PAGE_VOTES]
    known = [cache.voted(executor.name, query_key(entry.query)) for entry in listed]
    described = await executor.read(lambda c: _describe_votes(c, listed, known))
    context: ViewModel = {"votes": described, "further": further, "after": after, "undone": undone, "source": source}
    return render(request, "votes.html", executor, **context)


def _describe_votes(
    collection: Collection, entries: list[VoteEntry], known: list[VotedQuery | None]
) -> list[ViewModel]:
    """Describe votes, with the items that they are on, and their queries as far as these are known."""
    queries = []
    for entry, query in zip(entries, known, strict=True):
        if query is None and entry.query_id is not None:
            query = VotedQuery({"like": json.dumps(entry.query_id)}, str(entry.query_id))
        queries.append(query or VotedQuery({}, "words or an upload"))
    likes = [json.loads(query.params["like"]) for query in queries if "like" in query.params]
    ids = [*(entry.id for entry in entries), *likes]
    items = {json.dumps(item.id): item for item in collection.get(ids) if item is not None} if ids else {}
    return [
        {"entry": entry, "query": query, "query_item": items.get(query.params.get("like", "")), "item": items.get(name)}
        for entry, query, name in zip(entries, queries, (json.dumps(entry.id) for entry in entries), strict=True)
    ]


@router.post("/c/{name}/votes/undo")
async def undo_vote(request: Request, executor: ExecutorParam) -> Response:
    """Take back a vote of the list."""
    form, source = await read_form(request), vote_source(request)
    number, after = parse_integer(form_text(form, "number"), "number"), form_text(form, "after")

    def take_back(collection: Collection) -> VoteEntry:
        vote = next((vote for vote in collection.votes(source, 1, number + 1) if vote.number == number), None)
        if vote is None:
            raise NotFound("this vote no longer counts. Load the page again")
        collection.feedback(vote.query, vote.id, 0, source=source)
        return vote

    vote = await executor.write(take_back)
    params = {"after": after} if after else {}
    return RedirectResponse(
        page_address(executor.name, {**params, "undone": str(vote.id)[:200]}).replace("?", "/votes?", 1), 303
    )
