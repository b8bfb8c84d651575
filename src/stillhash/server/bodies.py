"""Read request bodies: JSON, JSON with raw float32 rows, NDJSON streams, images, text and uploads.

Bodies are read here, not by FastAPI, so that keys are checked first and no body grows beyond its limit.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, ClassVar, Protocol, Self

import numpy as np
from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from stillhash.errors import InvalidInput, StoreFailed, TooLarge, TooSlow
from stillhash.numeric.codes import width
from stillhash.server.dependencies import ExecutorParam, app_state
from stillhash.server.limits import BODY_COPIES, RequestMemory
from stillhash.server.responses import JSON_MEDIA, to_error
from stillhash.server.settings import MIN_RATE
from stillhash.server.uploads import Upload

RAW_MEDIA, NDJSON_MEDIA = "application/octet-stream", "application/x-ndjson"
MAX_JSON_LISTS = 1 << 19  # lists and objects in a body; of millions, even empty ones, the parser would take seconds
THREAD_BYTES = 1 << 18  # larger JSON is parsed in a thread, which gives way to other requests now and then
NUMBER_CHARACTERS, ROW_CHARACTERS = 32, 2 << 20  # at most, in JSON: of a number, and of a row besides its features
STREAM_CHUNK, STREAM_BYTES = 1000, 16 << 20  # rows of a stream that are stored together: how many, and how large
ROW_KEYS = {"id": "ids", "features": "features", "labels": "labels", "metadata": "metadata"}  # of a stream -> of `add`
RAW_ADVICE = "Send vectors raw, as application/octet-stream, or items as lines of JSON to /ingest"
VECTOR_FIELDS = ("features", "query", "weights")  # whose numbers may be more than there may be rows

OpenApi = dict[str, Any]  # a requestBody object of OpenAPI


class RequestBody(BaseModel):
    """Base of JSON bodies. Only types are checked here; the collection validates the values.

    `raw_field` may come as application/octet-stream instead: the JSON object without it on the first line, then its
    rows as little-endian float32; as packed codes, where the collection has codes only.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    raw_field: ClassVar[str | None] = None
    row_field: ClassVar[str | None] = None  # has at most `max_rows` entries

    @classmethod
    async def from_request(cls, request: Request, executor: ExecutorParam) -> Self:
        """Parse the body of a request."""
        settings = app_state(request).settings
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        raw = media == RAW_MEDIA and cls.raw_field is not None
        if media not in ("", JSON_MEDIA) and not raw:
            expected = JSON_MEDIA if cls.raw_field is None else f"{JSON_MEDIA} or {RAW_MEDIA}"
            raise InvalidInput(f"content-type: expected {expected}, got {media!r}")
        collection = executor.collection
        if raw:
            data = await read_body(request, settings.max_body_bytes)
            line, _, numbers = data.partition(b"\n")
            rows = cls._raw_rows(numbers, collection.dim, collection.bits if collection.codes_only else None)
            if len(line) > settings.max_json_bytes:
                raise TooLarge(f"body: expected at most {settings.max_json_bytes} bytes of JSON, got {len(line)}")
        else:
            advice = f". {RAW_ADVICE if cls.raw_field else 'Send less at a time'}"
            line = await read_body(request, min(settings.max_body_bytes, settings.max_json_bytes), advice)
            rows = None
        if len(line) > THREAD_BYTES:
            body = await asyncio.to_thread(cls._parse, line, settings.max_rows, rows)
        else:
            body = cls._parse(line, settings.max_rows, rows)
        if (count := body.row_count()) > settings.max_rows:
            raise TooLarge(f"{cls.row_field}: expected at most {settings.max_rows} rows, got {count}")
        return body

    @classmethod
    def _parse(cls, data: bytes, max_rows: int, rows: Any = None) -> Self:
        """Parse and check an object, whose raw field is `rows` if these came raw."""
        if (lists := data.count(b"[") + data.count(b"{")) > MAX_JSON_LISTS:
            raise TooLarge(f"body: expected at most {MAX_JSON_LISTS} lists and objects, got {lists}")
        try:
            values = from_json(data)
        except ValueError as error:
            raise InvalidInput(f"body: expected JSON: {error}") from None
        if not isinstance(values, dict):
            raise InvalidInput(f"body: expected a JSON object, got {type(values).__name__}")
        for name, value in values.items():  # before pydantic describes each problem, of which there may be millions
            if name not in cls.model_fields:
                raise InvalidInput(f"{name[:60]}: expected one of {', '.join(cls.model_fields)}")
            if isinstance(value, list) and len(value) > max_rows and name not in VECTOR_FIELDS:
                raise TooLarge(f"{name}: expected at most {max_rows} rows, got {len(value)}")
        if (field := cls.raw_field) is not None:
            if rows is not None and field in values:
                raise InvalidInput(f"{field}: expected on the first line or raw after it, got both")
            if rows is not None:
                values[field] = rows
            elif isinstance(given := values.get(field), list) and given and isinstance(given[0], list):
                values[field] = [number_array(row) for row in given]  # which take a quarter of the memory
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise to_error(error) from None

    @classmethod
    def _raw_rows(cls, numbers: bytes, dim: int, bits: int | None) -> Any:
        """Return rows of `dim` float32, or of codes of so many bits."""
        size, kind = (4 * dim, f"{dim} float32") if bits is None else (width(bits), f"codes of {bits} bits")
        if len(numbers) % size:
            raise InvalidInput(f"{cls.raw_field}: expected rows of {size} bytes ({kind}), got {len(numbers)} bytes")
        rows = np.frombuffer(numbers, "<f4" if bits is None else np.uint8)
        return rows.reshape(-1, dim if bits is None else size)

    def row_count(self) -> int:
        """Count the rows, ids or queries; a flat list of numbers, or one text, is one query."""
        value = getattr(self, self.row_field) if self.row_field else None
        return count_queries(value) if self.row_field == "query" else count_entries(value)

    @classmethod
    def openapi_body(cls) -> OpenApi:
        content: OpenApi = {JSON_MEDIA: {"schema": cls.model_json_schema()}}
        if cls.raw_field:
            layout = f"A line of JSON without {cls.raw_field}, then {cls.raw_field} as rows of little-endian float32."
            content[RAW_MEDIA] = {"schema": {"type": "string", "format": "binary", "description": layout}}
        return {"required": True, "content": content}


