"""Exact search on a GPU: the same answers as `Scan`, to the bit.

Searches that wait for the card go together: a scan of all codes costs little more for many queries than for one. No
thread of its own is needed. Callers take turns; the one whose turn it is searches for all that wait.
"""

import threading
from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from stillhash.errors import BadState, InvalidInput, StillhashError, report_shortages
from stillhash.numeric import kernels
from stillhash.numeric.exact_scores import Grid, snap
from stillhash.numeric.validation import Floats, ScoredIds, check_integer, check_weights
from stillhash.search.blocks import Bitmap, Block, IdArray, bitmap_by_id, restrict_all
from stillhash.search.code_index import CodeIndex, check_floors
from stillhash.search.gpu.card import Candidates, Card, Mirror
from stillhash.search.gpu.cuda_card import open_card
from stillhash.search.gpu.mirror import append_blocks, empty_mirror, ids_of, remove_rows
from stillhash.search.index import Index
from stillhash.search.index_files import SavedIndex, read_index, saved_from_dict, saved_to_dict
from stillhash.search.merge import Floors, Hits, drop_below, merge_all, resize

MOST_TOGETHER = 1024  # queries that one turn answers
MOST_K = 1 << 18  # more hits than this are candidates on the CPU
LEAST_BATCH = 3  # fewer queries are faster one by one
CACHED_FILTERS = 4
CPU, CUDA, AUTO = "cpu", "cuda", "auto"


class CardSearch:
    """The queries of one caller, over the rows of a mirror that are live, or `live` if there is a filter."""

    def __init__(
        self,
        mirror: Mirror,
        grid: Grid,
        k: int,
        floors: Floors,
        allowed: Bitmap | None = None,
        live: Any = None,
        count: int | None = None,
    ) -> None:
        self.mirror, self.grid, self.k, self.floors = mirror, grid, k, floors
        self.allowed, self.live, self.count = allowed, live, count
        self.hits: ScoredIds | None = None
        self.error: Exception | None = None

    def joins(self, other: "CardSearch") -> bool:
        """Return whether both can be answered by one scan."""
        return self.mirror is other.mirror and self.live is other.live

    def part(self, start: int, stop: int) -> "CardSearch":
        """Return the search of some of the queries."""
        floors = Floors(self.floors.least[start:stop], self.floors.most[start:stop])
        return CardSearch(self.mirror, self.grid[start:stop], self.k, floors, self.allowed, self.live, self.count)

    @property
    def done(self) -> bool:
        return self.hits is not None or self.error is not None


class SearchQueue:
    """Searches that wait for their turn on the card."""

    def __init__(self, answer: Callable[[CardSearch], ScoredIds]) -> None:
        self._answer = answer
        self._waiting: list[CardSearch] = []
        self._lock, self._turn = threading.Lock(), threading.Lock()

    def run(self, search: CardSearch) -> ScoredIds:
        """Return the k best hits of each query, found together with those of others that wait."""
        with self._lock:
            self._waiting.append(search)
        try:
            with self._turn:
                if not search.done:
                    self._lead(search)
        finally:
            with self._lock:
                if search in self._waiting:  # interrupted
                    self._waiting.remove(search)
        if search.error is not None:
            raise search.error
        assert search.hits is not None
        return search.hits

    def _lead(self, search: CardSearch) -> None:
        """Answer this search and all that can be answered with it."""
        batch, queries = [search], len(search.grid)
        with self._lock:
            for other in self._waiting:
                if other is not search and other.joins(search) and queries + len(other.grid) <= MOST_TOGETHER:
                    batch.append(other)
                    queries += len(other.grid)
            self._waiting = [each for each in self._waiting if each not in batch]
        try:
            scores, ids = self._answer(join_all(batch))
        except Exception as error:
            for each in batch:
                each.error = error
            return
        start = 0
        for each in batch:
            own = slice(start, start + len(each.grid))
            each.hits = scores[own, : each.k], ids[own, : each.k]
            start = own.stop


def join_all(batch: list[CardSearch]) -> CardSearch:
    """Return one search with the queries of all, for the largest of their k."""
    first = batch[0]
    if len(batch) == 1:
        return first
    floors = Floors(
        np.concatenate([each.floors.least for each in batch]), np.concatenate([each.floors.most for each in batch])
    )
    grid, k = np.concatenate([each.grid for each in batch]), max(each.k for each in batch)
    return CardSearch(first.mirror, grid, k, floors, first.allowed, first.live, first.count)


class CardFilter(NamedTuple):
    """The rows of an index that a filter allows, on the card."""

    bitmap: Bitmap  # by id
    mirror: Mirror  # of which it has rows
    live: Any
    rows: int


