"""Windows: a file that is open or mapped anywhere cannot be renamed, replaced or removed; its name stays as it is.

Virus scanners and indexers open new files for a moment. So what is refused is tried again for some seconds.
"""

import errno
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillhash.platform.base import OperatingSystem

if TYPE_CHECKING:
    from socket import socket

WINDOWS_FLAGS: int = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOINHERIT", 0)
SO_EXCLUSIVEADDRUSE = -5  # in winsock2.h: ~SO_REUSEADDR
LOCKED_BYTE = 1 << 30  # beyond the end of the file: locked bytes cannot be read through other handles
LOCK_POLL_SECONDS = 0.05
REFUSED_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # before each further attempt
FOLDER_LOCK = ".stillhash.lock"
RESERVED_NAMES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?|.*[. ]", re.IGNORECASE)


class Windows(OperatingSystem):
    """Windows 10 and later."""

    name = "Windows"
    sync_flags = os.O_RDWR | WINDOWS_FLAGS  # a file that is open for reading cannot be flushed
    open_files_can_move = False

    def open_file(self, path: Path, flags: int, mode: int = 0o600) -> int:
        with suppress(FileNotFoundError):
            kind = path.lstat().st_mode
            if stat.S_ISLNK(kind):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            if stat.S_ISDIR(kind):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return os.open(path, flags | WINDOWS_FLAGS, mode)

    def sync(self, path: Path) -> None:
        if not path.is_dir():  # NTFS writes names to its own log
            super().sync(path)

    def replace(self, source: Path, target: Path) -> None:
        _retry(lambda: source.replace(target))

    def rename_folder(self, source: Path, target: Path) -> None:
        if target.is_dir():
            with suppress(OSError):  # it is not empty, which `rename` reports
                target.rmdir()
        _retry(lambda: source.rename(target))

    def can_write(self, folder: Path) -> bool:
        probe = folder / f".{os.getpid()}.{threading.get_ident()}.probe"  # `os.access` knows nothing of access lists
        try:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | WINDOWS_FLAGS))
        except OSError:
            return False
        with suppress(OSError):
            _retry(probe.unlink)
        return True

    def try_lock(self, handle: int) -> bool:
        return self._locking(handle, "LK_NBLCK")

    def lock(self, handle: int) -> None:
        while not self.try_lock(handle):
            time.sleep(LOCK_POLL_SECONDS)

    def unlock(self, handle: int) -> None:
        self._locking(handle, "LK_UNLCK")

    def _locking(self, handle: int, mode: str) -> bool:
        """Lock or unlock one byte through this handle; return whether the system did."""
        msvcrt: Any = import_module("msvcrt")
        os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, getattr(msvcrt, mode), 1)
        except OSError:
            return False
        return True

    def open_folder_lock(self, folder: Path) -> int:
        return self.open_file(folder / FOLDER_LOCK, os.O_RDWR | os.O_CREAT)

    def copy_owner(self, handle: int, status: os.stat_result) -> None:
        return None  # a new file has the access list of its folder

    def readable_by_others(self, mode: int) -> bool:
        return False  # the mode does not say; the access list does

    def raise_open_file_limit(self, most: int) -> int | None:
        return None  # sockets are no files of the C library, which alone has a limit

    def count_open_files(self) -> int:
        return 0

    def bind_exclusively(self, listener: "socket") -> None:
        import socket

        option = getattr(socket, "SO_EXCLUSIVEADDRUSE", SO_EXCLUSIVEADDRUSE)
        listener.setsockopt(socket.SOL_SOCKET, option, 1)  # SO_REUSEADDR would share the port of another process

    def unnamed_user(self) -> str:
        return "user without a name"

    def is_reserved_name(self, name: str) -> bool:
        return RESERVED_NAMES.fullmatch(name) is not None

    def use_utf8_output(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper) and not stream.isatty():
                stream.reconfigure(encoding="utf-8")


def _retry(operation: Callable[[], object]) -> None:
    """Do what another process may refuse for a moment, by having the file open."""
    for seconds in REFUSED_SECONDS:
        try:
            operation()
            return
        except PermissionError:
            time.sleep(seconds)
    operation()