def max_row_characters(dim: int) -> int:
    """Return how long a row may be, as JSON."""
    return NUMBER_CHARACTERS * dim + ROW_CHARACTERS


def number_array(value: Any) -> Any:
    """Return a list of numbers as an array, anything else as it is."""
    if type(value) is list and value and set(map(type, value)) <= {int, float}:
        try:
            return np.array(value, np.float64)
        except OverflowError:  # an integer beyond all doubles
            return value
    return value


def count_entries(value: Any) -> int:
    return len(value) if isinstance(value, (list, np.ndarray)) else 0


def count_queries(value: Any) -> int:
    """Count queries: lists or arrays of numbers, or texts; one of them need not be in a list."""
    several = isinstance(value, list) and value and isinstance(value[0], (list, str, np.ndarray))
    if isinstance(value, (list, str)) and not several:
        return 1
    return count_entries(value)


@dataclass(frozen=True)
class EncodableQuery:
    """An image, or a text, to encode."""

    value: bytes | str

    @classmethod
    async def from_request(cls, request: Request) -> Self:
        data = await read_body(request, app_state(request).settings.max_image_bytes)
        if not data:
            raise InvalidInput("body: expected an image or a text, got 0 bytes")
        if not request.headers.get("content-type", "").startswith("text/plain"):
            return cls(data)
        try:
            return cls(data.decode())
        except UnicodeDecodeError as error:
            raise InvalidInput(f"body: expected text in UTF-8: {error}") from None

    @staticmethod
    def openapi_body() -> OpenApi:
        image, text = {"type": "string", "format": "binary"}, {"type": "string"}
        return {"required": True, "content": {"image/*": {"schema": image}, "text/plain": {"schema": text}}}


