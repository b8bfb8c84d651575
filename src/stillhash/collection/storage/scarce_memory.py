"""The database where memory lacks: an error is raised only before the commit, and the log stays what it was.

SQLite can run out of memory after it has written the last frame of a commit to the WAL. Like a commit that failed on
the disk, that one must be overwritten before a checkpoint.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from stillhash.collection.storage.database import CHECKPOINT_FRAMES, Database
from stillhash.collection.storage.integrity import committed_seq
from stillhash.errors import BadState


class MemorySafeDatabase(Database):
    """Read and write as `Database` does; lack of memory after a commit fails nothing."""

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read in one transaction: everything in the block is of the same commit."""
        try:
            with super().reading() as connection:
                yield connection
        except BadState as error:  # without memory SQLite ends a transaction by itself, which the rollback reports
            before = error.__cause__ and error.__cause__.__context__
            if isinstance(before, MemoryError):
                raise before from error
            raise

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

    def _close_without_checkpoint(self, connection: sqlite3.Connection) -> None:
        """Close a connection while another is open; without memory for that, leave it open."""
        try:
            super()._close_without_checkpoint(connection)
        except MemoryError:
            Database.unclosed.append(connection)
