"""Files that clients upload: below the collection's folder until they are imported.

The names that clients send are never trusted: a file is stored under a path inside a folder of its own.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

from stillhash.collection import Collection, ImportProgress
from stillhash.errors import Busy, InvalidInput, StillhashError, StoreFailed, TooLarge
from stillhash.io import count_rows
from stillhash.io.files import ROW_READERS, list_columns
from stillhash.io.folders import LABEL_TABLES, SIBLING_SUFFIXES
from stillhash.io.rows import VECTOR_NAMES, reading
from stillhash.server.archives import ArchiveLimits, check_zip, inner_path, unpack_zip
from stillhash.server.tasks import Report, Task

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


# ---- imports ----
#
# Files of rows are read and validated completely before the first of them is stored, so that a broken one changes
# nothing. What is stored, is stored in whole batches: a task that is cancelled, or fails, leaves those, and the same
# upload goes on from there.

ZIP_SUFFIX, SIDECAR_SUFFIX = ".zip", ".txt"
ROW_SUFFIXES, FIRST_FEATURE = tuple(ROW_READERS), "f0"
MAX_NPZ_BYTES = 1 << 29  # unpacked: its arrays are in memory
MAX_TABLE_BYTES = 1 << 36  # of the features of a table, which may be packed to a few bytes
MIN_FIT_ROWS = 300  # items from which on the hash functions are fitted after an upload of images or texts
LISTED_PROBLEMS = 20
CHECK_SHARE, UNPACK_SHARE, INDEX_SHARE = 0.3, 0.1, 0.95  # of the progress, at the end of each step


@runtime_checkable
class FileIndexer(Protocol):
    """Encode files, and store them as items; query encoders of images and of texts do."""

    file_suffixes: tuple[str, ...]

    def index_files(
        self, folder: Path, files: list[str], labels: str, progress: Callable[[float, int], None]
    ) -> dict[str, Any]: ...


def accepted_suffixes(indexer: FileIndexer | None) -> tuple[str, ...]:
    """Return how the names of files end that can be uploaded; files of labels lie beside images."""
    if indexer is None:
        return ROW_SUFFIXES
    return tuple(dict.fromkeys((*indexer.file_suffixes, *ROW_SUFFIXES, ZIP_SUFFIX, SIDECAR_SUFFIX, *LABEL_TABLES)))


def check_upload(upload: Upload) -> None:
    """Raise InvalidInput if nothing of an upload can be imported."""
    if not upload.files:
        name, reason = next(iter(upload.skipped.items()), ("", "got none"))
        raise InvalidInput(f"file: {name[:80]!r}: {reason}" if name else "file: expected a file, got none")


@dataclass(frozen=True)
class FileImport:
    """The work of a task that imports the files of an upload."""

    upload: Upload
    indexer: FileIndexer | None
    existing: str = "refuse"  # rows whose ids exist
    labels: str = "auto"  # where labels of images and texts come from: `stillhash.io.open_labels`

    def run(self, collection: Collection, report: Report) -> dict[str, Any]:
        """Import all files; return what was added, and what could not be."""
        try:
            return self._run(collection, report)
        except StillhashError as error:
            raise type(error)(str(error).replace(f"{self.upload.folder}{os.sep}", "")) from error
        finally:
            shutil.rmtree(self.upload.folder, ignore_errors=True)

    def _run(self, collection: Collection, report: Report) -> dict[str, Any]:
        folder, (files, left_out) = self.upload.folder, self._unpack(report)
        rows = {name: None for name in files if self._has_rows(folder / name)}
        suffixes = () if self.indexer is None else self.indexer.file_suffixes
        others = (name for name in files if name not in rows and name not in LABEL_TABLES)
        indexed = [name for name in others if name.lower().endswith(suffixes)]
        if not rows and not indexed:
            reason = next(iter(left_out.values()), "expected rows, images or texts")
            raise InvalidInput(f"file: nothing can be imported: {reason}")
        counts = {"added": 0, "updated": 0, "skipped": 0}
        rows_end = INDEX_SHARE / 2 if indexed else INDEX_SHARE
        counts |= self._import_rows(list(rows), collection, report, rows_end)
        if self.indexer is not None and indexed:
            start, before = (rows_end if rows else UNPACK_SHARE), counts["added"]

            def progress(share: float, stored: int) -> None:
                report(start + (INDEX_SHARE - start) * share, f"{before + stored:,} items stored")

            result = self.indexer.index_files(folder, indexed, self.labels, progress)
            counts = {name: count + result[name] for name, count in counts.items()}
            left_out |= result["broken"]
            if not collection.stats()["fitted"] and collection.count() >= MIN_FIT_ROWS:
                report(INDEX_SHARE, "fitting the hash functions")
                collection.fit()
        collection.flush()
        listed = [{"name": name, "reason": reason} for name, reason in list(left_out.items())[:LISTED_PROBLEMS]]
        return {**counts, "left_out": len(left_out), "problems": listed, "items": collection.count()}

    def _unpack(self, report: Report) -> tuple[list[str], dict[str, str]]:
        """Unpack archives; return all files, and what was left out."""
        files, left_out = [], dict(self.upload.skipped)
        archives = {name: None for name in self.upload.files if name.lower().endswith(ZIP_SUFFIX)}
        suffixes = [suffix for suffix in accepted_suffixes(self.indexer) if suffix != ZIP_SUFFIX]
        for number, name in enumerate(archives):

            def progress(share: float, number: int = number, name: str = name) -> None:
                report(UNPACK_SHARE * (number + share) / len(archives), f"unpacking {name}")

            archive = self.upload.folder / name
            unpacked = unpack_zip(archive, self.upload.folder, suffixes, progress=progress)
            archive.unlink()
            files += unpacked.files
            left_out |= unpacked.skipped
        return [name for name in self.upload.files if name not in archives] + files, left_out

    def _has_rows(self, path: Path) -> bool:
        """Return whether a file has rows of features; a table of texts for an encoder of texts has none."""
        suffix = path.suffix.lower()
        if suffix not in ROW_SUFFIXES or path.name.endswith(SIBLING_SUFFIXES):
            return False
        if self.indexer is None:
            return True
        if path.name in LABEL_TABLES:
            return False
        with reading(path):
            columns = list_columns(path) if suffix in self.indexer.file_suffixes else VECTOR_NAMES
        return any(name in VECTOR_NAMES or name == FIRST_FEATURE for name in columns)

    def _import_rows(self, files: list[str], collection: Collection, report: Report, end: float) -> dict[str, int]:
        """Check all files, and then import them."""
        paths = [self.upload.folder / name for name in files]
        options: dict[str, Any] = {"skip_existing": self.existing == "skip", "number_rows": True}
        rows = added = 0
        for number, path in enumerate(paths):
            check_size(path, collection)
            check = partial(
                _report_rows, report, (UNPACK_SHARE, CHECK_SHARE), number / len(paths), len(paths), "checked"
            )
            count = collection.check_file(path, progress=check, **options).rows
            if not count:
                raise InvalidInput(f"{path.name}: expected rows, got none")
            rows += count
        for number, path in enumerate(paths):
            store = partial(_report_rows, report, (CHECK_SHARE, end), number / len(paths), len(paths), "added")
            added += collection.import_file(path, progress=store, **options)
        return {"added": added, "skipped": rows - added}


def _report_rows(
    report: Report, span: tuple[float, float], done: float, files: int, verb: str, now: ImportProgress
) -> None:
    """Report how far one of several files is; its step takes this span of the whole."""
    share = done + now.share / files
    count = now.added if verb == "added" else now.rows
    report(span[0] + (span[1] - span[0]) * share, f"{count:,} rows {verb}")


def check_size(path: Path, collection: Collection) -> None:
    """Raise TooLarge if a packed file of rows grows too large when it is read."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        check_zip(path, ArchiveLimits(entry_bytes=MAX_NPZ_BYTES, total_bytes=MAX_NPZ_BYTES, ratio=1 << 40))
    if suffix == ".parquet" and (size := 4 * collection.dim * count_rows(path)) > MAX_TABLE_BYTES:
        raise TooLarge(f"{path.name}: expected features of at most {MAX_TABLE_BYTES:,} bytes, got {size:,}")
