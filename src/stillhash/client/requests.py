"""Send requests to one served collection."""

import os
from functools import cached_property
from typing import Any, Self
from urllib.parse import quote

from stillhash.client.transport import JSON_TYPE, RAW_TYPE, RetryWhen, Transport, to_json
from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats


class CollectionRequests:
    """The connection to a server, and the name of the collection."""

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
        if collection is not None and not (isinstance(collection, str) and collection):
            raise InvalidInput(f"collection: expected a name, got {collection!r}")
        self._name = collection
        self._transport = Transport(url, key, timeout, retries, ca)

    def __repr__(self) -> str:
        return f"Client({self._transport.url!r}" + (f", collection={self._name!r})" if self._name else ")")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The server goes on."""
        self._transport.close()

    def health(self) -> dict[str, Any]:
        """Return whether the server can answer, and the number of items of each collection."""
        return self._transport.request("GET", "/v1/health")

    @cached_property
    def collection(self) -> str:
        """The name of the collection."""
        names = [self._name] if self._name else self._transport.request("GET", "/v1/collections")["collections"]
        if len(names) != 1:
            raise InvalidInput(f"collection: expected a name, since the server has several: {', '.join(names)}")
        return str(names[0])

    def _path(self, verb: str) -> str:
        return f"/v1/collections/{quote(self.collection, safe='')}/{verb}"

    def _get(self, verb: str) -> dict[str, Any]:
        return self._transport.request("GET", self._path(verb))

    def _post(
        self, verb: str, body: Any = None, rows: Floats | None = None, retry: RetryWhen = "always"
    ) -> dict[str, Any]:
        """Post an object, or its JSON text; rows follow it as raw float32."""
        data = None if body is None else (body if isinstance(body, str) else to_json(body)).encode()
        if data is not None and rows is not None:
            data = b"%b\n%b" % (data, rows.astype("<f4", copy=False).tobytes())
        kind = JSON_TYPE if rows is None else RAW_TYPE
        return self._transport.request("POST", self._path(verb), data, kind, retry)
