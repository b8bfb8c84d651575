"""What an operating system must provide. A method that is defined here is the same on all of them."""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stillhash.errors import Unsupported

if TYPE_CHECKING:
    from socket import socket


class OperatingSystem(ABC):
    """Files, locks and limits, as this system has them."""

    name: ClassVar[str]
    sync_flags: ClassVar[int]  # with which a file must be open to be synced
    open_files_can_move: ClassVar[bool]  # whether a file that is open or mapped can be renamed, replaced and removed

    @abstractmethod
    def open_file(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """Open a file by `os.open`; OSError with ELOOP if it is a link. No pipe makes us wait, no child inherits it."""

    def sync(self, path: Path) -> None:
        """Wait until a file, or the names in a folder, are on disk."""
        handle = os.open(path, self.sync_flags)
        try:
            self.sync_handle(handle)
        finally:
            os.close(handle)

    def sync_handle(self, handle: int) -> None:
        """Wait until a file that is open for writing is on disk."""
        os.fsync(handle)

    @abstractmethod
    def replace(self, source: Path, target: Path) -> None:
        """Rename a file atomically, in the place of another if there is one."""

    @abstractmethod
    def rename_folder(self, source: Path, target: Path) -> None:
        """Rename a folder, in the place of an empty one if there is one."""

    @abstractmethod
    def can_write(self, folder: Path) -> bool:
        """Return whether files can be created in a folder."""

    @abstractmethod
    def try_lock(self, handle: int) -> bool:
        """Lock an open file for this handle alone, and return whether no other has it locked.

        The lock ends with `unlock`, when the handle is closed, and when the process dies.
        """

    @abstractmethod
    def lock(self, handle: int) -> None:
        """Lock an open file for this handle alone, once no other has it locked."""

    @abstractmethod
    def unlock(self, handle: int) -> None:
        """Release a lock, also where a child process has inherited the handle."""

    @abstractmethod
    def open_folder_lock(self, folder: Path) -> int:
        """Open what `lock` locks for a folder: the folder itself, or a file in it."""

    @abstractmethod
    def copy_owner(self, handle: int, status: os.stat_result) -> None:
        """Give an open file the owner and the mode of another one, where files have them."""

    @abstractmethod
    def readable_by_others(self, mode: int) -> bool:
        """Return whether the mode of a file lets other users read or write it."""

    @abstractmethod
    def raise_open_file_limit(self, most: int) -> int | None:
        """Raise the limit of open files of this process to `most` or less, and return it; None without a limit."""

    @abstractmethod
    def count_open_files(self) -> int:
        """Count the files that this process has open; 0 where it has no limit of them, or they cannot be listed."""

    @abstractmethod
    def bind_exclusively(self, listener: "socket") -> None:
        """Let a socket listen on a port at once after another process has, and on no port that another one has."""

    @abstractmethod
    def unnamed_user(self) -> str:
        """Return what to call the user of this process where the system has no name."""

    def user_name(self) -> str | None:
        """Return the name of the user of this process; None where there is none."""
        import getpass

        try:
            return getpass.getuser()
        except (OSError, KeyError, ImportError):  # no entry in the table of users, or no such table
            return None

    def usable_cores(self) -> int:
        """Return the number of cores that this process may run on."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def lower_thread_priority(self, niceness: int) -> None:
        """Let other threads go first on a busy processor, where a thread has a priority of its own."""
        return

    def set_malloc_option(self, option: int, value: int) -> bool:
        """Set an option of the C library's allocator, by `mallopt`; return whether it has it."""
        return False

    def is_reserved_name(self, name: str) -> bool:
        """Return whether no folder can have this name, which has letters, digits and `._-` only."""
        return False

    def use_utf8_output(self) -> None:
        """Write UTF-8 to redirected standard output and errors, as Python does where the system's encoding is."""
        return

    def require_linux(self, what: str) -> None:
        """Raise Unsupported, except on Linux."""
        raise Unsupported(f"{what}: expected Linux, got {self.name}")
