"""Recognise a file of rows by its content, wherever it lies and whatever it is called."""

import hashlib
from pathlib import Path

from stillhash.errors import InvalidInput
from stillhash.io.arrays import siblings
from stillhash.io.rows import reading

EDGE_BYTES = 1 << 20  # of the beginning and of the end of a file


def source_digest(path: Path) -> str:
    """Return a digest of the size, the beginning and the end of a file, and of the siblings of a .npy file."""
    if str(path) == "-":
        raise InvalidInput("file: expected a file, which can be read again, got stdin")
    digest = hashlib.sha256()
    with reading(path):
        for file in (path, *(siblings(path).values() if path.suffix.lower() == ".npy" else ())):
            size = file.stat().st_size
            digest.update(size.to_bytes(8, "little"))
            with file.open("rb") as handle:
                digest.update(handle.read(EDGE_BYTES))
                handle.seek(max(0, size - EDGE_BYTES))
                digest.update(handle.read(EDGE_BYTES))
    return digest.hexdigest()
