"""Create and delete collections while the server runs."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from contextvars import copy_context
from typing import Any, TypeVar

from stillhash.collection import Collection
from stillhash.collection.actor import current_actor
from stillhash.encoders import open_encoder
from stillhash.errors import Conflict, Forbidden, InvalidInput, NotFound, StillhashError, report_shortages
from stillhash.server.auth import Key
from stillhash.server.collections_folder import CollectionsFolder, check_name
from stillhash.server.settings import Settings
from stillhash.server.write_queue import CollectionExecutor, QueryEncoder, started_pool

_Outcome = TypeVar("_Outcome")
OpenQueryEncoder = Callable[[Collection], QueryEncoder]

log = logging.getLogger("stillhash.server")


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
