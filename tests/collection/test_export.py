"""What is exported goes in again: the same answers to the byte, and learning goes on from the same state.

STILLHASH_EXPORTS is how many collections are tried for each format; 200 make a campaign.
"""

from __future__ import annotations

import json
import os
import shutil
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
from stillhash.collection.encoder_alignment import EncoderIdentity
from stillhash.collection.storage import exported_items
from stillhash.collection.storage.exported_items import ExportedItems
from stillhash.collection.storage.store import Store
from stillhash.errors import Conflict, InvalidInput, StoreFailed
from tests.collection.fixtures import DIM, begin, copied, live_rows, some_rows
from tests.collection.golden import PICTURE
from tests.support.toys import toy

pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")

EXAMPLES = int(os.environ.get("STILLHASH_EXPORTS", "5"))
FORMATS = ("jsonl", "parquet", "npz")
QUERIES = toy(6, DIM, 4, seed=77).X
ANOTHER_ENCODER = EncoderIdentity("another", "ab" * 32, 5)
WHERE: list[Any] = [None, {}, {"odd": True}, {"labels": {"$in": ["a", 7]}}, {"n": {"$lt": 40}}, {"n": -1}]
TEXT = 'é " \\ 漢字 \U0001f600'


def answers(collection: Collection, where: Any = None) -> str:
    """Return everything that a collection answers, so that equal means equal to the byte."""
    fitted = collection.stats()["fitted"]
    versions: list[Any] = [None, 0, "hamming", *(v["version"] for v in collection.versions())] if fitted else [None]
    parts: list[Any] = [collection.search(QUERIES, 30, where=where, version=version) for version in versions]
    if fitted:
        parts += [collection.search(QUERIES, 5, where=where, explain=True)]
        parts += [collection.range_search(QUERIES, 0.0, where=where)]
    ids = collection.ids(where, limit=10_000)
    parts += [collection.search(collection.reconstruct(ids[:3]), 3, where=where)] if ids else []
    return repr(
        [parts, list(collection.items(where)), collection.versions(), collection.quality(), collection.alignments()]
    )


def codes_of(collection: Collection, where: Any = None) -> Any:
    ids = collection.ids(where, limit=10_000)
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
        *(("plain", 320, {"codes_see_labels": False}), ("tuned", 320, {"method": "tuned"})),
        ("features", 320, {"keep_features": True}),
    ):
        collection, _ = begin(folder / name, rows, **options)
        collection.close()
        paths[name] = folder / name
    yield paths


@pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
@pytest.mark.parametrize("format", FORMATS)
@given(
    template=st.sampled_from(["empty", "waiting", "fitted", "fitted", "plain", "tuned", "features", "features"]),
    where=st.sampled_from(WHERE),
    steps=STEPS,
)
@settings(max_examples=EXAMPLES, phases=PHASES)
def test_an_export_goes_in_again(
    templates: dict[str, Path], template: str, format: str, where: Any, steps: list[tuple[str, int]]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="stillhash-"))
    try:
        with stillhash.open(copied(templates[template], folder / "c")) as collection:
            for step, seed in steps:
                take_step(collection, step, seed)
            file, calls = folder / f"e.{format}", []
            report = collection.export(file, where=where, progress=lambda done, total: calls.append((done, total)))
            count = collection.count(where)
            assert report == {
                **{"format": format, "items": count, "bytes": file.stat().st_size},
                "version": collection.stats()["version"],
            }
            assert calls[-1:] == ([(count, count)] if count else [])
            assert stillhash.is_export(file)
            with stillhash.import_export(file, folder / "i") as copy:
                assert copy.verify() == []
                assert codes_of(copy) == codes_of(collection, where)
                assert copy.reconstruct(copy.ids()).tobytes() == collection.reconstruct(copy.ids()).tobytes()
                assert [copy.picture(name) for name in copy.ids()] == [collection.picture(name) for name in copy.ids()]
                if where is None:
                    assert answers(copy) == answers(collection)
                    copy.export(folder / f"again.{format}")
                    assert (folder / f"again.{format}").read_bytes() == file.read_bytes()
                    learn_more(collection)
                    learn_more(copy)
                    assert untimed(answers(copy)) == untimed(answers(collection))
                    assert codes_of(copy) == codes_of(collection)
                else:
                    assert repr(copy.search(QUERIES, 30)) == repr(collection.search(QUERIES, 30, where=where))
        assert {path.name for path in folder.iterdir()} <= {"c", "i", f"e.{format}", f"again.{format}"}
    finally:
        shutil.rmtree(folder)


