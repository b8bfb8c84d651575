"""Create and delete collections while the server runs."""

import asyncio
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any, TypeVar

import stillhash.collection
from stillhash.collection import Collection
from stillhash.collection.storage.audit import current_actor
from stillhash.encoders import open_encoder
from stillhash.errors import Conflict, Forbidden, InvalidInput, NotFound, StillhashError, StoreFailed, report_shortages
from stillhash.platform import SYSTEM
from stillhash.server.auth import Key
from stillhash.server.settings import Settings
from stillhash.server.write_queue import CollectionExecutor, QueryEncoder, started_pool

# ---- the folder of collections ----
#
# A folder appears under its name when the collection in it is complete, and loses its name before anything in it is
# removed. So a crash leaves a whole collection or an unnamed folder, which the next start removes.

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # no separator, no hidden file, and nothing that means a parent
UNNAMED_PREFIX = ".unnamed-"  # which no collection's name can begin with

log = logging.getLogger("stillhash.server")


def check_name(name: str) -> str:
    """Validate the name of a new collection, which becomes the name of its folder."""
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name, re.ASCII):
        rule = "1 to 64 letters, digits, '.', '_' or '-', the first a letter or a digit"
        raise InvalidInput(f"name: expected {rule}, got {str(name)[:80]!r}")
    if SYSTEM.is_reserved_name(name):
        raise InvalidInput(f"name: expected a name that {SYSTEM.name} does not reserve, got {name!r}")
    return name


class CollectionsFolder:
    def __init__(self, path: Path, device: str = "cpu") -> None:
        self.path, self.device = path, device

    def open_all(self) -> dict[str, Collection]:
        """Open the collections of the folder, by name, after removing what a crash has left."""
        with ExitStack() as on_error, _disk_errors(f"collections-folder: {str(self.path)!r}"):
            opened = {}
            for entry in sorted(self.path.iterdir()):
                if entry.name.startswith(UNNAMED_PREFIX) and not entry.is_symlink():
                    shutil.rmtree(entry)
                elif self._holds_collection(entry):
                    opened[entry.name] = on_error.enter_context(stillhash.collection.open(entry, device=self.device))
            on_error.pop_all()
        return opened

    def _holds_collection(self, entry: Path) -> bool:
        named = re.fullmatch(NAME_PATTERN, entry.name, re.ASCII) and not entry.is_symlink()
        if named and (entry / "store.db").is_file():
            return True
        log.warning("collections-folder: %r is not served, since no server has created it", entry.name)
        return False

    def open(self, name: str) -> Collection:
        return stillhash.collection.open(self.path / check_name(name), device=self.device)

    def create(self, name: str, settings: dict[str, Any]) -> Collection:
        """Create a collection by the arguments of `stillhash.open`, and open it."""
        target = self.path / check_name(name)
        if os.path.lexists(target):
            raise Conflict(f"name: {name!r} exists already in the folder of collections")
        unnamed, named = self._new_unnamed(), False
        try:
            with _disk_errors(f"name: {name!r} cannot be created"):
                stillhash.collection.open(unnamed, **settings).close()
                SYSTEM.rename_folder(unnamed, target)
                named = True
                SYSTEM.sync(self.path)
                return self.open(name)
        except BaseException:
            with suppress(StoreFailed):  # the next start removes what has no name
                self.remove(name) if named else shutil.rmtree(unnamed, ignore_errors=True)
            raise

    def remove(self, name: str) -> None:
        """Remove a closed collection. If an error is raised, it is as it was."""
        unnamed = self._new_unnamed()
        with _disk_errors(f"name: {name!r} cannot be deleted"):
            SYSTEM.rename_folder(self.path / check_name(name), unnamed)
        with suppress(OSError):  # it has lost its name in any case; after a crash it may have it again
            SYSTEM.sync(self.path)
        shutil.rmtree(unnamed, onerror=_log_remaining)

    def _new_unnamed(self) -> Path:
        return self.path / f"{UNNAMED_PREFIX}{secrets.token_hex(8)}"


@contextmanager
def _disk_errors(what: str) -> Iterator[None]:
    """Raise errors of the disk as StoreFailed. The log has their details, which name paths of the server."""
    try:
        yield
    except OSError as error:  # StoreFailed is one, too
        log.exception("the disk refused to change the folder of collections")
        raise StoreFailed(f"{what}: the disk refused it. The server's log has the details") from error


def _log_remaining(_: Any, path: str, error: Any) -> None:
    log.error("a file of a deleted collection remains until the next start: %s: %s", path, error[1])


# ---- while the server runs ----

_Outcome = TypeVar("_Outcome")
OpenQueryEncoder = Callable[[Collection], QueryEncoder]


