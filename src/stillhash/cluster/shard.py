"""A shard: the codes of some segments in an index of its own, in a process that Ray starts, watches and starts again.

A shard decides nothing. Whoever leads it numbers each state that it shall be in; a question names the state it is
about, and is answered from that one or not at all. A shard that was started again knows no state, says so, and is told.
"""

from __future__ import annotations

import copy
import os
import time
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray

from stillhash.cluster.storage import CACHE, Cache, Piece
from stillhash.collection.storage.segments import Segment
from stillhash.numeric.validation import Codes, Floats
from stillhash.search import Index
from stillhash.search.blocks import Ids

KEPT, AGE = 8, 5.0  # former states that questions under way may name: how many, and for how many seconds


class Held(NamedTuple):
    """A piece and the ids of it that are gone."""

    piece: Piece
    gone: Ids


class Asked(NamedTuple):
    """Queries of one kind: the k best of each, or, with floors, all from there up. `allowed` is a place in bitmaps."""

    weights: Floats  # (m, bits)
    k: int
    floors: NDArray[np.float64] | None
    allowed: int | None


class Answer(NamedTuple):
    """Hits (m, k) of each Asked; with floors, of all its queries in a row, after how many each has."""

    parts: list[tuple[NDArray[Any], ...]]
    seconds: float


class About(NamedTuple):
    """What a shard says about itself."""

    node: str
    pid: int
    version: int
    rows: int
    segments: int
    nbytes: int
    plan: str
    merging: bool  # rows are on their way into tables


class Shard:
    """The codes of some pieces. `threads` is the most that one search uses."""

    def __init__(self, cache: str | None = None, most: int = CACHE, threads: int | None = None) -> None:
        self.cache, self.threads = Cache(cache, most), threads
        self.version = -1
        self._pieces: dict[Piece, Segment] = {}
        self._states: dict[int, Index] = {}
        self._former: list[tuple[float, int]] = []  # since when, which version

    # ---- becoming ----

    def load(self, version: int, bits: int, held: list[Held]) -> About:
        """Be in this state: these pieces, in order, each without what is gone of it."""
        if version != self.version:
            index = Index(bits, threads=self.threads)
            pieces = {}
            for piece, gone in held:
                pieces[piece] = self._mapped(piece, bits)
                _attach(index, pieces[piece])
                if len(gone):
                    index.remove(gone)
            self._pieces = pieces
            self._enter(version, index)
        return self.about()

    def change(self, version: int, base: int, more: list[Piece], gone: Ids) -> About | None:
        """Be in this state: the state `base`, with more pieces, without the ids that are gone."""
        if version == self.version:
            return self.about()
        if base != self.version:
            return None
        index = self._states[base]
        fresh = {piece: self._mapped(piece, index.bits) for piece in more}  # what fails, fails before anything changed
        self._states[base] = copy.copy(
            index
        )  # blocks are never changed, only replaced: the old ones stay with the copy
        for segment in fresh.values():
            _attach(index, segment)
        if len(gone):
            index.remove(gone)
        self._pieces.update(fresh)
        self._enter(version, index)
        return self.about()

    # ---- answering ----

    def search(self, version: int, asked: list[Asked], *bitmaps: NDArray[np.uint8]) -> Answer | None:
        began = time.perf_counter()
        self._forget()
        index = self._states.get(version)
        if index is None:
            return None
        parts = [_answered(index, one, bitmaps) for one in asked]
        return Answer(parts, time.perf_counter() - began)

    def codes(self, version: int, ids: Ids) -> Codes | None:
        index = self._states.get(version)
        return None if index is None else index.codes(ids)

    def about(self) -> About:
        self._forget()
        index = self._states.get(self.version)
        node = str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""
        if index is None:
            return About(node, os.getpid(), self.version, 0, 0, 0, "scan", False)
        index.merge_if_due()  # rows that came while tables were being built wait for the next that ask
        said = len(index), len(self._pieces), index.nbytes, index.plan, index.merging
        return About(node, os.getpid(), self.version, *said)

    # ---- inside ----

    def _mapped(self, piece: Piece, bits: int) -> Segment:
        known = self._pieces.get(piece)
        return self.cache.mapped(piece, bits) if known is None or known.bits != bits else known

    def _enter(self, version: int, index: Index) -> None:
        if self.version in self._states:
            self._former.append((time.monotonic(), self.version))
        self._states[version] = index
        self.version = version
        self._forget()

    def _forget(self) -> None:
        while self._former and (len(self._former) > KEPT or time.monotonic() - self._former[0][0] > AGE):
            self._states.pop(self._former.pop(0)[1], None)


def _attach(index: Index, segment: Segment) -> None:
    index.add_tiles(segment.tiles, segment.rows, segment.row_numbers())


def _answered(index: Index, asked: Asked, bitmaps: tuple[NDArray[np.uint8], ...]) -> tuple[NDArray[Any], ...]:
    allowed = None if asked.allowed is None else bitmaps[asked.allowed]
    if asked.floors is None:
        return tuple(index.search(asked.weights, max(1, min(asked.k, len(index))), allowed=allowed))
    hits = index.range_search(asked.weights, asked.floors, allowed=allowed)
    counts = np.array([len(found.ids) for found in hits], np.int64)
    scores = np.concatenate([np.empty(0, np.float32), *(found.scores for found in hits)])
    return counts, scores, np.concatenate([np.empty(0, np.int64), *(found.ids for found in hits)])
