"""Run the server: a socket, a log, and uvicorn until it is stopped."""

import json
import logging
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

import uvicorn
from fastapi import FastAPI

from stillhash.collection import Collection
from stillhash.errors import Conflict
from stillhash.platform import SYSTEM
from stillhash.server.app import create_app
from stillhash.server.collection_lifecycle import OpenQueryEncoder
from stillhash.server.limits import available_connections, limited_connections
from stillhash.server.settings import Settings, load_certificate
from stillhash.server.write_queue import THREADS_OF_COLLECTION, ClusterControl, QueryEncoder

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # as malloc.h has them
LARGE_BLOCK, MAX_ARENAS = 1 << 20, 4  # bytes; places that threads allocate from

log = logging.getLogger("stillhash.server")


def serve(
    collections: dict[str, Collection],
    settings: Settings,
    on_start: Callable[[str], None],
    query_encoders: Mapping[str, QueryEncoder] | None = None,
    clusters: Mapping[str, ClusterControl] | None = None,
    open_query_encoder: OpenQueryEncoder | None = None,
) -> None:
    """Serve until interrupted; call `on_start` with the address once the server listens."""
    serve_app(
        lambda: create_app(collections, settings, query_encoders, clusters, open_query_encoder), settings, on_start
    )


def serve_app(create: Callable[[], FastAPI], settings: Settings, on_start: Callable[[str], None]) -> None:
    """Serve an application, which is created once the port is ours, until interrupted."""
    settings.validate()
    return_large_blocks()
    with listen(settings.host, settings.port) as listener:
        app = create()
        config = uvicorn_config(app, settings)
        config.load()
        if settings.tls_cert is not None and settings.tls_key is not None:
            config.ssl = load_certificate(settings.tls_cert, settings.tls_key)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{'https' if config.ssl else 'http'}://{host}:{listener.getsockname()[1]}"
        names = list(app.state.stillhash.executors)
        log.info("listening", extra={"fields": {"address": address, "collections": names}})
        on_start(address)
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after the shutdown
            uvicorn.Server(config).run(sockets=[listener])
        log.info("stopped")


def return_large_blocks() -> bool:
    """Let glibc return large blocks to the system once they are freed, and keep smaller ones for all threads together.

    Else it keeps more and more of them for each thread.
    """
    options = {M_MMAP_THRESHOLD: LARGE_BLOCK, M_ARENA_MAX: MAX_ARENAS}
    return all(SYSTEM.set_malloc_option(option, value) for option, value in options.items())


def uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return how uvicorn serves the application, with no more connections than there are file handles for."""
    collections = len(app.state.stillhash.executors)
    if settings.collections_folder is not None:
        collections = max(collections, settings.max_collections)
    threads = collections * THREADS_OF_COLLECTION
    limits = replace(settings, max_connections=available_connections(settings, threads))
    return uvicorn.Config(
        app,
        http=limited_connections(limits),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,  # seconds for running requests to end
    )


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket."""
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        SYSTEM.bind_exclusively(listener)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        raise Conflict(f"port: cannot listen on {host} port {port}: {error}") from None
    return listener


@contextmanager
def log_to_stderr(level: str, log_format: Literal["json", "text"]) -> Iterator[None]:
    """Log one line for each request and event, as JSON or as text, until the block ends."""
    root, uvicorn_log = logging.getLogger(), logging.getLogger("uvicorn")
    before = root.handlers[:], root.level, uvicorn_log.level
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    uvicorn_log.setLevel(logging.ERROR)  # it warns of malformed requests, which anyone can send
    try:
        yield
    finally:  # the stream may be closed next
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        uvicorn_log.setLevel(before[2])


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        message = "{status}  {ms:8.2f} ms  {method} {path}".format(**fields) if "ms" in fields else record.getMessage()
        line = f"{datetime.fromtimestamp(record.created):%H:%M:%S}  {_printable(message)}"
        if not record.exc_info:
            return line
        return "\n".join([line, *map(_printable, self.formatException(record.exc_info).split("\n"))])


def _printable(text: str) -> str:
    """Escape what is not printable, so that no request can write to the terminal what it likes."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
