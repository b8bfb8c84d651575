"""The protocol of all indexes, and what they share: codes in blocks of tiles, their ids, validation of queries.

Full blocks are never moved or copied, so tiles that are mapped from a file can be blocks too (`add_tiles`). A search
takes the tuple of blocks as it is at that moment: one writer may add and remove while others search, and each search
sees one state.
"""

import threading
from abc import ABC, abstractmethod
from os import PathLike
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from stillhash.errors import BadState, InvalidInput, report_shortages
from stillhash.numeric import kernels
from stillhash.numeric import validation as check
from stillhash.numeric.codes import TILE, Tiles, width
from stillhash.numeric.exact_scores import Grid, snap
from stillhash.numeric.kernels import advise_huge_pages
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes, Floats, ScoredIds
from stillhash.search.blocks import Bitmap, Block, IdArray, append_codes, assign_ids, bitmap_by_id, restrict_all
from stillhash.search.index_files import (
    SavedIndex,
    read_index,
    saved_from_dict,
    saved_to_dict,
    trim,
    write_index,
)
from stillhash.search.merge import Floors, Hits, no_floors, resize


class Searcher(Protocol):
    """An index of codes."""

    bits: int

    def __len__(self) -> int: ...
    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> None: ...
    def remove(self, ids: ArrayLike) -> int: ...
    def search(self, weights: ArrayLike, k: int, *, allowed: Any = None) -> Hits: ...
    def search_checked(self, weights: Floats, k: int, floors: Floors, allowed: Any = None) -> Hits: ...
    def range_search(self, weights: ArrayLike, threshold: ArrayLike, *, allowed: Any = None) -> list[Hits]: ...
    def codes(self, ids: ArrayLike) -> Codes: ...


