"""A collection that is opened again for every call keeps the contract: nothing depends on what is only in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stillhash
from tests.collection.fixtures import BITS, DIM, INIT, LEARN
from tests.contracts.collections import *  # noqa: F403


class Reopened:
    """Open the folder for each call, and close it again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        with stillhash.open(self.path) as collection:
            return len(collection)

    def __getattr__(self, name: str) -> Any:
        if name in ("dim", "bits"):
            with stillhash.open(self.path) as collection:
                return getattr(collection, name)

        def call(*args: Any, **options: Any) -> Any:
            with stillhash.open(self.path) as collection:
                result = getattr(collection, name)(*args, **options)
                return list(result) if isinstance(result, Iterator) else result

        return call


@pytest.fixture
def subject(tmp_path: Path) -> Reopened:
    stillhash.open(tmp_path / "reopened", DIM, BITS, init_rows=INIT, learn_rows=LEARN, lexical_field="text").close()
    return Reopened(tmp_path / "reopened")
