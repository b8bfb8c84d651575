"""Connections that block until the response is there, by urllib3."""

import os
import time

from stillhash.client.transport import MAX_POOLED, MAX_RESPONSE_BYTES, ConnectionFailed, HttpResponse, tls_context
from stillhash.errors import MissingExtra

try:
    import urllib3
    from urllib3.exceptions import ConnectTimeoutError, HTTPError, LocationValueError, SSLError
except ImportError as error:
    raise MissingExtra("The client needs urllib3: pip install 'stillhash[client]'") from error


class BlockingConnections:
    """Coroutines that never suspend: any thread can run them without an event loop."""

    def __init__(self, url: str, timeout: float, ca: str | os.PathLike[str] | None) -> None:
        tls = None if ca is None and not url.startswith("https:") else tls_context(ca)
        self._pool = urllib3.PoolManager(maxsize=MAX_POOLED, timeout=timeout, ssl_context=tls, retries=False)

    async def send(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> HttpResponse:
        try:
            response = self._pool.request(
                method, url, body=body, headers=headers, redirect=False, preload_content=False
            )
            try:
                data = response.read(MAX_RESPONSE_BYTES + 1, decode_content=True)
            except BaseException:
                response.close()
                raise
            if len(data) > MAX_RESPONSE_BYTES:
                response.close()
                raise ConnectionFailed(f"more than {MAX_RESPONSE_BYTES} bytes came", sent=True, permanent=True)
            response.release_conn()
        except (ConnectTimeoutError, LocationValueError) as error:  # which includes refused connections
            raise ConnectionFailed(error, sent=False, permanent=isinstance(error, LocationValueError)) from error
        except HTTPError as error:
            raise ConnectionFailed(error, sent=True, permanent=isinstance(error, SSLError)) from error
        return HttpResponse(response.status, response.headers.get("retry-after", ""), data)

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)

    async def close(self) -> None:
        self._pool.clear()
