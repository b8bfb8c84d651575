"""`AsyncClient` behind the interface of `Client`, so that one test runs over both."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from stillhash import AsyncClient, Client


class AwaitedClient:
    """Run every verb of an AsyncClient to its end, on an event loop of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._client = AsyncClient(*args, **options)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._runner.close()

    def __repr__(self) -> str:
        return repr(self._client).removeprefix("Async")

    def __len__(self) -> int:
        return int(self.count())

    def __getattr__(self, name: str) -> Any:
        verb: Callable[..., Any] = getattr(self._client, name)

        @functools.wraps(verb)
        def call(*args: Any, **options: Any) -> Any:
            result = verb(*args, **options)
            return self._runner.run(_collect(result) if inspect.isasyncgen(result) else result)

        return call() if name in ("collection", "dim", "bits") else call


async def _collect(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


CLIENTS: list[Any] = [Client, AwaitedClient]
