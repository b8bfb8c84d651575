"""Connections that let other tasks run while they wait, by httpx."""

import asyncio
import os
import ssl

from stillhash.client.transport import MAX_POOLED, MAX_RESPONSE_BYTES, ConnectionFailed, HttpResponse, tls_context
from stillhash.errors import MissingExtra

try:
    import httpx
except ImportError as error:
    raise MissingExtra("The asynchronous client needs httpx: pip install 'stillhash[async]'") from error


class AsyncConnections:
    """At most MAX_POOLED connections of one event loop. Further requests wait for a free one, in order."""

    def __init__(self, url: str, timeout: float, ca: str | os.PathLike[str] | None) -> None:
        self._free = asyncio.Semaphore(MAX_POOLED)
        self._http = httpx.AsyncClient(
            verify=tls_context(ca) if ca is not None or url.startswith("https:") else False,
            timeout=timeout,
            limits=httpx.Limits(max_connections=MAX_POOLED, max_keepalive_connections=MAX_POOLED),
            trust_env=False,  # no proxy, certificate or password but those of the arguments
        )

    async def send(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> HttpResponse:
        data = bytearray()
        try:
            async with self._free, self._http.stream(method, url, content=body, headers=headers) as response:
                async for piece in response.aiter_bytes():
                    data += piece
                    if len(data) > MAX_RESPONSE_BYTES:
                        raise ConnectionFailed(f"more than {MAX_RESPONSE_BYTES} bytes came", sent=True, permanent=True)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise ConnectionFailed(_reason(error), sent=False, permanent=_is_tls(error)) from error
        except httpx.InvalidURL as error:
            raise ConnectionFailed(error, sent=False, permanent=True) from error
        except httpx.HTTPError as error:
            raise ConnectionFailed(_reason(error), sent=True) from error
        return HttpResponse(response.status_code, response.headers.get("retry-after", ""), bytes(data))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._http.aclose()


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _is_tls(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, is of TLS: an unknown certificate, for instance."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None
