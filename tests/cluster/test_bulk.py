from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.cluster.bulk import publish
from stillhash.cluster.datasets import encode_dataset, learn_dataset
from stillhash.collection import Collection
from stillhash.errors import BadState, Conflict, InvalidInput
from stillhash.files import write_sealed
from stillhash.hashers import Tally
from stillhash.numeric.codes import signs
from stillhash.numeric.ranking import rank_all
from stillhash.platform import SYSTEM
from tests.cluster.fixtures import (
    MAX_TASKS,
    PART_ROWS,
    ROWS,
    file_contents,
    fit_tally,
    label_lists,
    sample,
    write_dataset,
)
from tests.support.toys import Toy, toy

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return write_dataset(tmp_path_factory.mktemp("publishing") / "source")


@pytest.fixture(scope="module")
def out(rows: Toy, tmp_path_factory: pytest.TempPathFactory, cluster: object) -> Path:
    """Encode all rows, each code several times."""
    folder = tmp_path_factory.mktemp("parts")
    source = next(tmp_path_factory.getbasetemp().glob("publishing*")) / "source"
    encode_dataset(source, fit_tally(), folder / "out", rows_per_part=PART_ROWS, max_tasks=MAX_TASKS)
    return folder / "out"


def add_rows(path: Path, rows: Toy) -> Collection:
    """Make the same collection by adding rows."""
    collection = stillhash.open(path, rows.X.shape[1], 32, init=sample(), codes_see_labels=True, rescore_bits=0)
    for start in range(0, ROWS, 100):
        chunk = slice(start, start + 100)
        collection.add(range(ROWS)[chunk], rows.X[chunk], label_lists(rows.Y)[chunk], learn=False)
    return collection


def test_it_equals_a_collection_that_rows_were_added_to(tmp_path: Path, rows: Toy, out: Path) -> None:
    queries = toy(20, seed=3).X
    with publish(out, tmp_path / "published", fit_tally()) as published, add_rows(tmp_path / "added", rows) as added:
        assert published.verify() == [] and len(published) == ROWS
        assert published.search(queries, ROWS) == added.search(queries, ROWS)  # all of them, and in the order of ties
        assert published.search(queries, 9, where={"labels": 3}) == added.search(queries, 9, where={"labels": 3})
        more = toy(1500, seed=4)
        for each in (published, added):  # and both continue alike
            each.add(range(ROWS, ROWS + 1500), more.X, more.Y)
            each.seal()
            each.delete([5, 700, ROWS + 7])
        assert published.search(queries, 50) == added.search(queries, 50) and published.stats()["version"] > 1
        published.compact()
        assert published.verify() == [] and published.search(queries, 50) == added.search(queries, 50)
    with stillhash.open(tmp_path / "published") as again:
        assert len(again) == ROWS + 1497 and again.verify() == []


def test_it_equals_a_collection_that_has_learnt_added_rows(tmp_path: Path) -> None:
    """Some rows have no labels; all others are stored with codes that hold theirs, and are learnt with them."""
    rows, source, out = write_dataset(tmp_path / "source"), tmp_path / "source", tmp_path / "out"
    rows.Y[100:500] = 0
    np.save(source / "shard-0.labels.npy", rows.Y[:700])
    encode_dataset(source, fit_tally(), out, rows_per_part=PART_ROWS, max_tasks=MAX_TASKS)
    hasher, learnt, _ = learn_dataset(source, fit_tally(), codes=out, rows_per_part=PART_ROWS)
    assert learnt == ROWS - 400 and hasher.stats_.unlabelled >= 400
    queries = toy(40, seed=3).X
    with (
        publish(out, tmp_path / "published", hasher, learnt=learnt) as published,
        stillhash.open(
            tmp_path / "added", rows.X.shape[1], 32, init=sample(), codes_see_labels=True, rescore_bits=0
        ) as added,
    ):
        for start in range(0, ROWS, 100):
            chunk = slice(start, start + 100)
            added.add(range(ROWS)[chunk], rows.X[chunk], label_lists(rows.Y)[chunk])
        added.flush()
        assert np.array_equal(published.codes(range(ROWS)), added.codes(range(ROWS)))
        assert not np.array_equal(published.codes(range(ROWS)), hasher.encode(rows.X))
        for one, other in zip(published.search(queries, 100), added.search(queries, 100), strict=True):
            assert (one.ranking, len(one.hits)) == (other.ranking, len(other.hits)) == ("learnt similarity", 100)
            scores = {hit.id: hit.score for hit in one.hits}
            shared = [hit for hit in other.hits if hit.id in scores]
            assert len(shared) >= 98  # sums differ in their last digits, and so do the scores of ties
            assert np.allclose([hit.score for hit in shared], [scores[hit.id] for hit in shared], rtol=1e-4, atol=1e-5)
            assert [hit.id for hit in one.hits[:10]] == [hit.id for hit in other.hits[:10]]
        assert published.stats()["codes_see_labels"] and added.stats()["codes_see_labels"]
        more = toy(300, seed=4)
        for each in (published, added):  # and both continue alike
            each.add(range(ROWS, ROWS + 300), more.X, more.Y)
        assert np.array_equal(published.codes(range(ROWS, ROWS + 300)), added.codes(range(ROWS, ROWS + 300)))


