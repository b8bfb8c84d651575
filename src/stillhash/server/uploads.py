"""Files that clients upload: below the collection's folder until they are imported.

The names that clients send are never trusted: a file is stored under a path inside a folder of its own.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from stillhash.errors import Busy, StoreFailed, TooLarge
from stillhash.io.archives import inner_path
from stillhash.server.tasks import Task

UPLOADS_FOLDER = "uploads"  # inside the collection's folder
MAX_UPLOADS = 4  # of a collection, that arrive, or wait for their import
MAX_UPLOADED_FILES = 20_000
FREE_SHARE = 2  # an upload may take 1/2 of the disk that is free: its rows need space, too


@dataclass(eq=False)
class Upload:
    """Files below a folder, by their paths in it; what was left out, and why; and the fields of a form."""

    folder: Path
    suffixes: tuple[str, ...]
    files: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    task: Task | None = None  # that imports it

    def create(self, name: str) -> IO[bytes] | None:
        """Open a new file for a name that a client sent; None if it is left out."""
        path = inner_path(name)
        if not path:
            self.skipped[name] = "hidden, or its name cannot be used"
        elif not path.lower().endswith(self.suffixes):
            self.skipped[name] = f"expected a file that ends in {', '.join(self.suffixes)}"
        elif len(self.files) == MAX_UPLOADED_FILES:
            raise TooLarge(f"file: expected at most {MAX_UPLOADED_FILES:,} files, got more")
        else:
            try:
                (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
                opened = (self.folder / path).open("xb")
            except (FileExistsError, NotADirectoryError):
                self.skipped[name] = "its name occurs twice"
            else:
                self.files.append(path)
                return opened
        return None


class UploadFolder:
    """The uploads of one collection. Only the event loop uses it."""

    def __init__(self, collection_path: Path, *, read_only: bool) -> None:
        self.path, self._number = collection_path / UPLOADS_FOLDER, 0
        self._uploads: list[Upload] = []
        if not read_only:
            self.clear()  # what a crash has left

    def begin(self, suffixes: Iterable[str], size: int) -> Upload:
        """Create a folder for an upload of about this size."""
        self.remove_ended()
        if len(self._uploads) >= MAX_UPLOADS:
            raise Busy(f"upload: {MAX_UPLOADS} others wait for their import. Try again later")
        self._number += 1
        upload = Upload(self.path / str(self._number), tuple(suffixes))
        try:
            upload.folder.mkdir(parents=True)
            free = shutil.disk_usage(upload.folder).free
        except OSError as error:
            raise StoreFailed(f"upload: the disk refused a folder: {error.strerror}") from error
        self._uploads.append(upload)
        if size > free // FREE_SHARE:
            self.remove(upload)
            raise StoreFailed(f"upload: {size:,} bytes are too many for the disk, which has {free:,} left")
        return upload

    def remove(self, upload: Upload) -> None:
        """Remove the files of an upload."""
        self._uploads.remove(upload)
        shutil.rmtree(upload.folder, ignore_errors=True)

    def remove_ended(self) -> None:
        """Remove what remains of uploads whose task has ended, also one that was cancelled before it began."""
        for upload in [each for each in self._uploads if each.task is not None and each.task.ended]:
            self.remove(upload)

    def clear(self) -> None:
        """Remove everything; nothing may be arriving."""
        self._uploads.clear()
        if not self.path.is_symlink():
            shutil.rmtree(self.path, ignore_errors=True)
