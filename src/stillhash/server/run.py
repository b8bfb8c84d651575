"""Running the server: a socket, a log, and uvicorn until it is told to stop."""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

import uvicorn

from stillhash.collection import Collection
from stillhash.errors import Conflict
from stillhash.server.app import create_app
from stillhash.server.settings import Settings
from stillhash.server.write_queue import Crew, QueryEncoder

PATIENCE = 5  # seconds that requests get to end when the server is stopped

Format = Literal["json", "text"]

log = logging.getLogger("stillhash.server")


def serve(
    collections: dict[str, Collection],
    settings: Settings,
    begun: Callable[[str], None],
    eyes: Mapping[str, QueryEncoder] | None = None,
    crews: Mapping[str, Crew] | None = None,
) -> None:
    """Serves until it is interrupted; `begun` is told the address once it listens."""
    settings.check()
    with listening(settings.host, settings.port) as door:
        app = create_app(collections, settings, eyes, crews)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=PATIENCE,
            timeout_keep_alive=30,
        )
        port = door.getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{host}:{port}"
        log.info("listening", extra={"about": {"address": address, "collections": list(collections)}})
        begun(address)
        with suppress(KeyboardInterrupt):  # which uvicorn raises again once all is ended
            uvicorn.Server(config).run(sockets=[door])
        log.info("stopped")


def listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        door = socket.socket(family, kind)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(address)
        door.listen(2048)
    except OSError as error:
        raise Conflict(f"port is {port}; {host} cannot be listened on there: {error}") from None
    return door


def log_to_stderr(level: str, kind: Format) -> None:
    """A line for each request and event: JSON for programs, or words."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_AsJson() if kind == "json" else _AsText())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "about", {}),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


class _AsText(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        about = getattr(record, "about", {})
        line = f"{datetime.fromtimestamp(record.created):%H:%M:%S}  " + (
            "{status}  {ms:8.2f} ms  {method} {path}".format(**about) if "ms" in about else record.getMessage()
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
