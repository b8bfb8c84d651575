"""Blocks of rows: their ids, which rows are live, which are allowed, and appending codes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillhash.errors import Conflict, InvalidInput, WrongType
from stillhash.numeric import kernels
from stillhash.numeric.codes import TILE, Tiles, empty_tiles
from stillhash.numeric.validation import Codes, check_ids

GROWTH = 16  # a new block has capacity for 1/16 of the rows so far, so at most that share of memory is spare

IdArray = NDArray[np.int64]
NO_IDS: IdArray = np.empty(0, np.int64)
Bitmap = NDArray[np.uint8]  # one bit a row or an id, little-endian


def is_set(bitmap: Bitmap, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.asarray((bitmap[places // 8] >> (places % 8).astype(np.uint8)) & 1 == 1)


def clear(bitmap: Bitmap, places: NDArray[np.int64]) -> None:
    """Clear these bits, in place."""
    np.bitwise_and.at(bitmap, places // 8, ~(1 << (places % 8)).astype(np.uint8))


class Block(NamedTuple):
    """Rows of codes in tiles. Row r has id `first + r`, or `ids[r]`; `live` (bits, whole tiles) hides removed rows."""

    tiles: Tiles
    rows: int
    first: int
    ids: IdArray | None
    live: Bitmap | None

    def live_rows(self) -> NDArray[np.int64]:
        rows = np.arange(self.rows)
        return rows if self.live is None else rows[is_set(self.live, rows)]

    def ids_of(self, rows: NDArray[np.int64]) -> IdArray:
        return self.first + rows if self.ids is None else self.ids[rows]

    def rows_of(self, ids: IdArray) -> NDArray[np.int64]:
        """Return the live rows that have one of these ids."""
        if self.ids is None:
            rows = ids - self.first
            rows = rows[(rows >= 0) & (rows < self.rows)]
        else:
            rows = np.flatnonzero(np.isin(self.ids, ids))
        return rows if self.live is None else rows[is_set(self.live, rows)]

    def without(self, ids: IdArray) -> tuple["Block", int]:
        """Return the block with these ids removed, and how many there were. The old block stays as it is."""
        rows = self.rows_of(ids)
        return (self.without_rows(rows) if len(rows) else self), len(rows)

    def without_rows(self, rows: NDArray[np.int64]) -> "Block":
        """Return the block with these rows hidden."""
        live = np.full(len(self.tiles) * TILE // 8, 255, np.uint8) if self.live is None else self.live.copy()
        clear(live, rows)
        return self._replace(live=live)

    def skip_rows(self, skipped: int) -> "Block":
        """Return the block without its first rows, without copying tiles."""
        tiles = skipped // TILE
        start = tiles * TILE
        ids = None if self.ids is None else self.ids[start:]
        live = None if self.live is None else self.live[start // 8 :]
        part = Block(self.tiles[tiles:], self.rows - start, self.first + start, ids, live)
        return part if skipped == start else part.without_rows(np.arange(skipped - start))

    def accepts(self, first: int, names: IdArray | None) -> bool:
        """Return whether rows with these ids may be appended: it is not full, and if large, need not list its ids."""
        if self.rows == len(self.tiles) * TILE or not self.tiles.flags.writeable:
            return False
        return self.ids is not None or self.rows <= TILE or (names is None and first == self.first + self.rows)


def bitmap_by_id(allowed: Any) -> Bitmap:
    """Return the `allowed` argument of a search as a bitmap by id."""
    array = np.asarray(allowed)
    if array.ndim != 1 or array.dtype not in (np.bool_, np.uint8):
        expected = "a flat boolean array or uint8 bitmap"
        raise WrongType(f"allowed: expected {expected}, got shape {array.shape} and dtype {array.dtype}")
    return np.packbits(array, bitorder="little") if array.dtype == np.bool_ else array


def allowed_rows(first: int, ids: IdArray | None, live: Bitmap | None, size: int, allowed: Bitmap) -> Bitmap:
    """Return which rows are live and allowed, in `size` bytes: row r has the id first + r, or ids[r]."""
    mask = np.zeros(size, np.uint8)
    if ids is None:
        skip, shift = divmod(first, 8)
        part = allowed[skip : skip + size + 1]
        if shift:
            part = (part >> np.uint8(shift)) | (np.append(part[1:], np.uint8(0)) << np.uint8(8 - shift))
        mask[: len(part[:size])] = part[:size]
    elif len(allowed):
        known = ids < 8 * len(allowed)
        packed = np.packbits(known & is_set(allowed, np.where(known, ids, 0)), bitorder="little")
        mask[: len(packed)] = packed
    return mask if live is None else mask & live


def restrict_all(blocks: Sequence[Block], allowed: Bitmap | None) -> Sequence[Block]:
    """Return the blocks with only the allowed rows live."""
    if allowed is None:
        return blocks
    size = TILE // 8  # bytes of a tile's bitmap
    return [b._replace(live=allowed_rows(b.first, b.ids, b.live, size * len(b.tiles), allowed)) for b in blocks]


def assign_ids(
    blocks: Sequence[Block], next_id: int, ids: ArrayLike | None, count: int
) -> tuple[int, IdArray | None, int]:
    """Return the first id of new rows, the ids themselves unless they are consecutive, and the next free id."""
    first, names = next_id, None
    if ids is not None and count:
        names = check_ids(ids, count=count)
        if names.min() < next_id:
            existing = np.concatenate([np.empty(0, np.int64), *(b.ids_of(b.rows_of(names)) for b in blocks)])
            if len(existing):
                raise Conflict(f"ids: expected new ids, got {len(existing)} that exist, such as {existing[0]}")
        first = int(names[0])
        if (np.diff(names) == 1).all():
            names = None
    last = first + count - 1 if names is None else int(names.max())
    if last >= np.iinfo(np.int64).max:
        raise InvalidInput(f"ids: expected 0 to 2**63 - 2, got {last}")
    return first, names, max(next_id, last + 1)


def append_codes(
    blocks: Sequence[Block], codes: Codes, bits: int, first: int, names: IdArray | None
) -> tuple[Block, ...]:
    """Return the blocks with these codes appended: in the last block, and in a new one if that is full.

    Tiles of the last block are written in place, past the rows that earlier readers see.
    """
    result = list(blocks)
    while len(codes):
        if not result or not result[-1].accepts(first, names):
            capacity = max(len(codes), sum(block.rows for block in result) // GROWTH, TILE)
            result.append(Block(empty_tiles(capacity, bits), 0, first, None if names is None else names[:0], None))
        block = result[-1]
        count = min(len(codes), len(block.tiles) * TILE - block.rows)
        kernels.write_tiles(block.tiles, block.rows, codes[:count])
        ids = block.ids
        if ids is not None or names is not None or first != block.first + block.rows:
            added = np.arange(first, first + count) if names is None else names[:count]
            ids = np.concatenate([block.ids_of(np.arange(block.rows)), added])
        result[-1] = block._replace(rows=block.rows + count, ids=ids)
        codes, first, names = codes[count:], first + count, None if names is None else names[count:]
    return tuple(result)
