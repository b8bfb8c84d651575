"""Read uploads from request bodies: one file, or a form with any number of them, streamed to disk within limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import IO, Any, Protocol

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from stillhash.errors import InvalidInput, StoreFailed, TooLarge
from stillhash.server.request_body import received_parts
from stillhash.server.uploads import Upload

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