@dataclass(frozen=True)
class RowStream:
    """Rows of an NDJSON body of any length, read as they arrive."""

    request: Request
    max_line: int  # characters

    @classmethod
    async def from_request(cls, request: Request, executor: ExecutorParam) -> Self:
        max_bytes = app_state(request).settings.max_body_bytes
        return cls(request, min(max_bytes, max_row_characters(executor.collection.dim)))

    @staticmethod
    def openapi_body() -> OpenApi:
        return {"required": False, "content": {NDJSON_MEDIA: {"schema": {"type": "string"}}}}

    async def chunks(self) -> AsyncIterator[dict[str, list[Any]]]:
        """Yield chunks of rows, each as the arguments of `Collection.add`."""
        memory: RequestMemory = self.request.state.memory
        lines: list[tuple[int, bytes]] = []
        size = 0
        async for number, line in self._lines():
            if line.strip():
                lines.append((number, line))
                size += len(line)
                memory.hold(BODY_COPIES * len(line))
            if len(lines) == STREAM_CHUNK or size > STREAM_BYTES:
                yield await asyncio.to_thread(_parse_rows, lines)
                lines, size = [], 0
                memory.release()
        if lines:
            yield await asyncio.to_thread(_parse_rows, lines)

    async def _lines(self) -> AsyncIterator[tuple[int, bytes]]:
        number, size = 1, 0
        parts: list[bytes] = []  # of a line that has not ended; joined once
        async for data in received_parts(self.request):
            *lines, last = data.split(b"\n")
            for line in lines:
                whole = b"".join([*parts, line])
                _check_line(number, len(whole), self.max_line)
                yield number, whole
                number, size = number + 1, 0
                parts.clear()
            parts.append(last)
            size += len(last)
            _check_line(number, size, self.max_line)
        yield number, b"".join(parts)


@dataclass(frozen=True)
class VoteLines:
    """Votes of an NDJSON body, read as a whole."""

    votes: list[Any]

    @classmethod
    async def from_request(cls, request: Request, executor: ExecutorParam) -> Self:
        settings = app_state(request).settings
        data = await read_body(request, settings.max_body_bytes)
        votes = await asyncio.to_thread(_parse_lines, data, max_row_characters(executor.collection.dim))
        if len(votes) > settings.max_rows:
            raise TooLarge(f"votes: expected at most {settings.max_rows} lines, got {len(votes)}")
        return cls(votes)

    openapi_body = RowStream.openapi_body


def _check_line(number: int, size: int, most: int) -> None:
    """Raise TooLarge if a line, perhaps not all of it yet, has more bytes."""
    if size > most:
        raise TooLarge(f"line {number}: expected at most {most} bytes, got more")


def _parse_lines(data: bytes, max_line: int) -> list[Any]:
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    for number, line in lines:
        _check_line(number, len(line), max_line)
    return [_parse_line(line, number) for number, line in lines]


def _parse_line(line: bytes, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"line {number}: expected JSON: {error}") from None


def _parse_rows(lines: list[tuple[int, bytes]]) -> dict[str, list[Any]]:
    """Parse lines, with their numbers, to the arguments of `Collection.add`."""
    rows = []
    for number, line in lines:
        row = _parse_line(line, number)
        if not isinstance(row, dict) or not {"id", "features"} <= row.keys() <= ROW_KEYS.keys():
            expected = "an object with id and features, and optional labels and metadata"
            raise InvalidInput(f"line {number}: expected {expected}")
        row["features"] = number_array(row["features"])
        rows.append(row)
        time.sleep(0)  # gives up Python's global lock, for which other requests would else wait 5 ms at a time
    return {column: [row.get(key) for row in rows] for key, column in ROW_KEYS.items()}


