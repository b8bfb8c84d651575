"""The database where memory lacks: an error is raised only before the commit, and the log stays what it was.

SQLite can run out of memory after it has written the last frame of a commit to the WAL. Like a commit that failed on
the disk, that one must be overwritten before a checkpoint.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from stillhash.collection.storage.database import CHECKPOINT_FRAMES, Database
from stillhash.collection.storage.integrity import committed_seq


class MemorySafeDatabase(Database):
    """Read and write as `Database` does; lack of memory after a commit fails nothing."""

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write in one transaction: all of it is on disk when the block ends, or nothing of it ever was."""
        before = None
        try:
            with super().transaction() as connection:
                before = committed_seq(connection)
                yield connection
        except MemoryError:
            if before is None or committed_seq(connection) == before:
                self._commit_failed = True
                raise

    def checkpoint(self, min_frames: int = CHECKPOINT_FRAMES) -> bool:
        """Move pages from the WAL to store.db; return False on failure, also for lack of memory."""
        try:
            return super().checkpoint(min_frames)
        except MemoryError:
            return False
