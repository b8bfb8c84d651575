"""Keep the copy of an index's codes on a card: append rows and remove them, without disturbing searches that run."""

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.codes import TILE
from stillhash.search.blocks import Block, IdArray
from stillhash.search.gpu.card import PIECE_TILES, Card, Mirror

WORD_BYTES = TILE * 4  # is how long one word of all codes of a tile is
LIVE_WORDS = TILE // 32  # words say which rows of a tile are live
SPARE = 8  # bitmaps have memory for 1/8 more rows
ALL_ONES = np.uint32(0xFFFFFFFF)


def empty_mirror(card: Card, bits: int) -> Mirror:
    """Return the mirror of an empty index of codes of `bits` bits."""
    words = -(-bits // 32)
    shift = max(PIECE_TILES, card.limits.chunk_bytes // (words * WORD_BYTES)).bit_length() - 1
    with card.writing():
        nothing, addresses = card.arrays.zeros(0, np.uint32), card.address_all(())
    return Mirror((), np.empty(0, np.int64), words, shift, (), addresses, nothing, 0, 0)


def append_blocks(card: Card, mirror: Mirror, blocks: tuple[Block, ...]) -> Mirror:
    """Return the mirror with the rows that these blocks have more: in the last block, and in new ones.

    They are written past the rows that searches with the old mirror see.
    """
    old = mirror.blocks
    starts, parts, tiles, end = list(mirror.starts), [], mirror.tiles, mirror.end
    for i in range(max(0, len(old) - 1), len(blocks)):
        block, used = blocks[i], -(-blocks[i].rows // TILE)
        before = old[i].rows if i < len(old) else 0
        if i == len(old):
            starts.append(tiles * TILE)
            old = (*old, block)
        if block.rows > before:
            parts.append((block, int(starts[i]) // TILE, before // TILE, used))
        tiles, end = int(starts[i]) // TILE + used, int(starts[i]) + block.rows
    if not parts:
        return Mirror(**{**vars(mirror), "blocks": blocks})
    with card.writing():
        chunks = _with_capacity(card, mirror, tiles)
        live = _with_bits(card, mirror.live, tiles)
        for block, start, first, last in parts:
            _write(card, chunks, mirror.shift, start + first, block.tiles[first:last])
            _mark_live(card, live, block, start, first, last)
        addresses = mirror.addresses if chunks is mirror.chunks else card.address_all(chunks)
    return Mirror(blocks, np.array(starts, np.int64), mirror.words, mirror.shift, chunks, addresses, live, tiles, end)


def remove_rows(card: Card, mirror: Mirror, blocks: tuple[Block, ...], ids: IdArray) -> Mirror:
    """Return the mirror without the rows of these ids; `blocks` are those without them."""
    old = zip(mirror.blocks, mirror.starts, strict=True)
    rows = np.concatenate([np.empty(0, np.int64), *(start + block.rows_of(ids) for block, start in old)])
    if not len(rows):
        return Mirror(**{**vars(mirror), "blocks": blocks})
    words, inverse = np.unique(rows // 32, return_inverse=True)
    bits = np.zeros(len(words), np.uint32)
    np.bitwise_or.at(bits, inverse, np.uint32(1) << (rows % 32).astype(np.uint32))
    with card.writing():
        live = mirror.live.copy()  # searches may still read the old one
        places = card.arrays.asarray(words)
        live[places] &= card.arrays.asarray(~bits)
    return Mirror(**{**vars(mirror), "blocks": blocks, "live": live})


def ids_of(mirror: Mirror, rows: NDArray[np.int64]) -> IdArray:
    """Return the ids of rows on the card."""
    if len(mirror.blocks) == 1 and mirror.blocks[0].ids is None:
        return rows + mirror.blocks[0].first
    places = np.searchsorted(mirror.starts, rows, side="right") - 1
    ids = np.empty(len(rows), np.int64)
    for i in np.unique(places):
        mine = places == i
        ids[mine] = mirror.blocks[i].ids_of(rows[mine] - mirror.starts[i])
    return ids


def _with_capacity(card: Card, mirror: Mirror, tiles: int) -> tuple:  # type: ignore[type-arg]
    """Return chunks for so many tiles: those there are, of which a last one that is too small is copied."""
    full = 1 << mirror.shift
    chunks = list(mirror.chunks)
    if chunks and len(chunks[-1]) < full and tiles > (len(chunks) - 1) * full + len(chunks[-1]):
        needed = min(full, max(tiles - (len(chunks) - 1) * full, 2 * len(chunks[-1])))
        larger = card.allocate(needed, mirror.words)
        larger[: len(chunks[-1])] = chunks[-1]
        chunks[-1] = larger
    while len(chunks) * full < tiles and (not chunks or len(chunks[-1]) == full):
        first = not chunks  # a small index has a small chunk; a large one does not copy its last chunk again and again
        needed = tiles - len(chunks) * full
        chunks.append(card.allocate(min(full, needed) if first else full, mirror.words))
    return tuple(chunks) if len(chunks) != len(mirror.chunks) or chunks[-1] is not mirror.chunks[-1] else mirror.chunks


def _with_bits(card: Card, live: "NDArray[np.uint32]", tiles: int) -> "NDArray[np.uint32]":
    needed = tiles * LIVE_WORDS
    if len(live) >= needed:
        return live
    larger = card.arrays.zeros(needed + needed // SPARE + LIVE_WORDS * PIECE_TILES, np.uint32)
    larger[: len(live)] = live
    return larger  # type: ignore[no-any-return]


def _write(card: Card, chunks: tuple, shift: int, at: int, tiles: "NDArray[np.uint8]") -> None:  # type: ignore[type-arg]
    """Write tiles to the chunks, from tile `at` on."""
    while len(tiles):
        chunk, place = at >> shift, at & ((1 << shift) - 1)
        count = min(len(tiles), (1 << shift) - place)
        card.write_tiles(chunks[chunk], place, tiles[:count])
        tiles, at = tiles[count:], at + count


def _mark_live(card: Card, live: "NDArray[np.uint32]", block: Block, start: int, first: int, last: int) -> None:
    """Set the bits of the live rows in tiles first to last of the block, which begins at tile `start`."""
    target = slice((start + first) * LIVE_WORDS, (start + last) * LIVE_WORDS)
    if block.live is None:
        live[target] = ALL_ONES
    else:
        bits = block.live[first * (TILE // 8) : last * (TILE // 8)]
        live[target] = card.arrays.asarray(np.ascontiguousarray(bits).view(np.uint32))
    spare = last * TILE - block.rows
    if spare:
        tail = np.zeros(LIVE_WORDS * 4, np.uint8) + np.uint8(255)
        if block.live is not None:
            tail[:] = block.live[(last - 1) * (TILE // 8) : last * (TILE // 8)]
        rows = np.unpackbits(tail, bitorder="little")
        rows[TILE - spare :] = 0
        words = np.packbits(rows, bitorder="little").view(np.uint32)
        live[(start + last - 1) * LIVE_WORDS : (start + last) * LIVE_WORDS] = card.arrays.asarray(words)
