"""A real server on a free port of this machine, for as long as a test wants it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import urllib3
import uvicorn
from fastapi import FastAPI

from stillhash import Collection
from stillhash.server import Settings, create_app

PATIENCE = 60.0  # seconds until a server that does not start, or does not end, is a failure


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass(frozen=True)
class Served:
    url: str
    app: FastAPI
    pool: urllib3.PoolManager

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """What the server says; a body that is no bytes is sent as JSON. In names of headers _ stands for -."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.pool.request(
            method, self.url + path, body=data, headers=named, retries=False, redirect=False, timeout=PATIENCE
        )
        return Reply(answer.status, answer.headers, answer.data)


@contextmanager
def served(
    collections: dict[str, Collection], settings: Settings | None = None, eyes: Any = None, crews: Any = None
) -> Iterator[Served]:
    """Serves these collections, and closes them."""
    app = create_app(collections, settings, eyes, crews)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    pool = urllib3.PoolManager(maxsize=16)
    try:
        end = time.monotonic() + PATIENCE
        while not server.started and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.005)
        assert server.started, "the server did not start"
        yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", app, pool)
    finally:
        pool.clear()
        server.should_exit = True
        thread.join(PATIENCE)
        listening.close()
        assert not thread.is_alive(), "the server did not end"
        for collection in collections.values():
            collection.close()
