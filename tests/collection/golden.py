"""The golden store: a collection of each format, kept as a file, which every later release must read.

`python -m tests.collection.golden` made it. It is made anew only for a new format, under a new name.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from stillhash.collection.encoder_alignment import EncoderIdentity
from stillhash.collection.storage.schema import STORE_FORMAT
from tests.collection.fixtures import DIM, begin, some_rows
from tests.support.toys import toy

FOLDER = Path(__file__).parent / "golden"
QUERIES = toy(3, DIM, 4, seed=77).X
PICTURE = b"\x89PNG\r\n\x1a\n and so on"


def grown(path: Path) -> None:
    """A collection that has used everything there is, and was not closed in good order."""
    collection, _ = begin(path, 320)
    collection.seal()
    collection.upsert([*(f"a{r}" for r in range(40)), 5, 6], *some_rows(42, seed=1))
    collection.delete([*range(20), "a7"])
    collection.tag(2, "früh")
    collection.feedback(QUERIES[0], ["a1", 100], [True, False], weight=0.5, source="ann")
    collection.seal()
    pictures = [PICTURE if r % 2 else None for r in range(15)]
    collection.upsert([f"b{r}" for r in range(15)], *some_rows(15, seed=2), pictures=pictures)
    theirs = np.random.default_rng(3).standard_normal((30, 5), dtype=np.float32)
    collection.align(EncoderIdentity("another", "ab" * 32, 5), theirs, some_rows(30, seed=4).X)
    shutil.copytree(path, path.with_name("golden"))
    collection.close()


def answers(collection: stillhash.Collection) -> dict[str, Any]:
    """What it says of itself, and to questions; as JSON."""
    stats = collection.stats()
    told = {name: stats[name] for name in stats if not name.endswith("bytes")}
    ids = [0, 5, 100, "a1", "a7", "b3"]
    searched = {
        "all": collection.search(QUERIES, 400),
        "some": collection.search(QUERIES, 5, where={"labels": "a", "odd": True}),
        "earlier": collection.search(QUERIES, 5, version=2),
        "explained": collection.search(QUERIES, 2, explain=2),
    }
    found = {
        "stats": told,
        "items": [item and asdict(item) for item in collection.get(ids)],
        "versions": collection.versions(),
        "quality": collection.quality(),
        "bridges": collection.alignments(),
        "pictures": [None if (data := collection.picture(f"b{r}")) is None else data.hex() for r in range(4)],
        **{name: [asdict(answer) for answer in some] for name, some in searched.items()},
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def make() -> Path:
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f"format-{STORE_FORMAT}.zip"
    if file.exists():
        sys.exit(f"{file.name} is there; what is released does not change")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        grown(path / "c")
        shutil.copytree(path / "golden", path / "asked")
        with stillhash.open(path / "asked", read_only=True) as collection:
            text = json.dumps(answers(collection), indent=1)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for each in sorted(p for p in (path / "golden").rglob("*") if p.is_file() and p.name != "store.db-shm"):
                archive.write(each, each.relative_to(path))
            archive.writestr("answers.json", text)
    return file


def close(found: Any, wanted: Any) -> bool:
    """Equal, but for the last digits of numbers, which depend on the processor."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(close(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(close, found, wanted))
    if isinstance(wanted, float) and isinstance(found, float):
        return bool(np.isclose(found, wanted, rtol=1e-4, atol=1e-5))
    return bool(found == wanted)


if __name__ == "__main__":
    print(make())
