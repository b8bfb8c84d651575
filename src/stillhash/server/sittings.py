"""Remember who is labelling what: sittings of the Teach page, in memory, bounded, and gone when the server stops.

Nothing of it is needed for what is stored: each answer is committed before it is acknowledged. A sitting only knows
what its person has seen, so that nobody gets an item twice, and how it went.
"""

import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from stillhash.collection.types import Id, LabelSuggestion

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
class ProbeStart:
    """What the gain of a sitting is measured on: items that were labelled before, and the quality at that time."""

    ids: list[Id]
    ndcg: float | None = None  # of the first ten hits; None: it cannot be measured,
    reason: str = ""  # for this reason
    items: int = 0  # that it was measured on


@dataclass
class Sitting:
    """What one person has done since they opened the page."""

    decisions: "OrderedDict[Id, Decided]" = field(default_factory=OrderedDict)
    waiting: dict[Id, WaitingItem] = field(default_factory=dict)
    times: "deque[float]" = field(default_factory=lambda: deque(maxlen=RATED_ANSWERS))  # of the latest answers
    recent: list[Any] = field(default_factory=list)  # labels that were chosen, the latest first
    unlearnt: int = 0  # answers since the last learning
    probe: ProbeStart | None = None

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