@report_shortages
class CodeIndex(ABC):
    """Base of Scan, MIWQ and Index: everything but how the best hits are found.

    A change is computed first and then published, so one that fails, for lack of memory say, changes nothing.
    """

    def __init__(self, bits: int, *, threads: int | None = None) -> None:
        self.bits = check.check_bits(bits)
        self.threads = usable_cores() if threads is None else check.check_integer(threads, "threads", 1)
        self._blocks: tuple[Block, ...] = ()
        self._removed = 0
        self._next_id = 0
        self._writing = threading.Lock()

    def __len__(self) -> int:
        return sum(block.rows for block in self._blocks) - self._removed

    def __repr__(self) -> str:
        return f"{type(self).__name__}(bits={self.bits}, rows={len(self)})"

    @property
    def nbytes(self) -> int:
        """Return the bytes in memory (or mapped): tiles, explicit ids, and bitmaps of removed rows."""
        arrays = [array for b in self._blocks for array in (b.tiles, b.ids, b.live) if array is not None]
        return sum(array.nbytes for array in arrays)

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> None:
        """Add codes (n, ceil(bits / 8)) under their ids, or under the next free numbers."""
        codes = check.check_codes(codes, self.bits)
        with self._writing:
            first, names, next_id = assign_ids(self._blocks, self._next_id, ids, len(codes))
            self._publish(append_codes(self._blocks, codes, self.bits, first, names))
            self._next_id = next_id

    def add_tiles(self, tiles: Tiles, rows: int, ids: ArrayLike | None = None) -> None:
        """Add `rows` codes that already are tiles (tiles, planes, 256), without a copy: mapped from a file, say."""
        shape = (-(-check.check_integer(rows, "rows", 1) // TILE), width(self.bits), TILE)
        tiles = np.asanyarray(tiles)
        if tiles.dtype != np.uint8 or tiles.shape != shape or not tiles.flags.c_contiguous:
            expected = f"shape {shape}, uint8 and C order for {rows} codes of {self.bits} bits"
            raise InvalidInput(f"tiles: expected {expected}, got shape {tiles.shape} and dtype {tiles.dtype}")
        advise_huge_pages(tiles)
        with self._writing:
            first, names, next_id = assign_ids(self._blocks, self._next_id, ids, rows)
            self._publish((*self._blocks, Block(tiles, rows, first, names, None)))
            self._next_id = next_id

    def remove(self, ids: ArrayLike) -> int:
        """Remove these ids and return how many there were; unknown ids are ignored."""
        ids = check.check_ids(ids)
        with self._writing:
            parts = [block.without(ids) for block in self._blocks]
            removed = sum(count for _, count in parts)
            self._publish(tuple(block for block, _ in parts), ids)
            self._removed += removed
        return removed

    def search(self, weights: ArrayLike, k: int, *, allowed: Any = None) -> Hits:
        """Return the k best hits of each query: exactly what scoring every code would give, ties included.

        weights: (m, bits), or (bits,) for one query. allowed: only ids i with allowed[i] true are hits; a boolean
        array, or a uint8 bitmap in little-endian bit order. Ids past its end are not allowed.
        """
        weights = check.check_weights(weights, self.bits)
        return self.search_checked(weights, check.check_k(k, len(weights)), no_floors(len(weights)), allowed)

    def search_checked(self, weights: Floats, k: int, floors: Floors, allowed: Any = None) -> Hits:
        """Search as `search` does, for arguments that are validated already, hits of at least the floors."""
        bitmap = None if allowed is None else bitmap_by_id(allowed)
        return resize(self._top(snap(weights), min(k, len(self)), bitmap, floors), k)

    def range_search(self, weights: ArrayLike, threshold: ArrayLike, *, allowed: Any = None) -> list[Hits]:
        """Return, for each query, all hits that score at least the threshold (one number, or one per query)."""
        grid = snap(check.check_weights(weights, self.bits))
        floors = check_floors(threshold, len(grid))
        blocks = restrict_all(self._blocks, None if allowed is None else bitmap_by_id(allowed))
        return [Hits(*hits) for hits in kernels.scan_all(blocks, grid, floors, self.threads)]

    def codes(self, ids: ArrayLike) -> Codes:
        """Return the codes (n, ceil(bits / 8)) of these ids, which must all exist; an id may come more than once."""
        names, blocks = np.asarray(ids), self._blocks
        if names.dtype == np.int64 and names.ndim == 1:
            quickly = kernels.read_codes(blocks, names, width(self.bits))
            if quickly is not None:
                return quickly
        names, numbers = check.check_repeated_ids(names)
        codes, known = np.zeros((len(names), width(self.bits)), np.uint8), 0
        for block in blocks:
            rows = block.rows_of(names)
            codes[np.searchsorted(names, block.ids_of(rows))] = kernels.read_tiles(block.tiles, rows)
            known += len(rows)
        if known < len(names):
            raise InvalidInput(f"ids: expected ids of the index, got {len(names) - known} that are not in the index")
        return codes[numbers]

    def ids(self) -> IdArray:
        """Return all ids, rising."""
        parts = [block.ids_of(block.live_rows()) for block in self._blocks]
        return np.sort(np.concatenate([np.empty(0, np.int64), *parts]))

    def frozen(self) -> Self:
        """Return the index as it is at this moment, to read from: later changes do not reach it."""
        frozen = object.__new__(type(self))
        with self._writing:
            vars(frozen).update(vars(self))
        return frozen

    def save(self, path: str | PathLike[str]) -> None:
        """Write codes, ids and removals to one file, whole or not at all; it is on disk when this returns.

        Tables are not saved. Writes may go on in the meantime; the file has the state of this moment.
        """
        write_index(path, self.saved())

    @classmethod
    def load(
        cls, path: str | PathLike[str], *, mapped: bool = True, verify: bool = True, threads: int | None = None
    ) -> Self:
        """Return the index that `save` wrote, of this class or another one of integer ids. It answers as that one did.

        mapped: search the codes where they lie in the file, which is read as it is needed; else read it all. The file
        may be replaced or removed meanwhile, but not changed. verify: compare the checksums, which reads the file once,
        and refuse ids and codes that no index has; without it only sizes are compared. Tables are not built until the
        next `add`, or `merge`.
        """
        saved = read_index(path, mapped=mapped, verify=verify)
        if saved.texts is not None:
            raise BadState("path: expected an index of integer ids, got one of text ids. Use NamedIndex.load")
        return cls.from_saved(saved, threads)

    def saved(self) -> SavedIndex:
        """Return all that the index is rebuilt from, at this moment, without a copy of the codes."""
        with self._writing:
            blocks, next_id, removed = self._blocks, self._next_id, self._removed
        return SavedIndex(self.bits, getattr(self, "tables", None), next_id, tuple(map(trim, blocks)), removed)

    @classmethod
    def from_saved(cls, saved: SavedIndex, threads: int | None = None) -> Self:
        """Return the index of `saved`, without a copy of its codes."""
        index = cls(saved.bits, threads=threads)
        index._restore(saved)
        return index

    def _restore(self, saved: SavedIndex) -> None:
        for block in saved.blocks:
            advise_huge_pages(block.tiles)
        self._blocks, self._next_id, self._removed = saved.blocks, saved.next_id, saved.removed

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by what is saved: no tables, locks or threads."""
        return restore_index, (type(self), self.threads, saved_to_dict(self.saved()))

    def close(self) -> None:  # noqa: B027
        """Do nothing: only an index on a cluster holds something to release."""

    @property
    def plan(self) -> str:
        """Return how queries begin: on "tables", where an index has some, or as a "scan" of all codes."""
        return "scan"

    @property
    def merging(self) -> bool:
        """Return whether rows are on their way into tables, where an index has some."""
        return False

    def merge_if_due(self) -> None:  # noqa: B027
        """Bring rows into tables where enough of them wait, in the background; an index without tables has none."""

    @abstractmethod
    def _top(self, grid: Grid, k: int, allowed: Bitmap | None, floors: Floors) -> ScoredIds:
        """Return the k best hits of each query, where k is no more than there are rows."""

    def _publish(self, blocks: tuple[Block, ...], removed: IdArray | None = None) -> None:
        """Let searches see these blocks from here on; `removed` are the ids that have just gone."""
        self._blocks = blocks


def restore_index(cls: type[CodeIndex], threads: int, state: dict[str, Any]) -> CodeIndex:
    """Return the index that was pickled or copied."""
    return cls.from_saved(saved_from_dict(state), threads)


def check_floors(threshold: ArrayLike, queries: int) -> Floats:
    """Return the least float32 score of each query that is not below its threshold."""
    thresholds = check.check_threshold(threshold, queries)
    with np.errstate(over="ignore"):  # beyond all scores is infinity
        least = thresholds.astype(np.float32)
    return np.ascontiguousarray(np.where(least < thresholds, np.nextafter(least, np.float32(np.inf)), least))


class Scan(CodeIndex):
    """An exact index of codes of `bits` bits that reads every code: a tile is pruned by a provable 8-bit bound.

    Without `ids`, rows are numbered 0, 1, 2, ... and cost bits / 8 bytes each. Ids that are not consecutive cost 8
    bytes more. `threads` is the most that one search uses; small searches use fewer.
    """

    def _top(self, grid: Grid, k: int, allowed: Bitmap | None, floors: Floors) -> ScoredIds:
        return kernels.scan_top(restrict_all(self._blocks, allowed), grid, k, floors.least, self.threads, floors.most)
