from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.cluster.bulk import publish
from stillhash.cluster.encoding import encode_dataset
from stillhash.collection import Collection, bulk_load
from stillhash.collection.storage.sealed_files import write_sealed
from stillhash.errors import BadState, Conflict, InvalidInput
from stillhash.hashers import Tally
from stillhash.numeric.codes import signs
from tests.cluster.fixtures import PART, ROWS, contents, fitted, named, sample, shards
from tests.support.toys import Toy, toy

pytestmark = pytest.mark.usefixtures("cluster")
FEW = 4


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return shards(tmp_path_factory.mktemp("publishing") / "source")


@pytest.fixture(scope="module")
def out(rows: Toy, tmp_path_factory: pytest.TempPathFactory, cluster: object) -> Path:
    """Parts of all rows, each code several times."""
    folder = tmp_path_factory.mktemp("parts")
    source = next(tmp_path_factory.getbasetemp().glob("publishing*")) / "source"
    encode_dataset(source, fitted(), folder / "out", rows_per_part=PART, at_once=FEW)
    return folder / "out"


def by_adding(path: Path, rows: Toy) -> Collection:
    """The same collection, row by row."""
    collection = stillhash.open(path, rows.X.shape[1], 32, init=sample())
    for start in range(0, ROWS, 100):
        some = slice(start, start + 100)
        collection.add(range(ROWS)[some], rows.X[some], named(rows.Y)[some], learn=False)
    return collection


def test_it_equals_a_collection_that_was_added_to_row_by_row(tmp_path: Path, rows: Toy, out: Path) -> None:
    queries = toy(20, seed=3).X
    with publish(out, tmp_path / "made", fitted()) as made, by_adding(tmp_path / "added", rows) as added:
        assert made.verify() == [] and len(made) == ROWS
        assert made.search(queries, ROWS) == added.search(queries, ROWS)  # all of them, and in the order of ties
        assert made.search(queries, 9, where={"labels": 3}) == added.search(queries, 9, where={"labels": 3})
        lesson = toy(1500, seed=4)
        for each in (made, added):  # and goes on as one
            each.add(range(ROWS, ROWS + 1500), lesson.X, lesson.Y)
            each.seal()
            each.delete([5, 700, ROWS + 7])
        assert made.search(queries, 50) == added.search(queries, 50) and made.stats()["version"] > 1
        made.compact()
        assert made.verify() == [] and made.search(queries, 50) == added.search(queries, 50)
    with stillhash.open(tmp_path / "made") as again:
        assert len(again) == ROWS + 1497 and again.verify() == []


def test_what_the_hasher_has_learnt_is_the_first_version(tmp_path: Path, rows: Toy, out: Path) -> None:
    hasher = fitted().partial_fit(rows.X, rows.Y)
    with publish(out, tmp_path / "made", hasher, learnt=ROWS) as made:
        (version,) = made.versions()
        assert (version["version"], version["rows"], version["current"]) == (1, ROWS, True)
        query = toy(1, seed=3).X
        scores = hasher.weigh(query) @ signs(hasher.encode(rows.X), 32).T
        hits = made.search(query[0], 10).hits
        assert np.allclose([hit.score for hit in hits], np.sort(scores[0])[::-1][:10], rtol=1e-5)
        assert made.learn(rows.X[:500], named(rows.Y)[:500]) == 2


def test_it_appears_whole_or_not_at_all(tmp_path: Path, rows: Toy, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        assert not (tmp_path / "made").exists()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(bulk_load, "sync_folder", fails)  # when all rows are in, before the commit
        with pytest.raises(KeyboardInterrupt):
            publish(out, tmp_path / "made", fitted())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".made.unfinished" / "segments").mkdir(parents=True)  # as a process that was killed leaves it
    (tmp_path / ".made.unfinished" / "store.db").write_bytes(b"begun")
    with publish(out, tmp_path / "made", fitted()) as made:
        assert len(made) == ROWS
    before = contents(tmp_path / "made" / "segments")
    with publish(out, tmp_path / "made", fitted()) as again:  # by one who does not know that it was done
        assert len(again) == ROWS and contents(tmp_path / "made" / "segments") == before
    with pytest.raises(Conflict, match="another collection"):
        publish(out, tmp_path / "made", fitted().partial_fit(rows.X, rows.Y))
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_what_does_not_belong_together_is_refused(tmp_path: Path, out: Path) -> None:
    with pytest.raises(Conflict, match="other hash functions"):
        publish(out, tmp_path / "made", fitted(random_state=1))
    with pytest.raises(InvalidInput, match="hasher is LinearHasher"):
        publish(out, tmp_path / "made", fitted().functions())
    with pytest.raises(InvalidInput, match=r"there is no manifest.json"):
        publish(tmp_path, tmp_path / "made", fitted())
    segment = out / "parts" / "00000004.tiles"
    segment.rename(out / "aside")
    try:
        with pytest.raises(BadState, match="part 4 of 10 in out is not there"):
            publish(out, tmp_path / "made", fitted())
    finally:
        (out / "aside").rename(segment)
    assert list(tmp_path.iterdir()) == []


def test_an_id_of_two_parts_is_refused(tmp_path: Path) -> None:
    rows = toy(600, seed=1)
    np.save(tmp_path / "a.npy", rows.X)
    np.save(tmp_path / "a.ids.npy", np.arange(600) % 500)
    encode_dataset(tmp_path / "a.npy", fitted(), tmp_path / "out", rows_per_part=300, at_once=FEW)
    with pytest.raises(Conflict, match="ids holds 100 that the collection has already"):
        publish(tmp_path / "out", tmp_path / "made", fitted())
    assert not (tmp_path / "made").exists()
    with pytest.raises(InvalidInput, match="more than once"):
        encode_dataset(tmp_path / "a.npy", fitted(), tmp_path / "other", rows_per_part=600, at_once=FEW)


def test_images_come_with_their_encoder_and_pictures(tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    from stillhash.encoders import open_encoder

    rng, classic = np.random.default_rng(0), open_encoder("classic")
    (tmp_path / "source").mkdir()
    for n in range(5):
        images.fromarray(rng.integers(0, 255, (20, 30, 3), np.uint8)).save(tmp_path / "source" / f"{n}.png")
    for n in (0, 1, 2):
        (tmp_path / "source" / f"{n} broken.png").write_bytes(b"no image")
    hasher = Tally(bits=16).fit(rng.standard_normal((100, classic.dim)))
    encode_dataset(tmp_path / "source", hasher, tmp_path / "out", encoder="classic", rows_per_part=2, at_once=FEW)
    with publish(tmp_path / "out", tmp_path / "made", hasher) as made:
        assert made.verify() == [] and made.encoder is not None and made.encoder.fingerprint == classic.fingerprint
        assert [item.id for item in made.get([f"{n}.png" for n in range(5)]) if item] == [f"{n}.png" for n in range(5)]
        assert all(made.picture(f"{n}.png") for n in range(5)) and made.get(["0.png"])[0].metadata["width"] == 30
        made.add(["more"], rng.standard_normal((1, classic.dim)))
        assert made.verify() == [] and len(made) == 6


def test_a_part_of_another_run_is_refused(tmp_path: Path, out: Path) -> None:
    """A file that is whole, and yet not of this part."""
    segment = out / "parts" / "00000004.items"
    before = segment.read_bytes()
    write_sealed(segment, [b"x"])
    try:
        with pytest.raises(BadState, match="part 4"):
            publish(out, tmp_path / "made", fitted())
    finally:
        segment.write_bytes(before)
