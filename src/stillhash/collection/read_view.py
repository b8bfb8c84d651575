"""The view: what searches see of the store, kept in memory and brought up to date commit by commit."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from stillhash.collection.storage.store import Store
from stillhash.collection.trainer import functions_of, kept
from stillhash.hashers import LinearHasher, Model
from stillhash.search import Index

RETRIES = 8  # before a search holds up those who follow new commits

Connection = sqlite3.Connection
Found = TypeVar("Found")


class View:
    index: Index
    functions: LinearHasher | None  # None while rows wait for them
    version: int  # of the model
    model: Model

    def __init__(self, store: Store, searcher: Callable[[int], Any] = Index) -> None:
        self.store, self._searcher = store, searcher
        self._following = threading.RLock()  # one at a time brings it up to date
        self._seq = self._generation = self._last = -1
        self.index = Index(store.settings["bits"])  # until the store is looked at
        self.functions, self.version, self.model = None, 0, Model("hamming")

    def at_one_moment(self, work: Callable[[Connection], Found]) -> Found:
        """Does `work` while this view and the store stand at the same commit, from first to last."""
        for _ in range(RETRIES):
            seq: int | None = None
            try:
                with self.store.reading() as connection:
                    seq = self.store.meta(connection, "seq")
                    self._follow(connection, seq)
                    found = work(connection) if self._seq == seq else None
                    if self._seq == seq and found is not None:
                        return found
            except Exception:
                if seq is None or not self._passed(seq):
                    raise
        with self._following, self.store.reading() as connection:
            self._follow(connection, self.store.meta(connection, "seq"))
            return work(connection)

    def model_of(self, connection: Connection, version: int | None) -> tuple[int, Model]:
        if version is None:
            return self.version, self.model
        model = kept(connection, version)
        return int(version), model

    def _passed(self, seq: int) -> bool:
        """Whether there are newer commits: the view may have moved on, or files of old ones be gone."""
        with self.store.reading() as connection:
            return bool(self.store.meta(connection, "seq") > seq)

    def _follow(self, connection: Connection, seq: int) -> None:
        """Brings the view to this commit, unless it is further."""
        with self._following:
            if seq <= self._seq:
                return
            since, self._seq = self._seq, -1  # who is at work notices, even before this is done
            try:
                self._catch_up(connection, since)
            except BaseException:
                self._generation = self._last = -1  # half done; the next to come starts over
                raise
            self._seq = seq

    def _catch_up(self, connection: Connection, since: int) -> None:
        generation = self.store.meta(connection, "generation")
        if generation != self._generation:
            since = -1
            old = self.index
            self.index, self._last = self._mapped(connection)
            self._generation = generation
            old.close()
        numbers, codes = self.store.codes_after(connection, self._last)
        if len(numbers):
            self.index.add(codes, numbers)
            self._last = int(numbers[-1])
        gone = connection.execute("SELECT row FROM dead WHERE seq > ?", [since]).fetchall()
        if gone:
            self.index.remove(np.array(gone, np.int64).reshape(-1))
        self.functions = self.functions or functions_of(self.store, connection)
        version = self.store.meta(connection, "version")
        if version != self.version:
            self.version, self.model = version, kept(connection, version)

    def _mapped(self, connection: Connection) -> tuple[Index, int]:
        """An index over the sealed codes, without a copy, and their last row."""
        index, last = self._searcher(self.store.settings["bits"]), -1
        for segment in self.store.segments(connection):
            index.add_tiles(segment.tiles, segment.rows, segment.row_numbers())
            last = int(segment.row_numbers()[-1])
        return index, last
