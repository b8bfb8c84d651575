"""Servers of small collections, for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.server import Settings
from tests.collection.fixtures import begin, copied
from tests.server.process import Served, served


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of 320 rows that has learnt, which nobody has open."""
    path = tmp_path_factory.mktemp("template") / "c"
    collection, _ = begin(path)
    collection.close()
    return path


@pytest.fixture
def serving(template: Path, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts a server of a copy of the template, under the name c, with these settings."""
    with ExitStack() as stack:

        def start(eyes: Any = None, **settings: Any) -> Served:
            path = copied(template, tmp_path / "served")
            seeing = {} if eyes is None else {"c": eyes}
            return stack.enter_context(served({"c": stillhash.open(path)}, Settings(**settings), seeing))

        yield start


@pytest.fixture(scope="module")
def shared(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all requests that change nothing."""
    path = copied(template, tmp_path_factory.mktemp("shared") / "c")
    with served({"c": stillhash.open(path)}) as server:
        yield server