@report_shortages
class GpuScan(CodeIndex):
    """An exact index of codes of `bits` bits that searches on a GPU.

    The codes are on the card, and on the host too: mapped from a file if they come by `add_tiles` or `load`. The host
    serves `codes`, `save`, and the rare searches that the card has no memory for. `device` is the number of the GPU.
    """

    def __init__(self, bits: int, *, device: int | Card = 0, threads: int | None = None) -> None:
        super().__init__(bits, threads=threads)
        self.device = device if isinstance(device, Card) else check_integer(device, "device", 0)
        self.card = device if isinstance(device, Card) else open_card(self.device)  # type: ignore[arg-type]
        self._mirror = empty_mirror(self.card, self.bits)
        self._queue = SearchQueue(self._answer)  # which frozen copies share: their searches go together
        self._filters: list[CardFilter] = []
        self._filters_lock = threading.Lock()

    @property
    def mirror(self) -> Mirror:
        """Return the codes on the card at this moment."""
        return self._mirror

    @property
    def card_bytes(self) -> int:
        """Return the bytes on the card: codes and the bitmap of live rows."""
        return sum(int(chunk.nbytes) for chunk in self._mirror.chunks) + int(self._mirror.live.nbytes)

    def range_search(self, weights: ArrayLike, threshold: ArrayLike, *, allowed: Any = None) -> list[Hits]:
        """Return, for each query, all hits that score at least the threshold (one number, or one per query)."""
        grid, mirror = snap(check_weights(weights, self.bits)), self._mirror
        floors = check_floors(threshold, len(grid))
        allowed = allowed.bitmap if isinstance(allowed, CardFilter) else allowed
        bitmap = None if allowed is None else bitmap_by_id(allowed)
        if not mirror.tiles:
            return [merge_all([]) for _ in grid]
        live = None if bitmap is None else self._restrict(mirror, bitmap)[0]
        hits = []
        for q in range(len(grid)):
            query, floor = grid[q : q + 1], floors[q : q + 1]
            candidates = self.card.at_least(mirror, query, floor, live)
            if candidates.complete:
                hits.append(merge_all([(candidates.scores, ids_of(mirror, candidates.rows))]))
            else:
                blocks = restrict_all(mirror.blocks, bitmap)
                hits += [Hits(*each) for each in kernels.scan_all(blocks, query, floor, self.threads)]
        return hits

    def prepare_filter(self, allowed: Any) -> CardFilter:
        """Return a filter that stays on the card, to pass as `allowed`: large bitmaps take longer to copy than to use.

        It may be used after changes of the index too; then it is copied again.
        """
        bitmap = bitmap_by_id(allowed)
        return CardFilter(bitmap, self._mirror, *self._restrict(self._mirror, bitmap))

    def search_checked(self, weights: Floats, k: int, floors: Floors, allowed: Any = None) -> Hits:
        """Search as `search` does, for arguments that are validated already, hits of at least the floors."""
        if not isinstance(allowed, CardFilter):
            return super().search_checked(weights, k, floors, allowed)
        live = (allowed.live, allowed.rows) if allowed.mirror is self._mirror else None
        hits = self._top(snap(weights), min(k, len(self)), allowed.bitmap, floors, live)
        return resize(hits, k)

    def _top(
        self,
        grid: Grid,
        k: int,
        allowed: Bitmap | None,
        floors: Floors,
        restricted: tuple[Any, int] | None = None,
    ) -> ScoredIds:
        mirror = self._mirror
        if not mirror.tiles or not k or not len(grid):
            return np.full((len(grid), k), -np.inf, np.float32), np.full((len(grid), k), -1, np.int64)
        if k > MOST_K:
            return self._scan_on_host(mirror, grid, k, allowed, floors)
        if allowed is not None and restricted is None:
            restricted = self._restrict(mirror, allowed)
        live, count = restricted or (None, None)
        return drop_below(self._queue.run(CardSearch(mirror, grid, k, floors, allowed, live, count)), floors)

    def _restrict(self, mirror: Mirror, allowed: Bitmap) -> tuple[Any, int]:
        """Return the live rows that are allowed; those of the latest read-only bitmaps are still on the card."""
        if allowed.flags.writeable or not allowed.flags.owndata:
            return self.card.restrict(mirror, allowed)
        with self._filters_lock:
            for each in self._filters:
                if each.bitmap is allowed and each.mirror is mirror:
                    return each.live, each.rows
        filtered = CardFilter(allowed, mirror, *self.card.restrict(mirror, allowed))
        with self._filters_lock:
            self._filters[:] = [filtered, *(each for each in self._filters if each.mirror is mirror)][:CACHED_FILTERS]
        return filtered.live, filtered.rows

    def _answer(self, search: CardSearch) -> ScoredIds:
        """Return the k best hits of each query, some at a time."""
        grid = search.grid
        step = 1 if len(grid) < LEAST_BATCH else self.card.batch_size(search.k)
        parts = [self._search(search.part(start, start + step)) for start in range(0, len(grid), step)]
        return _joined(parts)

    def _search(self, search: CardSearch) -> ScoredIds:
        """Return the k best hits of a batch: on the card, or on the host if there are too many candidates."""
        mirror, grid, k, floors = search.mirror, search.grid, search.k, search.floors
        with self.card.holding():
            candidates = self.card.best(mirror, grid, k, floors.least, search.live, search.count)
            if not candidates.complete:  # once more, from the threshold that was reached
                reached = np.maximum(floors.least, self.card.thresholds(len(grid)))
                candidates = self.card.best(mirror, grid, k, reached, search.live, search.count)
        if candidates.complete:
            return _best_of(mirror, candidates, len(grid), k)
        if len(grid) == 1:
            return self._scan_on_host(mirror, grid, k, search.allowed, floors)
        parts = [self._search(search.part(q, q + 1)) for q in range(len(grid))]
        return _joined(parts)

    def _scan_on_host(self, mirror: Mirror, grid: Grid, k: int, allowed: Bitmap | None, floors: Floors) -> ScoredIds:
        blocks = restrict_all(mirror.blocks, allowed)
        return kernels.scan_top(blocks, grid, k, floors.least, self.threads, floors.most)

    def _publish(self, blocks: tuple[Block, ...], removed: IdArray | None = None) -> None:
        if removed is None:
            self._mirror = append_blocks(self.card, self._mirror, blocks)
        else:
            self._mirror = remove_rows(self.card, self._mirror, blocks, removed)
        super()._publish(blocks, removed)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        mapped: bool = True,
        verify: bool = True,
        threads: int | None = None,
        device: int | Card | None = None,
    ) -> Self:
        """Return the index that `save` wrote, of this class or another one of integer ids, on this GPU.

        mapped: the host reads its codes where they lie in the file; verify: compare the checksums first.
        """
        saved = read_index(path, mapped=mapped, verify=verify)
        if saved.texts is not None:
            raise BadState("path: expected an index of integer ids, got one of text ids. Use NamedIndex.load")
        return cls.from_saved(saved, threads, device)

    @classmethod
    def from_saved(cls, saved: SavedIndex, threads: int | None = None, device: int | Card | None = None) -> Self:
        """Return the index of `saved`, on this GPU."""
        options: dict[str, Any] = {} if device is None else {"device": device}
        index = cls(saved.bits, threads=threads, **options)
        index._restore(saved)
        return index

    def _restore(self, saved: SavedIndex) -> None:
        super()._restore(saved)
        self._mirror = append_blocks(self.card, self._mirror, saved.blocks)

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.device, Card):
            raise InvalidInput("device: expected the number of a GPU to copy or pickle the index, got a card")
        return restore_gpu_scan, (type(self), self.threads, self.device, saved_to_dict(self.saved()))


