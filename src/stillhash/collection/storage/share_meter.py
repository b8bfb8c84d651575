"""Measure the share of work that is done, in bytes, for a caller who waits for it and may cancel it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from stillhash.numeric.near_groups import ShareProgress

STEPS_BETWEEN_REPORTS = 1_000_000  # of SQLite's virtual machine, a few milliseconds
SHARE_OF_BYTES = 0.99  # the rest is what comes after all bytes are read or written


class ShareMeter:
    """Call `progress` with the share that is done, which never falls.

    To cancel, `progress` raises an error. Code on its way may take that for an error of its own, so that each later
    report raises it again, and so does the end of `cancellable`.
    """

    def __init__(self, progress: ShareProgress | None) -> None:
        self._progress = progress
        self._total, self._done, self._share = 1, 0, 0.0
        self._raised: BaseException | None = None

    def expect(self, total: int) -> None:
        """Begin, with so many bytes to do: also again, where work that failed is done once more."""
        self._total, self._done = max(1, total), 0
        self.add(0)

    def add(self, done: int) -> None:
        """Report that so many bytes more are done."""
        self._done += done
        self._report(SHARE_OF_BYTES * min(1.0, self._done / self._total))

    def finish(self) -> None:
        """Report that all is done."""
        self._report(1.0)

    @contextmanager
    def cancellable(self) -> Iterator[None]:
        """Let what `progress` raises leave the block as it is, whatever the block turns it into."""
        try:
            yield
        finally:
            if self._raised is not None:
                raise self._raised

    def _report(self, share: float) -> None:
        if self._raised is not None:
            raise self._raised
        if self._progress is not None:
            self._share = max(self._share, share)
            try:
                self._progress(self._share)
            except BaseException as error:
                self._raised = error
                raise

    @contextmanager
    def reporting(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Report now and then while one statement of SQLite takes its time; an error of `progress` ends it."""
        if self._progress is None:
            yield
            return
        connection.set_progress_handler(self._is_cancelled, STEPS_BETWEEN_REPORTS)
        try:
            with self.cancellable():
                yield
        finally:
            connection.set_progress_handler(None, 0)

    def _is_cancelled(self) -> bool:
        try:
            self.add(0)
        except BaseException:
            return True
        return False
