"""A real server on a free port of this machine, for the length of a test."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import urllib3
import uvicorn
from fastapi import FastAPI

from stillhash import Collection
from stillhash.server import Settings, create_app
from stillhash.server.dependencies import AppState
from stillhash.server.limits import LimitedConnection
from stillhash.server.run import uvicorn_config
from stillhash.server.write_queue import CollectionExecutor
from tests.support.waiting import TIMEOUT, until


class ClosingServer(uvicorn.Server):
    """A server that also closes connections which were accepted while it stopped."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for _ in range(3):  # until what was accepted is a connection, and until one that is aborted is closed
            await asyncio.sleep(0)
            for connection in list(self.server_state.connections):
                if (transport := getattr(connection, "transport", None)) is not None:
                    transport.abort()
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass(frozen=True)
class LiveServer:
    url: str
    app: FastAPI
    pool: urllib3.PoolManager
    connections: type[LimitedConnection]

    def change(self, **settings: Any) -> None:
        """Change settings of connections, for those that are opened from now on."""
        self.connections.settings = replace(self.connections.settings, **settings)

    def executor(self, name: str = "c") -> CollectionExecutor:
        state: AppState = self.app.state.stillhash
        return state.executors[name]

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send a request; a body that is not bytes is sent as JSON. In the names of headers _ stands for -."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        dashed = {name.replace("_", "-"): value for name, value in headers.items()}
        response = self.pool.request(
            method, self.url + path, body=data, headers=dashed, retries=False, redirect=False, timeout=TIMEOUT
        )
        return Reply(response.status, response.headers, response.data)


@contextmanager
def live_server(
    collections: dict[str, Collection],
    settings: Settings | None = None,
    query_encoders: Any = None,
    clusters: Any = None,
) -> Iterator[LiveServer]:
    """Serve these collections, and close them."""
    app = create_app(collections, settings, query_encoders, clusters)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn_config(app, settings or Settings())
    server = ClosingServer(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    pool = urllib3.PoolManager(maxsize=16)
    try:
        until(lambda: server.started or not thread.is_alive())
        assert server.started, "the server did not start"
        assert isinstance(config.http, type) and issubclass(config.http, LimitedConnection)
        yield LiveServer(f"http://127.0.0.1:{listener.getsockname()[1]}", app, pool, config.http)
    finally:
        pool.clear()
        server.should_exit = True
        thread.join(TIMEOUT)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"
        for collection in collections.values():
            collection.close()
