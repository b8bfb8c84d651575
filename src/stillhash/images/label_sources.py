"""Labels of image files, from wherever people have them: folders, tables, annotations, notes beside the file."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from stillhash.errors import InvalidInput

AUTO, FOLDERS, SIDECAR, NONE = "auto", "folders", "sidecar", "none"
TABLES = ("labels.csv", "labels.json", "labels.jsonl")  # that are looked for in a folder

Labels = Callable[[str], list[str]]  # of a file, by its path in the folder, with / between


def labels_from(folder: Path, told: str = AUTO) -> Labels:
    """Where the labels of a folder's images are.

    folders : the names of the subfolders a file is in.
    sidecar : a .txt beside the image, with tags between commas or lines: cat.jpg has cat.txt, or cat.jpg.txt.
    none : nowhere.
    a file : .csv with columns file and labels ('cat|dog'); .json, {file: [labels]} or a list of {"file", "labels"};
        .jsonl, such an object a line; or COCO's annotations, as .json.
    auto : labels.csv, labels.json or labels.jsonl in the folder; else a note beside a file, else its subfolders.
    """
    if told == NONE:
        return lambda _: []
    if told == FOLDERS:
        return _by_folder
    if told == SIDECAR:
        return lambda name: _beside(folder, name) or []
    if told == AUTO:
        table = next((folder / name for name in TABLES if (folder / name).is_file()), None)
        if table is None:
            return lambda name: found if (found := _beside(folder, name)) is not None else _by_folder(name)
        return _by_table(table)
    return _by_table(Path(told))


def _by_folder(name: str) -> list[str]:
    return list(dict.fromkeys(PurePosixPath(name).parts[:-1]))


def _beside(folder: Path, name: str) -> list[str] | None:
    for note in ((folder / name).with_suffix(".txt"), folder / f"{name}.txt"):
        if note.is_file():
            try:
                text = note.read_text("utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidInput(f"{note.name} cannot be read: {error}") from None
            return _words(text.replace("\n", ","), ",")
    return None


def _by_table(path: Path) -> Labels:
    """A whole table is read at once. Files go by their path in the folder or, where a table has none, by their name."""
    readers = {".csv": _csv, ".json": _json, ".jsonl": _json_lines}
    if path.suffix.lower() not in readers:
        known = f"{AUTO}, {FOLDERS}, {SIDECAR}, {NONE}"
        raise InvalidInput(f"labels is {str(path)!r}; {known}, or a .csv, .json or .jsonl file is wanted")
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"labels is {str(path)!r}, which cannot be read: {error}") from None
    found = readers[path.suffix.lower()](text, path.name)
    return lambda name: found.get(name, found.get(PurePosixPath(name).name, []))


def _csv(text: str, where: str) -> dict[str, list[str]]:
    rows = csv.DictReader(text.splitlines())
    if not {"file", "labels"} <= set(rows.fieldnames or ()):
        raise InvalidInput(f"{where} has the columns {', '.join(rows.fieldnames or ())}; file and labels are wanted")
    return {_clean(row["file"] or ""): _words(row["labels"] or "", "|") for row in rows}


def _json_lines(text: str, where: str) -> dict[str, list[str]]:
    lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
    return dict(_entry(_parsed(line, f"{where}, line {number}"), f"{where}, line {number}") for number, line in lines)


def _json(text: str, where: str) -> dict[str, list[str]]:
    told = _parsed(text, where)
    if isinstance(told, list):
        return dict(_entry(one, f"{where}, entry {number}") for number, one in enumerate(told))
    if isinstance(told, dict) and {"images", "annotations", "categories"} <= told.keys():
        return _coco(told, where)
    if isinstance(told, dict):
        return dict(_entry({"file": file, "labels": labels}, where) for file, labels in told.items())
    raise InvalidInput(f"{where} holds {type(told).__name__}; an object or a list is wanted")


def _coco(told: dict[str, Any], where: str) -> dict[str, list[str]]:
    """The categories of an image's annotations, each once."""
    try:
        names = {category["id"]: str(category["name"]) for category in told["categories"]}
        files = {image["id"]: _clean(str(image["file_name"])) for image in told["images"]}
        found: dict[str, dict[str, None]] = {file: {} for file in files.values()}
        for annotation in told["annotations"]:
            found[files[annotation["image_id"]]][names[annotation["category_id"]]] = None
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"{where} begins as COCO's annotations do, and then lacks {error}") from None
    return {file: list(labels) for file, labels in found.items()}


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} is not JSON: {error}") from None


def _entry(told: Any, where: str) -> tuple[str, list[str]]:
    if isinstance(told, dict) and isinstance(told.get("file"), str):
        labels = told.get("labels", [])
        if isinstance(labels, str):
            return _clean(told["file"]), _words(labels, "|")
        if isinstance(labels, list) and all(isinstance(label, (str, int)) for label in labels):
            return _clean(told["file"]), [str(label) for label in labels]
    raise InvalidInput(f"{where}: a file and a list of its labels are wanted")


def _words(text: str, between: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(between) if word.strip()))


def _clean(file: str) -> str:
    return file.strip().replace("\\", "/").removeprefix("./")
