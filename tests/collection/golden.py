"""The golden store: a collection of each format, stored as a file that every later release must read.

`python -m tests.collection.golden` created it. It is created again only for a new format, under a new name.
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
from stillhash.collection.learning.encoder_alignment import EncoderIdentity
from stillhash.collection.storage.schema import RESCORING_FORMAT
from tests.collection.fixtures import DIM, begin, some_rows
from tests.support.toys import toy

FOLDER = Path(__file__).parent / "golden"
QUERIES = toy(3, DIM, 4, seed=77).X
PICTURE = b"\x89PNG\r\n\x1a\n and so on"


def create_collection(path: Path) -> None:
    """Create a collection that uses every feature, and copy it before it is closed."""
    collection, _ = begin(path, 320)
    mislabelled = some_rows(400, seed=5)._replace(labels=some_rows(400, seed=6).labels)
    collection.add([f"c{r}" for r in range(400)], *mislabelled)
    collection.seal()
    collection.upsert([*(f"a{r}" for r in range(40)), 5, 6], *some_rows(42, seed=1))
    collection.delete([*range(20), "a7"])
    collection.tag(2, "früh")
    collection.feedback(QUERIES[0], ["a1", 100], [0.5, -0.5], source="ann", position=3)
    collection.seal()
    pictures = [PICTURE if r % 2 else None for r in range(15)]
    collection.upsert([f"b{r}" for r in range(15)], *some_rows(15, seed=2), pictures=pictures)
    theirs = np.random.default_rng(3).standard_normal((30, 5), dtype=np.float32)
    collection.align(EncoderIdentity("another", "ab" * 32, 5), theirs, some_rows(30, seed=4).X)
    collection.relabel(["c1", "c2"], [["a"], ["d"]])  # wait to be learnt, and to be taken out
    shutil.copytree(path, path.with_name("golden"))
    collection.close()


NEW_FIELDS = (
    "codes_only",
    "distance",
    "lexical_field",
    "learnt_rank",
    "lexical_rank",
    "rescore_bits",
)  # of stats and hits, which the stored answers lack
NEW_OF_EXPLANATIONS = ("query_labels", "hit_labels", "shared_labels", "up_votes", "down_votes", "vote_score")
NEW_OF_EXPLANATIONS += ("label_weight", "page_score")


def answers(collection: stillhash.Collection) -> dict[str, Any]:
    """Return all that the collection reports and answers, as JSON."""
    stats = collection.stats()
    counts = {name: stats[name] for name in stats if not name.endswith("bytes") and name not in NEW_FIELDS}
    ids = [0, 5, 100, "a1", "a7", "b3"]
    searched = {
        "all": collection.search(QUERIES, 400),
        "some": collection.search(QUERIES, 5, where={"labels": "a", "odd": True}),
        "earlier": collection.search(QUERIES, 5, version=2),
        "explained": collection.search(QUERIES, 2, explain=2),
    }
    results = {
        "stats": counts,
        "items": [item and asdict(item) for item in collection.get(ids)],
        "versions": collection.versions(),
        "quality": collection.quality(),
        "doubtful": [asdict(item) for item in collection.doubtful_labels(50)],
        "alignments": collection.alignments(),
        "pictures": [None if (data := collection.picture(f"b{r}")) is None else data.hex() for r in range(4)],
        **{name: [asdict(answer) for answer in some] for name, some in searched.items()},
    }
    for answer in (answer for name in searched for answer in results[name]):
        answer.pop("balance")  # which the stored answers lack
    for hit in (hit for name in searched for answer in results[name] for hit in answer["hits"]):
        assert all(hit.pop(name, None) is None for name in NEW_FIELDS)
        if explanation := hit["explanation"]:
            explanation["looks"] = explanation.pop("similarity")  # its name when the answers were stored
            for name in NEW_OF_EXPLANATIONS:
                explanation.pop(name, None)
    plain: dict[str, Any] = json.loads(json.dumps(results))
    return plain


def make() -> Path:
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f"format-{RESCORING_FORMAT}.zip"
    if file.exists():
        sys.exit(f"{file.name} exists; a released format does not change")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        create_collection(path / "c")
        shutil.copytree(path / "golden", path / "copy")
        with stillhash.open(path / "copy", read_only=True) as collection:
            text = json.dumps(answers(collection), indent=1)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for each in sorted(p for p in (path / "golden").rglob("*") if p.is_file() and p.name != "store.db-shm"):
                archive.write(each, each.relative_to(path))
            archive.writestr("answers.json", text)
    return file


def close(result: Any, expected: Any) -> bool:
    """Return whether both are equal, except for the last digits of numbers, which depend on the processor."""
    if isinstance(expected, dict):
        return result.keys() == expected.keys() and all(close(result[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(result) == len(expected) and all(map(close, result, expected))
    if isinstance(expected, float) and isinstance(result, float):
        return bool(np.isclose(result, expected, rtol=1e-4, atol=1e-5))
    return bool(result == expected)


if __name__ == "__main__":
    print(make())
