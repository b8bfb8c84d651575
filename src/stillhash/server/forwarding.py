"""Send requests on to another server, and its responses back, as streams."""

from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from stillhash.errors import Busy, MissingExtra, Unreachable

WRITER_CONNECT_SECONDS, SILENT_SECONDS = 5.0, 600.0  # until a connection stands, and without a byte of a response
MAX_FORWARDED = 256  # connections to the writer
FORWARDED_HEADER = "x-stillhash-forwarded"  # of requests that a front has sent on
HOP_HEADERS = frozenset({"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"})
HOP_HEADERS |= {"transfer-encoding", "upgrade", "proxy-connection", FORWARDED_HEADER}
OWN_HEADERS = frozenset({"x-request-id", "date", "server"})  # of responses; this server has its own


class Forwarder:
    """Sends requests on to the server whose URL a function returns, "" while it is not known."""

    def __init__(self, writer: Callable[[], str]) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra("httpx is not installed: pip install 'stillhash[async]'") from error
        timeout = httpx.Timeout(SILENT_SECONDS, connect=WRITER_CONNECT_SECONDS, pool=WRITER_CONNECT_SECONDS)
        limits = httpx.Limits(max_connections=MAX_FORWARDED)
        self._writer, self._failures = writer, httpx.HTTPError
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False, trust_env=False)

    async def send(self, request: Request) -> Response:
        """Return the response of the writer; Busy if it does not answer. No request is sent twice."""
        if FORWARDED_HEADER in request.headers:
            raise Unreachable("writer: expected the server that writes the collection, got another front")
        url = self._writer().rstrip("/")
        if urlsplit(url).scheme not in ("http", "https"):
            raise Busy("writer: no server that writes this collection is known here. Searches go on without it")
        path, query = request.scope.get("raw_path", request.url.path.encode()).decode(), request.url.query
        outgoing = self._client.build_request(
            request.method,
            f"{url}{path}{'?' + query if query else ''}",
            headers=_request_headers(request),
            content=_body(request),
        )
        try:
            incoming = await self._client.send(outgoing, stream=True)
        except self._failures as error:
            problem = f"{type(error).__name__}: {error}"
            raise Busy(f"writer: {url} does not answer: {problem}. Searches go on without it") from error
        headers = [pair for pair in incoming.headers.multi_items() if pair[0] not in HOP_HEADERS | OWN_HEADERS]
        response = StreamingResponse(
            incoming.aiter_raw(), incoming.status_code, background=BackgroundTask(incoming.aclose)
        )
        response.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return response

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _request_headers(request: Request) -> list[tuple[str, str]]:
    """Return the headers to send, the Host that the client named among them, since Origin is compared with it."""
    headers = [pair for pair in request.headers.items() if pair[0] not in HOP_HEADERS | {"x-request-id"}]
    client = request.client.host if request.client is not None else ""
    return [*headers, ("x-request-id", request.state.request_id), (FORWARDED_HEADER, client or "unknown")]


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for part in request.stream():
        if part:
            yield part
