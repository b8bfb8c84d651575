"""What the server remembers of visitors of the page: in memory, bounded, and gone when it stops."""

import asyncio
import hashlib
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.types import Id, LabelSuggestion
from stillhash.errors import NotFound

# ---- queries ----
#
# An address names an uploaded query by a token, so that its page can be loaded again.

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


# ---- sittings of the Teach page ----
#
# Nothing of it is needed for what is stored: each answer is committed before it is acknowledged. A sitting only knows
# what its person has seen, so that nobody gets an item twice, and how it went.

MAX_SITTINGS = 1000
MAX_REMEMBERED = 5000  # items of a sitting, or rejected ones of a collection; the earliest are forgotten
RESERVED_SECONDS = 600  # for which an item that one person sees is not shown to another
RATED_ANSWERS = 30  # the latest ones, by which the rate is measured
RECENT_LABELS = 9
LEARN_ANSWERS = 10  # after which they are learnt
SITTING_TOKEN = re.compile(r"[\w-]{1,40}", re.ASCII)

Decision = Literal["labelled", "rejected", "skipped"]


class WaitingItem(NamedTuple):
    """An item that waits for an answer."""

    moment: float  # since when
    first: Any = None  # the label that was suggested first


class Decided(NamedTuple):
    decision: Decision
    right: bool | None = None  # whether the label that was suggested first is among those chosen


@dataclass
class Sitting:
    """What one person has done since they opened the page."""

    decisions: "OrderedDict[Id, Decided]" = field(default_factory=OrderedDict)
    waiting: dict[Id, WaitingItem] = field(default_factory=dict)
    times: "deque[float]" = field(default_factory=lambda: deque(maxlen=RATED_ANSWERS))  # of the latest answers
    recent: list[Any] = field(default_factory=list)  # labels that were chosen, the latest first
    unlearnt: list[Id] = field(default_factory=list)  # items of the answers since the last learning
    start_version: int | None = None  # of the model, when it began
    gains: list[float] = field(default_factory=list)  # of nDCG@10 since then, of each answer before it was learnt
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while an answer is stored and counted

    def decide(self, id_: Id, decision: Decision, labels: Iterable[Any] = ()) -> None:
        """Remember an answer; the last one of an item counts."""
        chosen, item = list(labels), self.waiting.pop(id_, None)
        suggested = decision == "labelled" and item is not None and item.first is not None
        right = item.first in chosen if suggested and item is not None else None
        if id_ not in self.decisions:
            self.times.append(time.monotonic())
        self.decisions[id_] = Decided(decision, right)
        self.recent = list(dict.fromkeys([*chosen, *self.recent]))[:RECENT_LABELS]
        _forget_earliest(self.decisions)

    def learn(self, gains: list[float]) -> None:
        """Remember what the answers gained that are learnt now."""
        self.unlearnt = []
        self.gains = [*self.gains, *gains][-MAX_REMEMBERED:]

    def undo(self, id_: Id) -> None:
        """Forget an answer; its item waits for another one."""
        if self.decisions.pop(id_, None) is not None and self.times:
            self.times.pop()
        self.waiting[id_] = WaitingItem(time.monotonic())

    def show(self, suggestions: Iterable[LabelSuggestion]) -> None:
        """Remember that the person sees these items."""
        now = time.monotonic()
        self.waiting |= {one.id: WaitingItem(now, one.labels[0][0] if one.labels else None) for one in suggestions}

    def count(self, decision: Decision) -> int:
        return sum(one.decision == decision for one in self.decisions.values())

    @property
    def first_right(self) -> float | None:
        """The share of the labelled items whose first suggestion was right; None if none had one."""
        known = [one.right for one in self.decisions.values() if one.right is not None]
        return sum(known) / len(known) if known else None

    @property
    def rate(self) -> float | None:
        """Answers a minute, by the latest ones; None for fewer than two."""
        seconds = self.times[-1] - self.times[0] if len(self.times) > 1 else 0.0
        return 60 * (len(self.times) - 1) / seconds if seconds else None


class Sittings:
    """The latest sittings. Not thread-safe: only the event loop uses it."""

    def __init__(self) -> None:
        self._sittings: OrderedDict[tuple[str, str], Sitting] = OrderedDict()  # by collection and token
        self._rejected: dict[str, OrderedDict[Id, None]] = {}  # by collection: nobody is shown them again

    def begin(self) -> str:
        """Return a token for a new sitting."""
        return secrets.token_urlsafe(9)

    def get(self, collection: str, token: str) -> Sitting:
        """Return a sitting; one that is not known, after a restart say, begins."""
        sitting = self._sittings.setdefault((collection, token), Sitting())
        self._sittings.move_to_end((collection, token))
        if len(self._sittings) > MAX_SITTINGS:
            self._sittings.popitem(last=False)
        return sitting

    def reject(self, collection: str, id_: Id) -> None:
        rejected = self._rejected.setdefault(collection, OrderedDict())
        rejected[id_] = None
        _forget_earliest(rejected)

    def restore(self, collection: str, id_: Id) -> None:
        """Take back a rejection."""
        if collection in self._rejected:
            self._rejected[collection].pop(id_, None)

    def hidden(self, collection: str, sitting: Sitting) -> list[Id]:
        """Return the items that a sitting is not shown next: what it has seen, and what others see just now."""
        since = time.monotonic() - RESERVED_SECONDS
        hidden = dict.fromkeys([*self._rejected.get(collection, ()), *sitting.decisions, *sitting.waiting])
        for (name, _), other in self._sittings.items():
            if name == collection and other is not sitting:
                hidden |= dict.fromkeys(id_ for id_, item in other.waiting.items() if item.moment > since)
        return list(hidden)

    def remove(self, collection: str) -> None:
        """Drop everything of a collection, which is deleted."""
        self._rejected.pop(collection, None)
        for key in [key for key in self._sittings if key[0] == collection]:
            del self._sittings[key]


def _forget_earliest(entries: "OrderedDict[Id, Any]") -> None:
    if len(entries) > MAX_REMEMBERED:
        entries.popitem(last=False)
