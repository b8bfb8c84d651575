"""Actors that are used again: starting a process for each of a hundred small indexes would take minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import stillhash.cluster.index as room
from stillhash.cluster.replicas import Crew, Member


class Pooled(Crew):
    """A crew whose actors come from, and go back to, the rest that others left."""

    rest: list[Member]

    def start(self, node: str | None) -> Member:
        return self.rest.pop() if self.rest else super().start(node)

    def stop(self, member: Member) -> None:
        self.rest.append(member)


class Pool:
    """Makes small indexes; only the last few of them stay open."""

    def __init__(self, folder: Path, shards: int, keep: int = 2) -> None:
        self.folder, self.shards, self.keep = folder, shards, keep
        self.rest: list[Member] = []
        self.made: list[room.ClusterIndex] = []
        pool = self

        class Index(room.ClusterIndex):
            def _made_crew(self, cpus: float, args: tuple[Any, ...], retries: int) -> Crew:
                crew = Pooled(self._order, cpus, args, retries)
                crew.rest = pool.rest
                return crew

        self.kind = Index

    def make(self, bits: int) -> room.ClusterIndex:
        while len(self.made) >= self.keep:
            self.made.pop(0).close()
        self.made.append(self.kind(bits, self.shards, storage=self.folder, threads=1))
        return self.made[-1]

    def close(self) -> None:
        for index in self.made:
            index.close()
        for member in self.rest:
            Crew.stop(self.made[0]._crew, member)