async def read_body(request: Request, max_bytes: int, advice: str = "") -> bytes:
    """Read a whole body of at most this size; `advice` says what to do with a larger one."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > max_bytes:
        raise TooLarge(f"body: expected at most {max_bytes} bytes, got {length}{advice}")
    memory: RequestMemory = request.state.memory
    parts, size = [], 0
    async for data in received_parts(request):
        size += len(data)
        if size > max_bytes:
            raise TooLarge(f"body: expected at most {max_bytes} bytes, got more{advice}")
        memory.hold(BODY_COPIES * len(data))
        parts.append(data)
    return b"".join(parts)


async def received_parts(request: Request) -> AsyncIterator[bytes]:
    """Yield the parts of a body; TooSlow if the client takes too long, not counting the time between parts here."""
    stream, clock = request.stream(), asyncio.get_running_loop().time
    left = app_state(request).settings.body_seconds
    try:
        while True:
            began = clock()
            async with asyncio.timeout(left):
                data = await anext(stream)
            left += len(data) / MIN_RATE - (clock() - began)
            yield data
    except StopAsyncIteration:
        return
    except ClientDisconnect:
        raise InvalidInput("body: the connection ended early") from None
    except TimeoutError:
        raise TooSlow(f"body: expected at least {MIN_RATE} bytes a second, got fewer") from None


# ---- uploads ----

MAX_UPLOAD_FIELDS, MAX_FIELD_BYTES = 16, 1024
WRITTEN_BYTES = 1 << 20  # at a time, in a thread


class Receiver(Protocol):
    """Take a body piece by piece."""

    def write(self, data: bytes) -> object: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


async def receive(request: Request, upload: Upload, name: str, max_bytes: int) -> None:
    """Store the body of a request: the files of a form, or one file of this name."""
    media, options = parse_options_header(request.headers.get("content-type", ""))
    receiver: Receiver
    if media == b"multipart/form-data":
        receiver = FormReceiver(upload, options.get(b"boundary", b""))
    else:
        receiver = FileReceiver(upload, name)
    try:
        async for data in _blocks(request, max_bytes):
            await asyncio.to_thread(receiver.write, data)
        receiver.finish()
    except FormParserError as error:
        raise InvalidInput(f"body: expected a form with files: {error}") from None
    except OSError as error:
        if isinstance(error, StoreFailed):
            raise
        raise StoreFailed(f"upload: the disk refused it: {error.strerror}") from error
    finally:
        with suppress(OSError):  # one of an error before
            receiver.close()


def check_length(request: Request, max_bytes: int) -> int:
    """Return the size that a request names, 0 if it names none; TooLarge beyond the limit."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise TooLarge(f"upload: expected at most {max_bytes:,} bytes, got {int(length):,}")
    return int(length) if length.isdigit() else 0


async def _blocks(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield the body in blocks that are worth a thread."""
    parts: list[bytes] = []
    size = total = 0
    async for data in received_parts(request):
        parts.append(data)
        size, total = size + len(data), total + len(data)
        if total > max_bytes:
            raise TooLarge(f"upload: expected at most {max_bytes:,} bytes, got more")
        if size >= WRITTEN_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)


class FileReceiver:
    """Store a body as one file."""

    def __init__(self, upload: Upload, name: str) -> None:
        if not name:
            raise InvalidInput("filename: expected the name of the file, got none")
        self._file = upload.create(name)

    def write(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)

    def finish(self) -> None:
        """Write what is still in memory."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class FormReceiver:
    """Store the files of a form, and keep its fields."""

    def __init__(self, upload: Upload, boundary: bytes) -> None:
        if not boundary:
            raise InvalidInput("content-type: expected a boundary, got none")
        self._upload = upload
        self._file: IO[bytes] | None = None
        self._header_name, self._header_value, self._headers = b"", b"", dict[bytes, bytes]()
        self._field: str | None = None
        self._text = b""
        self._complete = False
        callbacks: Any = {
            "on_part_begin": self._begin_part,
            "on_header_field": self._read_header_name,
            "on_header_value": self._read_header_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._open_part,
            "on_part_data": self._read_part,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }
        self._parser = MultipartParser(boundary, callbacks)

    def write(self, data: bytes) -> None:
        if data:
            self._parser.write(data)

    def finish(self) -> None:
        """Raise InvalidInput if a part of the form is missing."""
        if not self._complete:
            raise InvalidInput("body: expected a form with files, which ends with its boundary")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin_part(self) -> None:
        self._headers, self._header_name, self._header_value = {}, b"", b""
        self._field, self._text = None, b""

    def _read_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _read_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._header_name.lower()] = self._header_value
        self._header_name, self._header_value = b"", b""

    def _open_part(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b"").decode("latin-1"))
        if b"filename" in options:
            name = options[b"filename"].decode("utf-8", "replace").replace("%22", '"')  # as browsers write it
            self._file = self._upload.create(name) if name else None  # a form without a chosen file has an empty one
        else:
            self._field = options.get(b"name", b"").decode("utf-8", "replace")
            if len(self._upload.fields) >= MAX_UPLOAD_FIELDS:
                raise TooLarge(f"form: expected at most {MAX_UPLOAD_FIELDS} fields, got more")

    def _read_part(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.write(data[start:end])
        elif self._field is not None:
            self._text += data[start:end]
            if len(self._text) > MAX_FIELD_BYTES:
                raise TooLarge(f"form: expected at most {MAX_FIELD_BYTES} bytes in a field, got more")

    def _end_part(self) -> None:
        if self._field is not None:
            self._upload.fields[self._field] = self._text.decode("utf-8", "replace")
        self.close()

    def _end(self) -> None:
        self._complete = True