def restore_gpu_scan(cls: type[GpuScan], threads: int, device: int, state: dict[str, Any]) -> GpuScan:
    """Return the index that was pickled or copied."""
    return cls.from_saved(saved_from_dict(state), threads, device)


def _joined(parts: list[ScoredIds]) -> ScoredIds:
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _best_of(mirror: Mirror, candidates: Candidates, queries: int, k: int) -> ScoredIds:
    """Return the k best candidates of each query: higher score first, then smaller id."""
    ids = ids_of(mirror, candidates.rows)
    order = np.lexsort((ids, -candidates.scores, candidates.queries))
    of = candidates.queries[order]
    place = np.arange(len(of)) - np.searchsorted(of, np.arange(queries))[of]
    first = place < k
    scores = np.full((queries, k), -np.inf, np.float32)
    best = np.full((queries, k), -1, np.int64)
    scores[of[first], place[first]] = candidates.scores[order][first]
    best[of[first], place[first]] = ids[order][first]
    return scores, best


def index_for(bits: int, *, device: str = AUTO, threads: int | None = None) -> CodeIndex:
    """Return an empty exact index on a device: "cpu", "cuda", "cuda:1", or "auto", a GPU if there is one."""
    index: CodeIndex = searcher_for(device)(bits, threads=threads)
    return index


def searcher_for(device: str) -> Callable[..., Any]:
    """Return what makes an index for codes of so many bits on a device, as `stillhash.open` takes it.

    Raises MissingExtra or Unsupported if a GPU is named and there is none.
    """
    name, number = parse_device(device)
    if name == CPU:
        return Index
    try:
        open_card(number)
    except StillhashError:
        if name == AUTO:
            return Index
        raise
    return partial(GpuScan, device=number)


def parse_device(device: str) -> tuple[str, int]:
    """Return the kind of a device and the number of the GPU, whether there is one or not."""
    name, _, number = str(device).partition(":")
    if name not in (CPU, CUDA, AUTO) or (number and (name != CUDA or not number.isdigit())):
        raise InvalidInput(f"device: expected cpu, cuda, cuda:NUMBER or auto, got {device!r:.100}")
    return name, int(number or 0)


def restore_for(saved: SavedIndex, *, device: str = AUTO, threads: int | None = None) -> CodeIndex:
    """Return the index of `saved` on a device, without a copy of its codes on the host."""
    searcher = searcher_for(device)
    if isinstance(searcher, partial):
        return GpuScan.from_saved(saved, threads, **searcher.keywords)
    return Index.from_saved(saved, threads)
