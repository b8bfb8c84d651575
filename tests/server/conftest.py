"""Servers of small collections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.server import Settings
from tests.collection.fixtures import begin, copied
from tests.server.live_server import LiveServer, live_server


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed collection of 320 rows that has learnt."""
    path = tmp_path_factory.mktemp("template") / "c"
    collection, _ = begin(path)
    collection.close()
    return path


@pytest.fixture
def serving(template: Path, tmp_path: Path) -> Iterator[Callable[..., LiveServer]]:
    """Start a server of a copy of the template, under the name c, with these settings."""
    with ExitStack() as stack:

        def start(query_encoder: Any = None, **settings: Any) -> LiveServer:
            path = copied(template, tmp_path / "served")
            encoders = {} if query_encoder is None else {"c": query_encoder}
            return stack.enter_context(live_server({"c": stillhash.open(path)}, Settings(**settings), encoders))

        yield start


@pytest.fixture(scope="module")
def sharing(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LiveServer]]:
    """Start one server of each settings for all requests of a module that change nothing."""
    servers: list[tuple[dict[str, Any], LiveServer]] = []
    with ExitStack() as stack:

        def start(**settings: Any) -> LiveServer:
            for known, server in servers:
                if known == settings:
                    return server
            path = copied(template, tmp_path_factory.mktemp("shared") / "c")
            server = stack.enter_context(live_server({"c": stillhash.open(path)}, Settings(**settings)))
            servers.append((settings, server))
            return server

        yield start


@pytest.fixture(scope="module")
def shared(sharing: Callable[..., LiveServer]) -> LiveServer:
    return sharing()