def test_what_the_hasher_has_learnt_is_the_first_version(tmp_path: Path, rows: Toy, out: Path) -> None:
    codes = fit_tally().encode(rows.X, rows.Y)
    hasher = fit_tally().partial_fit(rows.X, rows.Y, codes)
    with publish(out, tmp_path / "published", hasher, learnt=ROWS) as published:
        (version,) = published.versions()
        assert (version["version"], version["rows"], version["current"]) == (1, ROWS, True)
        query = toy(1, seed=3).X
        ranking = hasher.ranking(query)
        scores = ranking.weights[0] @ signs(codes, 32).T
        hits = published.search(query[0], 10).hits
        assert np.allclose([hit.score for hit in hits], scores[rank_all(ranking, codes)[0, :10]], rtol=1e-5)
        assert published.learn(rows.X[:500], label_lists(rows.Y)[:500]) == 2


def test_it_appears_with_all_items_or_not_at_all(
    tmp_path: Path, rows: Toy, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, synced = SYSTEM.sync, []

    def interrupt(path: Path) -> None:
        sync(path)
        synced.append(path.name)
        if path.name == "segments":  # when all rows are in, before the commit
            assert not (tmp_path / "published").exists()
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SYSTEM, "sync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            publish(out, tmp_path / "published", fit_tally())
    assert len(synced) > 1 and list(tmp_path.iterdir()) == []
    (tmp_path / ".published.unfinished" / "segments").mkdir(parents=True)  # as a process that was killed leaves it
    (tmp_path / ".published.unfinished" / "store.db").write_bytes(b"begun")
    with publish(out, tmp_path / "published", fit_tally()) as published:
        assert len(published) == ROWS
    before = file_contents(tmp_path / "published" / "segments")
    with publish(out, tmp_path / "published", fit_tally()) as again:  # a second call opens it
        assert len(again) == ROWS and file_contents(tmp_path / "published" / "segments") == before
    with pytest.raises(Conflict, match=r"^path"):
        publish(out, tmp_path / "published", fit_tally().partial_fit(rows.X, rows.Y))
    assert [path.name for path in tmp_path.iterdir()] == ["published"]


def test_other_functions_and_missing_parts_are_refused(tmp_path: Path, out: Path) -> None:
    with pytest.raises(Conflict, match=r"^hasher"):
        publish(out, tmp_path / "published", fit_tally(random_state=1))
    with pytest.raises(InvalidInput, match=r"^hasher"):
        publish(out, tmp_path / "published", fit_tally().functions())
    with pytest.raises(InvalidInput, match=r"^out"):
        publish(tmp_path, tmp_path / "published", fit_tally())
    segment = out / "parts" / "00000004.tiles"
    segment.rename(out / "aside")
    try:
        with pytest.raises(BadState, match=r"^part 4 of 10"):
            publish(out, tmp_path / "published", fit_tally())
    finally:
        (out / "aside").rename(segment)
    assert list(tmp_path.iterdir()) == []


def test_an_id_in_two_parts_is_refused(tmp_path: Path) -> None:
    rows = toy(600, seed=1)
    np.save(tmp_path / "a.npy", rows.X)
    np.save(tmp_path / "a.ids.npy", np.arange(600) % 500)
    encode_dataset(tmp_path / "a.npy", fit_tally(), tmp_path / "out", rows_per_part=300, max_tasks=MAX_TASKS)
    with pytest.raises(Conflict, match=r"^(ids|100 ids)"):
        publish(tmp_path / "out", tmp_path / "published", fit_tally())
    assert not (tmp_path / "published").exists()
    with pytest.raises(InvalidInput, match=r"^ids"):
        encode_dataset(tmp_path / "a.npy", fit_tally(), tmp_path / "other", rows_per_part=600, max_tasks=MAX_TASKS)


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
    encode_dataset(
        tmp_path / "source", hasher, tmp_path / "out", encoder="classic", rows_per_part=2, max_tasks=MAX_TASKS
    )
    with publish(tmp_path / "out", tmp_path / "published", hasher) as published:
        assert (
            published.verify() == []
            and published.encoder is not None
            and published.encoder.fingerprint == classic.fingerprint
        )
        assert [item.id for item in published.get([f"{n}.png" for n in range(5)]) if item] == [
            f"{n}.png" for n in range(5)
        ]
        assert (
            all(published.picture(f"{n}.png") for n in range(5)) and published.get(["0.png"])[0].metadata["width"] == 30
        )
        published.add(["more"], rng.standard_normal((1, classic.dim)))
        assert published.verify() == [] and len(published) == 6


def test_a_part_of_another_run_is_refused(tmp_path: Path, out: Path) -> None:
    """A complete file, but not of this part."""
    segment = out / "parts" / "00000004.items"
    before = segment.read_bytes()
    write_sealed(segment, [b"x"])
    try:
        with pytest.raises(BadState, match=r"^part 4"):
            publish(out, tmp_path / "published", fit_tally())
    finally:
        segment.write_bytes(before)
