"""Folders of files: images and texts at any depth, and files whose rows can be read by range."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from stillhash.errors import InvalidInput
from stillhash.io.arrays import SIBLING_NAMES, RowBlock, count_npy, npy_blocks
from stillhash.io.parquet import count_parquet, parquet_blocks
from stillhash.io.rows import reading

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
TEXT_SUFFIXES = (".txt", ".md", ".markdown")
SIBLING_SUFFIXES = tuple(f".{name}.npy" for name in SIBLING_NAMES)

BlockReader = Callable[[Path, int, int], Iterator[RowBlock]]
BLOCK_READERS: dict[str, tuple[Callable[[Path], int], BlockReader]] = {
    ".npy": (count_npy, npy_blocks),
    ".parquet": (count_parquet, parquet_blocks),
}


def list_images(folder: Path) -> list[str]:
    """List the images of a folder by their paths in it, sorted; hidden ones and links to folders are left out."""
    return _list_files(folder, IMAGE_SUFFIXES)


def list_texts(folder: Path) -> list[str]:
    """List the text and Markdown files of a folder, as `list_images` does."""
    return _list_files(folder, TEXT_SUFFIXES)


def _list_files(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    if not folder.is_dir():
        raise InvalidInput(f"folder: expected a folder that exists, got {str(folder)!r}")
    names = []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        here = Path(root).relative_to(folder)
        chosen = (name for name in files if name.lower().endswith(suffixes) and not name.startswith("."))
        names += [(here / name).as_posix() for name in chosen]
    return sorted(names)


def list_row_files(folder: Path) -> list[str]:
    """List the .npy and .parquet files of a folder by name, sorted, without those of ids and labels."""
    names = (file.name for file in folder.iterdir() if not file.name.startswith("."))
    return sorted(name for name in names if name.endswith(tuple(BLOCK_READERS)) and not name.endswith(SIBLING_SUFFIXES))


def count_rows(path: Path) -> int:
    """Count the rows of a .npy or .parquet file."""
    if path.suffix not in BLOCK_READERS:
        raise InvalidInput(f"{path.name}: expected a file that ends in {' or '.join(BLOCK_READERS)}")
    with reading(path):
        return BLOCK_READERS[path.suffix][0](path)


def read_blocks(path: Path, start: int, stop: int) -> Iterator[RowBlock]:
    """Yield rows start to stop - 1 of a .npy or .parquet file, a block at a time, as stored."""
    with reading(path):
        yield from BLOCK_READERS[path.suffix][1](path, start, stop)
