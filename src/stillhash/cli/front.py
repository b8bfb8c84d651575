"""Serve a published collection from its storage and its shards: what the command of a front does."""

from collections.abc import Callable
from pathlib import Path

from stillhash.cluster.front import FrontCollection
from stillhash.server.front_app import create_front_app
from stillhash.server.run import serve_app
from stillhash.server.settings import Settings


def serve_front(
    storage: str | Path,
    name: str,
    settings: Settings,
    on_start: Callable[[str], None],
    *,
    deadline: float = 10.0,
    partial: bool = False,
    writer: str | None = None,
    cache: str | Path | None = None,
) -> None:
    """Serve the collection that is published to a storage, under a name, until interrupted.

    deadline, partial, cache : as for FrontCollection. writer : the URL of the server that writes the collection, if it
    is not the one that its publisher has named.
    """
    with FrontCollection(storage, deadline=deadline, partial=partial, cache=cache) as front:
        url: Callable[[], str] = (lambda: front.source.writer) if writer is None else (lambda: writer)
        serve_app(lambda: create_front_app(front, name, settings, url), settings, on_start)
