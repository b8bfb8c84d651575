"""A flipped bit in any file: answers are right or refused, and `repair` restores all or says what is lost.

STILLHASH_FLIPS is how many bits are flipped, each in a new copy; 2,000 make a campaign.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.errors import BadState, StillhashError
from tests.collection.fixtures import DIM, begin, rescoring_codes, some_rows
from tests.support.seeds import run_seed
from tests.support.toys import toy

FLIPS = int(os.environ.get("STILLHASH_FLIPS", "40"))
QUERIES = toy(3, DIM, 4, seed=77).X
MORE = some_rows(30, seed=5)


def create_collection(path: Path) -> stillhash.Collection:
    """Create a collection with segments, unsealed, deleted and pending rows, tags and versions."""
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
    """Return the same collection closed, and as a crash leaves it: with pages that are only in the WAL."""
    folder = tmp_path_factory.mktemp("flips")
    collection = create_collection(folder / "closed")
    shutil.copytree(folder / "closed", folder / "crashed")
    collection.close()
    assert not (folder / "closed" / "store.db-wal").exists()
    assert (folder / "crashed" / "store.db-wal").stat().st_size > 100_000
    return [folder / "closed", folder / "crashed"]


def answers(path: Path) -> Any:
    """Return the answers of all verbs that read."""
    with stillhash.open(path, read_only=True) as collection:
        ids = [*range(320), *(f"{letter}{r}" for letter in "ab" for r in range(400))]
        stats = collection.stats()
        counts = {key: stats[key] for key in stats if not key.endswith("bytes")}
        some = collection.search(QUERIES, 50, where={"labels": "a"})
        earlier = collection.search(QUERIES, 50, version=2)
        return (
            counts,
            collection.get(ids),
            collection.search(QUERIES, 1000),
            some,
            earlier,
            collection.versions(),
            [array.tolist() for array in rescoring_codes(collection, ids)],
            collection.verify(),
        )


def write_and_learn(path: Path) -> Any:
    """Write, learn and return the answers."""
    with stillhash.open(path) as collection:
        collection.upsert([f"m{r}" for r in range(30)], *MORE)
        collection.learn(*MORE[:2])
        collection.rollback(2)
        collection.learn(*MORE[:2])
        collection.compact()
        return collection.search(QUERIES, 1000), collection.verify()


def flip(path: Path, rng: random.Random) -> str:
    """Flip one bit of one file; any byte, or any file, is equally likely."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
    weights = [file.stat().st_size for file in files] if rng.random() < 0.5 else [1] * len(files)
    (file,) = rng.choices(files, weights)
    data = bytearray(file.read_bytes())
    place = rng.randrange(8 * len(data))
    data[place // 8] ^= 1 << place % 8
    file.write_bytes(data)
    return f"bit {place} of {file.relative_to(path)}"


@pytest.mark.slow
def test_no_flipped_bit_gives_a_wrong_answer(templates: list[Path], tmp_path: Path) -> None:
    rng = random.Random(run_seed())
    expected = {}
    for template in templates:
        shutil.copytree(template, tmp_path / "sound")
        expected[template] = answers(tmp_path / "sound"), write_and_learn(tmp_path / "sound")
        shutil.rmtree(tmp_path / "sound")
    detected, outcomes = 0, Counter[str]()
    for _ in range(FLIPS):
        template = rng.choice(templates)
        path = tmp_path / "c"
        shutil.copytree(template, path)
        where = f"{flip(path, rng)} ({template.name})"
        try:
            assert answers(path) == expected[template][0], where
        except StillhashError as error:
            assert isinstance(error, BadState), where
            detected += 1
        except AssertionError:  # right, except that verify reports damage
            *some, wrong = answers(path)
            assert wrong and some == list(expected[template][0][:-1]), where
            detected += 1
        outcomes[repaired(path, where, *expected[template])] += 1
        shutil.rmtree(path)
    print(f"{FLIPS} bits flipped, {detected} detected, the others harmless; after repair: {dict(outcomes)}")
    assert 0 < detected <= FLIPS


def repaired(path: Path, where: str, before: Any, later: Any) -> str:
    """Repair a collection, check that nothing is silently lost, and return how that ended."""
    try:
        actions, lost = stillhash.repair(path)
    except BadState as error:
        assert "snapshot" in str(error), where
        with pytest.raises(BadState):
            answers(path)
        return "needs a snapshot"
    if any(action.startswith(("store.db-wal", "acked")) for action in actions):
        with stillhash.open(path) as collection:
            assert collection.verify() == [], where
        return "commits are lost"
    after = answers(path)
    assert after[-1] == [], where
    if not actions:
        assert after == before and write_and_learn(path) == later, where
        return "was sound"
    if after == before:
        assert lost == [], where
        return "all is there"
    assert any("lost" in action for action in actions), where
    items = [item for item, old in zip(after[1], before[1], strict=True) if old is not None and item is None]
    assert len(items) == len(lost), where
    assert [item for item in after[1] if item] == [old for old, item in zip(before[1], after[1], strict=True) if item]
    return "items are lost" if lost else "rescoring codes or a learner are lost"
