"""Saved indexes: one file with a header, a table of blocks, and the tiles, ids and live rows of each block.

It is a sealed file (files.py): written under another name, synced and renamed, with two checksums of each
4,096 bytes. Each section begins at a multiple of 4,096 bytes, so that tiles are mapped and never copied. Codes of
removed rows are zeros in the file. Numbers are little-endian.

| section | content |
|---|---|
| header | magic word, version, bits, tables (0: by rows), 1 if ids are texts, next id, blocks, texts, bytes of texts |
| blocks | for each: rows, first id, 1 if ids are listed, removed rows: with any, there is a bitmap of the others |
| of each block | tiles; ids, int64; bitmap of live rows, whole tiles |
| texts | where each one ends, int64; all of them, UTF-8 |
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState
from stillhash.files import (
    BLOCK_SIZE,
    check_sealed,
    content_size,
    map_file,
    open_regular,
    saved_path,
    translate_read_errors,
    write_sealed,
)
from stillhash.numeric.codes import TILE, empty_tiles, width
from stillhash.numeric.validation import MAX_BITS, MIN_BITS, Codes
from stillhash.search.blocks import Bitmap, Block, IdArray

INDEX_MAGIC = b"stillhash index\n"
INDEX_FORMAT = 1
INDEX_HEADER = struct.Struct("<16sIIIIqQQQ")
PART_TILES = 1024  # read or written at a time; a multiple of 16, so that they are whole blocks of the file
MAX_ID = np.iinfo(np.int64).max - 1
ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)  # in each byte


class Texts(NamedTuple):
    """The text ids of rows 0, 1, ...: UTF-8, one after another, and where each one ends."""

    ends: NDArray[np.int64]
    data: NDArray[np.uint8]


class SavedIndex(NamedTuple):
    """All that an index is rebuilt from."""

    bits: int
    tables: int | None  # as MIWQ was created with
    next_id: int
    blocks: tuple[Block, ...]
    removed: int  # rows of the blocks that are not live
    texts: Texts | None = None


def write_index(path: Any, saved: SavedIndex) -> None:
    """Write a saved index, whole or not at all; it is on disk when this returns."""
    write_sealed(saved_path(path), _sections(saved))


def read_index(path: Any, *, mapped: bool = True, verify: bool = True) -> SavedIndex:
    """Return what `write_index` wrote, mapped or in memory.

    verify: compare the checksums, and look at ids and codes; else only sizes are compared, and nothing is read.
    """
    place = saved_path(path)
    with translate_read_errors(place), open_regular(place) as file:
        if file.read(len(INDEX_MAGIC)) != INDEX_MAGIC:
            raise BadState(f"{place.name}: expected a saved index, got something else")
    if verify:
        check_sealed(place)
    size = content_size(place)
    saved = _parse(_Sections(map_file(place)[:size], place.name), mapped)
    if verify:
        check_saved(saved, place.name)
    return saved


def check_saved(saved: SavedIndex, name: str) -> None:
    """Raise BadState unless ids are in range, next ids free, bits past the code length zero, and texts in order."""
    if sum(map(count_removed, saved.blocks)) != saved.removed:
        raise BadState(f"{name}: expected {saved.removed} removed rows, got another number of them")
    for block in saved.blocks:
        if block.ids is not None and (int(block.ids.min()) < 0 or int(block.ids.max()) >= saved.next_id):
            expected = f"ids from 0 to {saved.next_id - 1}"
            raise BadState(f"{name}: expected {expected}, got {block.ids.min()} to {block.ids.max()}")
        if saved.bits % 8:
            for s in range(0, len(block.tiles), PART_TILES):
                if int(block.tiles[s : s + PART_TILES, -1].max()) >> saved.bits % 8:
                    raise BadState(f"{name}: expected zeros past bit {saved.bits - 1}, got ones")
    if saved.texts is not None:
        ends, data = saved.texts
        if (np.diff(ends, prepend=0) < 0).any() or int(ends[-1] if len(ends) else 0) != len(data):
            raise BadState(f"{name}: expected texts one after another, got others")


def trim(block: Block) -> Block:
    """Return the block without spare capacity, to be read only: what is appended to it does not reach this one."""
    used = -(-block.rows // TILE)
    tiles = block.tiles[:used].view()
    tiles.flags.writeable = False
    live = None if block.live is None else block.live[: used * TILE // 8]
    return block._replace(tiles=tiles, live=live, ids=None if block.ids is None else block.ids[: block.rows])


def saved_to_dict(saved: SavedIndex) -> dict[str, Any]:
    """Return plain numbers and arrays, as pickles hold them."""
    blocks = [tuple(block) for block in saved.blocks]
    texts = None if saved.texts is None else tuple(saved.texts)
    return {**saved._asdict(), "format": INDEX_FORMAT, "blocks": blocks, "texts": texts}


def saved_from_dict(state: dict[str, Any]) -> SavedIndex:
    """Return what `saved_to_dict` gave."""
    if (version := state.pop("format", None)) != INDEX_FORMAT:
        raise BadState(f"index: expected format version {INDEX_FORMAT}, got {version!r:.100}")
    blocks = [Block(tiles, int(rows), int(first), ids, live) for tiles, rows, first, ids, live in state["blocks"]]
    texts = None if state["texts"] is None else Texts(*state["texts"])
    return SavedIndex(**{**state, "blocks": tuple(map(trim, blocks)), "texts": texts})


def count_removed(block: Block) -> int:
    """Return how many rows of a block are not live."""
    if block.live is None:
        return 0
    whole, rest = divmod(block.rows, 8)
    live = int(ONES[block.live[:whole]].sum())
    if rest:
        live += int(ONES[block.live[whole] & ((1 << rest) - 1)])
    return block.rows - live


def _sections(saved: SavedIndex) -> Iterator[bytes | memoryview]:
    """Yield the content of the file in parts that are whole blocks of it."""
    count, data = (0, 0) if saved.texts is None else (len(saved.texts.ends), len(saved.texts.data))
    named = int(saved.texts is not None)
    numbers = saved.bits, saved.tables or 0, named, saved.next_id, len(saved.blocks), count, data
    yield _padded(INDEX_HEADER.pack(INDEX_MAGIC, INDEX_FORMAT, *numbers))
    table = [(b.rows, b.first, int(b.ids is not None), count_removed(b)) for b in saved.blocks]
    yield from _array_parts(np.array(table, "<i8").reshape(-1))
    for block, (*_, removed) in zip(saved.blocks, table, strict=True):
        tiles = -(-block.rows // TILE)
        for start in range(0, tiles, PART_TILES):
            yield _padded(_live_tiles(block, start, min(start + PART_TILES, tiles)))
        if block.ids is not None:
            yield from _array_parts(block.ids[: block.rows].astype("<i8", copy=False))
        if block.live is not None and removed:
            yield from _array_parts(block.live[: tiles * TILE // 8])
    if saved.texts is not None:
        yield from _array_parts(saved.texts.ends.astype("<i8", copy=False))
        yield from _array_parts(saved.texts.data)


def _live_tiles(block: Block, start: int, end: int) -> memoryview:
    """Return some tiles, with zeros for rows that are removed, or past the end and perhaps being written."""
    tiles = block.tiles[start:end]
    if block.live is None and end * TILE <= block.rows:
        return np.ascontiguousarray(tiles).data.cast("B")
    live = np.arange(start * TILE, end * TILE) < block.rows
    if block.live is not None:
        live &= np.unpackbits(block.live[start * TILE // 8 : end * TILE // 8], bitorder="little").astype(bool)
    return (tiles * live.reshape(-1, 1, TILE)).data.cast("B")


def _array_parts(array: NDArray[Any]) -> Iterator[bytes | memoryview]:
    step = BLOCK_SIZE * PART_TILES // array.itemsize
    for start in range(0, len(array), step):
        yield _padded(np.ascontiguousarray(array[start : start + step]).data.cast("B"))


def _padded(part: bytes | memoryview) -> bytes | memoryview:
    """Return the part with zeros up to a whole block."""
    lack = -len(part) % BLOCK_SIZE
    return bytes(part) + bytes(lack) if lack else part


class _Sections:
    """Takes sections off the content of a file, one after another."""

    def __init__(self, content: NDArray[np.uint8], name: str) -> None:
        self.content, self.name, self.at = content, name, 0

    def take(self, size: int) -> NDArray[np.uint8]:
        if size > len(self.content) - self.at:
            raise BadState(f"{self.name}: expected a section of {size} bytes, got the end of the file")
        section = self.content[self.at : self.at + size]
        self.at += -(-size // BLOCK_SIZE) * BLOCK_SIZE
        return section


def _parse(sections: _Sections, mapped: bool) -> SavedIndex:
    name = sections.name
    header = INDEX_HEADER.unpack(sections.take(INDEX_HEADER.size).tobytes())
    magic, version, bits, tables, named, next_id, count, texts, data = header
    if magic != INDEX_MAGIC or version != INDEX_FORMAT:
        raise BadState(f"{name}: expected format version {INDEX_FORMAT}, got {version}")
    if not MIN_BITS <= bits <= MAX_BITS or named > 1 or not 0 <= next_id <= MAX_ID + 1:
        raise BadState(f"{name}: expected a header of an index, got {header[2:]}")
    table = np.frombuffer(sections.take(32 * count).tobytes(), "<i8").reshape(-1, 4)
    blocks = tuple(_parse_block(sections, bits, row, mapped) for row in table.tolist())
    if any(block.ids is None and block.first + block.rows > next_id for block in blocks):
        raise BadState(f"{name}: expected ids below the next id {next_id}, got others")
    ids = None
    if named:
        ids = Texts(_int64(sections.take(8 * texts), mapped), _loaded(sections.take(data), mapped))
        if texts != next_id or any(block.ids is not None for block in blocks):
            raise BadState(f"{name}: expected the texts of {next_id} rows, got {texts}")
    if sections.at != len(sections.content):
        raise BadState(f"{name}: expected {sections.at} bytes, got {len(sections.content)}")
    return SavedIndex(bits, tables or None, next_id, blocks, sum(removed for *_, removed in table.tolist()), ids)


def _parse_block(sections: _Sections, bits: int, numbers: list[int], mapped: bool) -> Block:
    rows, first, listed, removed = numbers
    if rows < 1 or not 0 <= first <= MAX_ID + 1 - rows or listed not in (0, 1) or not 0 <= removed <= rows:
        raise BadState(f"{sections.name}: expected a block of rows, got {numbers}")
    tiles: NDArray[np.uint8] = sections.take(-(-rows // TILE) * TILE * width(bits)).reshape(-1, width(bits), TILE)
    if not mapped:
        own = empty_tiles(rows, bits)
        own[:] = tiles
        tiles = own
    ids: IdArray | None = _int64(sections.take(8 * rows), mapped) if listed else None
    live: Bitmap | None = _loaded(sections.take(len(tiles) * TILE // 8), mapped) if removed else None
    return Block(np.asarray(tiles), rows, first, ids, live)


def _int64(section: NDArray[np.uint8], mapped: bool) -> IdArray:
    return np.asarray(_loaded(section, mapped).view("<i8").astype(np.int64, copy=False))


def _loaded(section: NDArray[np.uint8], mapped: bool) -> Codes:
    return np.asarray(section) if mapped else np.array(section)
