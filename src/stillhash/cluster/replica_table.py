"""The replicas that run and those that should, and the steps from one to the other. Nothing here waits."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stillhash.cluster.dispatcher import GROUP_SHARDS
from stillhash.cluster.node_choice import Placed, best_node, next_move
from stillhash.cluster.replica_actors import AGGREGATOR, ActorName, Replica
from stillhash.numeric.validation import check_integer

MAX_MOVES = 2  # at a time
MAX_STATUS_MESSAGES = 8  # requests for a status, by message and not through Ray, in one round
PLACE_SECONDS = 60.0  # for a new actor to answer for the first time
FULL_SECONDS = 60.0  # for which a node that took no actor is not tried again
START_RETRY_SECONDS = 5.0  # between two attempts to start a replica that did not start


@dataclass(eq=False)
class ReplicaMove:
    """A replica that moves: the new one starts, and the old one stops when the new one has loaded as much."""

    old: Replica
    new: Replica
    node: str
    began: float = field(default_factory=time.monotonic)


class ReplicaTable:
    """All replicas by name, and `targets`, how many there should be of each group; None before that is known.

    start : starts a replica of a group on a node. grace : seconds from the withdrawal of an endpoint to the stop.
    """

    def __init__(self, start: Callable[[str, str], Replica], grace: float) -> None:
        self.targets: dict[str, int] | None = None
        self.moves: list[ReplicaMove] = []
        self.moved = 0  # replicas so far
        self._start, self._grace = start, grace
        self._replicas: dict[str, Replica] = {}
        self._leaving: list[tuple[Replica, float]] = []  # their endpoints are withdrawn; until when they still answer
        self._full: dict[str, float] = {}  # nodes that took no actor, and until when they are not tried again
        self._failures: dict[str, tuple[str, float]] = {}  # by group: why a replica did not start, and when

    def has(self, name: str) -> bool:
        """Whether there is a replica of this name, also one that leaves."""
        return name in self._replicas or any(str(replica.name) == name for replica, _ in self._leaving)

    def add(self, replica: Replica) -> Replica:
        self._replicas[str(replica.name)] = replica
        return replica

    def drop(self, replica: Replica) -> None:
        self._replicas.pop(str(replica.name), None)
        self._leaving = [(other, until) for other, until in self._leaving if other is not replica]

    def clear(self) -> list[Replica]:
        """Forget all replicas, and return them."""
        replicas = [*self._replicas.values(), *(replica for replica, _ in self._leaving)]
        self._replicas, self._leaving, self.moves = {}, [], []
        return replicas

    def count(self, group: str) -> int:
        """Return the replicas of a group, without those that are to take another's place."""
        return len(self._group(group))

    def placed(self) -> list[Placed]:
        """Return where the replicas are, or will be when their moves end."""
        moving = {id(move.old) for move in self.moves}
        return [Placed(str(r.name), r.name.group, r.node) for r in self._replicas.values() if id(r) not in moving]

    def on(self, node: str) -> list[Replica]:
        """Return the replicas on a node, those included that move from there or leave."""
        leaving = [replica for replica, _ in self._leaving]
        return [replica for replica in [*self._replicas.values(), *leaving] if replica.node == node]

    def count_on(self, node: str) -> int:
        """Return how many replicas are on a node, without those that leave already."""
        return sum(replica.node == node for replica in self._replicas.values())

    @property
    def is_changing(self) -> bool:
        """Whether replicas move, or leave and have not stopped yet."""
        return bool(self.moves or self._leaving)

    def adopt(self, names: Iterable[ActorName], find: Callable[[ActorName], Replica | None]) -> None:
        """Add actors that exist and are not known yet, and look those up again that do not reply."""
        for name in names:
            known = self._replicas.get(str(name))
            if known is not None and known.is_overdue and (again := find(name)) is not None:
                known.renew(again.actor)
            elif not self.has(str(name)) and (replica := find(name)) is not None:
                self.add(replica)

    def forget(self, names: Iterable[ActorName], listed_at: float) -> None:
        """Drop replicas that were not listed then and had started before: Ray does not restart these."""
        listed = {str(name) for name in names}
        for name, replica in list(self._replicas.items()):
            if name not in listed and replica.started_at < listed_at:
                if replica.failure and replica.status is None:
                    self._failures[replica.name.group] = replica.failure, time.monotonic()
                self.drop(replica)

    def ping(self) -> None:
        for replica in self._replicas.values():
            replica.ping()

    def unreached(self) -> list[Replica]:
        """Return some replicas of shards that Ray does not reach, though it lists them."""
        silent = (r for r in self._replicas.values() if r.is_direct or (r.failure and r.status is None))
        return [replica for replica in silent if replica.name.shard is not None and not replica.ended][
            :MAX_STATUS_MESSAGES
        ]

    def status(self) -> dict[str, Any]:
        """Return actors and moves, and which shards have no replica, or too few."""
        state = {"actors": self.describe(), "moves": self.describe_moves()}
        return {**state, "missing": self.unavailable(), "degraded": self.degraded(), "ready": self.ready(0)}

    def requests(self) -> list[Any]:
        """Request the status of every replica, and return the references of the replies."""
        self.ping()
        return [replica.request for replica in self._replicas.values() if replica.request is not None]

    def advance(self, slots: dict[str, int]) -> tuple[list[Replica], list[Replica]]:
        """Take the next step; return replicas whose endpoint is withdrawn now, and those to stop now."""
        withdrawn: list[Replica] = []
        if self.targets is not None:
            slots = {node: count for node, count in slots.items() if self._full.get(node, 0.0) < time.monotonic()}
            withdrawn = [*self._end_moves(), *self._surplus(slots)]
            self._start_missing(slots)
            self._start_moves(slots)
        now = time.monotonic()
        self._leaving += [(replica, now + self._grace) for replica in withdrawn]
        for replica in withdrawn:
            self._replicas.pop(str(replica.name), None)
        return withdrawn, [replica for replica, until in self._leaving if until <= now]

    def _end_moves(self) -> Iterator[Replica]:
        """End moves that are done or have failed; yield the replicas to withdraw."""
        for move in list(self.moves):
            old_gone, new_gone = (str(r.name) not in self._replicas for r in (move.old, move.new))
            arrived = move.new.answers() and move.new.node == move.node and move.new.number >= move.old.number
            elsewhere = move.new.status is not None and move.new.node != move.node
            late = move.new.status is None and time.monotonic() > move.began + PLACE_SECONDS
            if not (old_gone or new_gone or arrived or elsewhere or late):
                continue
            self.moves.remove(move)
            self.moved += arrived and not new_gone
            if elsewhere or late:
                self._full[move.node] = time.monotonic() + FULL_SECONDS
            if not old_gone and not new_gone:
                yield move.old if arrived else move.new

    def _surplus(self, slots: dict[str, int]) -> Iterator[Replica]:
        """Yield replicas that are too many: of shards that are removed, or left by a controller that ended."""
        targets = self.targets or {}
        for group in {replica.name.group for replica in self._replicas.values()}:
            replicas = self._group(group)
            ranked = sorted(replicas, key=lambda r: (r.node in slots, r.answers(), r.number, -r.started_at))
            yield from ranked[: max(0, len(replicas) - targets.get(group, 0))]

    def _start_missing(self, slots: dict[str, int]) -> None:
        for group, count in (self.targets or {}).items():
            _, failed_at = self._failures.get(group, ("", 0.0))
            for _ in range(count - self.count(group)):
                node = best_node(group, self.placed(), slots)
                if node is not None and time.monotonic() > failed_at + START_RETRY_SECONDS:
                    self.add(self._start(group, node))

    def _start_moves(self, slots: dict[str, int]) -> None:
        """Start moves, while every group is complete; a replica that does not answer is Ray's to restart."""
        complete = all(self.count(group) >= count for group, count in (self.targets or {}).items())
        while complete and len(self.moves) < MAX_MOVES:
            fixed = [str(move.new.name) for move in self.moves]
            fixed += [name for name, replica in self._replicas.items() if not replica.answers()]
            move = next_move(self.placed(), slots, fixed)
            if move is None:
                return
            old = self._replicas[move.name]
            self.moves.append(ReplicaMove(old, self.add(self._start(old.name.group, move.node)), move.node))

    def _group(self, group: str) -> list[Replica]:
        new = {id(move.new) for move in self.moves}
        return [r for r in self._replicas.values() if r.name.group == group and id(r) not in new]

    def ready(self, number: int, since: float | None = None) -> bool:
        """Whether all replicas that should be there answer, with this commit or a later one."""
        if not self.targets:
            return False
        replicas = {group: self._group(group) for group in self.targets}
        enough = all(len(replicas[group]) >= count for group, count in self.targets.items())
        return enough and all(r.answers(since) and r.number >= number for some in replicas.values() for r in some)

    def unavailable(self) -> list[str]:
        """Return the groups of which no replica answers."""
        return sorted(group for group in self.targets or {} if not any(r.answers() for r in self._group(group)))

    def degraded(self) -> list[str]:
        """Return the groups of which some replicas answer and some do not."""
        groups = (self.targets or {}).items()
        answering = {group: sum(r.answers() for r in self._group(group)) for group, _ in groups}
        return sorted(group for group, count in groups if 0 < answering[group] < count)

    def silent(self, since: float) -> Iterator[str]:
        """Yield which replicas run, or should, and have not answered since this time."""
        for name, replica in sorted(self._replicas.items()):
            if not replica.answers(since):
                yield f"{name} does not answer: {replica.failure or 'no reply'}"

    def problems(self) -> Iterator[str]:
        """Yield why replicas are missing."""
        for group, count in (self.targets or {}).items():
            missing = count - self.count(group)
            if missing > 0:
                reason, _ = self._failures.get(group, ("no node has capacity for it", 0.0))
                yield f"{group}: {missing} of {count} replicas are missing: {reason}"

    def describe(self) -> list[dict[str, Any]]:
        """Return every replica as an object of JSON, with what it reported last."""
        moving = {str(move.new.name) for move in self.moves}
        unknown = {"number": -1, "rows": 0, "segments": 0, "nbytes": 0, "plan": "", "merging": False, "pid": None}
        actors, numbers = [], Counter[str]()
        for name, replica in sorted(self._replicas.items()):
            known = {**unknown, **(replica.status or {})}
            about: dict[str, Any] = {"name": name, "role": AGGREGATOR if replica.name.shard is None else "shard"}
            about |= {"shard": replica.name.shard, "node": replica.node, "ready": replica.answers()}
            about |= {"replica": numbers[replica.name.group]}
            numbers[replica.name.group] += 1
            actors.append({**known, **about, "moving": name in moving, "failure": replica.failure or None})
        return actors

    def describe_moves(self) -> list[dict[str, Any]]:
        """Return every move as an object of JSON: rows that the new replica has, of those that it should have."""
        return [
            {
                "group": move.old.name.group,
                "from": move.old.node,
                "to": move.node,
                "rows": min(move.new.rows, move.old.rows),
                "of": move.old.rows,
                "seconds": round(time.monotonic() - move.began, 1),
            }
            for move in self.moves
        ]


def replica_targets(shards: Iterable[int], replicas: int, aggregators: int | None) -> dict[str, int]:
    """Return how many replicas of each shard there should be, and aggregators: one for each group of many shards."""
    check_integer(replicas, "replicas", 1)
    targets = {f"shard-{check_integer(shard, 'shards', 0)}": replicas for shard in shards}
    if aggregators is None:
        aggregators = -(-len(targets) // GROUP_SHARDS) if len(targets) > GROUP_SHARDS else 0
    return targets | ({AGGREGATOR: check_integer(aggregators, "aggregators", 0)} if aggregators else {})
