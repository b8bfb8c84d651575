"""The crew: the actors of all shards, where they run, and what to do when a call to one of them fails."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stillhash.cluster.shard import About, Held, Shard
from stillhash.errors import StillhashError

PATIENCE = 1.0  # seconds without an answer, before another replica is asked too
PAUSE, LONGEST = 0.02, 0.25  # seconds before an actor that failed is asked again: at first, and at most


class Part(NamedTuple):
    """A shard in one of its states."""

    shard: int
    version: int
    rows: int


class Order(NamedTuple):
    """What a shard shall hold."""

    version: int
    bits: int
    held: list[Held]


class Stale(Exception):
    """The state that was asked for has passed; ask about the present one."""


class Member:
    """One actor. What it said of itself last may be out of date."""

    def __init__(self, actor: Any, node: str) -> None:
        self.actor, self.node = actor, node
        self.about: About | None = None
        self.ping: Any = None  # under way
        self.asked = self.heard = 0.0  # when that went out, and the last that came back

    def tell(self, about: About) -> None:
        self.about, self.node = about, about.node


class Want:
    """The answer of one shard, under way."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.calls: dict[Any, tuple[Member, bool]] = {}  # by reference; true while it is only being loaded
        self.since = self.again = 0.0
        self.pause = PAUSE
        self.answer: Any = None
        self.error = ""
        self.refused: Exception | None = None


class Crew:
    """Actors by shard. `order` says what a shard shall hold now."""

    def __init__(self, order: Callable[[int], Order], shares: float, args: tuple[Any, ...], retries: int) -> None:
        self.members: dict[int, tuple[Member, ...]] = {}
        self._order = order
        self._turn = itertools.count()
        self._actors: Any = ray.remote(num_cpus=shares, max_restarts=-1, max_task_retries=retries)(Shard)
        self._shares, self._args = shares, args

    # ---- where they run ----

    def start(self, node: str | None) -> Member:
        """A new actor on this node, if it has room; else wherever there is."""
        where = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=True)
        return Member(self._actors.options(scheduling_strategy=where).remote(*self._args), node or "")

    def stop(self, member: Member) -> None:
        ray.kill(member.actor, no_restart=True)

    def nodes(self, without: Iterable[str] = ()) -> list[str]:
        """Nodes that can hold shards; the one where this process runs comes last."""
        here = str(ray.get_runtime_context().get_node_id())
        listed: Callable[[], list[dict[str, Any]]] = ray.nodes
        alive = [n for n in listed() if n["Alive"] and n.get("Resources", {}).get("CPU", 0) >= self._shares]
        return sorted({str(n["NodeID"]) for n in alive} - set(without), key=lambda name: (name == here, name))

    def best_node(self, shard: int, nodes: list[str]) -> str | None:
        """For one more replica of this shard: where there is none of it yet, then where there are fewest."""
        taken = [member.node for member in self.members.get(shard, ())]
        load = self.load(nodes)
        return min(nodes, key=lambda node: (taken.count(node), load[node], nodes.index(node)), default=None)

    def load(self, nodes: list[str]) -> dict[str, int]:
        where = [member.node for members in self.members.values() for member in members]
        return {node: where.count(node) for node in nodes}

    # ---- calling them ----

    def gather(
        self, parts: Iterable[Part], send: Callable[[Any, Part], Any], until: float, *, strict: bool = False
    ) -> dict[int, Want]:
        """Asks a replica of each shard, by `send`, and others where one fails, until this time.

        strict: what an actor refuses is raised, and not asked of another.
        """
        turn = next(self._turn)
        wants = {part.shard: Want(part) for part in parts}
        for want in wants.values():
            self._send(want, send, turn)
        try:  # as it nearly always goes: all answer, and one call collects them
            refs = [ref for want in wants.values() for ref in want.calls]
            answers = ray.get(refs, timeout=max(0.0, min(PATIENCE, until - time.monotonic())))
        except (RayError, StillhashError):
            answers = [None]
        if all(answer is not None for answer in answers):
            for want, answer in zip(wants.values(), answers, strict=True):
                want.answer = answer
            return wants
        calls = {ref: want for want in wants.values() for ref in want.calls}
        for ref in ray.wait(list(calls), num_returns=len(calls), timeout=0)[0]:
            self._take(calls[ref], ref, send)
        while (waiting := [want for want in wants.values() if want.answer is None]) and time.monotonic() < until:
            self._try_on(waiting, send, until)
            for want in waiting:
                if strict and want.refused is not None:
                    raise want.refused
        return wants

    def _try_on(self, waiting: list[Want], send: Callable[[Any, Part], Any], until: float) -> None:
        now = time.monotonic()
        for want in waiting:
            slow = now - want.since > PATIENCE and len(want.calls) < len(self.members[want.part.shard])
            if slow or (not want.calls and now >= want.again):
                self._send(want, send, next(self._turn))
        calls = {ref: want for want in waiting for ref in want.calls}
        if not calls:
            time.sleep(max(0.0, min(min(want.again for want in waiting), until) - now))
            return
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=max(0.0, min(LONGEST, until - now)))
        for ref in ready:
            self._take(calls[ref], ref, send)

    def _send(self, want: Want, send: Callable[[Any, Part], Any], turn: int) -> None:
        members = self.members[want.part.shard]
        asked = [member for member, _ in want.calls.values()]
        for n in range(len(members)):
            member = members[(turn + n) % len(members)]
            if member not in asked:
                want.calls[send(member.actor, want.part)] = member, False
                want.since = time.monotonic()
                return

    def _take(self, want: Want, ref: Any, send: Callable[[Any, Part], Any]) -> None:
        """A call has come back: with an answer, with a failure, or from an actor that must be told its state first."""
        member, loading = want.calls.pop(ref)
        try:
            answer = ray.get(ref)
        except (RayError, StillhashError) as error:
            want.refused = getattr(error, "cause", error) if isinstance(error, StillhashError) else None
            want.error = str(error).strip().rpartition("\n")[2]
            want.again = time.monotonic() + want.pause
            want.pause = min(2 * want.pause, LONGEST)
            return
        if loading:
            member.tell(answer)
            want.calls[send(member.actor, want.part)] = member, False
        elif answer is None:
            order = self._order(want.part.shard)
            if order.version != want.part.version:
                raise Stale
            want.calls[member.actor.load.remote(*order)] = member, True
        else:
            want.answer = answer
