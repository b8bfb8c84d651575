"""Routes that add, change, read, search, count and forget items."""

import base64
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import Request
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from starlette.responses import Response

from stillhash.codes import to_hex
from stillhash.collection import Answer, Collection
from stillhash.collection.explain import NUMBER_BYTES
from stillhash.collection.types import LabelsOfItems
from stillhash.errors import StillhashError, TooLarge
from stillhash.server import schemas
from stillhash.server.bodies import EncodableQuery, RowStream
from stillhash.server.dependencies import ExecutorParam, api_router, app_state
from stillhash.server.responses import error_response, json_response
from stillhash.server.schemas import (
    CountResponse,
    DeleteBody,
    FacetsBody,
    FacetsResponse,
    FeaturesResponse,
    HybridSearchBody,
    IdsResponse,
    ItemsResponse,
    LabelsBody,
    LabelsResponse,
    LexicalSearchBody,
    PictureResponse,
    SearchResponse,
    SuggestBody,
    SuggestResponse,
)
from stillhash.server.write_queue import ReadKind

HIT_BYTES = 512  # of an answer, about
QUICK_QUERIES, QUICK_HITS = 32, 32  # of a request that is answered by the threads for quick ones

read_router, write_router = api_router("read", "items"), api_router("write", "items")
search_router = api_router("read", "search")


@write_router.post("/add")
async def add(body: schemas.AddBody, executor: ExecutorParam) -> CountResponse:
    """Add items. They are on disk when this returns."""
    return CountResponse(count=await executor.write(partial(Collection.add, **body.arguments())))


@write_router.post("/upsert")
async def upsert(body: schemas.UpsertBody, executor: ExecutorParam) -> CountResponse:
    """Add items, and replace those whose ids exist; without features, only their labels or metadata."""
    return CountResponse(count=await executor.write(partial(Collection.upsert, **body.arguments())))


@write_router.post("/ingest", response_model=CountResponse)
async def ingest(
    request: Request, rows: RowStream, executor: ExecutorParam, replace: bool = False, learn: bool = True
) -> Response:
    """Add items from a stream of any length: lines of JSON with id, features, and optional labels and metadata.

    They are stored a thousand at a time. If a line is invalid, the error's `acknowledged` counts the rows
    before it that are on disk.
    """
    stored = 0
    verb: Callable[..., int] = Collection.upsert if replace else Collection.add
    try:
        async for columns in rows.chunks():
            stored += await executor.write(partial(verb, learn=learn, **columns), wait_for_slot=True)
    except StillhashError as error:
        return error_response(error, request.state.request_id, acknowledged=stored)
    return json_response({"count": stored})


@write_router.post("/delete")
async def delete(body: schemas.DeleteBody, executor: ExecutorParam) -> CountResponse:
    """Delete items by their ids, or those that meet a condition, and count those that existed."""
    return CountResponse(count=await executor.write(partial(Collection.delete, **vars(body))))


@write_router.post("/update_metadata")
async def update_metadata(body: schemas.UpdateMetadataBody, executor: ExecutorParam) -> CountResponse:
    """Merge fields into the metadata of items, by their ids or by a condition."""
    return CountResponse(count=await executor.write(partial(Collection.update_metadata, **vars(body))))


@write_router.post("/relabel")
async def relabel(body: schemas.RelabelBody, executor: ExecutorParam) -> CountResponse:
    """Replace the labels of items, and learn from them."""
    return CountResponse(count=await executor.write(partial(Collection.relabel, **vars(body))))


@read_router.post("/get", response_model=ItemsResponse)
async def get(request: Request, body: schemas.IdsBody, executor: ExecutorParam) -> Response:
    """Return items by their ids."""
    limit = app_state(request).settings.max_answer_bytes
    return await executor.read(lambda c: json_response({"items": c.get(body.ids, max_bytes=limit)}))


@read_router.get("/sample", response_model=ItemsResponse)
async def sample(request: Request, executor: ExecutorParam, count: int = 1) -> Response:
    """Return random items."""
    limit = app_state(request).settings.max_answer_bytes
    return await executor.read(lambda c: json_response({"items": c.sample(count, max_bytes=limit)}))


