"""Unpack ZIP archives that strangers made: only files of wanted kinds, below one folder, within limits.

All limits are checked before anything is unpacked, and the size of the directory before it is read, since that takes
memory for each entry. Names are never trusted: one that would leave the folder loses its path.
"""

import errno
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from stillhash.errors import InvalidInput, StoreFailed, TooLarge
from stillhash.io.arrays import ZIP_ERRORS
from stillhash.platform import SYSTEM

END_SIGNATURE, LOCATOR_SIGNATURE = b"PK\x05\x06", b"PK\x06\x07"  # of the directory's end, and of its 64-bit one
END_BYTES, LOCATOR_BYTES, MAX_COMMENT = 22, 20, 1 << 16
MAX_ENTRY_RECORD = 256  # of an entry in the directory, on average
RATIO_FREE_BYTES = 1 << 20  # an entry of fewer bytes may be compressed to any ratio, as a drawing of one colour is
UNPACK_BYTES = 1 << 20  # unpacked at a time
MAX_FOLDERS, MAX_NAME_BYTES = 8, 160  # of a path: folders, and the bytes of each name
NAME_TWICE = "its name occurs twice"
FORBIDDEN = frozenset('<>:"|?*')  # in names of files, on some systems


class ArchiveLimits(NamedTuple):
    """What an archive may hold."""

    entries: int = 20_000
    entry_bytes: int = 64 << 20
    total_bytes: int = 4 << 30
    ratio: int = 200  # of an entry's size to its size in the archive


USUAL_LIMITS = ArchiveLimits()


class Unpacked(NamedTuple):
    """The files by their paths in the folder, and why others were left out, by their names in the archive."""

    files: list[str]
    skipped: dict[str, str]


def unpack_zip(
    archive: Path,
    folder: Path,
    suffixes: Iterable[str],
    limits: ArchiveLimits = USUAL_LIMITS,
    progress: Callable[[float], object] = lambda _: None,
) -> Unpacked:
    """Unpack the files with these suffixes into a folder; `progress` is called with the share that is done.

    A folder in the archive that is called as the archive itself, photos/ in photos.zip, is no part of paths.
    """
    check_zip(archive, limits)
    result, taken, done = Unpacked([], {}), set[str](), 0
    endings = tuple(suffixes)
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = [entry for entry in opened.infolist() if not entry.is_dir()]
            total = max(1, sum(entry.file_size for entry in entries))
            for entry in entries:
                path = inner_path(entry.filename).removeprefix(f"{archive.stem}/")
                reason = _refusal(path, endings, taken) or _unpack(opened, entry, folder / path)
                if reason is not None:
                    result.skipped[entry.filename] = reason
                else:
                    taken.add(path.casefold())
                    result.files.append(path)
                done += entry.file_size
                progress(done / total)
    except (*ZIP_ERRORS, OverflowError) as error:
        raise InvalidInput(f"{archive.name}: expected a ZIP archive that can be unpacked: {error}") from None
    return result


def check_zip(archive: Path, limits: ArchiveLimits = USUAL_LIMITS) -> None:
    """Raise TooLarge, or InvalidInput, unless an archive is within the limits."""
    _check_directory(archive, limits)
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = opened.infolist()
    except (*ZIP_ERRORS, ValueError, OSError) as error:
        raise InvalidInput(f"{archive.name}: expected a ZIP archive: {error}") from None
    if len(entries) > limits.entries:
        raise TooLarge(f"{archive.name}: expected at most {limits.entries:,} entries, got {len(entries):,}")
    if (total := sum(entry.file_size for entry in entries)) > limits.total_bytes:
        raise TooLarge(f"{archive.name}: expected at most {limits.total_bytes:,} bytes unpacked, got {total:,}")
    for entry in entries:
        size, packed = entry.file_size, max(1, entry.compress_size)
        place = f"{archive.name}: {entry.filename[:80]!r}"
        if entry.flag_bits & 1:
            raise InvalidInput(f"{place}: expected no password, got one")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InvalidInput(f"{place}: expected stored or deflated, got compression {entry.compress_type}")
        if size > limits.entry_bytes:
            raise TooLarge(f"{place}: expected at most {limits.entry_bytes:,} bytes unpacked, got {size:,}")
        if size > RATIO_FREE_BYTES and size > limits.ratio * packed:
            raise TooLarge(f"{place}: expected at most {limits.ratio} times its packed size, got {size // packed}")


def _check_directory(archive: Path, limits: ArchiveLimits) -> None:
    """Bound the directory as zipfile is going to read it; one of 64 bits only serves archives beyond the limits."""
    size = archive.stat().st_size
    with archive.open("rb") as file:
        file.seek(max(0, size - END_BYTES - LOCATOR_BYTES - MAX_COMMENT))
        end = file.read()
    at = len(end) - END_BYTES
    if at < 0 or not (end.startswith(END_SIGNATURE, at) and end.endswith(b"\0\0")):
        at = end.rfind(END_SIGNATURE)
    if at < 0 or at + END_BYTES > len(end):
        raise InvalidInput(f"{archive.name}: expected a ZIP archive, got a file without its end")
    entries, directory = struct.unpack_from("<HI", end, at + 10)
    large = end[max(0, at - LOCATOR_BYTES) : at].startswith(LOCATOR_SIGNATURE)
    if large or entries > limits.entries or directory > limits.entries * MAX_ENTRY_RECORD:
        raise TooLarge(f"{archive.name}: expected at most {limits.entries:,} entries, got more")


def inner_path(name: str) -> str:
    """Return a path that stays in its folder: without its folders where it would leave it; "" if nothing is left.

    Hidden files have no such path, nor have those whose name is too long.
    """
    parts = name.replace("\\", "/").split("/")
    if parts[0] == "" or ":" in parts[0] or ".." in parts or len(parts) > MAX_FOLDERS:
        parts = parts[-1:]
    cleaned = [_clean(part) for part in parts if part not in ("", ".")]
    if not cleaned or any(not part or len(part.encode()) > MAX_NAME_BYTES for part in cleaned):
        return ""
    return "/".join(cleaned)


def _clean(part: str) -> str:
    """Return a name of a file for any system; "" for a hidden one."""
    if part.startswith("."):
        return ""
    text = "".join(each if each.isprintable() and each not in FORBIDDEN else "_" for each in part).strip(" .")
    return f"_{text}" if SYSTEM.is_reserved_name(text) else text


def _refusal(path: str, suffixes: tuple[str, ...], taken: set[str]) -> str | None:
    if not path:
        return "hidden, or its name cannot be used"
    if not path.lower().endswith(suffixes):
        return "of another kind"
    return NAME_TWICE if path.casefold() in taken else None


def _unpack(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> str | None:
    """Unpack a file; return why that cannot be."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with opened.open(entry) as source, target.open("xb") as file:
            shutil.copyfileobj(source, file, UNPACK_BYTES)
    except (FileExistsError, NotADirectoryError):  # the name of a folder, or a folder below a file
        return NAME_TWICE
    except OSError as error:
        if error.errno == errno.EINVAL:  # a place before the beginning of the file
            raise zipfile.BadZipFile("an entry is outside the file") from None
        raise StoreFailed(f"{entry.filename[:80]!r}: the disk refused it: {error.strerror}") from error
    return None
