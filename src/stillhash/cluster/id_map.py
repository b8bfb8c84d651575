"""The ledger: which ids there are and which piece holds them, without a single code.

It is a Scan whose tiles are only a shape, so that ids are given out, refused and removed by the very same rules.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stillhash.cluster.shard import Held
from stillhash.cluster.storage import Piece
from stillhash.numeric.codes import TILE
from stillhash.numeric.kernels import Block
from stillhash.search.blocks import Ids, ids_of, is_set, rows_of, without
from stillhash.search.scan import Scan


class Entry(NamedTuple):
    piece: Piece
    block: Block
    shard: int
    ours: bool  # written here, so it is ours to drop
    removed: int = 0

    def gone(self) -> Ids:
        if self.block.live is None:
            return np.empty(0, np.int64)
        rows = np.arange(self.block.rows)
        return ids_of(self.block, rows[~is_set(self.block.live, rows)])


class Ledger(Scan):
    def __init__(self, bits: int) -> None:
        super().__init__(bits, threads=1)
        self.entries: tuple[Entry, ...] = ()  # in order of arrival: an id may have been in an earlier one

    def new_ids(self, ids: Any, count: int) -> Ids:
        """The ids of new rows, in their order; refused if one is there already."""
        first, names = self._reserve_ids(ids, count)
        return np.arange(first, first + count) if names is None else names

    def hold(self, piece: Piece, numbers: Ids, shard: int, ours: bool) -> None:
        """This piece, with these rising ids."""
        consecutive = int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1
        shape = np.broadcast_to(np.uint8(0), (-(-piece.rows // TILE), 1, 1))
        block = Block(shape, piece.rows, int(numbers[0]), None if consecutive else np.array(numbers), None)
        self._show([*self.entries, Entry(piece, block, shard, ours)])

    def where(self, ids: Ids) -> dict[int, Ids]:
        """Those of the ids that are there, by shard."""
        found: dict[int, list[Ids]] = {}
        for entry in self.entries:
            rows = rows_of(entry.block, ids)
            if len(rows):
                found.setdefault(entry.shard, []).append(ids_of(entry.block, rows))
        return {shard: np.concatenate(parts) for shard, parts in found.items()}

    def strike(self, ids: Ids) -> None:
        entries = []
        for entry in self.entries:
            block, count = without(entry.block, ids)
            self._removed += count
            entries.append(entry._replace(block=block, removed=entry.removed + count))
        self._show(entries)

    def restore(self, entries: tuple[Entry, ...]) -> None:
        self._show(list(entries))

    def give(self, piece: Piece, shard: int) -> None:
        """From now on this shard holds the piece."""
        self._show([entry._replace(shard=shard) if entry.piece == piece else entry for entry in self.entries])

    def held(self, shard: int) -> list[Held]:
        return [Held(entry.piece, entry.gone()) for entry in self.entries if entry.shard == shard]

    def rows(self, shard: int) -> int:
        return sum(entry.piece.rows - entry.removed for entry in self.entries if entry.shard == shard)

    def _show(self, entries: list[Entry]) -> None:
        self.entries = tuple(entries)
        self._publish(tuple(entry.block for entry in entries))