@read_router.post("/reconstruct", response_model=FeaturesResponse)
async def reconstruct(request: Request, body: schemas.IdsBody, executor: ExecutorParam) -> Response:
    """Return features rebuilt from the codes of items, to search for similar ones."""
    numbers, limit = len(body.ids) * executor.collection.dim, app_state(request).settings.max_answer_bytes
    if numbers * NUMBER_BYTES > limit:
        most = limit // (NUMBER_BYTES * executor.collection.dim)
        raise TooLarge(f"ids: expected at most {most} for an answer of {limit} bytes, got {len(body.ids)}")
    request.state.memory.hold(numbers * NUMBER_BYTES)
    return await executor.read(lambda c: json_response({"features": _plain(c, c.reconstruct(body.ids))}))


def _plain(collection: Collection, rows: NDArray[Any]) -> list[Any]:
    """Return features, or codes, as JSON has them."""
    return list(to_hex(rows, collection.bits)) if collection.codes_only else rows.tolist()


@read_router.post("/picture")
async def picture(body: schemas.PictureBody, executor: ExecutorParam) -> PictureResponse:
    """Return the small image that was added with an item."""
    data = await executor.read(lambda c: c.picture(body.id))
    return PictureResponse(picture=None if data is None else base64.b64encode(data).decode())


@read_router.get("/count")
async def count(executor: ExecutorParam) -> CountResponse:
    """Count the items."""
    return CountResponse(count=await executor.read(lambda c: c.count()))


@read_router.post("/count", operation_id="count_matching")
async def count_matching(body: schemas.CountBody, executor: ExecutorParam) -> CountResponse:
    """Count the items that meet a condition."""
    return CountResponse(count=await executor.read(lambda c: c.count(body.where), "slow"))


@read_router.post("/ids", response_model=IdsResponse)
async def ids(request: Request, body: schemas.ListIdsBody, executor: ExecutorParam) -> Response:
    """List the ids of items, integers first and then texts, each in order; page by page."""
    limit = app_state(request).settings.max_total_hits
    if body.limit > limit:
        raise TooLarge(f"limit: expected at most {limit}, got {body.limit}")
    request.state.memory.hold(body.limit * HIT_BYTES)
    kind: ReadKind = "quick" if body.where is None else "slow"
    return await executor.read(lambda c: json_response({"ids": c.ids(**vars(body))}), kind)


@search_router.post("/search", response_model=SearchResponse)
async def search(request: Request, body: schemas.SearchBody, executor: ExecutorParam) -> Response:
    """Return the k best items for one query or many."""
    settings, queries = app_state(request).settings, body.row_count()
    if body.k > settings.max_hits or body.k * queries > settings.max_total_hits:
        limits = f"{settings.max_hits} for each query and {settings.max_total_hits} in total"
        raise TooLarge(f"k: expected at most {limits}, got {body.k} for {queries} queries")
    explained = body.explain is not False
    hit_bytes = HIT_BYTES + explained * NUMBER_BYTES * executor.collection.bits
    request.state.memory.hold(min(body.k * queries * hit_bytes, settings.max_answer_bytes))
    slow = body.where is not None or explained or max(queries, body.k / QUICK_HITS) > QUICK_QUERIES
    arguments = {**vars(body), "max_bytes": settings.max_answer_bytes}
    return await executor.read(lambda c: search_response(c.search(**arguments)), "slow" if slow else "quick")


@search_router.post("/range_search", response_model=SearchResponse)
async def range_search(request: Request, body: schemas.RangeSearchBody, executor: ExecutorParam) -> Response:
    """Return all items of at least this score."""
    settings = app_state(request).settings
    limits = {"most": min(body.most or settings.max_total_hits, settings.max_total_hits)}
    arguments = {**vars(body), **limits, "max_bytes": settings.max_answer_bytes}
    return await executor.read(lambda c: search_response(c.range_search(**arguments)), "slow")


def search_response(answers: Answer | list[Answer]) -> Response:
    """Serialise answers; in the reader's thread, since many hits take time."""
    return json_response({"answers": answers if isinstance(answers, list) else [answers]})


@search_router.post("/encode")
async def encode(query: EncodableQuery, executor: ExecutorParam) -> FeaturesResponse:
    """Return the features of an image, or of a text where the encoder has text: a query to search for."""
    return FeaturesResponse(features=[(await executor.encode_query(query.value)).tolist()])


