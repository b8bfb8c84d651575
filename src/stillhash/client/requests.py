"""Send requests to one served collection."""

import os
from collections.abc import Callable
from typing import Any, ClassVar, Protocol
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from stillhash.client.serialization import to_json
from stillhash.client.transport import (
    JSON_TYPE,
    NDJSON_TYPE,
    RAW_TYPE,
    Connections,
    RetryWhen,
    Transport,
    check_address,
    check_timeout,
    to_error,
)
from stillhash.collection.types import Id
from stillhash.collection.validation import CodeInput, check_query
from stillhash.errors import Conflict, InvalidInput
from stillhash.numeric.validation import check_features, check_integer

FIRST_TASK_WAIT, MAX_TASK_WAIT = 0.02, 1.0  # seconds between two looks at a task


def collection_path(name: str, argument: str = "name") -> str:
    """Return the path of a collection; raise InvalidInput for a name that no path can hold."""
    try:
        if isinstance(name, str) and name not in ("", ".", ".."):
            return f"/v1/collections/{quote(name, safe='')}"
    except UnicodeEncodeError:  # half a surrogate pair
        pass
    raise InvalidInput(f"{argument}: expected the name of a collection, got {name!r}")


class NewConnections(Protocol):
    def __call__(self, url: str, timeout: float, ca: str | os.PathLike[str] | None) -> Connections: ...


class CollectionRequests:
    """The connection to a server, and the name and the dimension of the collection, requested when first needed."""

    _new_connections: ClassVar[NewConnections]

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        collection: str | None = None,
        timeout: float = 30,
        retries: int = 4,
        ca: str | os.PathLike[str] | None = None,
    ) -> None:
        if collection is not None:
            collection_path(collection, "collection")
        url, timeout = check_address(url), check_timeout(timeout)
        self._name, self._collection_name = collection, collection
        self._stats: dict[str, Any] | None = None
        self._transport = Transport(self._new_connections(url, timeout, ca), url, key, timeout, retries)

    def __repr__(self) -> str:
        address = f"{type(self).__name__}({self._transport.url!r}"
        return address + (f", collection={self._name!r})" if self._name else ")")

    async def _get_collection(self) -> str:
        if self._collection_name is None:
            names = (await self._transport.request("GET", "/v1/collections"))["collections"]
            if len(names) != 1:
                raise InvalidInput(f"collection: expected a name, since the server has several: {', '.join(names)}")
            self._collection_name = str(names[0])
        return self._collection_name

    async def _get_setting(self, name: str) -> int:
        """Return a setting that never changes: dim, bits, or whether there are codes only."""
        if self._stats is None:
            self._stats = {"codes_only": False, **await self._get("stats")}  # a server of an earlier release lacks it
        return int(self._stats[name])

    async def _features(self, value: Any) -> NDArray[Any]:
        """Validate rows as the collection does: features, or packed codes where it has codes only."""
        if await self._get_setting("codes_only"):
            return CodeInput(await self._get_setting("bits")).codes(value, "codes", single=False)[0]
        return check_features(value, "features", columns=await self._get_setting("dim"), whose="this collection")

    async def _query(self, query: Any) -> tuple[NDArray[Any], bool]:
        """Validate one query, or several; return them as rows, and whether it was one."""
        if await self._get_setting("codes_only"):
            return CodeInput(await self._get_setting("bits")).codes(query, "query")
        return check_query(query, await self._get_setting("dim"))

    async def _path(self, verb: str) -> str:
        return f"{collection_path(await self._get_collection())}/{verb}"

    async def _get(self, verb: str) -> dict[str, Any]:
        return await self._transport.request("GET", await self._path(verb))

    async def _post(
        self, verb: str, body: Any = None, rows: NDArray[Any] | None = None, retry: RetryWhen = "always"
    ) -> dict[str, Any]:
        """Post an object, or its JSON text; rows follow it as raw float32, or as packed codes."""
        data = None if body is None else (body if isinstance(body, str) else to_json(body)).encode()
        if data is not None and rows is not None:
            raw = rows if rows.dtype == np.uint8 else rows.astype("<f4", copy=False)
            data = b"%b\n%b" % (data, raw.tobytes())
        return await self._post_bytes(verb, data, JSON_TYPE if rows is None else RAW_TYPE, retry)

    async def _list(self, body: dict[str, Any]) -> tuple[list[dict[str, Any]], Id | None]:
        """Return listed items, and the last id if there are more; the server sends few at a time if they are large."""
        limit = check_integer(body["limit"], "limit", 1)
        items: list[dict[str, Any]] = []
        while True:
            page = await self._post("items", {**body, "limit": limit - len(items)})
            items += page["items"]
            body = {**body, "after": page["after"]}
            if page["after"] is None or len(items) >= limit:
                return items, page["after"]

    async def _run_task(self, body: dict[str, Any], progress: Callable[[float], object] | None) -> dict[str, Any]:
        """Start a task, wait until it has ended, and return its result, or raise its error."""
        task = await self._post("tasks", body, retry="not stored")
        wait = FIRST_TASK_WAIT
        while task["state"] in ("waiting", "running"):
            if progress is not None:
                progress(task["share"])
            await self._transport.sleep(wait)
            wait = min(2 * wait, MAX_TASK_WAIT)
            task = await self._get(f"tasks/{quote(str(task['id']), safe='')}")
        if task["state"] == "failed":
            raise to_error(task["error"])
        if task["state"] == "cancelled":
            raise Conflict(f"{body['kind']}: the task was cancelled at the server")
        return dict(task["result"])

    async def _post_lines(self, verb: str, lines: list[bytes], retry: RetryWhen) -> dict[str, Any]:
        return await self._post_bytes(verb, b"\n".join(lines), NDJSON_TYPE, retry)

    async def _post_bytes(
        self, verb: str, data: bytes | None, kind: str, retry: RetryWhen = "always"
    ) -> dict[str, Any]:
        return await self._transport.request("POST", await self._path(verb), data, kind, retry)
