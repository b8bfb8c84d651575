"""Linux, macOS and other systems with POSIX files."""

import errno
import fcntl
import os
import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stillhash.platform.base import OperatingSystem

if TYPE_CHECKING:
    from socket import socket

assert sys.platform != "win32"  # for mypy: the modules have other contents there

SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OPEN_FILES = Path("/dev/fd")  # one entry for each file that this process has open
F_FULLFSYNC = 51  # in fcntl.h of macOS, where fsync leaves data in the cache of the disk
NO_FULL_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY, errno.ENODEV)  # of file systems without it


class Posix(OperatingSystem):
    """Any system with POSIX files."""

    name = "POSIX"
    sync_flags = os.O_RDONLY | os.O_CLOEXEC
    open_files_can_move = True

    def open_file(self, path: Path, flags: int, mode: int = 0o600) -> int:
        return os.open(path, flags | SAFE_FLAGS, mode)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def rename_folder(self, source: Path, target: Path) -> None:
        source.rename(target)

    def can_write(self, folder: Path) -> bool:
        return os.access(folder, os.W_OK)

    def try_lock(self, handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def lock(self, handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX)

    def unlock(self, handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)

    def open_folder_lock(self, folder: Path) -> int:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def copy_owner(self, handle: int, status: os.stat_result) -> None:
        os.fchmod(handle, status.st_mode & 0o777)
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(handle, status.st_uid, status.st_gid)

    def readable_by_others(self, mode: int) -> bool:
        return bool(mode & 0o077)

    def raise_open_file_limit(self, most: int) -> int | None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return None
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        while limit > soft:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                return limit
            except (ValueError, OSError):  # macOS has a lower limit than it says
                limit //= 2
        return soft

    def count_open_files(self) -> int:
        try:
            return len(list(OPEN_FILES.iterdir()))
        except FileNotFoundError:  # a container or chroot without it
            return 0

    def bind_exclusively(self, listener: "socket") -> None:
        import socket

        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def unnamed_user(self) -> str:
        return f"user {os.getuid()}"


class Linux(Posix):
    """Linux, with priorities of threads, and often with glibc."""

    name = "Linux"

    def lower_thread_priority(self, niceness: int) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)

    def set_malloc_option(self, option: int, value: int) -> bool:
        import ctypes

        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (OSError, AttributeError):  # another C library
            return False
        return bool(mallopt(option, value))

    def require_linux(self, what: str) -> None:
        return None


class MacOS(Posix):
    """MacOS, where `fsync` does not wait for the disk."""

    name = "macOS"

    def sync_handle(self, handle: int) -> None:
        try:
            fcntl.fcntl(handle, F_FULLFSYNC)
        except OSError as error:
            if error.errno not in NO_FULL_SYNC:
                raise
            os.fsync(handle)
