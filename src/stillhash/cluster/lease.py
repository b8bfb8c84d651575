"""The lease of the one writer of an index: numbered files, of which the largest number is the holder's epoch.

    leases/%020d    JSON: owner, a random token, seconds, how often it was renewed, whether it was released

The holder renews its file; a waiting process that has seen no change of it for `seconds` of its own monotonic clock
creates the next number, exclusively. No two clocks are compared. A lease alone excludes no one, since a holder may be
paused at any point: what does is the number of the next manifest. `fence` commits a manifest with the new epoch, after
which a former holder finds its number taken, and `commit_manifest` refuses its epoch.
"""

import json
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Self

from stillhash.cluster.manifest import ClusterManifest, commit_manifest, read_latest
from stillhash.cluster.storage import Storage
from stillhash.errors import Conflict, NotFound, StoreFailed

RENEWALS = 4  # in the time after which a lease is taken over
POLLS = 10  # that a waiting process makes in that time
OLD_LEASES = 16


class WriterLease:
    """The right to commit, for one process at a time; a context manager that releases it.

    owner : a name for messages. seconds : without a renewal, after which others take the lease over.
    """

    def __init__(self, storage: Storage, owner: str, seconds: float = 10.0) -> None:
        self.storage, self.owner, self.seconds = storage, owner, seconds
        self.epoch = 0
        self._token, self._renewals = uuid.uuid4().hex, 0
        self._lost = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # of the file: a renewal must not follow the release

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()

    @property
    def lost(self) -> bool:
        """Whether another process is known to have taken the lease over."""
        return self._lost

    def acquire(self, wait: float = 30.0) -> int:
        """Take the lease, and return its epoch; Conflict if another process still renews it after so many seconds.

        If a holder was killed, it takes `seconds` to be sure of that.
        """
        began = changed = time.monotonic()
        seen: tuple[int, bytes] | None = None
        while True:
            number, state = self._latest()
            now = time.monotonic()
            if (number, state) != seen:
                seen, changed = (number, state), now
            holder = _parse(state, number)
            silent = now - changed >= max(self.seconds, holder["seconds"])
            if (number == 0 or holder["released"] or silent) and self._create(number + 1):
                return self._hold(number + 1)
            if now - began >= wait and not silent:
                problem = f"another writer holds the lease: {holder['owner']}, epoch {number}"
                raise Conflict(f"{self.storage.url}: {problem}. Expected it to end within {wait:g} seconds")
            time.sleep(self.seconds / POLLS)

    def renew(self) -> None:
        """Renew the lease now; Conflict if another process has taken it over. A thread does this regularly."""
        with self._lock:
            if not self.epoch:
                raise Conflict("lease: expected one that is held, got one that was released or never acquired")
            if self._lost or lease_numbers(self.storage)[-1:] != [self.epoch]:
                self._lost = True
                raise Conflict(f"lease {self.epoch} of {self.owner} is lost: another writer has taken over")
            self._renewals += 1
            self.storage.replace(lease_name(self.epoch), self._content(released=False))

    def release(self) -> None:
        """Let other processes have the lease at once. If the storage is away, they wait as for a killed holder."""
        self.stop_renewing()
        with self._lock:
            epoch, self.epoch = self.epoch, 0
            if epoch and not self._lost:
                try:
                    self.storage.replace(lease_name(epoch), self._content(released=True))
                except StoreFailed:
                    return

    def stop_renewing(self) -> None:
        """End the thread that renews the lease, which others then take over if `renew` is not called in time."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _latest(self) -> tuple[int, bytes]:
        """Return the number and the content of the latest lease; 0 if there is none."""
        while numbers := lease_numbers(self.storage):
            try:
                return numbers[-1], self.storage.read(lease_name(numbers[-1]))
            except NotFound:  # deleted since
                continue
        return 0, b""

    def _create(self, number: int) -> bool:
        """Create the lease of this number; if the reply was lost, our token tells that it is ours."""
        self._token, self._renewals = uuid.uuid4().hex, 0
        content = self._content(released=False)
        if self.storage.create(lease_name(number), content):
            return True
        try:
            return self.storage.read(lease_name(number)) == content
        except NotFound:
            return False

    def _hold(self, epoch: int) -> int:
        """Start to renew a lease, and delete the files of old ones."""
        numbers = lease_numbers(self.storage)
        if numbers[-1:] != [epoch]:
            raise Conflict(f"lease {epoch} of {self.owner} is lost: another writer has taken over")
        for number in numbers[:-OLD_LEASES]:
            self.storage.delete(lease_name(number))
        self.epoch, self._lost = epoch, False
        self._stopped.clear()
        self._thread = threading.Thread(target=self._renew_regularly, name="stillhash-lease", daemon=True)
        self._thread.start()
        return epoch

    def _renew_regularly(self) -> None:
        while not self._stopped.wait(self.seconds / RENEWALS):
            try:
                self.renew()
            except StoreFailed:  # tried again
                continue
            except Conflict:
                return

    def _content(self, *, released: bool) -> bytes:
        state = {"owner": self.owner, "token": self._token, "seconds": self.seconds}
        return json.dumps({**state, "renewals": self._renewals, "released": released}).encode()


def fence(storage: Storage, epoch: int, first: ClusterManifest | None = None) -> ClusterManifest:
    """Commit a manifest with this epoch, so that no former holder can commit; return it.

    It has the content of the latest one or, if there is none, of `first`.
    """
    while True:
        try:
            latest = read_latest(storage)
        except NotFound:
            if first is None:
                raise
            latest = first._replace(number=0)
        if latest.epoch > epoch and latest.number:
            raise Conflict(f"epoch: expected {latest.epoch} or later, got {epoch}: another writer has taken over")
        manifest = latest.next(epoch)
        try:
            commit_manifest(storage, manifest)
        except Conflict:  # a former holder was faster, for the last time, or another one has taken over
            continue
        return manifest


def lease_name(number: int) -> str:
    return f"leases/{number:020d}"


def lease_numbers(storage: Storage) -> list[int]:
    """Return the numbers of all leases, ascending."""
    numbers = [name.rpartition("/")[2] for name in storage.list("leases")]
    return [int(number) for number in numbers if number.isdecimal()]


def _parse(state: bytes, number: int) -> dict[str, Any]:
    """Return the fields of a lease; one that cannot be read is that of an unknown owner."""
    if not number:
        return {"owner": "", "seconds": 0.0, "released": True}
    try:
        fields = json.loads(state)
        released = fields["released"] is True
        return {"owner": str(fields["owner"]), "seconds": float(fields["seconds"]), "released": released}
    except (ValueError, KeyError, TypeError):
        return {"owner": "unknown", "seconds": 0.0, "released": False}
