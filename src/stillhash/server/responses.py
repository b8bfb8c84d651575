"""JSON responses: results, and errors in their one shape."""

import json
import reprlib
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from stillhash.errors import Busy, InvalidInput, NotFound, StillhashError, WrongType, shortage

JSON_MEDIA = "application/json"


class ErrorResponse(BaseModel):
    """The one shape of errors."""

    error: Annotated[str, Field(description="Its class.", examples=["InvalidInput"])]
    message: str
    status: int
    request_id: str
    acknowledged: Annotated[int | None, Field(description="Of a stream: rows that are on disk.")] = None


class Unexpected(StillhashError):
    """A bug; the log has the details."""


class Exhausted(StillhashError):
    """Memory, file handles or threads lacked while the server answered; what was sent may be stored."""


class NotAllowed(StillhashError, status=405):
    """The path exists, but not for this method."""


def json_response(content: object, status: int = 200) -> Response:
    """Serialise dataclasses, models and plain values to a JSON response."""
    try:
        data = to_json(content)
    except ValueError:  # a lone surrogate in metadata, or deep nesting; the json module takes both, but is slow
        data = json.dumps(content, default=vars).encode()
    return Response(data, status, media_type=JSON_MEDIA)


def error_response(error: StillhashError, request_id: str, **extra: object) -> Response:
    """Serialise an error, with the headers its status requires."""
    content = {"error": type(error).__name__, "message": str(error), "status": error.status, "request_id": request_id}
    response = json_response({**content, **extra}, error.status)
    if isinstance(error, Busy):
        response.headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def to_error(error: Exception, route: str = "") -> StillhashError:
    """Convert an error of pydantic, FastAPI or Starlette to one of ours."""
    if isinstance(error, (ValidationError, RequestValidationError)):
        return _validation_error(error)
    if isinstance(error, HTTPException):
        kind = {404: NotFound, 405: NotAllowed}.get(error.status_code, InvalidInput)
        return kind(f"{route}: {error.detail}")
    if isinstance(error, StillhashError):
        return error
    if (lack := shortage(error)) is not None:
        return Exhausted(f"{lack}. What was sent may be stored")
    return Unexpected("unexpected error; the server's log has details")


def _validation_error(error: ValidationError | RequestValidationError) -> InvalidInput:
    """Convert the first problem that pydantic reports."""
    problems: Sequence[Any] = error.errors()
    skip = isinstance(error, RequestValidationError)  # "query" or "path" before the name
    first, name = problems[0], _argument(problems[0]["loc"][skip:])
    same = [problem["msg"] for problem in problems if _argument(problem["loc"][skip:]) == name]  # of a union
    expected = " or ".join(dict.fromkeys(message.removeprefix("Input should be ") for message in same))
    message = f"expected {expected}" if same[0].startswith("Input should be") else expected[:1].lower() + expected[1:]
    if name != "body" and first["type"] != "missing":
        message += f", got {reprlib.repr(first['input'])}"
    kind = WrongType if first["type"].endswith("_type") else InvalidInput
    return kind(f"{name}: {message}")


def _argument(location: Sequence[str | int]) -> str:
    """Name an argument by its field and indices, without the members of unions."""
    return ".".join(str(part) for number, part in enumerate(location) if not number or isinstance(part, int)) or "body"
