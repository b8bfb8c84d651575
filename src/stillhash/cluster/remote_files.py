"""The files of a storage behind a URL, through fsspec. Every call ends within a time limit.

A file appears whole or not at all, since object stores show an object when its upload is complete. A call that ran out
of time may have taken effect, or may still do so.
"""

import inspect
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Any

from stillhash.cluster.local_files import StoredFile
from stillhash.errors import MissingExtra, NotFound, StillhashError, StoreFailed, Unsupported, shortage

SLOWEST_TRANSFER = 1 << 20  # bytes a second: large files have more time
CONFLICT_ATTEMPTS = 4  # S3 may refuse both of two conditional uploads of a name at once, to be tried again
CALLS_UNDER_WAY = BoundedSemaphore(64)  # of file systems whose calls cannot be ended: each is a thread
EXISTS_CODES = ("PreconditionFailed", "412")  # s3fs knows them only from servers that name the condition
S3_PROTOCOLS = ("s3", "s3a")


class RemoteFiles:
    """The files below a URL, by their names relative to it."""

    def __init__(self, url: str, timeout: float) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MissingExtra("storage behind a URL needs fsspec: pip install 'stillhash[cluster]'") from error
        self.url, self.timeout = url.rstrip("/"), timeout
        protocol = url.partition("://")[0]
        try:
            self._fs, self._root = url_to_fs(self.url, **_options(protocol, timeout))
        except ImportError as error:
            extra = "s3" if protocol in S3_PROTOCOLS else "cluster"
            raise MissingExtra(f"{url}: {error}: pip install 'stillhash[{extra}]'") from error
        except (OSError, ValueError) as error:
            raise StoreFailed(f"cannot use {url}: {error}") from error
        self._root = self._root.rstrip("/")

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        limits: dict[str, Any] = {} if start == 0 and end is None else {"start": start, "end": end}
        with self._reported(name):
            return bytes(self._call("cat_file", self._path(name), **limits))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file under a name that no file has; return False if one has it.

        If a reply is lost and the upload is repeated, the answer is False although the file is ours.
        """
        with self._reported(name):
            for attempt in range(CONFLICT_ATTEMPTS):
                try:
                    self._call("pipe_file", self._path(name), data, mode="create", size=len(data))
                    return True
                except FileExistsError:
                    return False
                except OSError as error:
                    code = _error_code(error)
                    if code in EXISTS_CODES:
                        return False
                    if attempt == CONFLICT_ATTEMPTS - 1 or code != "ConditionalRequestConflict":
                        raise
        raise AssertionError("unreachable")

    def replace(self, name: str, data: bytes) -> None:
        with self._reported(name):
            self._call("pipe_file", self._path(name), data, size=len(data))

    def put(self, source: Path, name: str) -> None:
        with self._reported(name):
            self._call("put_file", str(source), self._path(name), size=source.stat().st_size)

    def get(self, name: str, target: Path, size: int) -> None:
        """Copy a file of this size to a path."""
        with self._reported(name):
            self._call("get_file", self._path(name), str(target), size=size)

    def list(self, folder: str) -> Sequence[StoredFile]:
        try:
            with self._reported(folder):
                entries = self._call("ls", self._path(folder), detail=True)
        except NotFound:
            return []
        files = [(entry["name"].rpartition("/")[2], entry) for entry in entries if entry["type"] == "file"]
        return sorted(
            StoredFile(f"{folder}/{name}", entry["size"] or 0, _seconds(entry)) for name, entry in files if name
        )

    def delete(self, name: str) -> None:
        try:
            with self._reported(name):
                self._call("rm_file", self._path(name))
        except NotFound:
            return

    def status(self, name: str) -> StoredFile:
        with self._reported(name):
            entry = self._call("info", self._path(name))
            return StoredFile(name, entry["size"] or 0, _seconds(entry))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def check_exclusive(self) -> None:
        """Raise Unsupported unless the file system has an exclusive mode; the default of fsspec looks, then writes."""
        from fsspec.asyn import AsyncFileSystem
        from fsspec.spec import AbstractFileSystem

        name = "_pipe_file" if getattr(self._fs, "async_impl", False) else "pipe_file"
        own, inherited = getattr(type(self._fs), name), (getattr(AsyncFileSystem, name), AbstractFileSystem.pipe_file)
        if own in inherited or "mode" not in inspect.signature(own).parameters:
            raise Unsupported(f"{self.url}: expected storage that creates files exclusively, such as s3, got another")

    def _call(self, verb: str, *args: Any, size: int = 0, **kwargs: Any) -> Any:
        """Call a method of the file system; TimeoutError unless it returns in time."""
        limit = self.timeout + size / SLOWEST_TRANSFER
        if getattr(self._fs, "async_impl", False):
            from fsspec.asyn import sync

            return sync(self._fs.loop, getattr(self._fs, f"_{verb}"), *args, timeout=limit, **kwargs)
        if not CALLS_UNDER_WAY.acquire(timeout=limit):
            raise TimeoutError
        result: Future[Any] = Future()
        Thread(target=_settle, args=(result, getattr(self._fs, verb), args, kwargs), daemon=True).start()
        return result.result(limit)

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """Raise our errors where the file system's are raised: NotFound for an absent file, else StoreFailed."""
        try:
            yield
        except StillhashError:
            raise
        except FileNotFoundError as error:
            raise NotFound(f"{self.url}/{name}: no such file") from error
        except (TimeoutError, FutureTimeout) as error:
            raise StoreFailed(f"{self.url}/{name}: no reply within {self.timeout:g} seconds") from error
        except Exception as error:  # of clients, each with a tree of its own
            raise shortage(error) or StoreFailed(f"{self.url}/{name}: {error}") from error


def _settle(result: "Future[Any]", call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        result.set_result(call(*args, **kwargs))
    except BaseException as error:
        result.set_exception(error)
    finally:
        CALLS_UNDER_WAY.release()


def _error_code(error: OSError) -> str:
    """Return the code of an error of S3, from which s3fs has made another; "" if there is none."""
    response = getattr(error.__cause__, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _options(protocol: str, timeout: float) -> dict[str, Any]:
    """Return the options of a file system: no listings from memory, and connections that give up."""
    options: dict[str, Any] = {"use_listings_cache": False}
    if protocol in S3_PROTOCOLS:
        limits = {"connect_timeout": timeout / 2, "read_timeout": timeout, "retries": {"max_attempts": 2}}
        options["config_kwargs"] = limits
    return options


def _seconds(entry: dict[str, Any]) -> float:
    """Return when a file was changed, which file systems report under various names; 0 if they do not."""
    for key in ("LastModified", "mtime", "last_modified", "updated", "created"):
        if (value := entry.get(key)) is not None:
            return float(value.timestamp() if hasattr(value, "timestamp") else value)
    return 0.0
