"""Change the items of a collection: add, replace, relabel and delete them, each call in one transaction."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.reader import Reader
from stillhash.collection.storage.features import round_features
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.store import Store
from stillhash.collection.table_import import ReportImport, StoredRows, add_chunks, import_file
from stillhash.collection.trainer import Trainer
from stillhash.collection.types import ItemIds
from stillhash.collection.validation import ItemRows, LabelledRows, check_ids, check_items, check_rows
from stillhash.errors import StillhashError, report_shortages
from stillhash.io import USUAL_NAMES, ColumnNames, scan_table
from stillhash.io.tables import DEFAULT_BATCH
from stillhash.numeric.feature_digests import feature_digests
from stillhash.numeric.validation import check_integer
from stillhash.search import Index

SEAL_ROWS = 131_072  # unsealed rows that become a segment


@report_shortages
class ItemWriter(Reader):
    """The verbs that change items."""

    def __init__(self, store: Store, searcher: Callable[[int], Any] = Index) -> None:
        self._write_lock = threading.RLock()  # one thread writes at a time
        super().__init__(store, searcher)

    def _use(self, store: Store) -> None:
        super()._use(store)
        self._trainer = Trainer(store)

    def close(self) -> None:
        """Close the store and release the write lock."""
        with self._write_lock:
            super().close()

    def add(
        self,
        ids: ItemIds,
        features: Any,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """Add items and return how many. When it returns they are on disk.

        ids: strings or integers that do not exist yet. labels: as for `partial_fit`; strings and numbers. metadata: a
        dictionary, or None, for each. pictures: the bytes of a small image (PNG, JPEG, WebP, GIF), or None, for each.
        Labelled items are learnt from, once there are `learn_rows` of them, unless `learn` is false.
        """
        return self._add(*check_items(ids, features, labels, metadata, pictures, self.dim), learn, replace=False)

    def upsert(
        self,
        ids: ItemIds,
        features: Any,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """Add items, replacing those whose ids exist; otherwise as `add`."""
        return self._add(*check_items(ids, features, labels, metadata, pictures, self.dim), learn, replace=True)

    def add_table(
        self,
        table: Any,
        *,
        id: str | Sequence[Any] | NDArray[Any] | None = None,
        vector: str | None = None,
        label: str | Sequence[Any] | NDArray[Any] | None = None,
        metadata: Sequence[Any] | Literal["all"] | None = None,
        separator: str | None = None,
        batch: int = DEFAULT_BATCH,
        progress: ReportImport | None = None,
        resume: bool = False,
        learn: bool = True,
    ) -> int:
        """Add the rows of a table, `batch` at a time, and return how many; each batch is on disk before the next.

        table: of pyarrow, pandas, polars or datasets, also one that is read bit by bit; or an array (n, D), also one
        that is larger than memory. The columns are named, or recognised, as by `stillhash.io.table_chunks`; with an
        array, id, label and metadata have one entry for each row. progress: called with an `ImportProgress` after each
        batch. resume: skip rows whose ids exist.
        """
        chosen: dict[str, Any] = {"id": id, "vector": vector, "label": label, "metadata": metadata}
        chunks = scan_table(table, **chosen, separator=separator, batch=batch, dim=self.dim)
        stored = StoredRows(self._store) if resume else None
        return add_chunks(partial(self.add, learn=learn), chunks, stored, progress)

    def import_file(
        self,
        path: str | Path,
        *,
        columns: ColumnNames = USUAL_NAMES,
        number_rows: bool = False,
        batch: int = DEFAULT_BATCH,
        progress: ReportImport | None = None,
        skip_existing: bool = False,
        learn: bool = True,
    ) -> int:
        """Add the rows of a file, `batch` at a time, and return how many; after an interruption, call it again.

        path: .parquet, .npy, .npz, .csv or .jsonl. columns: `stillhash.io.ColumnNames`, for columns that do not have
        usual names. number_rows: use numbers as ids if there is no such column; arrays without ids have them anyway.
        Rows that an earlier call added are skipped. A row whose id existed before that call is a conflict, unless
        `skip_existing`.
        """
        options: dict[str, Any] = {"number_rows": number_rows, "skip_existing": skip_existing, "progress": progress}
        add = partial(self.add, learn=learn)
        return import_file(self._store, add, Path(path), columns, batch=check_integer(batch, "batch", 1), **options)

    def _add(self, new: ItemRows, rows: LabelledRows, learn: bool, *, replace: bool) -> int:
        if not new.ids:
            return 0
        items = self._store.items
        if self._store.features is not None:
            rows = rows._replace(features=round_features(rows.features))
        with self._write_lock:
            with self._store.change("upsert" if replace else "add", len(new.ids), new.ids) as change:
                connection = change.connection
                if replace:
                    items.delete(connection, new.ids)
                codes = self._trainer.encode(connection, rows)
                waiting = get_meta(connection, "items") if codes is None else 0
                fits = codes is None and waiting + len(new.ids) >= self._store.settings["init_rows"]
                if fits:
                    codes = self._trainer.fit(connection, new=rows)
                if codes is None:
                    numbers = items.append(connection, new, features=rows.features)
                else:
                    numbers = items.append(connection, new, codes, digests=feature_digests(rows.features))
                    if self._store.features is not None:
                        self._store.features.add(connection, np.asarray(numbers), rows.features)
                if learn:
                    self._trainer.learn_items(connection, numbers, rows, codes)
                if fits:
                    self._trainer.flush(connection)
            if fits and waiting:
                self._drop_features()
            if numbers.stop // SEAL_ROWS > numbers.start // SEAL_ROWS:
                with suppress(StillhashError, OSError, MemoryError):  # the rows are on disk; sealed later
                    self._store.seal()
        return len(new.ids)

    def _drop_features(self) -> None:
        """Give back to the disk what features took that were stored before there were hash functions."""
        with suppress(StillhashError, OSError, MemoryError):  # it only takes less disk
            self._store.db.shrink()

    def delete(self, ids: ItemIds) -> int:
        """Delete these items and return how many there were."""
        names = check_ids(ids)
        with self._write_lock, self._store.change("delete") as change:
            change.ids = self._store.items.delete(change.connection, names)
            change.rows = len(change.ids) or None
            return len(change.ids)

    def relabel(self, ids: ItemIds, labels: Any, *, learn: bool = True) -> int:
        """Replace the labels of items, learn from them unless `learn` is false, and return how many.

        Items whose features are not kept are learnt by the features that `reconstruct` returns. What was learnt from
        their earlier labels stays.
        """
        names, items = check_ids(ids), self._store.items
        with self._write_lock:
            features, exact = self._features(names)
            rows, codes = check_rows(features, labels, self.dim), self.codes(names)
            with self._store.change("relabel", len(names) or None, names) as change:
                connection = change.connection
                numbers = items.existing_rows(connection, names).tolist()
                without = items.relabel(connection, numbers, rows.label_texts)
                if learn:
                    self._trainer.count_unlabelled(connection, -without)
                    rows, own_features = items.remove_pending(connection, numbers, rows)
                    own_features |= exact
                    self._trainer.learn_items(connection, numbers, rows, codes, own_features)
        return len(names)
