"""Collections that clients create: below one folder, which the operator of the server allows.

A folder appears under its name when the collection in it is complete, and loses its name before anything in it is
removed. So a crash leaves a whole collection or an unnamed folder, which the next start removes.
"""

import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import stillhash.collection
from stillhash.collection import Collection
from stillhash.errors import Conflict, InvalidInput, StoreFailed
from stillhash.platform import SYSTEM

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
