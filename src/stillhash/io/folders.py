"""Folders of files: images and texts at any depth, their labels, and files whose rows can be read by range.

Labels come from subfolders, tables, COCO annotations, or text files beside images.
"""

import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from stillhash.errors import InvalidInput
from stillhash.io.arrays import SIBLING_NAMES, count_npy, npy_blocks
from stillhash.io.arrow import count_parquet, parquet_blocks
from stillhash.io.rows import RowBlock, parse_json, reading

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
TEXT_SUFFIXES = (".txt", ".md", ".markdown")
SIBLING_SUFFIXES = tuple(f".{name}.npy" for name in SIBLING_NAMES)

BlockReader = Callable[[Path, int, int], Iterator[RowBlock]]
BLOCK_READERS: dict[str, tuple[Callable[[Path], int], BlockReader]] = {
    ".npy": (count_npy, npy_blocks),
    ".parquet": (count_parquet, parquet_blocks),
}
LABEL_TABLES = ("labels.csv", "labels.json", "labels.jsonl")  # looked for in a folder

LabelSource = Callable[[str], list[str]]  # from a file, by its path in the folder with / between, to its labels


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


def open_labels(folder: Path, source: str = "auto", *, sidecars: bool = True) -> LabelSource:
    """Return a function from a file's path in the folder to its labels.

    folders : the names of the subfolders a file is in.
    sidecar : a .txt beside the image, with tags between commas or lines: cat.jpg has cat.txt, or cat.jpg.txt.
    none : no labels.
    a file : .csv with columns file and labels ('cat|dog'); .json, {file: [labels]} or a list of {"file", "labels"};
        .jsonl, one such object per line; or COCO annotations, as .json.
    auto : labels.csv, labels.json or labels.jsonl in the folder; else a sidecar, else the subfolders.

    sidecars : whether files can have a sidecar; texts cannot.
    """
    if source == "none":
        return lambda _: []
    if source == "folders":
        return _folder_labels
    if source == "sidecar" and sidecars:
        return lambda name: _sidecar_labels(folder, name) or []
    if source != "auto":
        return _table_labels(Path(source))
    table = next((folder / name for name in LABEL_TABLES if (folder / name).is_file()), None)
    if table is not None:
        return _table_labels(table)
    if not sidecars:
        return _folder_labels
    return lambda name: _folder_labels(name) if (tags := _sidecar_labels(folder, name)) is None else tags


def _folder_labels(name: str) -> list[str]:
    return list(dict.fromkeys(PurePosixPath(name).parts[:-1]))


def _sidecar_labels(folder: Path, name: str) -> list[str] | None:
    for sidecar in ((folder / name).with_suffix(".txt"), folder / f"{name}.txt"):
        if sidecar.is_file():
            return _split(_read_text(sidecar, sidecar.name).replace("\n", ","), ",")
    return None


def _table_labels(path: Path) -> LabelSource:
    """Read a whole table. Files go by their path in the folder or, where a table has none, by their name."""
    readers = {".csv": _read_csv, ".json": _read_json, ".jsonl": _read_json_lines}
    if path.suffix.lower() not in readers:
        expected = "auto, folders, sidecar, none, or a .csv, .json or .jsonl file"
        raise InvalidInput(f"labels: expected {expected}, got {str(path)!r}")
    table = readers[path.suffix.lower()](_read_text(path, f"labels: {path}"), path.name)
    return lambda name: table.get(name, table.get(PurePosixPath(name).name, []))


def _read_text(path: Path, where: str) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{where}: cannot be read: {error}") from None


def _read_csv(text: str, where: str) -> dict[str, list[str]]:
    rows = csv.DictReader(text.splitlines())
    if not {"file", "labels"} <= set(rows.fieldnames or ()):
        raise InvalidInput(f"{where}: columns: expected file and labels, got {', '.join(rows.fieldnames or ())}")
    return {_clean(row["file"] or ""): _split(row["labels"] or "", "|") for row in rows}


def _read_json_lines(text: str, where: str) -> dict[str, list[str]]:
    lines = ((f"{where}, line {number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
    return dict(_entry(parse_json(line, place), place) for place, line in lines)


def _read_json(text: str, where: str) -> dict[str, list[str]]:
    table = parse_json(text, where)
    if isinstance(table, list):
        return dict(_entry(one, f"{where}, entry {number}") for number, one in enumerate(table))
    if isinstance(table, dict) and {"images", "annotations", "categories"} <= table.keys():
        return _coco_labels(table, where)
    if isinstance(table, dict):
        return dict(_entry({"file": file, "labels": labels}, where) for file, labels in table.items())
    raise InvalidInput(f"{where}: expected an object or a list, got {type(table).__name__}")


def _coco_labels(annotations: dict[str, Any], where: str) -> dict[str, list[str]]:
    """Return the categories of each image's annotations, each once."""
    try:
        names = {category["id"]: str(category["name"]) for category in annotations["categories"]}
        files = {image["id"]: _clean(str(image["file_name"])) for image in annotations["images"]}
        labels: dict[str, dict[str, None]] = {file: {} for file in files.values()}
        for annotation in annotations["annotations"]:
            labels[files[annotation["image_id"]]][names[annotation["category_id"]]] = None
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"{where}: expected COCO annotations; they lack {error}") from None
    return {file: list(categories) for file, categories in labels.items()}


def _entry(entry: Any, where: str) -> tuple[str, list[str]]:
    if isinstance(entry, dict) and isinstance(entry.get("file"), str):
        labels = entry.get("labels", [])
        if isinstance(labels, str):
            return _clean(entry["file"]), _split(labels, "|")
        if isinstance(labels, list) and all(isinstance(label, (str, int)) for label in labels):
            return _clean(entry["file"]), [str(label) for label in labels]
    raise InvalidInput(f"{where}: expected a file and a list of its labels")


def _split(text: str, separator: str) -> list[str]:
    return list(dict.fromkeys(label.strip() for label in text.split(separator) if label.strip()))


def _clean(file: str) -> str:
    return file.strip().replace("\\", "/").removeprefix("./")
