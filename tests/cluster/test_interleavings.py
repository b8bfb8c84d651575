"""Writers without a lease, interleaved at every call to storage: commits are neither lost nor doubled all the same."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from itertools import count

import fsspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stillhash.cluster.garbage import collect_garbage
from stillhash.cluster.lease import fence
from stillhash.cluster.local_files import StoredFile
from stillhash.cluster.manifest import commit_manifest, first_manifest, read_latest
from stillhash.cluster.placement import place
from stillhash.cluster.storage import Storage
from stillhash.errors import Conflict, NotFound, StoreFailed
from tests.cluster.manifests import entry

WRITERS, COLLECTOR = 3, 3  # actors 0, 1 and 2 write; 3 collects garbage


class SteppedStorage(Storage):
    """A storage whose calls wait for their turn."""

    def __init__(self, url: str, step: Callable[[], None]) -> None:
        self.step: Callable[[], None] = lambda: None
        super().__init__(url)
        self.step = step

    def read(self, name: str) -> bytes:
        self.step()
        return super().read(name)

    def read_start(self, name: str, size: int) -> bytes:
        self.step()
        return super().read_start(name, size)

    def create(self, name: str, data: bytes) -> bool:
        self.step()
        return super().create(name, data)

    def delete(self, name: str) -> None:
        self.step()
        super().delete(name)

    def exists(self, name: str) -> bool:
        self.step()
        return super().exists(name)

    def list_files(self, folder: str) -> Sequence[StoredFile]:
        self.step()
        return super().list_files(folder)


class Actor:
    """A thread that runs until its next call to storage, and waits there."""

    def __init__(self, url: str, work: Callable[[Actor], None]) -> None:
        self.go, self.waiting, self.ended, self.stopping = threading.Semaphore(0), threading.Semaphore(0), False, False
        self.error: BaseException | None = None
        self.storage = SteppedStorage(url, self._step)
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.thread.start()

    def advance(self) -> None:
        """Let it make one call."""
        if not self.ended:
            self.go.release()
            self.waiting.acquire()

    def _step(self) -> None:
        self.waiting.release()
        self.go.acquire()

    def _run(self, work: Callable[[Actor], None]) -> None:
        self.go.acquire()
        try:
            work(self)
        except BaseException as error:
            self.error = error
        self.ended = True
        self.waiting.release()


class History:
    """What writers tried to commit, and the replies."""

    def __init__(self) -> None:
        self.epochs, self.tokens = count(1), count(1)
        self.acknowledged, self.refused = set[str](), set[str]()

    def write(self, actor: Actor) -> None:
        """Take over at any time, as if the lease had ended, and commit until another one takes over."""
        while not actor.stopping:
            try:
                epoch = next(self.epochs)
                manifest = fence(actor.storage, epoch, first_manifest(64, [0]))
                while not actor.stopping:
                    added = entry(next(self.tokens))
                    after = place(manifest, [added]).next(epoch)
                    self._commit(actor.storage, after, added.name)
                    manifest = after
            except (Conflict, StoreFailed):
                continue

    def _commit(self, storage: Storage, manifest: object, token: str) -> None:
        try:
            commit_manifest(storage, manifest)  # type: ignore[arg-type]
        except Conflict:
            self.refused.add(token)
            raise
        self.acknowledged.add(token)

    def collect(self, actor: Actor) -> None:
        while not actor.stopping:
            collect_garbage(actor.storage, keep=2, older_than=10**9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, COLLECTOR), st.integers(1, 25)), min_size=5, max_size=60))
@example([(0, 5), (1, 11), (3, 15)])  # a number is created again after it was collected
def test_no_interleaving_loses_or_doubles_a_commit(schedule: list[tuple[int, int]]) -> None:
    url, history = f"memory://{uuid.uuid4().hex}", History()
    storage = Storage(url)
    actors = [Actor(url, history.write) for _ in range(WRITERS)] + [Actor(url, history.collect)]
    try:
        for number, calls in schedule:
            for _ in range(calls):
                actors[number].advance()
        for actor in actors:
            actor.stopping = True
        for _ in range(10_000):
            for actor in actors:
                actor.advance()
            if all(actor.ended for actor in actors):
                break
        assert all(actor.ended for actor in actors) and [a.error for a in actors] == [None] * len(actors)
        try:
            stored = [each.name for each in read_latest(storage).segments]
        except NotFound:
            stored = []
        assert len(set(stored)) == len(stored)
        assert history.acknowledged <= set(stored) and not history.refused & set(stored)
    finally:
        fsspec.filesystem("memory").rm(url, recursive=True)
