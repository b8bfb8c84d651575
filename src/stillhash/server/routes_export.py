"""Routes that list all items: page by page, or as one stream of lines."""

import base64
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import Request
from pydantic import BaseModel, Field, StrictBool, StrictInt
from pydantic_core import to_json
from starlette.responses import Response, StreamingResponse

from stillhash.collection import Collection
from stillhash.collection.types import Filter, Id
from stillhash.errors import StillhashError, TooLarge
from stillhash.server.bodies import NDJSON_MEDIA
from stillhash.server.dependencies import ExecutorParam, api_router, app_state
from stillhash.server.responses import error_response, json_response
from stillhash.server.routes_items import HIT_BYTES
from stillhash.server.schemas import MAX_INT64, CountBody, JsonId
from stillhash.server.write_queue import CollectionExecutor, ReadKind

EXPORTED_ROWS, EXPORTED_BYTES = 1000, 1 << 20  # of a stream that are read, and in memory, at a time
EXPORTED_COPIES = 4  # of these bytes: as stored, as items, as lines, and on their way to the client
LINES_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One item a line. A last line with `error` in place of `id` says why the stream ends early.",
        "content": {NDJSON_MEDIA: {"schema": {"type": "string"}}},
    }
}

read_router = api_router("read", "items")


class ExportBody(CountBody):
    after: Annotated[JsonId | None, Field(description="Only items past this id.", examples=["a"])] = None
    codes: Annotated[StrictBool, Field(description="Whether each item comes with its code, in base64.")] = False


class ListItemsBody(ExportBody):
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_INT64)] = 1000


class CodedItem(BaseModel):
    """An item, and its code where that was requested."""

    id: JsonId
    labels: list[Any]
    metadata: dict[str, Any] | None
    code: Annotated[str | None, Field(description="In base64; null before hash functions are fitted.")] = None


class ItemPageResponse(BaseModel):
    items: Annotated[list[CodedItem], Field(description="In order of their ids; fewer than `limit` if they are large.")]
    after: Annotated[JsonId | None, Field(description="`after` of the next page; null if there are no more items.")]


class ItemPage(NamedTuple):
    """Items as dictionaries, and the last id."""

    items: list[dict[str, Any]]
    last: Id | None

    @classmethod
    def read(
        cls, collection: Collection, where: Filter | None, after: Id | None, codes: bool, limit: int, max_bytes: int
    ) -> "ItemPage":
        """Read a page, of one commit."""
        limits = {"limit": limit, "max_bytes": max_bytes}
        items, packed = collection.list_coded_items(where, after=after, codes=codes, **limits)
        contents = [vars(item) for item in items]
        if codes:
            texts = [None] * len(items) if packed is None else [base64.b64encode(code).decode() for code in packed]
            contents = [{**item, "code": text} for item, text in zip(contents, texts, strict=True)]
        return cls(contents, items[-1].id if items else None)


@read_router.post("/items", response_model=ItemPageResponse)
async def items(request: Request, body: ListItemsBody, executor: ExecutorParam) -> Response:
    """List items in the order of their ids, page by page; fewer than `limit` where they are large."""
    settings = app_state(request).settings
    if body.limit > settings.max_total_hits:
        raise TooLarge(f"limit: expected at most {settings.max_total_hits}, got {body.limit}")
    request.state.memory.hold(min(body.limit * HIT_BYTES, settings.max_answer_bytes))
    kind: ReadKind = "quick" if body.where is None and body.limit <= EXPORTED_ROWS else "slow"

    def read(collection: Collection) -> Response:
        page = ItemPage.read(collection, **vars(body), max_bytes=settings.max_answer_bytes)
        more = page.last is not None and collection.ids(body.where, after=page.last, limit=1)
        return json_response({"items": page.items, "after": page.last if more else None})

    return await executor.read(read, kind)


@read_router.get("/export", response_class=StreamingResponse, responses=LINES_RESPONSE)
async def export(request: Request, executor: ExecutorParam, codes: bool = False) -> Response:
    """Stream all items as lines of JSON, in the order of their ids."""
    return await stream_items(request, executor, None, None, codes)


@read_router.post("/export", operation_id="export_matching", response_class=StreamingResponse, responses=LINES_RESPONSE)
async def export_matching(request: Request, body: ExportBody, executor: ExecutorParam) -> Response:
    """Stream the items that meet a condition as lines of JSON, in the order of their ids."""
    return await stream_items(request, executor, **vars(body))


async def stream_items(
    request: Request, executor: CollectionExecutor, where: Filter | None, after: Id | None, codes: bool
) -> Response:
    """Return a response that reads a page when the client has taken the one before; each page is of one commit.

    The first page is read before the answer begins, so that an invalid request is answered as any other.
    """
    request.state.memory.hold(EXPORTED_COPIES * EXPORTED_BYTES)
    first = await executor.read(partial(_read_lines, where=where, after=after, codes=codes), "slow")
    lines = _stream(executor, first, partial(_read_lines, where=where, codes=codes), request.state.request_id)
    return StreamingResponse(lines, media_type=NDJSON_MEDIA)


async def _stream(
    executor: CollectionExecutor, first: tuple[bytes, Id | None], read: Any, request_id: str
) -> AsyncIterator[bytes]:
    lines, last = first
    try:
        while last is not None:
            yield lines
            lines, last = await executor.read(partial(read, after=last), "slow")
    except StillhashError as error:  # the status is sent already
        yield bytes(error_response(error, request_id).body) + b"\n"


def _read_lines(collection: Collection, where: Filter | None, after: Id | None, codes: bool) -> tuple[bytes, Id | None]:
    """Return a page as lines; in the reader's thread, since that takes time."""
    page = ItemPage.read(collection, where, after, codes, EXPORTED_ROWS, EXPORTED_BYTES)
    return b"".join(map(_line, page.items)), page.last


def _line(item: dict[str, Any]) -> bytes:
    try:
        return to_json(item) + b"\n"
    except ValueError:  # a lone surrogate in metadata, or deep nesting
        return json.dumps(item).encode() + b"\n"
