"""Read the items of a collection: by their ids, at random, or all that meet a condition."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.language import compile_filter
from stillhash.collection.input_rows import input_rows
from stillhash.collection.item_getter import ItemGetter
from stillhash.collection.maintenance.duplicates import check_likeness, find_duplicates, read_compared
from stillhash.collection.read_view import ReadView, Snapshot
from stillhash.collection.storage.bitmaps import count_bits
from stillhash.collection.storage.item_pages import page_rows, pictured_ids, read_page
from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.row_arrays import find_lost
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Filter, Id, Item, ItemIds
from stillhash.collection.validation import check_ids
from stillhash.errors import report_shortages
from stillhash.numeric.near_groups import ShareProgress
from stillhash.numeric.validation import Codes, Floats, Mask, check_integer
from stillhash.search import Index


@report_shortages
class ItemReader(ItemGetter):
    """The verbs that read items by their ids, or list them."""

    def __init__(self, store: Store, searcher: Callable[[int], Any] = Index) -> None:
        self._searcher = searcher
        self._use(store)
        self.dim: int = store.settings["dim"]
        self.bits: int = store.settings["bits"]
        self.codes_only: bool = store.settings["codes_only"]
        self._input = input_rows(store.settings)

    def _use(self, store: Store) -> None:
        self._store, self._view = store, ReadView(store, self._searcher)

    @property
    def path(self) -> Path:
        """The folder of the collection."""
        return self._store.path

    @property
    def read_only(self) -> bool:
        """Whether it was opened for reading only."""
        return self._store.read_only

    def __repr__(self) -> str:
        return f"Collection({self._store.path.name!r}, dim={self.dim}, bits={self.bits}, rows={self.count()})"

    def __len__(self) -> int:
        return self.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store and release the write lock."""
        self._store.close()
        self._view.close()

    def warn_unknown_fields(self, on: bool) -> None:
        """Turn on or off the warning of filters that compare a field that no item has; it is on at first."""
        self._view.filter_columns.warn_unknown = on

    def _read_items(self, names: list[Id], max_bytes: int | None) -> list[Item | None]:
        with self._store.reading() as connection:
            rows = self._store.items.rows_of(connection, names)
            known = (rows[name] for name in names if name in rows)
            items = self._store.items.get(connection, known, max_bytes)
            return [items[rows[name]] if name in rows else None for name in names]

    def picture(self, id: Id) -> bytes | None:
        """Return the small image that an item came with, if it did."""
        (name,) = check_ids([id])
        with self._store.reading() as connection:
            return self._store.items.picture(connection, name)

    def has_picture(self, ids: ItemIds) -> list[bool]:
        """Return for each of these ids whether there is such an item, and it came with a picture."""
        names = check_ids(ids, distinct=False)
        with self._store.reading() as connection:
            pictured = pictured_ids(connection, names)
        return [name in pictured for name in names]

    def reconstruct(self, ids: ItemIds) -> NDArray[Any]:
        """Return features (n, D) that stand for these items, to search for more like them.

        With `keep_features`, and while items wait for hash functions, they are the items' own. Otherwise they are
        rebuilt from the rescoring codes, nearly the same but for their length, or where there are none from the codes,
        which they then have, or nearly so. Where the collection has `codes_only`, the codes themselves.
        """
        names = check_ids(ids, distinct=False)
        codes = self.codes(names) if self.codes_only else None
        return self._features(names)[0] if codes is None else codes

    def _features(self, names: list[Id]) -> tuple[Floats, Mask]:
        """Return features of these items, and which of them are the items' own, not rebuilt from codes."""
        with self._view.pinned() as snapshot:
            rows = self._store.items.existing_rows(snapshot.connection, names)
            return self._row_features(snapshot, rows)

    def _row_features(self, snapshot: Snapshot, rows: RowNumbers) -> tuple[Floats, Mask]:
        """Return features of these rows, as `_features` does of items."""
        if snapshot.functions is None:
            waiting, (X, _, _) = self._store.items.awaiting_codes(snapshot.connection)
            return X[np.searchsorted(waiting, rows)], np.ones(len(rows), bool)
        if self._store.features is None:
            return self._decoded(snapshot, rows), np.full(len(rows), self.codes_only)
        X, exact = self._store.features.read(snapshot.connection, rows)
        if not exact.all():
            X[~exact] = self._decoded(snapshot, rows[~exact])
        return X, exact

    def _decoded(self, snapshot: Snapshot, rows: RowNumbers) -> Floats:
        """Return about the features of rows, from their rescoring codes, or else from their codes."""
        assert snapshot.functions is not None
        if snapshot.page_items is None or self._store.rescorer is None:
            return snapshot.functions.decode(snapshot.index.codes(rows))
        rescoring_codes = snapshot.page_items.rescoring_codes(rows)
        X = self._store.rescorer.decode(rescoring_codes) + snapshot.functions.mean_
        if (lost := find_lost(rescoring_codes)).any():
            X[lost] = snapshot.functions.decode(snapshot.index.codes(rows[lost]))
        return X

    def codes(self, ids: ItemIds) -> Codes | None:
        """Return the packed codes (n, ceil(bits / 8)) of these items; None while items wait for hash functions."""
        names = check_ids(ids, distinct=False)
        with self._view.pinned() as snapshot:
            rows = self._store.items.existing_rows(snapshot.connection, names)
            return None if snapshot.functions is None else snapshot.index.codes(rows)

    def sample(self, count: int = 1, *, max_bytes: int | None = None) -> list[Item]:
        """Return some items at random, at most `count`; `max_bytes` is as in `get`."""
        check_integer(count, "count", 1, 10_000)
        with self._store.reading() as connection:
            return self._store.items.sample(connection, count, max_bytes)

    def count(self, where: Filter | None = None) -> int:
        """Return how many items there are, or how many meet a condition (filters.py)."""
        if where is None:
            with self._store.reading() as connection:
                return int(get_meta(connection, "items"))
        condition = compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            assert snapshot.allowed is not None
            return count_bits(snapshot.allowed)

    def ids(self, where: Filter | None = None, *, after: Id | None = None, limit: int = 1000) -> list[Id]:
        """Return the ids of items, integers first and then texts, each in order; at most `limit`.

        where: only items that meet this condition (filters.py). after: only ids past this one, which need not exist;
        the last one of a list leads to the next list.
        """
        check_integer(limit, "limit", 1)
        last = None if after is None else check_ids([after])[0]
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            return self._store.items.list_ids(snapshot.connection, snapshot.allowed, last, limit)

    def list_items(
        self,
        where: Filter | None = None,
        *,
        after: Id | None = None,
        limit: int = 1000,
        max_bytes: int | None = None,
    ) -> list[Item]:
        """Return items in the order of `ids`, of one commit; at most `limit`. `where` and `after` are as in `ids`.

        max_bytes: return fewer, but one at least, where they would take more bytes as JSON, about.
        """
        return self.list_coded_items(where, after=after, limit=limit, max_bytes=max_bytes, codes=False)[0]

    def list_coded_items(
        self,
        where: Filter | None = None,
        *,
        after: Id | None = None,
        limit: int = 1000,
        max_bytes: int | None = None,
        codes: bool = True,
    ) -> tuple[list[Item], Codes | None]:
        """Return items as `list_items` does, and their codes; None while items wait for hash functions."""
        check_integer(limit, "limit", 1)
        if max_bytes is not None:
            check_integer(max_bytes, "max_bytes", 1)
        last = None if after is None else check_ids([after])[0]
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            table, connection = self._store.items, snapshot.connection
            rows = page_rows(table, connection, snapshot.allowed, last, limit, max_bytes)
            coded = codes and snapshot.functions is not None
            packed = snapshot.index.codes(np.array(rows, np.int64)) if coded else None
            return read_page(table, connection, rows), packed

    def items(
        self, where: Filter | None = None, *, after: Id | None = None, limit: int | None = None, batch: int = 1000
    ) -> Iterator[Item]:
        """Iterate over items in the order of `ids`, all or at most `limit`. `where` and `after` are as in `ids`.

        They are read `batch` at a time, fewer where they are large, and each batch is of one commit. So an item is
        returned once, unless it is deleted or added meanwhile; and other verbs can be called in between.
        """
        check_integer(batch, "batch", 1)
        if limit is not None:
            check_integer(limit, "limit", 1)
        if after is not None:
            check_ids([after])
        if where is not None:
            compile_filter(where)
        return self._iterate(where, after, limit, batch)

    def _iterate(self, where: Filter | None, after: Id | None, limit: int | None, batch: int) -> Iterator[Item]:
        left = limit
        while left is None or left > 0:
            size = batch if left is None else min(batch, left)
            items = self.list_items(where, after=after, limit=size, max_bytes=1 << 25)
            yield from items
            if not items:
                return
            after, left = items[-1].id, None if left is None else left - len(items)

    def duplicates(
        self,
        distance: int | None = None,
        *,
        cosine: float | None = None,
        where: Filter | None = None,
        limit: int = 1000,
        progress: ShareProgress | None = None,
    ) -> list[list[Id]]:
        """Return groups of items that are nearly the same, each group as its ids.

        cosine: of the features of two items, from 0.5 to 1, as their rescoring codes have it; labels count nothing. It
        is 0.97 by default where items have rescoring codes. Pairs up to two standard errors below are returned too.
        distance: in place of it, the Hamming distance of their codes at most. It is 3 by default elsewhere.

        A group is connected: each item is near some other, so two of them may be further apart. Items and groups are in
        order of arrival. where: only items that meet this condition (filters.py). limit: groups, at most. progress:
        called with the share that is done. By distance it is exact; by cosine one pair in a thousand may be missed
        where there are more than 8,192 items. TooLarge where it would take hours. Searches and writes go on meanwhile.
        """
        likeness = check_likeness(self._store.settings, cosine, distance)
        check_integer(limit, "limit", 1)
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            compared = read_compared(self._store, snapshot, likeness)
        return find_duplicates(self._store, compared, limit, progress)
