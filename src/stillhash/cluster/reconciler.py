"""The keeper: sees nodes come and go, tells actors that were started again what to hold, and spreads the load."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from stillhash.cluster.replicas import Member
from stillhash.errors import Conflict, InvalidInput, StillhashError, Unreachable

if TYPE_CHECKING:
    from stillhash.cluster.index import ClusterIndex

EVERY = 1.0  # seconds from look to look
START = 60.0  # seconds that a new actor has to start


class Keeper:
    def __init__(self, index: ClusterIndex) -> None:
        self._index = weakref.ref(index)
        self._moving, self._pinging = threading.RLock(), threading.Lock()
        self._drained: set[str] = set()
        self._known: set[str] = set()
        self._uneven = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=_watch, args=(weakref.ref(self), self._stopped), daemon=True)

    @property
    def index(self) -> ClusterIndex:
        found = self._index()
        if found is None:
            raise InvalidInput("the index is gone")
        return found

    def start(self) -> None:
        self._known = set(self.index._crew.nodes())
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    # ---- looking ----

    def look(self) -> None:
        """One look at nodes and actors; what is behind is told, what has come or gone is made up for."""
        index = self.index
        alive = set(index._crew.nodes())
        self._uneven = self._uneven or alive != self._known
        self._known = alive
        self._ping()
        if self._uneven and self._settled(alive):
            self._uneven = False
            self.rebalance()

    def _ping(self) -> None:
        """Collects what actors said since the last look, and asks again."""
        index = self.index
        with self._pinging:
            for shard, members in list(index._crew.members.items()):
                for member in members:
                    if member.ping is not None:
                        ready, _ = ray.wait([member.ping], timeout=0)
                        if not ready:
                            continue
                        try:
                            member.tell(ray.get(member.ping))
                            member.heard = member.asked
                        except (RayError, StillhashError):
                            member.about = None
                    order = index._order(shard) if self._behind(shard, member) else None
                    member.asked = time.monotonic()
                    member.ping = member.actor.about.remote() if order is None else member.actor.load.remote(*order)

    def _ask_all(self, seconds: float) -> None:
        """Asks every actor how it is, and gives them so long to say."""
        for _ in range(2):  # what was under way may be of before
            self._ping()
            pings = [member.ping for members in list(self.index._crew.members.values()) for member in members]
            ray.wait(pings, num_returns=len(pings), timeout=seconds)
        self._ping()

    def _behind(self, shard: int, member: Member) -> bool:
        return member.about is not None and member.about.version != self.index._versions.get(shard)

    def _ready(self, shard: int, member: Member, alive: set[str], since: float) -> bool:
        """Whether the actor said after this time that it runs, on a node that is there, and is up to date."""
        heard = member.about is not None and member.heard >= since
        return heard and member.node in alive and not self._behind(shard, member)

    def _settled(self, alive: set[str], since: float = 0.0) -> bool:
        return all(
            self._ready(shard, member, alive, since)
            for shard, members in list(self.index._crew.members.items())
            for member in members
        )

    def wait_ready(self, seconds: float) -> None:
        began = time.monotonic()
        while True:
            self._ask_all(0.25)
            if self._settled(set(self.index._crew.nodes()), began):
                return
            if time.monotonic() > began + seconds:
                raise Unreachable(f"not all actors were up to date within {seconds:g} seconds")

    def status(self) -> dict[str, Any]:
        index, began = self.index, time.monotonic()
        self._ask_all(1.0)
        alive = set(index._crew.nodes())
        actors = []
        for shard, members in list(index._crew.members.items()):
            for replica, member in enumerate(members):
                said = (
                    member.about._asdict()
                    if member.about
                    else {"rows": 0, "nbytes": 0, "plan": "scan", "merging": False}
                )
                ready = self._ready(shard, member, alive, began)
                actors.append({"shard": shard, "replica": replica, **said, "node": member.node, "ready": ready})
        return {
            "rows": len(index),
            "bits": index.bits,
            "shards": [{"shard": p.shard, "rows": p.rows, "version": p.version} for p in index._state],
            "nodes": sorted(alive),
            "drained": sorted(self._drained),
            "actors": actors,
            "ready": all(actor["ready"] for actor in actors),
        }

    # ---- changing ----

    def add_shards(self, count: int) -> list[int]:
        index = self.index
        crew = index._crew
        with self._moving, index._writing:
            numbers = [max(index._versions, default=-1) + 1 + n for n in range(count)]
            with index._truth:
                index._advance(numbers)
            nodes = crew.nodes(self._drained)
            try:
                for shard in numbers:
                    for _ in range(index.replicas):
                        member = crew.start(crew.best_node(shard, nodes))
                        crew.members[shard] = (*crew.members.get(shard, ()), member)
                for shard in numbers:
                    for member in crew.members[shard]:
                        self._loaded(shard, member)
            except BaseException:
                for shard in numbers:
                    index._versions.pop(shard)
                    for member in crew.members.pop(shard, ()):
                        crew.stop(member)
                raise
            index._publish()
        return numbers

    def drain(self, node: str) -> int:
        if node not in self.index._crew.nodes():
            raise InvalidInput(f"node is {node!r}; the id of a node that is there is wanted")
        if not self.index._crew.nodes({*self._drained, node}):
            raise Conflict(f"node is {node!r}, the last that is not drained; another is wanted, to move to")
        self._drained.add(node)
        moved = self.rebalance()
        if any(member.node == node for members in self.index._crew.members.values() for member in members):
            raise Conflict(f"node is {node!r}; the other nodes have no room for all that it holds")
        return moved

    def rebalance(self) -> int:
        with self._moving:
            self._ask_all(1.0)  # where they are
            return self._spread_actors() + self._spread_rows()

    def _spread_actors(self) -> int:
        crew, moved = self.index._crew, 0
        while True:
            nodes = crew.nodes(self._drained)
            move = _next_move(crew.members, nodes)
            if move is None or not self._move(*move):
                return moved
            moved += 1

    def _move(self, shard: int, member: Member, node: str) -> bool:
        """A new actor there takes over from this one: no search finds neither. False if there is no room for it."""
        index = self.index
        crew = index._crew
        fresh = crew.start(node)
        try:
            self._loaded(shard, fresh)  # the most of it; then what was written meanwhile
            if fresh.node != node:
                crew.stop(fresh)
                return False
            with index._writing:
                self._loaded(shard, fresh)
                crew.members[shard] = tuple(fresh if m is member else m for m in crew.members[shard])
        except BaseException:
            crew.stop(fresh)
            raise
        # Calls that it was given before are answered first; whoever is cut off asks the other.
        ray.wait([member.actor.about.remote()], timeout=index.deadline)
        crew.stop(member)
        return True

    def _loaded(self, shard: int, member: Member) -> None:
        try:
            member.tell(ray.get(member.actor.load.remote(*self.index._order(shard)), timeout=START))
        except RayError as error:
            if isinstance(error, StillhashError):
                raise getattr(error, "cause", error) from error
            raise Unreachable(f"an actor of shard {shard} did not start: {error}") from error

    def _spread_rows(self) -> int:
        """Moves segments from the largest shard to the smallest for as long as that brings them closer."""
        index, moved = self.index, 0
        while True:
            with index._writing:
                with index._truth:
                    ledger = index._ledger
                    rows = {shard: ledger.rows(shard) for shard in index._versions}
                    small, large = min(rows, key=lambda s: rows[s]), max(rows, key=lambda s: rows[s])
                    gap = rows[large] - rows[small]
                    pieces = [(e.piece.rows - e.removed, e.piece) for e in ledger.entries if e.shard == large]
                    fitting = [entry for entry in pieces if 0 < entry[0] < gap]
                    if not fitting:
                        return moved
                    piece = min(fitting, key=lambda entry: abs(gap - 2 * entry[0]))[1]
                    ledger.give(piece, small)
                    index._advance([small, large])
                try:
                    for shard in (small, large):  # both know the new state before searches hear of it
                        for member in index._crew.members[shard]:
                            self._loaded(shard, member)
                finally:
                    index._publish()  # whoever did not hear of it is told when it is asked
            moved += 1


def _next_move(members: dict[int, tuple[Member, ...]], nodes: list[str]) -> tuple[int, Member, str] | None:
    """An actor to move, and where to: off nodes not in the list, off its own twin, or from most to least."""
    if not nodes:
        return None
    load = dict.fromkeys(nodes, 0)
    for group in members.values():
        for member in group:
            if member.node in load:
                load[member.node] += 1

    def best(shard: int, member: Member) -> str:
        twins = [m.node for m in members[shard] if m is not member]
        return min(nodes, key=lambda node: (twins.count(node), load[node], nodes.index(node)))

    for shard, group in members.items():
        for member in group:
            twins = [m.node for m in group if m is not member]
            to = best(shard, member)
            crowded = member.node in twins and to not in twins
            if to != member.node and (member.node not in load or crowded or load[member.node] - load[to] > 1):
                return shard, member, to
    return None


def _watch(keeper: weakref.ref[Keeper], stopped: threading.Event) -> None:
    while not stopped.wait(EVERY):
        found = keeper()
        if found is None or not ray.is_initialized():  # else a call would start another cluster
            return
        with suppress(RayError, StillhashError, ConnectionError, RuntimeError):  # the next look may go better
            found.look()
        del found
