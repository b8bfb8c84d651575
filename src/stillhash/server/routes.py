"""The HTTP API: the verbs of `Collection`, one route each, and no logic."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response

from stillhash.collection import Collection
from stillhash.errors import Denied, InvalidInput, NotFound, StillhashError, TooLarge
from stillhash.server import schemas
from stillhash.server.auth import Role
from stillhash.server.metrics import Metrics
from stillhash.server.schemas import JSON, LONG, RAW, answered, check_rows
from stillhash.server.settings import Settings
from stillhash.server.write_queue import Desk

COOKIE = "stillhash_key"  # of a browser that was given a key
NDJSON = "application/x-ndjson"
STREAMED = 1000  # rows of a stream that are stored at a time
WRONG = {
    401: "no key, or an unknown one",
    403: "the key may not",
    404: "no such collection",
    409: "it contradicts what is stored",
}
WRONG |= {413: "too large", 422: "an argument is wrong", 429: "too many requests", 503: "too much is waiting"}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Failed, "description": about.capitalize() + "."} for status, about in WRONG.items()
}


class Room(NamedTuple):
    """What routes work with; in `app.state.room`."""

    desks: dict[str, Desk]
    settings: Settings
    metrics: Metrics


def room(request: Request) -> Room:
    found: Room = request.app.state.room
    return found


async def desk(request: Request, name: str) -> Desk:
    """The collection of this name. Not plain `def`, which FastAPI would run in a thread of its own."""
    desks = room(request).desks
    if name not in desks:
        raise NotFound(f"collection is {name!r}; there are {', '.join(desks)}")
    return desks[name]


bearer = HTTPBearer(auto_error=False, description="A key of this server, if it has keys.")


def may(role: Role) -> Any:
    """Lets pass who may do this: by a key, or by the cookie of a browser that gave one."""

    async def check(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)] = None
    ) -> None:
        key = given.credentials if given else request.cookies.get(COOKIE)
        room(request).settings.keys.check(key, role)

    return Depends(check)


At = Annotated[Desk, Depends(desk)]
public = APIRouter(prefix="/v1", responses={status: ERRORS[status] for status in (403, 429, 503)})
reading = APIRouter(prefix="/v1", dependencies=[may("read")], responses=ERRORS)
writing = APIRouter(prefix="/v1", dependencies=[may("write")], responses=ERRORS)


def takes(kind: type[schemas.Body]) -> dict[str, Any]:
    """The body of a request, for OpenAPI."""
    schema = kind.model_json_schema()
    content: dict[str, Any] = {JSON: {"schema": schema}}
    if kind.raw:
        about = f"A line of JSON without {kind.raw}, then {kind.raw} as float32, little-endian, row after row."
        content[RAW] = {"schema": {"type": "string", "format": "binary", "description": about}}
    return {"requestBody": {"required": True, "content": content}}


async def said(request: Request, kind: type[schemas.Some], at: Desk) -> schemas.Some:
    return await schemas.body(request, kind, at.collection.dim, room(request).settings)


# ---- the server ----


@public.get("/health", response_model=schemas.Health, tags=["server"])
async def health(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)] = None
) -> Response:
    """Whether the server can answer, which anybody may ask; with a key, how many items each collection has."""
    counts = {name: await at.read(Collection.count) for name, at in room(request).desks.items()}
    try:
        room(request).settings.keys.check(given.credentials if given else None, "read")
    except Denied:
        counts = {}
    return answered({"status": "ok", "stillhash": schemas.VERSION, "collections": counts})


@reading.get("/metrics", response_class=PlainTextResponse, tags=["server"])
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    told = next(iter(room(request).desks.values())).read(lambda _: room(request).metrics.told())
    return Response(await told, media_type="text/plain; version=0.0.4")


@reading.get("/collections", response_model=schemas.Listed, tags=["server"])
async def collections(request: Request) -> Response:
    """The collections that are served."""
    return answered({"collections": list(room(request).desks)})


# ---- items ----


@writing.post("/collections/{name}/add", response_model=schemas.Count, tags=["items"], openapi_extra=takes(schemas.Add))
async def add(request: Request, at: At) -> Response:
    """Add items. They are on disk when this is answered."""
    return await _put(request, at, Collection.add)


@writing.post(
    "/collections/{name}/upsert", response_model=schemas.Count, tags=["items"], openapi_extra=takes(schemas.Add)
)
async def upsert(request: Request, at: At) -> Response:
    """Add items; those whose ids are there already are replaced."""
    return await _put(request, at, Collection.upsert)


async def _put(request: Request, at: Desk, verb: Callable[..., int]) -> Response:
    told = await said(request, schemas.Add, at)
    check_rows(told.features, "features", room(request).settings)
    beside = {"pictures": schemas.unpacked(told.pictures), "learn": told.learn}
    count = await at.write(lambda c: verb(c, told.ids, told.features, told.labels, told.metadata, **beside))
    return answered({"count": count})


@writing.post(
    "/collections/{name}/ingest",
    response_model=schemas.Count,
    tags=["items"],
    openapi_extra={"requestBody": {"required": False, "content": {NDJSON: {"schema": {"type": "string"}}}}},
)
async def ingest(request: Request, at: At, replace: bool = False, learn: bool = True) -> Response:
    """Add items from a stream of any length: a line of JSON each, with id, features, and perhaps labels and metadata.

    They are stored a thousand at a time. If a line is wrong, the error's `acknowledged` says how many rows before it
    are on disk.
    """
    rows, verb = 0, Collection.upsert if replace else Collection.add
    try:
        async for chunk in _chunks(request, room(request).settings.most_bytes):
            told = [[row.get(key) for row in chunk] for key in ROW]
            rows += await at.write(partial(_stored, verb, told, learn), patient=True)
    except StillhashError as error:
        return schemas.failed(error, request.state.request_id, acknowledged=rows)
    return answered({"count": rows})


def _stored(verb: Callable[..., int], told: list[list[Any]], learn: bool, collection: Collection) -> int:
    ids, features, labels, metadata = told
    return verb(collection, ids, features, labels, metadata, learn=learn)


ROW = "id", "features", "labels", "metadata"


async def _chunks(request: Request, most: int) -> AsyncIterator[list[dict[str, Any]]]:
    """The rows of a stream, as they arrive."""
    chunk, size = [], 0
    async for number, line in _lines(request, most):
        if line.strip():
            chunk.append(_row(line, number))
            size += len(line)
        if len(chunk) == STREAMED or size > most:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


async def _lines(request: Request, most: int) -> AsyncIterator[tuple[int, bytes]]:
    """The lines of a stream with their numbers."""
    number, size = 1, 0
    left: list[bytes] = []  # parts of a long line, which are put together once
    try:
        async for part in request.stream():
            *lines, last = part.split(b"\n")
            for line in lines:
                yield number, b"".join([*left, line])
                number, size = number + 1, 0
                left.clear()
            left.append(last)
            size += len(last)
            if size > most:
                raise TooLarge(f"line {number} has more than {most} bytes, which is the most that is taken")
    except ClientDisconnect:
        raise InvalidInput("the body ended early") from None
    yield number, b"".join(left)


def _row(line: bytes, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"line {number} is not JSON: {error}") from None
    if not isinstance(row, dict) or not row.keys() <= set(ROW) or not {"id", "features"} <= row.keys():
        raise InvalidInput(f"line {number}: an object with id and features, and perhaps labels and metadata, is wanted")
    return row


@writing.post(
    "/collections/{name}/delete", response_model=schemas.Count, tags=["items"], openapi_extra=takes(schemas.Names)
)
async def delete(request: Request, at: At) -> Response:
    """Delete items, and say how many were there."""
    told = await said(request, schemas.Names, at)
    return answered({"count": await at.write(lambda c: c.delete(told.ids))})


@writing.post(
    "/collections/{name}/relabel", response_model=schemas.Count, tags=["items"], openapi_extra=takes(schemas.Relabel)
)
async def relabel(request: Request, at: At) -> Response:
    """Give items other labels, and learn from them."""
    told = await said(request, schemas.Relabel, at)
    check_rows(told.ids, "ids", room(request).settings)
    return answered({"count": await at.write(lambda c: c.relabel(told.ids, told.labels, learn=told.learn))})


@reading.post(
    "/collections/{name}/get", response_model=schemas.Items, tags=["items"], openapi_extra=takes(schemas.Names)
)
async def get(request: Request, at: At) -> Response:
    """Items by their ids."""
    told = await said(request, schemas.Names, at)
    check_rows(told.ids, "ids", room(request).settings)
    return answered({"items": await at.read(lambda c: c.get(told.ids))})


@reading.get("/collections/{name}/sample", response_model=schemas.Items, tags=["items"])
async def sample(request: Request, at: At, count: int = 1) -> Response:
    """Some items at random."""
    return answered({"items": await at.read(lambda c: c.sample(count))})


@reading.post(
    "/collections/{name}/reconstruct",
    response_model=schemas.Features,
    tags=["items"],
    openapi_extra=takes(schemas.Names),
)
async def reconstruct(request: Request, at: At) -> Response:
    """Features that stand for items, to ask for more like them; their own are not kept."""
    told = await said(request, schemas.Names, at)
    check_rows(told.ids, "ids", room(request).settings)
    return answered({"features": (await at.read(lambda c: c.reconstruct(told.ids))).tolist()})


@reading.post(
    "/collections/{name}/picture", response_model=schemas.Pictured, tags=["items"], openapi_extra=takes(schemas.Named)
)
async def picture(request: Request, at: At) -> Response:
    """The small image that an item came with."""
    told = await said(request, schemas.Named, at)
    data = await at.read(lambda c: c.picture(told.id))
    return answered({"picture": None if data is None else base64.b64encode(data).decode()})


@reading.get("/collections/{name}/count", response_model=schemas.Count, tags=["items"])
async def count(at: At) -> Response:
    """How many items there are."""
    return answered({"count": await at.read(Collection.count)})


# ---- search ----


@reading.post(
    "/collections/{name}/encode",
    response_model=schemas.Features,
    tags=["search"],
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "image/*": {"schema": {"type": "string", "format": "binary"}},
                "text/plain": {"schema": {"type": "string"}},
            },
        }
    },
)
async def encode(request: Request, at: At) -> Response:
    """The features of an image, or of words where the encoder knows words: what to search for."""
    data = await schemas.bytes_of(request, room(request).settings.most_image_bytes)
    words = request.headers.get("content-type", "").startswith("text/plain")
    asked = schemas.words(data) if words else data
    return answered({"features": [(await at.described(asked)).tolist()]})


@reading.post(
    "/collections/{name}/search", response_model=schemas.Answers, tags=["search"], openapi_extra=takes(schemas.Search)
)
async def search(request: Request, at: At) -> Response:
    """The best items for one query or many."""
    told = await said(request, schemas.Search, at)
    settings = room(request).settings
    check_rows(told.query, "query", settings)
    queries = 1 if schemas.is_one(told.query) else len(told.query)
    if told.k > settings.most_hits or told.k * queries > settings.most_hits_in_all:
        most = f"{settings.most_hits} for each and {settings.most_hits_in_all} in all"
        raise TooLarge(f"k is {told.k} for {queries} queries; at most {most} are taken")
    return await _answers(
        at,
        lambda c: c.search(told.query, told.k, where=told.where, version=told.version, explain=told.explain),
    )


@reading.post(
    "/collections/{name}/range_search",
    response_model=schemas.Answers,
    tags=["search"],
    openapi_extra=takes(schemas.RangeSearch),
)
async def range_search(request: Request, at: At) -> Response:
    """All items of at least this score."""
    told = await said(request, schemas.RangeSearch, at)
    check_rows(told.query, "query", room(request).settings)
    most = min(told.most or LONG, room(request).settings.most_hits_in_all)
    return await _answers(
        at, lambda c: c.range_search(told.query, told.threshold, where=told.where, version=told.version, most=most)
    )


async def _answers(at: Desk, work: Callable[[Collection], Any]) -> Response:
    def found(collection: Collection) -> Response:
        answers = work(collection)
        return answered({"answers": answers if isinstance(answers, list) else [answers]})

    return await at.read(found)


# ---- learning ----


@writing.post(
    "/collections/{name}/learn", response_model=schemas.Vers, tags=["learning"], openapi_extra=takes(schemas.Learn)
)
async def learn(request: Request, at: At) -> Response:
    """Learn from labelled rows that are no items."""
    told = await said(request, schemas.Learn, at)
    check_rows(told.features, "features", room(request).settings)
    return answered({"version": await at.write(lambda c: c.learn(told.features, told.labels))})


@writing.post(
    "/collections/{name}/fit", response_model=schemas.Vers, tags=["learning"], openapi_extra=takes(schemas.Fit)
)
async def fit(request: Request, at: At) -> Response:
    """Fix the hash functions now, for ever: by a sample, or by the rows that wait."""
    told = await said(request, schemas.Fit, at)
    check_rows(told.features, "features", room(request).settings)

    def work(collection: Collection) -> int:
        collection.fit(told.features, told.labels)
        return int(collection.stats()["version"])

    return answered({"version": await at.write(work)})


@writing.post(
    "/collections/{name}/feedback",
    response_model=schemas.Vers,
    tags=["learning"],
    openapi_extra=takes(schemas.Feedback),
)
async def feedback(request: Request, at: At) -> Response:
    """Learn from a thumb up or down on items that were found for a query."""
    told = await said(request, schemas.Feedback, at)
    query = told.query[0] if getattr(told.query, "shape", (0,))[0] == 1 else told.query  # raw queries come in rows
    version = await at.write(
        lambda c: c.feedback(query, told.id, told.relevant, weight=told.weight, source=told.source)
    )
    return answered({"version": version})


@writing.post("/collections/{name}/flush", response_model=schemas.Vers, tags=["learning"])
async def flush(at: At) -> Response:
    """Learn the labelled items that wait for a full step."""
    return answered({"version": await at.write(Collection.flush)})


@reading.get("/collections/{name}/versions", response_model=schemas.Versions, tags=["learning"])
async def versions(at: At) -> Response:
    """The versions of the model that are kept, the latest last."""
    return answered({"versions": await at.read(Collection.versions)})


@reading.get("/collections/{name}/quality", response_model=schemas.Quality, tags=["learning"])
async def quality(at: At) -> Response:
    """How well each chunk of labelled rows was answered before it was learnt."""
    return answered(await at.read(Collection.quality))


@writing.post(
    "/collections/{name}/tag", response_model=schemas.Tag, tags=["learning"], openapi_extra=takes(schemas.Tag)
)
async def tag(request: Request, at: At) -> Response:
    """Name a version; one that has a name is kept."""
    told = await said(request, schemas.Tag, at)
    await at.write(lambda c: c.tag(told.version, told.name))
    return answered(told)


@writing.post(
    "/collections/{name}/rollback",
    response_model=schemas.Vers,
    tags=["learning"],
    openapi_extra=takes(schemas.Rollback),
)
async def rollback(request: Request, at: At) -> Response:
    """Publish an earlier version anew: the same answers, under a new number."""
    told = await said(request, schemas.Rollback, at)
    return answered({"version": await at.write(lambda c: c.rollback(told.version))})


# ---- upkeep ----


@reading.get("/collections/{name}/stats", response_model=schemas.Stats, tags=["upkeep"])
async def stats(at: At) -> Response:
    """How the collection stands."""
    return answered(await at.read(Collection.stats))


@reading.post("/collections/{name}/verify", response_model=schemas.Verified, tags=["upkeep"])
async def verify(at: At) -> Response:
    """Look at all that is stored, and say what is wrong."""
    return answered({"problems": await at.read(Collection.verify, patient=True)})


@writing.post("/collections/{name}/snapshot", response_model=schemas.Snapshot, tags=["upkeep"])
async def snapshot(request: Request, at: At) -> Response:
    """Copy the collection, as it stands at one commit, to the server's folder of snapshots."""
    folder = room(request).settings.snapshots
    if folder is None:
        raise NotFound("this server has no folder for snapshots; it is started with --snapshots FOLDER to have one")
    name = f"{at.name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    return answered({"name": name, "bytes": await at.read(lambda c: c.snapshot(folder / name), patient=True)})