# ---- labels ----


@write_router.post("/add_labels")
async def add_labels(body: LabelsBody, executor: ExecutorParam) -> LabelsResponse:
    """Add labels to items, and learn from them."""
    return _labels_response(await executor.write(partial(Collection.add_labels, **vars(body))))


@write_router.post("/remove_labels")
async def remove_labels(body: LabelsBody, executor: ExecutorParam) -> LabelsResponse:
    """Remove labels from items, and learn from those that are left."""
    return _labels_response(await executor.write(partial(Collection.remove_labels, **vars(body))))


def _labels_response(before: LabelsOfItems) -> LabelsResponse:
    entries: list[Any] = [{"id": name, "labels": labels} for name, labels in before.items()]
    return LabelsResponse(before=entries)


# ---- labels and values ----


@search_router.post("/facets", response_model=FacetsResponse)
async def facets(body: FacetsBody, executor: ExecutorParam) -> Response:
    """Count the items of each label, and of each value of fields, that meet a condition."""
    return await executor.read(lambda c: json_response(asdict(c.facets(**vars(body)))), "slow")


@search_router.post("/suggest", response_model=SuggestResponse)
async def suggest(body: SuggestBody, executor: ExecutorParam) -> Response:
    """Suggest labels, ids and values for what somebody types."""
    return await executor.read(
        lambda c: json_response({"suggestions": [asdict(one) for one in c.suggest(body.text, body.limit)]}), "slow"
    )


# ---- words ----


@search_router.post("/lexical_search", response_model=SearchResponse)
async def lexical_search(request: Request, body: LexicalSearchBody, executor: ExecutorParam) -> Response:
    """Return the k best items for words, by BM25; where the collection has a lexical field."""
    arguments = {**vars(body), "max_bytes": _check_word_hits(request, body)}
    return await executor.read(lambda c: search_response(c.lexical_search(**arguments)), "slow")


@search_router.post("/hybrid_search", response_model=SearchResponse)
async def hybrid_search(request: Request, body: HybridSearchBody, executor: ExecutorParam) -> Response:
    """Return the k best items for a query and words, by their ranks in both searches."""
    arguments = {**body.arguments(), "max_bytes": _check_word_hits(request, body)}
    return await executor.read(lambda c: search_response(c.hybrid_search(**arguments)), "slow")


def _check_word_hits(request: Request, body: LexicalSearchBody | HybridSearchBody) -> int:
    """Refuse more hits than one query may have, and reserve their memory; return the most bytes of the answer."""
    settings, hits = app_state(request).settings, body.fetched_hits()
    if hits > settings.max_hits:
        name = "k" if body.k > settings.max_hits else "depth"
        raise TooLarge(f"{name}: expected at most {settings.max_hits}, got {hits}")
    request.state.memory.hold(min(hits * HIT_BYTES, settings.max_answer_bytes))
    return settings.max_answer_bytes


# ---- forgetting ----

admin_router = api_router("admin", "upkeep")


class ForgetBody(DeleteBody):
    """One of the three."""

    source: Annotated[str | None, Field(description="A source of votes.")] = None


class ForgetResponse(BaseModel):
    items: Annotated[int, Field(description="That were there.")]
    votes: Annotated[int, Field(description="On them, or of the source.")]
    unlearnt: Annotated[int, Field(description="Rows that were learnt of them, and have been taken out exactly.")]
    versions: Annotated[list[int], Field(description="That had learnt from them, and are dropped.")]
    snapshots: Annotated[dict[str, int], Field(description="In the server's folder, that hold so many of them.")]
    remains: Annotated[list[str], Field(description="What the collection still holds of them.")]


@admin_router.post("/forget")
async def forget(body: ForgetBody, request: Request, executor: ExecutorParam) -> ForgetResponse:
    """Remove items, or the votes of a source, from every file, and from what was learnt.

    All codes are rewritten, which takes a while for millions of items; searches go on.
    """
    folder = app_state(request).settings.snapshots
    snapshots = folder if folder is not None and folder.is_dir() else None
    report = await executor.write(lambda c: c.forget(**vars(body), snapshots=snapshots))
    return ForgetResponse(**asdict(report))