def untimed(text: str) -> str:
    """Return a text without the times at which versions were created."""
    return "".join(part.split("'", 1)[-1] for part in text.split("'created': '20"))


@given(seed=st.integers(0, 100), gaps=st.integers(0, 3))
@settings(max_examples=EXAMPLES, phases=PHASES)
def test_batches_hold_what_the_tables_hold(templates: dict[str, Path], seed: int, gaps: int) -> None:
    """Compare with all codes and digests read at once."""
    folder = Path(tempfile.mkdtemp(prefix="stillhash-"))
    try:
        with stillhash.open(copied(templates["fitted"], folder / "c")) as collection:
            for number in range(gaps):
                take_step(collection, "delete", seed + number)
                take_step(collection, "compact" if (seed + number) % 3 == 0 else "seal", seed)
                take_step(collection, "add", seed + number)
        store = Store(folder / "c", writer=False)
        with store.reading() as connection:
            batches = list(ExportedItems(store, connection, None).batches())
            live = live_rows(store, connection)
            contents = store.items.contents(connection, live.numbers.tolist())
        store.close()
        assert np.array_equal(np.concatenate([batch.rows for batch in batches]), live.numbers)
        assert np.array_equal(np.concatenate([batch.codes for batch in batches if batch.codes is not None]), live.codes)
        digests = [batch.digests for batch in batches if batch.digests is not None]
        assert np.array_equal(np.concatenate(digests), live.digests)
        texts = [
            (name, json.loads(labels), json.loads(metadata or "null"))
            for batch in batches
            for name, labels, metadata in zip(batch.ids, batch.labels, batch.metadata, strict=True)
        ]
        assert texts == [contents[row] for row in live.numbers.tolist()]
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("format", FORMATS)
def test_small_batches_hold_the_same(tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    collection.upsert(["x", "y"], *some_rows(2), pictures=[PICTURE, None])
    collection.export(tmp_path / f"a.{format}")
    monkeypatch.setattr(exported_items, "MAX_BATCH_BYTES", 2000)
    collection.export(tmp_path / f"b.{format}")
    for name in "ab":
        with stillhash.import_export(tmp_path / f"{name}.{format}", tmp_path / name) as copy:
            assert answers(copy) == answers(collection)
    collection.close()


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_is_of_one_commit_while_another_thread_writes(tmp_path: Path, format: str) -> None:
    """Each commit adds a pair: an export must not hold half of one, nor lose features to a compaction."""
    collection, _ = begin(tmp_path / "c", 320, keep_features=format != "parquet")
    done = threading.Event()

    def write() -> None:
        for n in range(12):
            collection.add([f"p{n}", f"q{n}"], *some_rows(2, seed=n))
            collection.delete([2 * n, 2 * n + 1])
            if n % 4 == 0:
                collection.compact()
            if n % 7 == 0:
                collection.learn(*some_rows(45, seed=n)[:2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    exports = 0
    while not done.is_set() or not exports:
        collection.export(tmp_path / f"{exports}.{format}", where={} if exports % 2 else None)
        exports += 1
    writer.join()
    collection.close()
    for n in range(0, exports, max(1, exports // 4)):
        with stillhash.import_export(tmp_path / f"{n}.{format}", tmp_path / f"i{n}") as copy:
            ids = {item.id for item in copy.items()}
            pairs = [f"p{p}" in ids for p in range(12)]
            assert pairs == [f"q{p}" in ids for p in range(12)] == sorted(pairs, reverse=True)
            assert format == "parquet" or None not in exported_features(copy, tmp_path / f"e{n}.jsonl")
            assert len(ids) - 2 * sum(pairs) in (320 - 2 * sum(pairs), 322 - 2 * sum(pairs))


def exported_features(collection: Collection, file: Path) -> list[Any]:
    """Return the features of all items, in order of their rows; None where they are lost."""
    collection.export(file)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [line["features"] for line in lines if "id" in line]


@pytest.mark.parametrize("format", FORMATS)
def test_features_that_are_lost_stay_so(tmp_path: Path, format: str) -> None:
    collection, _ = begin(tmp_path / "c", 320, keep_features=True)
    collection.seal()
    collection.upsert(["x", "y"], *some_rows(2, seed=4))
    collection.close()
    (lost,) = (tmp_path / "c" / "segments").glob("*.features")
    lost.unlink()
    with stillhash.open(tmp_path / "c", read_only=True) as collection:
        features = exported_features(collection, tmp_path / "a.jsonl")
        assert features[:320] == [None] * 320
        assert np.array_equal(np.array(features[320:], np.float32), collection.reconstruct(["x", "y"]))
        collection.export(tmp_path / f"b.{format}")
        with stillhash.import_export(tmp_path / f"b.{format}", tmp_path / "i") as copy:
            assert copy.verify() == []
            assert exported_features(copy, tmp_path / "b2.jsonl") == features
            assert answers(copy) == answers(collection)


def test_other_verbs_may_be_called_by_progress(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    collection.export(tmp_path / "e.jsonl", progress=lambda done, total: collection.delete([done - 20]))
    assert collection.count() == 19
    with stillhash.import_export(tmp_path / "e.jsonl", tmp_path / "i") as copy:
        assert copy.count() == 20
    collection.close()


def test_a_file_is_replaced_only_on_request_and_never_in_part(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    file = tmp_path / "e.jsonl"
    file.write_text("mine")
    with pytest.raises(Conflict, match=r"^path:"):
        collection.export(file)
    with pytest.raises(ZeroDivisionError):
        collection.export(file, overwrite=True, progress=lambda done, total: done // 0)
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(Conflict, match=r"^path:"):
        collection.export(tmp_path / "folder.npz", overwrite=True)
    with pytest.raises(StoreFailed, match=r"^path:"):
        collection.export(tmp_path / "none" / "e.jsonl")
    assert file.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"c", "e.jsonl", "folder.npz"}
    collection.export(file, overwrite=True)
    assert stillhash.is_export(file)
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


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("most", [100, 8000, 12_000])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, format: str, most: int) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    collection.export(tmp_path / f"a.{format}")
    with full_disk(most), pytest.raises(StoreFailed, match=r"^path:"):
        collection.export(tmp_path / f"b.{format}")
    with full_disk(most), pytest.raises(StoreFailed):
        stillhash.import_export(tmp_path / f"a.{format}", tmp_path / "i")
    assert {path.name for path in tmp_path.iterdir()} == {"c", f"a.{format}"}
    collection.export(tmp_path / f"b.{format}")
    assert (tmp_path / f"b.{format}").read_bytes() == (tmp_path / f"a.{format}").read_bytes()
    collection.close()


def test_the_format_is_that_of_the_suffix_unless_named(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    assert collection.export(tmp_path / "a.NPZ")["format"] == "npz"
    assert collection.export(tmp_path / "b.data", "jsonl")["format"] == "jsonl"
    for name, format in (("c.data", None), ("c.csv", None), ("c.npz", "csv"), ("c.npz", 7)):
        with pytest.raises(InvalidInput, match=r"^format:"):
            collection.export(tmp_path / name, format)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^where:"):
        collection.export(tmp_path / "c.npz", where={"a": {}})
    collection.close()


def test_other_programs_read_the_items(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    collection, _ = begin(tmp_path / "c", 320)
    for name in FORMATS:
        collection.export(tmp_path / f"e.{name}")
    table = parquet.read_table(tmp_path / "e.parquet").to_pydict()
    lines = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    items = [line for line in lines if "id" in line]
    arrays = np.load(tmp_path / "e.npz")
    assert table["id"] == [item["id"] for item in items] == arrays["ids"].tolist() == list(range(320))
    assert list(map(json.loads, table["labels"])) == [item["labels"] for item in items] == some_rows(320).labels
    assert b"".join(table["code"]) == arrays["codes"].tobytes() == codes_of(collection)
    ends, data = arrays["metadata_ends"], arrays["metadata_data"].tobytes()
    assert json.loads(data[ends[0] : ends[1]]) == items[1]["metadata"] == json.loads(table["metadata"][1])
    collection.close()
