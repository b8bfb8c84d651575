"""Encode many image files in several processes.

Results come in the order of the paths, and only a few batches are under way at a time, so memory stays flat over any
number of files. A file that cannot be decoded is an entry with an error.

Each thread of a `ThreadPoolExecutor` drives one process over a pipe of its own, so the death of a process, as when the
system kills it for its memory, ends its pipe and costs only its batch, which is tried again file by file; a file of
which two processes died is given up. A `ProcessPoolExecutor` shares one result pipe: a process that is killed while it
writes leaves half a message there, and the pool waits for the rest permanently.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from itertools import chain, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from stillhash.encoders.base import Encoder, content_key, open_encoder, read_bytes
from stillhash.encoders.pixels import THUMBNAIL_SIDE, decode, thumbnail
from stillhash.errors import InvalidInput, StillhashError, WrongType
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Floats, check_integer

if TYPE_CHECKING:
    from PIL.Image import Image

BATCHES_PER_WORKER = 2  # batches are submitted and not yet yielded
MAX_FAILED_STARTS = 3  # workers may fail to start in a row


AnyPath = str | os.PathLike[str]


class EncodedFile(NamedTuple):
    """A file with its features, or with an error."""

    path: str
    features: Floats | None = None  # (dim,)
    content: str | None = None  # the key of the file; None if it could not be read
    thumbnail: bytes | None = None  # a JPEG
    size: tuple[int, int] | None = None  # width and height in full, upright
    error: str | None = None

    def name_in(self, folder: Path) -> str:
        """Return the path in a folder, with / between, which is the id of an image."""
        return Path(self.path).relative_to(folder).as_posix()

    def metadata(self) -> dict[str, Any] | None:
        """Return what a collection stores about an image: its size, and a key of the file's bytes."""
        if self.size is None or self.content is None:
            return None
        return {"width": self.size[0], "height": self.size[1], "content": self.content}


def encode_files(
    encoder: str, paths: Iterable[AnyPath], *, workers: int | None = None, batch: int = 32, thumbnails: bool = True
) -> Iterator[EncodedFile]:
    """Yield one entry for each path, in order.

    encoder : a name, since each process opens the encoder itself.
    workers : processes; None for all usable cores, 1 for none besides this one.
    """
    check_integer(batch, "batch", 1)
    if isinstance(paths, (str, os.PathLike)):
        raise WrongType(f"paths: expected several, [{str(paths)!r}], got one path")
    if workers is not None:
        check_integer(workers, "workers", 1)
    opened = open_encoder(encoder)  # a wrong name or a missing library fails here, once
    return _encode_batches(opened, _split(paths, batch), workers, thumbnails)


def encode_bytes(encoder: Encoder, data: bytes, name: str = "image") -> Floats:
    """Return the features (dim,) of one file's bytes, equal to those of `encode_files`."""
    image, _ = decode(data, name, target=_decode_target(encoder))
    row: Floats = encoder.encode([image])[0]
    return row


def _encode_batches(
    encoder: Encoder, batches: Iterator[list[str]], workers: int | None, thumbnails: bool
) -> Iterator[EncodedFile]:
    first = list(islice(batches, 2))
    if workers is None:
        workers = usable_cores() if len(first) > 1 else 1  # starting processes takes longer than a batch
    batches = chain(first, batches)
    if workers > 1:
        yield from map_batches(partial(_encode_by_name, encoder.name, thumbnails), batches, workers, _lost_file)
    else:
        for paths in batches:
            yield from _encode_batch(encoder, paths, thumbnails)


def _encode_by_name(encoder: str, thumbnails: bool, paths: list[str]) -> list[EncodedFile]:
    return _encode_batch(_open_once(encoder), paths, thumbnails)


_open_once = cache(open_encoder)  # in each process


def _encode_batch(encoder: Encoder, paths: list[str], thumbnails: bool) -> list[EncodedFile]:
    """Encode a batch; images are scaled down as they are decoded, so that large ones take no more memory."""
    entries, images = [], {}
    for at, path in enumerate(paths):
        entry = EncodedFile(path)
        try:
            data = read_bytes(path)
            entry = entry._replace(content=content_key(data))
            image, size = decode(data, path, target=_decode_target(encoder))
            entry = entry._replace(size=size, thumbnail=thumbnail(image) if thumbnails else None)
            images[at] = image
        except StillhashError as error:
            entry = entry._replace(error=str(error))
        entries.append(entry)
    for at, row in zip(images, _encode_images(encoder, list(images.values())), strict=True):
        entries[at] = entries[at]._replace(**({"error": row} if isinstance(row, str) else {"features": row}))
    return entries