class CollectionLifecycle:
    """Only the event loop calls this and changes `executors`; one thread creates and removes files, one at a time.

    A name is reserved while its collection is created or deleted, so that two requests cannot do both.
    """

    def __init__(
        self, executors: dict[str, CollectionExecutor], settings: Settings, open_queries: OpenQueryEncoder | None = None
    ) -> None:
        """`open_queries` opens the query encoder of a collection with an encoder; without it there are none."""
        self._executors, self._settings, self._open_queries = executors, settings, open_queries
        self._folder = (
            None
            if settings.collections_folder is None
            else CollectionsFolder(settings.collections_folder, settings.device)
        )
        self._own: set[str] = set()  # the collections of the folder; others are the caller's
        self._reserved: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        if self._folder is not None:
            self._open_all(self._folder)
            self._thread = started_pool(1, "collections")

    def _open_all(self, folder: CollectionsFolder) -> None:
        with ExitStack() as on_error:
            opened = folder.open_all()
            for collection in opened.values():
                on_error.callback(collection.close)
            if both := sorted(opened.keys() & self._executors.keys()):
                raise InvalidInput(f"collections-folder: expected no name that is served already, got {both[0]!r}")
            count, limit = len(opened) + len(self._executors), self._settings.max_collections
            if count > limit:
                raise InvalidInput(f"max-collections: expected at least {count}, as many as there are, got {limit}")
            started = {}
            for name, collection in opened.items():
                started[name] = self._start(name, collection)
                on_error.callback(started[name].close)
            on_error.pop_all()
        self._executors.update(started)
        self._own.update(started)

    @property
    def opens_encoders(self) -> bool:
        """Whether collections of images and of texts can be created."""
        return self._open_queries is not None

    async def create(self, key: Key, name: str, settings: dict[str, Any]) -> CollectionExecutor:
        """Create a collection by the arguments of `stillhash.open`, and serve it."""
        if not key.sees(check_name(name)):
            raise Forbidden(f"name: expected one of the collections of the key, got {name!r}")
        folder = self._require_folder()
        if settings.get("encoder") is not None and not self.opens_encoders:
            raise InvalidInput("encoder: expected none, since this server opens no encoders")
        if name in self._executors or name in self._reserved:
            raise Conflict(f"name: a collection {name!r} exists already")
        if len(self._executors.keys() | self._reserved) >= self._settings.max_collections:
            raise Conflict(f"collections: this server has its {self._settings.max_collections}. Delete one first")
        return await self._finish(name, self._create(folder, name, settings))

    async def _create(self, folder: CollectionsFolder, name: str, settings: dict[str, Any]) -> CollectionExecutor:
        executor = await self._in_thread(lambda: self._start_new(folder, name, settings))
        self._executors[name] = executor
        self._own.add(name)
        log.info("collection created", extra={"fields": {"collection": name, "actor": current_actor()}})
        return executor

    def _start_new(self, folder: CollectionsFolder, name: str, settings: dict[str, Any]) -> CollectionExecutor:
        encoder = settings.get("encoder")
        collection = folder.create(name, {**settings, "encoder": encoder and open_encoder(encoder)})
        try:
            return self._start(name, collection)
        except BaseException:  # no threads, for instance
            collection.close()
            folder.remove(name)
            raise

    async def delete(self, name: str, confirm: str) -> None:
        """Take a collection out of service, and remove its files. Calls that run end first; those that wait fail."""
        if confirm != name:
            raise InvalidInput(f"confirm: expected the name of the collection, {name!r}, got {confirm[:80]!r}")
        folder = self._require_folder()
        if name not in self._executors:
            raise NotFound(f"No collection {name!r}")
        if name not in self._own:
            raise Conflict(f"name: {name!r} is a folder of the command line, which only the operator can delete")
        await self._finish(name, self._delete(folder, name))

    async def _delete(self, folder: CollectionsFolder, name: str) -> None:
        executor = self._executors.pop(name)
        try:
            await self._in_thread(lambda: _remove(folder, executor))
        except StillhashError:
            self._executors[name] = await self._in_thread(lambda: self._start(name, folder.open(name)))
            raise
        self._own.discard(name)
        log.warning("collection deleted", extra={"fields": {"collection": name, "actor": current_actor()}})

    async def close(self) -> None:
        """Finish what has begun, and close the collections of the folder."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for executor in self._executors.values():
            executor.close()
        for name in self._own & self._executors.keys():
            self._executors[name].collection.close()
        if self._folder is not None:
            self._thread.shutdown()

    def _require_folder(self) -> CollectionsFolder:
        if self._folder is None:
            reason = "this server has none, so that clients can neither create nor delete collections"
            raise NotFound(f"collections-folder: {reason}. Start it with --collections-folder FOLDER")
        return self._folder

    def _start(self, name: str, collection: Collection) -> CollectionExecutor:
        limits = self._settings.max_queued_writes, self._settings.timeout
        return CollectionExecutor(name, collection, *limits, self._query_encoder(name, collection))

    def _query_encoder(self, name: str, collection: Collection) -> QueryEncoder | None:
        if self._open_queries is None or collection.encoder is None:
            return None
        try:
            return self._open_queries(collection)
        except StillhashError as error:  # a library is no longer there, say
            log.warning("%s is served without search by image or text: %s", name, error)
            return None

    async def _finish(self, name: str, work: Coroutine[Any, Any, _Outcome]) -> _Outcome:
        """Run to the end, also when the client goes away, with the name reserved."""
        self._reserved.add(name)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._reserved.discard(name))
        return await asyncio.shield(task)

    async def _in_thread(self, work: Callable[[], _Outcome]) -> _Outcome:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, copy_context().run, report_shortages(work)
        )


def _remove(folder: CollectionsFolder, executor: CollectionExecutor) -> None:
    executor.close()
    with suppress(StillhashError):  # one whose disk has failed can be deleted, too
        executor.collection.close()
    folder.remove(executor.name)
