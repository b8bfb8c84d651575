"""What goes over the wire: the bodies of requests, the shapes of answers, and errors.

A body is JSON. Rows of features may also come raw, as application/octet-stream: the same JSON object without them on
the first line, then the numbers, float32 in little-endian order, row after row. What the fields mean is checked by the
collection; here only their types are.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from stillhash.errors import Busy, InvalidInput, StillhashError, TooLarge, WrongType
from stillhash.server.settings import Settings

JSON, RAW = "application/json", "application/octet-stream"
LONG = 2**63 - 1
LARGE = 1 << 18  # bytes of JSON that are not read beside everybody else's requests
VERSION = version("stillhash")

Id = StrictInt | str
Ids = Annotated[list[Id], Field(examples=[["a", 7]])]
Rows = Annotated[
    Any,
    Field(
        json_schema_extra={"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        examples=[[[0.1, 0.2, 0.3]]],
    ),
]
Query = Annotated[
    Any,
    Field(
        description="One query, or a list of queries.",
        json_schema_extra={
            "type": "array",
            "items": {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]},
        },
        examples=[[0.1, 0.2, 0.3]],
    ),
]
Labels = Annotated[
    list[list[StrictInt | float | str]] | None, Field(description="For each row its labels.", examples=[[["cat"]]])
]
Metadata = Annotated[list[dict[str, Any] | None] | None, Field(examples=[[{"year": 1995}]])]
Where = Annotated[
    dict[str, Any] | None,
    Field(description="Only items that meet this condition.", examples=[{"year": {"$gte": 1990}}]),
]
Version = Annotated[StrictInt, Field(ge=1, le=LONG, examples=[1])]


class Body(BaseModel):
    """What a request says."""

    model_config = ConfigDict(extra="forbid", strict=True)
    raw: ClassVar[str | None] = None  # the field that may come raw


class Add(Body):
    raw = "features"
    ids: Ids
    features: Rows
    labels: Labels = None
    metadata: Metadata = None
    pictures: Annotated[
        list[str | None] | None, Field(description="For each row a small image (PNG, JPEG, WebP, GIF) in base64.")
    ] = None
    learn: StrictBool = True


class Names(Body):
    ids: Ids


class Relabel(Body):
    ids: Ids
    labels: Labels
    learn: StrictBool = True


class Named(Body):
    id: Annotated[Id, Field(examples=["a"])]


class Search(Body):
    raw = "query"
    query: Query
    k: Annotated[StrictInt, Field(ge=1, le=LONG)] = 10
    where: Where = None
    version: Annotated[StrictInt | None, Field(ge=0, le=LONG, description="0 is Hamming distance.")] = None
    explain: Annotated[
        StrictBool | StrictInt,
        Field(description="true, or the number of a version to compare with.", json_schema_extra={"minimum": 0}),
    ] = False


class RangeSearch(Body):
    raw = "query"
    query: Query
    threshold: float
    where: Where = None
    version: Annotated[StrictInt | None, Field(ge=0, le=LONG)] = None
    most: Annotated[StrictInt | None, Field(ge=1, le=LONG, description="More hits than this are refused.")] = None


class Learn(Body):
    raw = "features"
    features: Rows
    labels: Labels


class Fit(Body):
    raw = "features"
    features: Rows = None
    labels: Labels = None


class Feedback(Body):
    raw = "query"
    query: Query
    id: Annotated[Id | list[Id], Field(description="An item, or several.", examples=["a"])]
    relevant: Annotated[StrictBool | list[StrictBool], Field(description="Vote up or down, for all or for each.")]
    weight: Annotated[float, Field(gt=0, le=1)] = 1.0
    source: str = ""


class Tag(Body):
    version: Version
    name: Annotated[str, Field(min_length=1, examples=["good"])]


class Rollback(Body):
    version: Version


# ---- answers ----


class Item(BaseModel):
    id: int | str
    labels: list[int | float | str]
    metadata: dict[str, Any] | None


class Explanation(BaseModel):
    bits: Annotated[list[float], Field(description="What each bit adds to the score.")]
    groups: Annotated[list[float], Field(description="The same for each eight bits.")]
    rank: int
    other_version: int
    other_score: float
    other_rank: int


class Hit(Item):
    score: float
    version: int
    explanation: Explanation | None = None


class Answer(BaseModel):
    hits: list[Hit]
    version: Annotated[int, Field(description="Of the model that ranked; 0 if nothing is learnt.")]
    ranking: str
    missing: Annotated[float, Field(description="The share of the items that did not answer, on a cluster.")]


class Answers(BaseModel):
    answers: Annotated[list[Answer], Field(description="One for each query.")]


class Items(BaseModel):
    items: Annotated[list[Item | None], Field(description="One for each id, null where there is no such item.")]


class Count(BaseModel):
    count: int


class Vers(BaseModel):
    version: Annotated[int, Field(description="Of the model that is now current.")]


class Kept(BaseModel):
    """One version of the model."""

    model_config = ConfigDict(extra="allow")
    version: int
    made: str
    kind: str
    rows: int
    tag: str | None
    current: bool


class Versions(BaseModel):
    versions: list[Kept]


class Point(BaseModel):
    version: int
    map: float
    hamming: float
    drift: bool


class Quality(BaseModel):
    curve: list[Point]
    alarms: list[int]


class Features(BaseModel):
    features: list[list[float]]


class Pictured(BaseModel):
    picture: Annotated[str | None, Field(description="In base64; null if the item came without one.")]


class Verified(BaseModel):
    problems: Annotated[list[str], Field(description="What is wrong; nothing, if it is empty.")]


class Snapshot(BaseModel):
    name: Annotated[str, Field(description="Of the folder it is in, among the server's snapshots.")]
    bytes: int


class Stats(BaseModel):
    """Settings, counts, bytes, quality."""

    model_config = ConfigDict(extra="allow")
    items: int
    version: int
    fitted: bool


class Listed(BaseModel):
    collections: list[str]


class Health(BaseModel):
    status: Literal["ok"]
    stillhash: str
    collections: dict[str, int]


class Failed(BaseModel):
    """What every error looks like."""

    error: Annotated[str, Field(description="Its class.", examples=["InvalidInput"])]
    message: str
    status: int
    request_id: str
    acknowledged: Annotated[int | None, Field(description="Of a stream: rows that are on disk.")] = None


# ---- reading and writing ----

Some = TypeVar("Some", bound=Body)


async def body(request: Request, kind: type[Some], dim: int, settings: Settings) -> Some:
    """What a request says, if it is of the right type and not too large."""
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    raw = kind.raw if content == RAW else None
    if content not in ("", JSON) and raw is None:
        wanted = JSON if kind.raw is None else f"{JSON} or {RAW}"
        raise InvalidInput(f"content-type is {content!r}; {wanted} is wanted")
    data = await _all(request, settings.most_bytes)
    if raw is None:
        return await asyncio.to_thread(_parsed, data, kind) if len(data) > LARGE else _parsed(data, kind)
    head, _, numbers = data.partition(b"\n")
    if len(numbers) % (4 * dim):
        raise InvalidInput(f"{raw} has {len(numbers)} bytes; rows of {dim} float32 have {4 * dim} each")
    said = _parsed(head, kind, {raw: []})
    vectors = np.frombuffer(numbers, "<f4").reshape(-1, dim)
    return said.model_copy(update={raw: vectors})


async def _all(request: Request, most: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > most:
        raise TooLarge(f"the body has {announced} bytes; at most {most} are taken")
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise TooLarge(f"the body has more than {most} bytes, which is the most that is taken")
            parts.append(part)
    except ClientDisconnect:
        raise InvalidInput("the body ended early") from None
    return b"".join(parts)


def _parsed(data: bytes, kind: type[Some], beside: dict[str, Any] | None = None) -> Some:
    try:
        if beside is None:
            return kind.model_validate_json(data)
        said = Head.model_validate_json(data).model_dump()
        if said.keys() & beside:
            raise InvalidInput(f"{kind.raw} comes on the first line and raw after it; once is wanted")
        return kind.model_validate({**said, **beside})
    except ValidationError as error:
        raise told(error.errors(include_url=False, include_input=False)) from None


class Head(BaseModel):
    """Any JSON object."""

    model_config = ConfigDict(extra="allow")


def told(errors: Sequence[Any]) -> InvalidInput:
    """The first thing that is wrong, as our errors say it."""
    first = errors[0]
    place = ".".join(map(str, first["loc"])) or "the body"
    wrong = WrongType if first["type"].endswith("_type") else InvalidInput
    return wrong(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}")


def unpacked(pictures: list[str | None] | None) -> list[bytes | None] | None:
    """Pictures as they were before they became text."""
    if pictures is None:
        return None
    try:
        return [None if text is None else base64.b64decode(text, validate=True) for text in pictures]
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"pictures holds what is not base64: {error}") from None


async def bytes_of(request: Request, most: int) -> bytes:
    """A body that is no JSON."""
    data = await _all(request, most)
    if not data:
        raise InvalidInput("the body is empty")
    return data


def words(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the text is not UTF-8: {error}") from None


def check_rows(value: Any, name: str, settings: Settings) -> None:
    """Refuses more rows, or ids, than the server takes at once. A query may be one row, as wide as it likes."""
    many = isinstance(value, (list, np.ndarray)) and len(value) > settings.most_rows
    if many and not (name == "query" and is_one(value)):
        raise TooLarge(f"{name} has {len(value)} rows; at most {settings.most_rows} are taken at once")


def is_one(query: Any) -> bool:
    """Whether this is one query, or nothing that could be several."""
    return not isinstance(query, np.ndarray) and not (isinstance(query, list) and query and isinstance(query[0], list))


def answered(content: Any, status: int = 200) -> Response:
    try:
        data = to_json(content)
    except ValueError:  # metadata may hold half a character, or be nested deep; JSON's own encoder takes more time
        data = json.dumps(content, default=vars).encode()
    return Response(data, status, media_type=JSON)


def failed(error: StillhashError, request_id: str, **more: Any) -> Response:
    about = {"error": type(error).__name__, "message": str(error), "status": error.status, "request_id": request_id}
    response = answered({**about, **more}, error.status)
    if isinstance(error, Busy):
        response.headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response
