"""What visitors asked: vectors they gave, read from files of several kinds, and the thumbs they pressed.

All of it is in memory, bounded, and forgotten when the server stops. An address names a vector by a token, so that a
page can be loaded again; an item that is asked for needs none, its id is in the address.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from stillhash.errors import InvalidInput, NotFound
from stillhash.numeric.validation import Floats
from stillhash.server.pages.thumbnails import Picture

QUERIES = 1000  # that are remembered
BYTES = 64 << 20  # that they may take together
UPLOAD = 8 << 20  # bytes of a file that is given


class Given(NamedTuple):
    """A query that somebody gave."""

    vector: Floats  # (D,)
    about: str
    picture: Picture | None  # that it was made from

    @property
    def size(self) -> int:
        return self.vector.nbytes + (len(self.picture.data) if self.picture else 0)


class Pressed(NamedTuple):
    """A thumb."""

    up: bool
    version: int  # that it made


class Memory:
    """What is remembered; whatever was not used for longest goes first. For one thread, the event loop's."""

    def __init__(self) -> None:
        self._given: OrderedDict[str, Given] = OrderedDict()
        self._pressed: OrderedDict[tuple[str, str], dict[str, Pressed]] = OrderedDict()
        self._size = 0

    def keep(self, given: Given) -> str:
        """Remembers a query: its token."""
        token = hashlib.sha256(given.vector.tobytes()).hexdigest()[:20]
        self._size += given.size - (self._given.pop(token).size if token in self._given else 0)
        self._given[token] = given
        while len(self._given) > QUERIES or (self._size > BYTES and len(self._given) > 1):
            self._size -= self._given.popitem(last=False)[1].size
        return token

    def find(self, token: str) -> Given:
        if token not in self._given:
            raise NotFound("this query is not remembered any more; give it again")
        self._given.move_to_end(token)
        return self._given[token]

    def press(self, collection: str, query: str, item: str, thumb: Pressed) -> None:
        self._pressed.setdefault((collection, query), {})[item] = thumb
        self._pressed.move_to_end((collection, query))
        if len(self._pressed) > QUERIES:
            self._pressed.popitem(last=False)

    def pressed(self, collection: str, query: str) -> dict[str, Pressed]:
        """The thumbs for a query, by items."""
        return self._pressed.get((collection, query), {})


def standing(pressed: dict[str, Pressed], versions: list[dict[str, Any]]) -> dict[str, bool]:
    """The thumbs that still count: a rollback forgets those that came after the version it went back to."""
    back = [(v["version"], int(v["kind"].rpartition(" ")[2])) for v in versions if v["kind"].startswith("rollback to ")]
    return {
        item: thumb.up
        for item, thumb in pressed.items()
        if not any(target < thumb.version < made for made, target in back)
    }


def vector_in(data: bytes) -> Any:
    """The numbers (D,) in a file: an array of NumPy, a list of JSON, or a row of text; their worth is checked later."""
    if data.startswith(b"\x93NUMPY"):
        return _from_numpy(data)
    try:
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise InvalidInput("the file is neither an array of NumPy (.npy) nor text with numbers") from None
    return _from_json(text) if text.startswith("[") else _from_row(text)


def _from_numpy(data: bytes) -> Any:
    file = io.BytesIO(data)
    try:
        major, _ = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, kind = header(file)
        if math.prod(shape) * kind.itemsize > len(data):  # before so much memory is asked for
            raise ValueError("it ends early")
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        raise InvalidInput(f"the array cannot be read: {error}") from None
    return _one(array)


def _from_json(text: str) -> Any:
    try:
        return _one(np.asarray(json.loads(text)))
    except (ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"the list of numbers cannot be read: {error}") from None


def _from_row(text: str) -> Any:
    rows = [line for line in text.splitlines() if line.strip()]
    if len(rows) != 1:
        raise InvalidInput(f"the text has {len(rows)} rows; one row of numbers is wanted")
    try:
        return np.array([float(word) for word in re.split(r"[\s,;]+", rows[0].strip(" \t,;"))])
    except ValueError:
        raise InvalidInput("the text is not a row of numbers") from None


def _one(array: Any) -> Any:
    if array.ndim == 2 and len(array) == 1:
        return array[0]
    if array.ndim != 1:
        raise InvalidInput(f"the array has shape {array.shape}; one row of numbers is wanted")
    return array
