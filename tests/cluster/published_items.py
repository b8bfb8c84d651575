"""The items of a collection in partitions, brought up to date in the simplest way, for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import numpy as np

from stillhash import Collection
from stillhash.cluster.items_file import write_items
from stillhash.cluster.partition import ItemPartition, LivePartition, Patch, write_partition
from stillhash.cluster.shard_items import ShardItems
from stillhash.collection.storage.segments import read_segment, write_segment


class PublishedItems:
    """Follows a collection: new rows in segments of some sizes, deleted rows in bitmaps, changed ones in patches."""

    def __init__(self, folder: Path, bits: int, sizes: Sequence[int]) -> None:
        self.folder, self.bits, self.sizes = folder, bits, list(sizes)
        self.parts: list[LivePartition] = []
        self.patches: list[Patch] = []
        self.last, self.seq, self.files = -1, 0, 0

    def follow(self, collection: Collection) -> None:
        store = collection._store
        with store.reading() as connection:
            every = connection.execute("SELECT row FROM items ORDER BY row").fetchall()
            rows = store.codes.of_rows(connection, np.array(every, np.int64).reshape(-1))
            alive = set(rows.numbers.tolist())
            self.parts = [self._without(part, alive) for part in self.parts]
            published = self.last
            changed = connection.execute(
                "SELECT row FROM changed_rows WHERE seq > ? AND row <= ?", [self.seq, self.last]
            )
            if numbers := sorted(row for (row,) in changed):
                path = self._path("patch")
                write_items(path, self._stored(connection, numbers), named=store.settings["filter_fields"])
                self.patches.append(Patch(path))
            new = rows.select(rows.numbers > published)
            while len(new.numbers):
                size = self.sizes[len(self.parts) % len(self.sizes)]
                self._add(
                    connection, new.select(np.arange(min(size, len(new.numbers)))), store.settings["filter_fields"]
                )
                new = new.select(np.arange(min(size, len(new.numbers)), len(new.numbers)))
            self.seq = int(connection.execute("SELECT value FROM meta WHERE key = 'seq'").fetchone()[0])

    def _path(self, suffix: str) -> Path:
        self.files += 1
        return self.folder / f"{self.files:032x}.{suffix}"

    def _add(self, connection: Connection, rows: Any, named: list[str] | None) -> None:
        path = self._path("seg")
        write_segment(path, rows, self.bits)
        segment = read_segment(path, self.bits)
        write_partition(segment, self._stored(connection, rows.numbers.tolist()), named)
        self.parts.append(LivePartition(ItemPartition.open(segment)))
        self.last = int(rows.numbers[-1])

    @staticmethod
    def _stored(connection: Connection, numbers: list[int]) -> list[Any]:
        sql = "SELECT row, id, labels, metadata FROM items WHERE row = ?"
        return [connection.execute(sql, [row]).fetchone() for row in numbers]

    @staticmethod
    def _without(part: LivePartition, alive: set[int]) -> LivePartition:
        gone = np.array([row not in alive for row in part.partition.segment.row_numbers().tolist()])
        return part._replace(deleted=np.packbits(gone, bitorder="little") if gone.any() else None)

    def items(self) -> ShardItems:
        return ShardItems(self.parts, self.patches)

    def close(self) -> None:
        for part in self.parts:
            part.partition.close()
        for patch in self.patches:
            patch.close()
