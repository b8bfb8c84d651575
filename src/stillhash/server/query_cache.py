"""Remember what visitors of the page uploaded and voted: in memory, bounded, and gone when the server stops.

An address names an uploaded query by a token, so that its page can be loaded again.
"""

import hashlib
import io
import json
import re
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from stillhash.errors import InvalidInput, NotFound, TooLarge
from stillhash.io import check_npy
from stillhash.numeric.validation import Floats
from stillhash.server.large_json import max_row_characters

MAX_CACHED_QUERIES = 1000
MAX_CACHED_BYTES = 64 << 20


class Picture(NamedTuple):
    data: bytes
    kind: str  # its media type


class UploadedQuery(NamedTuple):
    vector: Floats  # (D,)
    title: str
    picture: Picture | None  # that was encoded

    @property
    def size(self) -> int:
        return self.vector.nbytes + (len(self.picture.data) if self.picture else 0)


class HitVote(NamedTuple):
    up: bool
    version: int  # that it published


class QueryCache:
    """Least recently used uploads and votes. Not thread-safe: only the event loop uses it."""

    def __init__(self) -> None:
        self._queries: OrderedDict[tuple[str, str], UploadedQuery] = OrderedDict()  # by collection and token
        self._votes: OrderedDict[tuple[str, str], dict[str, HitVote]] = OrderedDict()
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
        for name in [name for name in self._votes if name[0] == collection]:
            del self._votes[name]

    def add_vote(self, collection: str, query: str, item: str, vote: HitVote) -> None:
        self._votes.setdefault((collection, query), {})[item] = vote
        self._votes.move_to_end((collection, query))
        if len(self._votes) > MAX_CACHED_QUERIES:
            self._votes.popitem(last=False)

    def votes(self, collection: str, query: str) -> dict[str, HitVote]:
        """Return the votes on the hits of a query, by item."""
        return self._votes.get((collection, query), {})


def active_votes(votes: dict[str, HitVote], versions: list[dict[str, Any]]) -> dict[str, bool]:
    """Return the votes that count: a rollback forgets those after the version it restored."""
    rollbacks = [one for one in versions if one["kind"].startswith("rollback to ")]
    gaps = [range(int(one["kind"].split()[-1]) + 1, one["version"]) for one in rollbacks]
    return {item: vote.up for item, vote in votes.items() if not any(vote.version in gap for gap in gaps)}


def parse_vector(data: bytes, dim: int) -> Any:
    """Parse the numbers (D,) of an .npy file, a JSON list or a row of text; the values are not validated yet."""
    is_npy = data.startswith(b"\x93NUMPY")
    if not is_npy and len(data) > max_row_characters(dim):
        raise TooLarge(f"file: expected text of at most {max_row_characters(dim)} bytes, got {len(data)}")
    try:
        array = _load_npy(data) if is_npy else _parse_text(data.decode("utf-8-sig").strip())
    except UnicodeDecodeError:
        raise InvalidInput("file: expected an .npy array, or text with numbers") from None
    except (ValueError, EOFError, OSError, MemoryError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"file: expected one row of numbers: {error}") from None
    if array.ndim != 1 and array.shape[:-1] != (1,):
        raise InvalidInput(f"file: expected one row of numbers, got an array of shape {array.shape}")
    return array.reshape(-1)


def _load_npy(data: bytes) -> Any:
    file = io.BytesIO(data)
    check_npy(file, len(data))
    return np.load(file, allow_pickle=False)


def _parse_text(text: str) -> Any:
    if text.startswith("["):
        return np.asarray(json.loads(text))
    rows = [line for line in text.splitlines() if line.strip()]
    if len(rows) != 1:
        raise ValueError(f"the text has {len(rows)} rows")
    return np.array([float(word) for word in re.split(r"[\s,;]+", rows[0].strip(" \t,;"))])