def _encode_images(encoder: Encoder, images: list[Image]) -> list[Floats | str]:
    """Return a row or an error for each image: one that cannot be encoded does not cost the others theirs."""
    try:
        return list(encoder.encode(images))
    except Exception as error:  # networks fail in ways of their own
        if len(images) == 1:
            return [f"cannot be encoded: {error or type(error).__name__}"]
        return [row for image in images for row in _encode_images(encoder, [image])]


def _decode_target(encoder: Encoder) -> tuple[int, int]:
    """Return the size to decode to: the same with and without thumbnails, as features must not depend on them."""
    return max(encoder.decode_size[0], THUMBNAIL_SIDE), max(encoder.decode_size[1], THUMBNAIL_SIDE)


def _lost_file(path: str) -> EncodedFile:
    return EncodedFile(path, error=f"{path} cannot be encoded: the process died of it")


def _split(paths: Iterable[AnyPath], size: int) -> Iterator[list[str]]:
    rest = iter(paths)
    while batch := [os.fsdecode(path) for path in islice(rest, size)]:
        yield batch


Result = TypeVar("Result")


def map_batches(
    function: Callable[[list[str]], list[Result]],
    batches: Iterator[list[str]],
    workers: int,
    lost: Callable[[str], Result],
) -> Iterator[Result]:
    """Yield the results of `function`, which must be picklable, for all items; `lost` makes that of a given-up item."""
    pool = _ProcessPool(function, lost)
    threads = ThreadPoolExecutor(workers)
    pending: deque[Future[list[Result]]] = deque()
    try:
        while True:
            free = workers * BATCHES_PER_WORKER - len(pending)
            pending.extend(threads.submit(pool.run, items) for items in islice(batches, free))
            if not pending:
                return
            yield from pending.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
        for worker in pool.workers:
            worker.stop()


class _WorkerDied(Exception):
    """The process ended before it answered."""


class _Worker(Generic[Result]):
    """One process and the pipe to it."""

    def __init__(self, function: Callable[[list[str]], list[Result]]) -> None:
        context = get_context("spawn")  # a fork would carry over locks that threads of this process hold
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end, function), daemon=True)
        self._process.start()
        child_end.close()  # so that its death ends the pipe
        self.receive()  # an empty message: it is ready

    def run(self, items: list[str]) -> list[Result]:
        with suppress(OSError):  # it has died, which `receive` sees
            self._pipe.send(items)
        return self.receive()

    def receive(self) -> list[Result]:
        try:
            results: list[Result] = self._pipe.recv()
        except (EOFError, OSError):
            self.stop()
            raise _WorkerDied from None
        return results

    def stop(self) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join()


class _ProcessPool(Generic[Result]):
    """One worker for each thread that calls `run`."""

    def __init__(self, function: Callable[[list[str]], list[Result]], lost: Callable[[str], Result]) -> None:
        self.workers: list[_Worker[Result]] = []  # also those that died
        self._function, self._lost, self._own = function, lost, threading.local()

    def run(self, items: list[str]) -> list[Result]:
        """Return the results of a batch, by this thread's worker or by those that replace it."""
        for _ in range(2):
            try:
                return self._worker().run(items)
            except _WorkerDied:
                self._own.worker = None
                if len(items) > 1:
                    return [result for item in items for result in self.run([item])]
        return [self._lost(items[0])]

    def _worker(self) -> _Worker[Result]:
        worker: _Worker[Result] | None = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = self._start()
            self.workers.append(worker)
        return worker

    def _start(self) -> _Worker[Result]:
        for _ in range(MAX_FAILED_STARTS):
            with suppress(_WorkerDied):
                return _Worker(self._function)
        raise InvalidInput(
            "workers: expected processes that start, got none. Put a script's own work under "
            'if __name__ == "__main__", or use workers=1, which needs no other process.'
        )


def _serve(pipe: Connection, function: Callable[[list[str]], list[Result]]) -> None:
    """Answer batches until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides
    os.environ["OMP_NUM_THREADS"] = "1"  # for networks: there is a process for each core already
    with suppress(EOFError, OSError):  # the parent is gone
        pipe.send([])
        while True:
            pipe.send(function(pipe.recv()))
