"""Exact search by reading every code: fast, because a tile is pruned by a provable 8-bit bound.

Codes live in blocks of tiles. Blocks are never moved or copied once they are full, so tiles that are mapped from a
file can be blocks too (`add_tiles`). A search takes the tuple of blocks as it is at that moment: one
writer may add and remove while others search, and each search sees one state.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import Conflict, InvalidInput
from stillhash.numeric import kernels
from stillhash.numeric.codes import TILE, empty_tiles, width
from stillhash.numeric.exact_scores import Grid, snap
from stillhash.numeric.kernels import Block
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import (
    Codes,
    check_bits,
    check_codes,
    check_ids,
    check_integer,
    check_threshold,
    check_weights,
)
from stillhash.search.base import Hits
from stillhash.search.blocks import Bitmap, Ids, allowed_in, by_id, ids_of, live_rows, rows_of, without
from stillhash.search.merge import resize

GROWTH = 16  # a new block has room for 1/16 of what is there, so at most that share of memory is spare


class Scan:
    """An exact index of codes of `bits` bits.

    Without `ids`, rows are numbered 0, 1, 2, ... and cost bits / 8 bytes each. Ids that are not consecutive cost 8
    bytes more. `threads` is the most that one search uses; small searches use fewer.
    """

    def __init__(self, bits: int, *, threads: int | None = None) -> None:
        self.bits = check_bits(bits)
        self.threads = usable_cores() if threads is None else check_integer(threads, "threads", 1)
        self._blocks: tuple[Block, ...] = ()
        self._removed = 0
        self._next_id = 0
        self._writing = threading.Lock()

    def __len__(self) -> int:
        return sum(block.rows for block in self._blocks) - self._removed

    def __repr__(self) -> str:
        return f"Scan(bits={self.bits}, rows={len(self)})"

    @property
    def nbytes(self) -> int:
        """Bytes held in memory (or mapped): tiles, explicit ids, and bitmaps of removed rows."""
        arrays = [array for b in self._blocks for array in (b.tiles, b.ids, b.live) if array is not None]
        return sum(array.nbytes for array in arrays)

    # ---- writing ----

    def add(self, codes: Any, ids: Any = None) -> None:
        """Adds codes (n, ceil(bits / 8)) under their ids, or under the next free numbers."""
        codes = check_codes(codes, self.bits)
        with self._writing:
            first, names = self._new_ids(ids, len(codes))
            blocks, start = list(self._blocks), 0
            while start < len(codes):
                start += self._append(blocks, codes[start:], first + start, None if names is None else names[start:])
            self._publish(blocks)

    def add_tiles(self, tiles: Any, rows: int, ids: Any = None) -> None:
        """Adds `rows` codes that already are tiles (tiles, planes, 1024), without a copy: mapped from a file, say."""
        shape = (-(-check_integer(rows, "rows", 1) // TILE), width(self.bits), TILE)
        tiles = np.asanyarray(tiles)
        if tiles.dtype != np.uint8 or tiles.shape != shape or not tiles.flags.c_contiguous:
            raise InvalidInput(
                f"tiles has shape {tiles.shape} and dtype {tiles.dtype}; {rows} codes of {self.bits} bits want "
                f"{shape}, uint8 and C order"
            )
        with self._writing:
            first, names = self._new_ids(ids, rows)
            self._publish([*self._blocks, Block(tiles, rows, first, names, None)])

    def remove(self, ids: Any) -> int:
        """Removes these ids and says how many were there; unknown ids are passed over."""
        ids = check_ids(ids)
        with self._writing:
            parts = [without(block, ids) for block in self._blocks]
            removed = sum(count for _, count in parts)
            self._removed += removed
            self._publish([block for block, _ in parts], ids)
        return removed

    # ---- reading ----

    def search(self, weights: Any, k: int, *, allowed: Any = None) -> Hits:
        """The k best hits of each query: exactly what scoring every code would give, ties included.

        weights: (m, bits), or (bits,) for one query. allowed: only ids i with allowed[i] true are hits; a boolean
        array, or a uint8 bitmap in little-endian bit order. Ids past its end are not allowed.
        """
        grid = snap(check_weights(weights, self.bits))
        k = check_integer(k, "k", 1)
        bitmap = None if allowed is None else by_id(allowed)
        scores, ids = self._best(grid, min(k, len(self)), bitmap)
        return resize((scores, ids), k)

    def range_search(self, weights: Any, threshold: Any, *, allowed: Any = None) -> list[Hits]:
        """For each query, all hits whose score is at least the threshold (one number, or one per query)."""
        grid = snap(check_weights(weights, self.bits))
        floors = check_threshold(threshold, len(grid))
        # The smallest float32 that is not below the threshold: no score lies between the two.
        with np.errstate(over="ignore"):  # beyond all scores is infinity
            least = floors.astype(np.float32)
        least = np.where(least < floors, np.nextafter(least, np.float32(np.inf)), least)
        blocks = searched(self._blocks, None if allowed is None else by_id(allowed))
        found = kernels.scan_all(blocks, grid, np.ascontiguousarray(least), self.threads)
        return [Hits(scores, ids) for scores, ids in found]

    def codes(self, ids: Any) -> Codes:
        """The codes (n, ceil(bits / 8)) of these ids, all of which are there."""
        wanted = check_ids(ids)
        order = np.argsort(wanted)
        found, known = np.zeros((len(wanted), width(self.bits)), np.uint8), 0
        for block in self._blocks:
            rows = rows_of(block, wanted)
            places = order[np.searchsorted(wanted, ids_of(block, rows), sorter=order)]
            found[places] = kernels.read_tiles(block.tiles, rows)
            known += len(rows)
        if known < len(wanted):
            raise InvalidInput(f"ids holds {len(wanted) - known} ids that are not in the index")
        return found

    def ids(self) -> Ids:
        """The ids that are there, rising."""
        parts = [ids_of(block, live_rows(block)) for block in self._blocks]
        return np.sort(np.concatenate([np.empty(0, np.int64), *parts]))

    def close(self) -> None:
        """Nothing is held that must be let go of, other than on a cluster."""

    # ---- inside ----

    def _best(self, grid: Grid, k: int, allowed: Bitmap | None) -> tuple[NDArray[np.float32], Ids]:
        """The k best hits of each query, where k is no more than there are rows."""
        floors = np.full(len(grid), -np.inf, np.float32)
        return kernels.scan_top(searched(self._blocks, allowed), grid, k, floors, self.threads)

    def _new_ids(self, ids: Any, count: int) -> tuple[int, NDArray[np.int64] | None]:
        """First id, and the ids themselves unless they are consecutive. Reserves them."""
        first, names = self._next_id, None
        if ids is not None and count:
            names = check_ids(ids, count=count)
            if names.min() < self._next_id:
                there = [ids_of(block, rows_of(block, names)) for block in self._blocks]
                found = np.concatenate([np.empty(0, np.int64), *there])
                if len(found):
                    raise Conflict(f"ids holds {len(found)} ids that are in the index already, {found[0]} for one")
            first = int(names[0])
            if (np.diff(names) == 1).all():
                names = None
        last = first + count - 1 if names is None else int(names.max())
        if last >= np.iinfo(np.int64).max:
            raise InvalidInput(f"ids reach {last}; 0 to 2**63 - 2 is wanted")
        self._next_id = max(self._next_id, last + 1)
        return first, names

    def _publish(self, blocks: list[Block], removed: Ids | None = None) -> None:
        """From here on, searches see these blocks; `removed` are ids that have just gone."""
        self._blocks = tuple(blocks)

    def _append(
        self, blocks: list[Block], codes: NDArray[np.uint8], first: int, names: NDArray[np.int64] | None
    ) -> int:
        """Fills the last block, or opens a new one; returns how many codes found room."""
        if not blocks or not _takes(blocks[-1], first, names):
            room = max(len(codes), sum(block.rows for block in blocks) // GROWTH, TILE)
            blocks.append(Block(empty_tiles(room, self.bits), 0, first, None if names is None else names[:0], None))
        block = blocks[-1]
        count = min(len(codes), len(block.tiles) * TILE - block.rows)
        kernels.write_tiles(block.tiles, block.rows, codes[:count])
        ids = block.ids
        if ids is not None or names is not None or first != block.first + block.rows:
            before = ids_of(block, np.arange(block.rows)) if ids is None else ids
            ids = np.concatenate([before, np.arange(first, first + count) if names is None else names[:count]])
        blocks[-1] = block._replace(rows=block.rows + count, ids=ids)
        return count


def searched(blocks: Sequence[Block], allowed: Bitmap | None) -> list[Block]:
    return list(blocks) if allowed is None else [allowed_in(block, allowed) for block in blocks]


def _takes(block: Block, first: int, names: NDArray[np.int64] | None) -> bool:
    """Whether rows with these ids may be appended: there is room, and no large block has to spell out its ids."""
    if block.rows == len(block.tiles) * TILE or not block.tiles.flags.writeable:
        return False
    return block.ids is not None or block.rows <= TILE or (names is None and first == block.first + block.rows)
