"""Remember what visitors of the page uploaded and voted on: in memory, bounded, and gone when the server stops.

An address names an uploaded query by a token, so that its page can be loaded again.
"""

import hashlib
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import NotFound

MAX_CACHED_QUERIES = 1000
MAX_CACHED_BYTES = 64 << 20


class Picture(NamedTuple):
    data: bytes
    kind: str  # its media type


class UploadedQuery(NamedTuple):
    vector: NDArray[Any]  # (D,), or a ready code
    title: str
    picture: Picture | None  # that was encoded

    @property
    def size(self) -> int:
        return self.vector.nbytes + (len(self.picture.data) if self.picture else 0)


class VotedQuery(NamedTuple):
    """A query that a visitor has voted on, as the list of votes shows it."""

    params: dict[str, str]  # of its address
    title: str


class QueryCache:
    """Least recently used uploads and queries that were voted on. Not thread-safe: only the event loop uses it."""

    def __init__(self) -> None:
        self._queries: OrderedDict[tuple[str, str], UploadedQuery] = OrderedDict()  # by collection and token
        self._voted: OrderedDict[tuple[str, str], VotedQuery] = OrderedDict()  # by collection and `query_key`
        self._size = 0

    def put(self, collection: str, query: UploadedQuery) -> str:
        """Store a query of a collection, and return its token."""
        token = hashlib.sha256(query.vector.tobytes()).hexdigest()[:20]
        before = self._queries.pop((collection, token), None)
        self._size += query.size - (before.size if before is not None else 0)
        self._queries[collection, token] = query
        while len(self._queries) > MAX_CACHED_QUERIES or (self._size > MAX_CACHED_BYTES and len(self._queries) > 1):
            self._size -= self._queries.popitem(last=False)[1].size
        return token

    def get(self, collection: str, token: str) -> UploadedQuery:
        if (collection, token) not in self._queries:
            raise NotFound("this upload is no longer remembered. Upload it again")
        self._queries.move_to_end((collection, token))
        return self._queries[collection, token]

    def remove(self, collection: str) -> None:
        """Drop everything of a collection, which is deleted."""
        for name in [name for name in self._queries if name[0] == collection]:
            self._size -= self._queries.pop(name).size
        for name in [name for name in self._voted if name[0] == collection]:
            del self._voted[name]

    def add_voted(self, collection: str, key: str, query: VotedQuery) -> None:
        """Remember how a query that was voted on is found again."""
        self._voted[collection, key] = query
        self._voted.move_to_end((collection, key))
        if len(self._voted) > MAX_CACHED_QUERIES:
            self._voted.popitem(last=False)

    def voted(self, collection: str, key: str) -> VotedQuery | None:
        """Return a query that was voted on; None if it is no longer remembered."""
        return self._voted.get((collection, key))


def query_key(query: Any) -> str:
    """Return a key of a query: of features, or of a code as it is, or in hexadecimal digits."""
    if isinstance(query, str):
        return query
    vector = np.asarray(query)
    if vector.dtype == np.uint8:
        return vector.tobytes().hex()
    return hashlib.sha256((vector.astype(np.float32) + np.float32(0)).tobytes()).hexdigest()
