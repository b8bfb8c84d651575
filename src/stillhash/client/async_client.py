"""A served collection with the verbs of a local one, for asyncio: `await client.search(query)`.

The verbs are in `verbs_facets`, `verbs_items`, `verbs_labels`, `verbs_lexical`, `verbs_learning`, `verbs_probe` and
`verbs_server`.
"""

import asyncio
import os
import ssl
from typing import Self

from stillhash.client.transport import MAX_POOLED, MAX_RESPONSE_BYTES, ConnectionFailed, HttpResponse, tls_context
from stillhash.client.verbs_facets import FacetVerbs
from stillhash.client.verbs_items import ItemVerbs
from stillhash.client.verbs_labels import LabelVerbs
from stillhash.client.verbs_learning import LearningVerbs
from stillhash.client.verbs_lexical import LexicalVerbs
from stillhash.client.verbs_probe import ProbeVerbs
from stillhash.client.verbs_server import ServerVerbs
from stillhash.errors import MissingExtra

try:
    import httpx
except ImportError as error:
    raise MissingExtra("The asynchronous client needs httpx: pip install 'stillhash[async]'") from error


class AsyncConnections:
    """At most MAX_POOLED connections of one event loop. Further requests wait for a free one, in order.

    Each is an httpx client of its own. One client of many connections examines all of them for each request, which
    takes longer than the request.
    """

    def __init__(self, url: str, timeout: float, ca: str | os.PathLike[str] | None) -> None:
        self._timeout = timeout
        self._tls = tls_context(ca) if ca is not None or url.startswith("https:") else False
        self._free = asyncio.Semaphore(MAX_POOLED)
        self._opened: list[httpx.AsyncClient] = []
        self._idle: list[httpx.AsyncClient] = []  # the last one used is the next one

    async def send(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> HttpResponse:
        async with self._free:
            connection = self._idle.pop() if self._idle else self._new_connection()
            try:
                return await _send(connection, method, url, body, headers)
            finally:
                self._idle.append(connection)

    def _new_connection(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        # trust_env: no proxy, certificate or password but those of the arguments
        connection = httpx.AsyncClient(verify=self._tls, timeout=self._timeout, limits=limits, trust_env=False)
        self._opened.append(connection)
        return connection

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        for connection in self._opened:
            await connection.aclose()


async def _send(
    connection: httpx.AsyncClient, method: str, url: str, body: bytes | None, headers: dict[str, str]
) -> HttpResponse:
    data = bytearray()
    try:
        async with connection.stream(method, url, content=body, headers=headers) as response:
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > MAX_RESPONSE_BYTES:
                    raise ConnectionFailed(f"more than {MAX_RESPONSE_BYTES} bytes came", sent=True, permanent=True)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise ConnectionFailed(_reason(error), sent=False, permanent=_is_tls(error)) from error
    except httpx.InvalidURL as error:
        raise ConnectionFailed(error, sent=False, permanent=True) from error
    except httpx.HTTPError as error:
        raise ConnectionFailed(_reason(error), sent=True) from error
    return HttpResponse(response.status_code, response.headers.get("retry-after", ""), bytes(data))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _is_tls(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, is of TLS: an unknown certificate, for instance."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None


class AsyncClient(FacetVerbs, ItemVerbs, LabelVerbs, LexicalVerbs, LearningVerbs, ProbeVerbs, ServerVerbs):
    """Call a served collection from the tasks of one event loop. The verbs are `Client`'s, as coroutines.

    The arguments are `Client`'s. At most 16 requests are sent at a time, and others wait. `ingest` also takes an
    asynchronous iterator. The attributes `collection`, `dim` and `bits` are coroutines too: `await client.dim()`.
    """

    _new_connections = AsyncConnections

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. The server goes on."""
        await self._transport.close()

    async def collection(self) -> str:
        """Return the name of the collection."""
        return await self._get_collection()

    async def dim(self) -> int:
        """Return the length of a vector."""
        return await self._get_setting("dim")

    async def bits(self) -> int:
        """Return the length of a code."""
        return await self._get_setting("bits")
