"""A flipped bit, in any file: answers are right or there are none, and `repair` brings everything back.

STILLHASH_FLIPS is how many bits are flipped, each in a fresh copy; several thousand make a campaign.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.errors import BadState, StillhashError
from tests.collection.fixtures import DIM, begin, some_rows
from tests.support.seeds import run_seed
from tests.support.toys import toy

FLIPS = int(os.environ.get("STILLHASH_FLIPS", "40"))
QUERIES = toy(3, DIM, 4, seed=77).X
MORE = some_rows(30, seed=5)


def grown(path: Path) -> stillhash.Collection:
    """A collection with segments, a tail, deleted rows, lessons, tags and versions."""
    collection, _ = begin(path, 320)
    collection.add([f"a{r}" for r in range(400)], *some_rows(400, seed=1))
    collection.seal()
    collection.delete([*range(0, 60), "a7"])
    collection.learn(*some_rows(50, seed=2)[:2])
    collection.tag(2, "early")
    collection.upsert([f"a{r}" for r in range(30)], *some_rows(30, seed=3))
    collection.seal()
    collection.upsert([f"b{r}" for r in range(25)], *some_rows(25, seed=4))
    return collection


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same collection closed, and as a crash leaves it: with all that is not in store.db yet."""
    folder = tmp_path_factory.mktemp("flips")
    collection = grown(folder / "closed")
    shutil.copytree(folder / "closed", folder / "crashed")
    collection.close()
    assert not (folder / "closed" / "store.db-wal").exists()
    assert (folder / "crashed" / "store.db-wal").stat().st_size > 100_000
    return [folder / "closed", folder / "crashed"]


def answers(path: Path) -> Any:
    """All that can be asked."""
    with stillhash.open(path, read_only=True) as collection:
        ids = [*range(320), *(f"{letter}{r}" for letter in "ab" for r in range(400))]
        stats = collection.stats()
        told = {key: stats[key] for key in stats if not key.endswith("bytes")}
        some = collection.search(QUERIES, 50, where={"labels": "a"})
        earlier = collection.search(QUERIES, 50, version=2)
        return (
            told,
            collection.get(ids),
            collection.search(QUERIES, 1000),
            some,
            earlier,
            collection.versions(),
            collection.verify(),
        )


def learnt(path: Path) -> Any:
    """What comes of writing and learning on."""
    with stillhash.open(path) as collection:
        collection.upsert([f"m{r}" for r in range(30)], *MORE)
        collection.learn(*MORE[:2])
        collection.rollback(2)
        collection.learn(*MORE[:2])
        collection.compact()
        return collection.search(QUERIES, 1000), collection.verify()


def flip(path: Path, chance: random.Random) -> str:
    """Flips one bit of one file: of any byte of all, or of any file, as often."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
    weights = [file.stat().st_size for file in files] if chance.random() < 0.5 else [1] * len(files)
    (file,) = chance.choices(files, weights)
    data = bytearray(file.read_bytes())
    place = chance.randrange(8 * len(data))
    data[place // 8] ^= 1 << place % 8
    file.write_bytes(data)
    return f"bit {place} of {file.relative_to(path)}"


def test_no_flipped_bit_gives_a_wrong_answer(templates: list[Path], tmp_path: Path) -> None:
    chance = random.Random(run_seed())
    right = {}
    for template in templates:
        shutil.copytree(template, tmp_path / "right")
        right[template] = answers(tmp_path / "right"), learnt(tmp_path / "right")
        shutil.rmtree(tmp_path / "right")
    noticed = 0
    for _ in range(FLIPS):
        template = chance.choice(templates)
        path = tmp_path / "c"
        shutil.copytree(template, path)
        where = f"{flip(path, chance)} ({template.name})"
        try:
            assert answers(path) == right[template][0], where
        except StillhashError as error:
            assert isinstance(error, BadState), where
            noticed += 1
        except AssertionError:  # right but for what verify has to say
            *some, wrong = answers(path)
            assert wrong and some == list(right[template][0][:-1]), where
            noticed += 1
        try:
            assert stillhash.repair(path).lost_ids == []
            assert answers(path) == right[template][0], where
            assert learnt(path) == right[template][1], where
        except StillhashError as error:
            raise AssertionError(where) from error
        shutil.rmtree(path)
    print(f"{FLIPS} bits flipped, {noticed} noticed, the others harmless; all repaired")
    assert 0 < noticed <= FLIPS
