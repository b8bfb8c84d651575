"""What is known of a block of rows besides its codes: which ids it holds, which rows are live, which are allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import WrongType
from stillhash.numeric.codes import TILE
from stillhash.numeric.kernels import Block

Ids = NDArray[np.int64]
Bitmap = NDArray[np.uint8]  # one bit a row or an id, little-endian


def is_set(bitmap: Bitmap, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.asarray((bitmap[places // 8] >> (places % 8).astype(np.uint8)) & 1 == 1)


def clear(bitmap: Bitmap, places: NDArray[np.int64]) -> None:
    """In place."""
    np.bitwise_and.at(bitmap, places // 8, ~(1 << (places % 8)).astype(np.uint8))


def all_set(block: Block) -> Bitmap:
    """A bitmap of the block's tiles, room for later rows included."""
    return np.full(len(block.tiles) * TILE // 8, 255, np.uint8)


def live_rows(block: Block) -> NDArray[np.int64]:
    rows = np.arange(block.rows)
    return rows if block.live is None else rows[is_set(block.live, rows)]


def ids_of(block: Block, rows: NDArray[np.int64]) -> Ids:
    return block.first + rows if block.ids is None else block.ids[rows]


def rows_of(block: Block, ids: Ids) -> NDArray[np.int64]:
    """The live rows of the block that have one of these ids."""
    if block.ids is None:
        rows = ids - block.first
        rows = rows[(rows >= 0) & (rows < block.rows)]
    else:
        rows = np.flatnonzero(np.isin(block.ids, ids))
    return rows if block.live is None else rows[is_set(block.live, rows)]


def without(block: Block, ids: Ids) -> tuple[Block, int]:
    """The block with these ids removed, and how many there were. The old block is left as it is."""
    rows = rows_of(block, ids)
    if not len(rows):
        return block, 0
    live = all_set(block) if block.live is None else block.live.copy()
    clear(live, rows)
    return block._replace(live=live), len(rows)


def rest(block: Block, done: int) -> Block:
    """The rows of the block past the first `done`, without copying tiles."""
    tiles = done // TILE
    start = tiles * TILE
    live = None if block.live is None else block.live[start // 8 :]
    part = Block(
        block.tiles[tiles:],
        block.rows - start,
        block.first + start,
        None if block.ids is None else block.ids[start:],
        live,
    )
    if done == start:
        return part
    live = all_set(part) if live is None else live.copy()
    clear(live, np.arange(done - start))
    return part._replace(live=live)


def by_id(allowed: Any) -> Bitmap:
    """What a caller allows, as a bitmap by id."""
    array = np.asarray(allowed)
    if array.ndim != 1 or array.dtype not in (np.bool_, np.uint8):
        raise WrongType(
            f"allowed has shape {array.shape} and dtype {array.dtype}; a flat boolean array or uint8 bitmap is wanted"
        )
    return np.packbits(array, bitorder="little") if array.dtype == np.bool_ else array


def masked(first: int, ids: Ids | None, live: Bitmap | None, size: int, allowed: Bitmap) -> Bitmap:
    """Which rows are live and allowed, in `size` bytes: row r has the id first + r, or ids[r]."""
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


def allowed_in(block: Block, allowed: Bitmap) -> Block:
    """The block, with only the allowed rows live."""
    size = len(block.tiles) * TILE // 8
    return block._replace(live=masked(block.first, block.ids, block.live, size, allowed))
