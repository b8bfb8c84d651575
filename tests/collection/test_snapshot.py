"""Snapshots are whole copies of one commit, also while others write: they answer the same, and learning goes on.

STILLHASH_SNAPSHOTS is how many histories are tried; 200 make a campaign.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Collection
from stillhash.collection.learning.encoder_alignment import EncoderIdentity
from stillhash.errors import Conflict, StoreFailed
from tests.collection.fixtures import DIM, begin, copied, some_rows
from tests.collection.golden import PICTURE
from tests.collection.reference import agree
from tests.support.toys import toy

EXAMPLES = int(os.environ.get("STILLHASH_SNAPSHOTS", "8"))
QUERIES = toy(6, DIM, 4, seed=77).X
ANOTHER_ENCODER = EncoderIdentity("another", "ab" * 32, 5)
TEXT = 'é " \\ 漢字 \U0001f600'


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("rows", [0, 20, 320])
def test_snapshot_answers_as_the_original(tmp_path: Path, rows: int, read_only: bool) -> None:
    collection, twin = begin(tmp_path / "c", rows)
    collection.seal()
    collection.upsert(["x", "y"], *some_rows(2, seed=3))
    twin.put(["x", "y"], *some_rows(2, seed=3))
    source = stillhash.open(tmp_path / "c", read_only=True) if read_only else collection
    before = source.search(QUERIES, 50)
    size = source.snapshot(tmp_path / "copies" / "s")
    collection.delete(["x"])
    with stillhash.open(tmp_path / "copies" / "s") as copy:
        assert copy.verify() == []
        assert copy.stats()["disk_bytes"] > 0 and size > 4096
        assert copy.search(QUERIES, 50) == before
        copy.upsert(["z"], *some_rows(1, seed=4))
        twin.put(["z"], *some_rows(1, seed=4))
        if rows == 320:
            assert copy.learn(*some_rows(30, seed=5)[:2]) == twin.learn(*some_rows(30, seed=5)[:2])
            agree(copy, twin, QUERIES[0], 50)
    assert collection.get(["z"]) == [None]
    assert [file.name for file in (tmp_path / "copies").iterdir()] == ["s"]
    source.close()


def test_existing_folder_is_refused(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    (tmp_path / "existing").mkdir()
    for name in ("existing", "c"):
        with pytest.raises(Conflict, match=r"^path"):
            collection.snapshot(tmp_path / name)
    assert not list((tmp_path / "existing").iterdir())
    collection.close()


@pytest.mark.medium
def test_snapshots_while_writing_are_of_one_commit(tmp_path: Path) -> None:
    """Each commit adds a pair: a snapshot must not hold half of one."""
    collection, _ = begin(tmp_path / "c", 320)
    done = threading.Event()

    def write() -> None:
        rng = np.random.default_rng(0)
        for n in range(60):
            collection.add([f"p{n}", f"q{n}"], *some_rows(2, seed=n))
            if rng.random() < 0.3:
                collection.compact()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    snapshots = 0
    with stillhash.open(tmp_path / "c", read_only=True) as reader:
        while not done.is_set() or not snapshots:
            reader.snapshot(tmp_path / f"s{snapshots}")
            snapshots += 1
    writer.join()
    collection.close()
    for n in range(snapshots):
        with stillhash.open(tmp_path / f"s{n}", read_only=True) as copy:
            assert copy.verify() == []
            count = copy.count()
            assert count % 2 == 0
            pairs = [item is not None for p in range(60) for item in copy.get([f"p{p}", f"q{p}"])]
            assert sum(pairs) == count - 320 and pairs == sorted(pairs, reverse=True)
            assert len(copy.search(QUERIES[0], 10_000).hits) == count


@pytest.mark.parametrize("read_only", [False, True])
def test_a_tar_file_unpacks_to_the_collection(tmp_path: Path, read_only: bool) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    collection.seal()
    collection.upsert(["x", "y"], *some_rows(2, seed=3))
    shares: list[float] = []
    with stillhash.open(tmp_path / "c", read_only=True) as reader:
        source = reader if read_only else collection
        size = source.snapshot(tmp_path / "copies" / "monday.tar", progress=shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert size == (tmp_path / "copies" / "monday.tar").stat().st_size
    assert [file.name for file in (tmp_path / "copies").iterdir()] == ["monday.tar"]
    with tarfile.open(tmp_path / "copies" / "monday.tar") as archive:
        assert all(entry.name.split("/")[0] == "monday" for entry in archive)
        archive.extractall(tmp_path, filter="data")
    with stillhash.open(tmp_path / "monday") as copy:
        assert copy.verify() == [] and answers(copy) == answers(collection)
        learn_more(copy)
        learn_more(collection)
        assert untimed(answers(copy)) == untimed(answers(collection))
    collection.close()


def test_an_existing_tar_file_is_refused_and_a_failure_leaves_none(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    (tmp_path / "mine.tar").write_text("mine")
    with pytest.raises(Conflict, match=r"^path"):
        collection.snapshot(tmp_path / "mine.tar")
    with pytest.raises(ZeroDivisionError):
        collection.snapshot(tmp_path / "new.tar", progress=lambda share: share // 0)
    with full_disk(100_000), pytest.raises(StoreFailed, match=r"^path"):
        collection.snapshot(tmp_path / "new.tar")
    assert (tmp_path / "mine.tar").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"c", "mine.tar"}
    collection.close()


@contextmanager
def full_disk(most: int) -> Iterator[None]:
    """Let no file of this process grow past this many bytes."""
    resource = pytest.importorskip("resource", reason="limits the size of files, as POSIX systems can")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def answers(collection: Collection) -> str:
    """Return everything that a collection answers, so that equal means equal to the byte."""
    fitted = collection.stats()["fitted"]
    versions: list[Any] = [None, 0, "hamming", *(v["version"] for v in collection.versions())] if fitted else [None]
    parts: list[Any] = [collection.search(QUERIES, 30, version=version) for version in versions]
    if fitted:
        parts += [collection.search(QUERIES, 5, explain=True)]
        parts += [collection.range_search(QUERIES, 0.0)]
    ids = collection.ids(limit=10_000)
    parts += [collection.search(collection.reconstruct(ids[:3]), 3)] if ids else []
    return repr([parts, list(collection.items()), collection.versions(), collection.quality(), collection.alignments()])


def codes_of(collection: Collection) -> Any:
    ids = collection.ids(limit=10_000)
    codes = collection.codes(ids)
    return None if codes is None else codes.tobytes()


def learn_more(collection: Collection) -> None:
    """Let a collection learn, and forget, by every verb that does."""
    X, labels, metadata = some_rows(90, seed=21)
    collection.add([f"later {r}" for r in range(90)], X, labels, metadata)
    if collection.stats()["fitted"]:
        collection.flush()
        collection.learn(X[:50], labels[:50])
        hits = collection.search(QUERIES[1], 4).hits
        collection.feedback(QUERIES[1], [hit.id for hit in hits], ["up", "down", "up", 0.5], source="bob")
        collection.relabel(collection.ids(limit=2), [["a"], ["b", "d"]])
        collection.forget(collection.ids(limit=4)[2:])


VERBS = ("add", "delete", "forget", "relabel", "feedback", "seal", "compact", "tag", "rollback", "align")
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 50)), max_size=8)
PHASES = (Phase.explicit, Phase.generate)  # an example takes too long to be shrunk


def take_step(collection: Collection, step: str, seed: int) -> None:
    rng, fitted = np.random.default_rng(seed), collection.stats()["fitted"]
    ids, versions = collection.ids(limit=10_000), [v["version"] for v in collection.versions()]
    some = [ids[place] for place in rng.permutation(len(ids))[:5]]
    if step == "add":
        count = int(rng.integers(1, 60))
        X, labels, metadata = some_rows(count, seed)
        more = [[*sorted({7, 2.5} if r % 4 == 0 else set()), *own] for r, own in enumerate(labels)]
        texts = [
            {"n": r, TEXT: [TEXT + "\n", None, 1e-300, "\ud800"]} if r % 7 == 0 else data
            for r, data in enumerate(metadata)
        ]
        names = [f"{TEXT}{seed}-{r}" if r % 2 else 10_000 * seed + r for r in range(count)]
        pictures = [PICTURE + bytes([r]) if r % 3 == 0 else None for r in range(count)]
        collection.upsert(names, X, more, texts, pictures=pictures, learn=seed % 5 > 0)
    elif step == "delete":
        collection.delete(some)
    elif step == "forget" and some:
        collection.forget(some)
    elif step == "relabel" and some:
        collection.relabel(some, [["a", "zz"]] * len(some), learn=seed % 2 > 0)
    elif step == "feedback" and fitted and some:
        collection.feedback(
            QUERIES[seed % 3], some, "up" if seed % 2 else -0.5, source=f"s{seed % 2}", position=seed + 1
        )
        collection.feedback(QUERIES[0], some[0], 0, source="s0")
    elif step == "seal":
        collection.seal()
    elif step == "compact":
        collection.compact()
    elif step == "tag" and versions:
        collection.tag(versions[seed % len(versions)], f"tag {seed}") if seed not in tags(collection) else None
    elif step == "rollback" and versions:
        collection.rollback(versions[seed % len(versions)])
    elif step == "align":
        collection.align(ANOTHER_ENCODER, toy(40, 5, 4, seed=seed).X, toy(40, DIM, 4, seed=seed).X)


def tags(collection: Collection) -> set[int]:
    return {int(version["tag"].split()[1]) for version in collection.versions() if version["tag"]}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Collections that wait for hash functions, and that have them, with and without labels in codes."""
    folder, paths = tmp_path_factory.mktemp("templates"), {}
    for name, rows, options in (
        *(("empty", 0, {}), ("waiting", 50, {}), ("fitted", 320, {})),
        *(("plain", 320, {"codes_see_labels": False}), ("ohsl", 320, {"method": "ohsl"})),
        ("features", 320, {"keep_features": True}),
    ):
        collection, _ = begin(folder / name, rows, **options)
        collection.close()
        paths[name] = folder / name
    yield paths


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
@given(
    template=st.sampled_from(["empty", "waiting", "fitted", "fitted", "plain", "ohsl", "features", "features"]),
    tar=st.booleans(),
    steps=STEPS,
)
@settings(max_examples=EXAMPLES, phases=PHASES)
def test_a_snapshot_goes_on_as_the_collection_does(
    templates: dict[str, Path], template: str, tar: bool, steps: list[tuple[str, int]]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="stillhash-"))
    try:
        with stillhash.open(copied(templates[template], folder / "c")) as collection:
            for step, seed in steps:
                take_step(collection, step, seed)
            collection.snapshot(folder / ("s.tar" if tar else "s"))
            if tar:
                with tarfile.open(folder / "s.tar") as archive:
                    archive.extractall(folder, filter="data")
            with stillhash.open(folder / "s") as copy:
                assert copy.verify() == []
                assert answers(copy) == answers(collection) and codes_of(copy) == codes_of(collection)
                assert [copy.picture(name) for name in copy.ids()] == [collection.picture(name) for name in copy.ids()]
                learn_more(collection)
                learn_more(copy)
                assert untimed(answers(copy)) == untimed(answers(collection))
                assert codes_of(copy) == codes_of(collection)
    finally:
        shutil.rmtree(folder)


def untimed(text: str) -> str:
    """Return a text without the times at which versions were created."""
    return "".join(part.split("'", 1)[-1] for part in text.split("'created': '20"))
