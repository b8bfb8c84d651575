"""The model is a function of what is stored: labels that change, and items that go, leave no trace in the sums."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Collection
from stillhash.collection.storage import learner as storage
from stillhash.collection.storage.segments import CodeTable
from stillhash.files import BLOCK_SIZE
from stillhash.hashers import Tally
from tests.collection.fixtures import BITS, DIM, rescoring_codes, some_rows

ROWS = 360


def learner(collection: Collection) -> Tally:
    """Return the learner of the current version, read from its files."""
    store = collection._store
    with store.reading() as connection:
        version = connection.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()[0]
        files = store.versions.learners(connection)[version]
    hasher = store.learner_files.load(files)
    assert isinstance(hasher, Tally)
    return hasher


def open_with(path: Path, labels: list[list[Any]], **options: Any) -> Collection:
    """Return a collection of the same rows with these labels, all learnt."""
    collection = stillhash.open(path, DIM, BITS, init_rows=300, learn_rows=40, **options)
    X = some_rows(ROWS).X
    collection.add(range(300), X[:300])  # the same hash functions, whatever the labels
    collection.add(range(300, ROWS), X[300:], labels[300:])
    collection.relabel(range(300), labels[:300])
    collection.flush()
    return collection


def same_model(one: Collection, other: Collection) -> None:
    """Check that both collections have learnt the same, to the bit, and rank alike."""
    first, second = learner(one), learner(other)
    assert first.stats_.same(second.stats_)
    assert first.model().balance == second.model().balance
    queries = some_rows(20, 9).X
    for mine, theirs in zip(one.search(queries, 20), other.search(queries, 20), strict=True):
        assert [(hit.id, hit.score, hit.placed) for hit in mine.hits] == [
            (hit.id, hit.score, hit.placed) for hit in theirs.hits
        ]


def test_corrected_labels_rank_as_labels_that_were_right_from_the_start(tmp_path: Path) -> None:
    labels = some_rows(ROWS).labels
    rng = np.random.default_rng(0)
    wrong = [[str(rng.choice(list("abcd")))] if rng.random() < 0.3 else some for some in labels]
    right, corrected = open_with(tmp_path / "a", labels), open_with(tmp_path / "b", wrong)
    assert not learner(right).stats_.same(learner(corrected).stats_)
    changed = [n for n in range(ROWS) if wrong[n] != labels[n] and n < 300]
    corrected.relabel(changed, [labels[n] for n in changed])
    later = [n for n in range(300, ROWS) if wrong[n] != labels[n]]
    corrected.upsert(later, labels=[labels[n] for n in later])
    corrected.flush()
    assert learner(right).stats_.rows == learner(corrected).stats_.rows
    for collection in (right, corrected):
        assert collection.verify() == []
        collection.close()


def test_a_renamed_label_is_the_new_one_and_a_removed_one_is_gone(tmp_path: Path) -> None:
    labels = [["a"] if n % 3 == 0 else ["b"] if n % 3 == 1 else [] for n in range(ROWS)]
    renamed = open_with(tmp_path / "a", labels, codes_see_labels=False)
    renamed.relabel(where={"labels": "a"}, labels=["car"])
    renamed.flush()
    from_start = [["car"] if some == ["a"] else some for some in labels]
    twin = open_with(tmp_path / "b", from_start, codes_see_labels=False)
    same_model(renamed, twin)
    renamed.remove_labels(renamed.ids({"labels": "car"}, limit=ROWS), ["car"])
    renamed.flush()
    without = open_with(
        tmp_path / "c", [[] if some == ["car"] else some for some in from_start], codes_see_labels=False
    )
    same_model(renamed, without)
    for collection in (renamed, twin, without):
        assert collection.verify() == []
        collection.close()


@pytest.mark.medium
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_changes_leave_the_sums_of_what_is_stored(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("changes") / "c"
    rows = some_rows(ROWS + 200)
    collection = stillhash.open(path, DIM, BITS, init_rows=300, learn_rows=data.draw(st.sampled_from([1, 25, 60])))
    collection.add(range(ROWS), rows.X[:ROWS], rows.labels[:ROWS])
    fresh = iter(range(ROWS, ROWS + 200))
    names = st.lists(st.sampled_from("abcde"), max_size=2)
    for _ in range(data.draw(st.integers(1, 8))):
        ids = data.draw(st.lists(st.sampled_from(collection.ids(limit=ROWS * 2)), min_size=1, max_size=40, unique=True))
        labels = [data.draw(names) for _ in ids]
        verb = data.draw(st.sampled_from(["relabel", "silent", "upsert", "delete", "add", "flush", "forget", "reopen"]))
        if verb in ("relabel", "silent"):
            collection.relabel(ids, labels, learn=verb == "relabel")
        elif verb == "upsert":
            collection.upsert(ids, rows.X[[n % 300 for n in range(len(ids))]], labels)
        elif verb == "add":
            new = [next(fresh) for _ in range(5)]
            collection.add(new, rows.X[new], rows.labels[new[0] : new[0] + 5])
        elif verb == "reopen":
            collection.close()
            collection = stillhash.open(path)
        elif verb == "flush":
            collection.flush()
        else:
            getattr(collection, verb)(ids[:20])
        assert collection.verify() == []
    collection.flush()
    assert collection.verify() == []
    with collection._store.reading() as connection:
        held = connection.execute("SELECT count(*) FROM summed_rows WHERE labels != '[]'").fetchone()[0]
    assert learner(collection).stats_.rows <= held  # rows whose labels are not believed do not count
    collection.close()


def test_learner_files_say_again_what_was_taken_out(tmp_path: Path) -> None:
    labels = some_rows(ROWS).labels
    collection = open_with(tmp_path / "a", labels)
    before = learner(collection)
    collection.relabel([1, 2, 4, 5, 7], [["zebra"]] * 5)
    collection.flush()
    assert "zebra" in learner(collection).stats_.names
    collection.relabel([1, 2, 4, 5, 7], [labels[n] for n in (1, 2, 4, 5, 7)])
    collection.flush()
    assert learner(collection).stats_.same(before.stats_)
    collection.close()


def edit(collection: Collection, *statements: str) -> None:
    with collection._store.transaction() as connection:
        for statement in statements:
            connection.execute(statement)


WRONG = 'UPDATE {} SET labels = \'["a", "b"]\' WHERE row = 7'


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("tables", [["summed_rows"], ["items"], ["summed_rows", "items"]])
def test_verify_finds_sums_of_something_else(tmp_path: Path, tables: list[str], learns: bool) -> None:
    """Also after `learn`, and where items have other labels than the sums."""
    collection = open_with(tmp_path / "a", some_rows(ROWS).labels)
    if learns:
        collection.learn(*some_rows(50, seed=4)[:2])
    edit(collection, *(WRONG.format(table) for table in tables))
    assert any("sums" in problem for problem in collection.verify())
    collection.close()
    assert stillhash.repair(tmp_path / "a").actions
    with closing(stillhash.open(tmp_path / "a")) as collection:
        assert collection.verify() == []
        collection.flush()
        assert collection.verify() == []


def test_labels_that_are_not_to_be_learnt_are_known(tmp_path: Path) -> None:
    """The sums hold the earlier labels of an item until it is learnt again, and `verify` knows which these are."""
    collection, X = open_with(tmp_path / "a", some_rows(ROWS).labels), some_rows(20, seed=2).X
    collection.relabel([1, 2, 4], [["zebra"]] * 3, learn=False)
    collection.add_labels([5], ["zebra"], learn=False)
    collection.add(["new", "newer"], X[:2], [["zebra"]] * 2, learn=False)
    collection.upsert([7], labels=[["zebra"]], learn=False)
    collection.flush()
    assert collection.verify() == [] and "zebra" not in learner(collection).stats_.names
    marks = "SELECT count(*) FROM unlearnt_rows"
    with collection._store.reading() as connection:
        assert connection.execute(marks).fetchone() == (7,)
    ids = [1, 2, 4, 5, 7, "new", "newer"]
    collection.delete(["newer"])
    collection.relabel(ids[:-1], [["yak"]] * 6)
    collection.flush()
    assert collection.verify() == [] and learner(collection).stats_.label_rows("yak") == 6
    with collection._store.reading() as connection:
        assert connection.execute(marks).fetchone() == (0,)
    collection.close()


@pytest.mark.parametrize("options", [{}, {"rescore_bits": 0}, {"init_rows": 1000}])
def test_a_label_that_is_gone_is_not_learnt(tmp_path: Path, options: dict[str, Any]) -> None:
    """A pending label is dropped where another one comes with learn=False."""
    settings: dict[str, Any] = {"init_rows": 300, "learn_rows": 1000, **options}
    with stillhash.open(tmp_path / "c", DIM, BITS, **settings) as collection:
        count = 320 if settings["init_rows"] == 300 else 250  # which wait for hash functions
        collection.add(range(count), some_rows(count).X, [["a"]] * (count - 20) + [[]] * 20)
        if collection.stats()["fitted"]:
            collection.flush()
        first, second, third = range(count - 20, count - 17)
        collection.relabel([first, second, third], [["gone"]] * 3)
        before = collection.stats()["pending"]
        collection.relabel([first, third], [["stays"]] * 2, learn=False)
        assert before and collection.stats()["pending"] == before - 2
        collection.flush() if collection.stats()["fitted"] else collection.fit()
        assert collection.verify() == []
        assert learner(collection).stats_.label_rows("gone") == 1


def relearnt(path: Path) -> Collection:
    """Open a repaired collection, and check that its sums are those of what is stored, and that it goes on."""
    collection = stillhash.open(path)
    assert collection.verify() == []
    collection.relabel(collection.ids(limit=60), [["b"]] * 60)
    collection.flush()
    assert collection.verify() == []
    return collection


@pytest.mark.parametrize("half_life", [None, 100])
def test_repair_learns_again_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_life: float | None
) -> None:
    monkeypatch.setattr(CodeTable, "segment_rows", 200)
    labels, path = some_rows(ROWS).labels, tmp_path / "c"
    with closing(open_with(path, labels, params={"half_life": half_life}, rescore_bits=8)) as collection:
        collection.seal()
        collection.relabel([1, 2, 4], [["zebra"]] * 3)  # wait to be learnt, and to be taken out
    file, _ = sorted((path / "segments").glob("*.rescoring"))
    data = file.read_bytes()
    file.write_bytes(data[:BLOCK_SIZE] + bytes(20) + data[BLOCK_SIZE + 20 :])
    actions = stillhash.repair(path).actions
    assert "rows have lost their rescoring codes" in actions[0] and "computed again" in actions[-1]
    with closing(relearnt(path)) as collection:
        ids, known = range(ROWS), rescoring_codes(collection, [*range(ROWS)])[1]
        labelled = [item is not None and bool(item.labels) for item in collection.get(ids)]
        assert 0 < known.sum() < ROWS and learner(collection).stats_.rows <= (known & labelled).sum() + 1e-6
        lost = [id_ for id_ in ids if not known[id_]]
        collection.relabel(lost[:5], [["a"]] * 5)  # stored, and nothing to learn it by
        collection.delete(lost[5:10])
        collection.flush()
        assert collection.verify() == []
    assert stillhash.repair(path).actions == []


def test_repair_keeps_what_is_stored_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that `learn` got cannot be learnt again; what they gave is kept apart, unless that is lost too."""
    monkeypatch.setattr(CodeTable, "segment_rows", 200)
    path, rows = tmp_path / "c", some_rows(90, seed=4)
    given = sum(bool(labels) for labels in rows.labels)
    with closing(open_with(path, some_rows(ROWS).labels)) as collection:
        collection.learn(rows.X, rows.labels)
        collection.seal()
        before = learner(collection)
    file, _ = sorted((path / "segments").glob("*.rescoring"))
    file.write_bytes(file.read_bytes()[:4096] + bytes(20) + file.read_bytes()[4116:])
    assert stillhash.repair(path).actions[-1].endswith("computed again from what is stored")
    with closing(stillhash.open(path)) as collection:
        assert collection.verify() == []
        labelled = [item is not None and bool(item.labels) for item in collection.get(range(ROWS))]
        known = rescoring_codes(collection, [*range(ROWS)])[1] & labelled
        left = learner(collection).stats_.rows
        assert given < left <= given + known.sum() and left < before.stats_.rows
    for learner_file in (path / "learner").iterdir():
        if "given" in learner_file.name:
            learner_file.write_bytes(b"lost")
    stillhash.repair(path)
    with closing(stillhash.open(path)) as collection:
        collection.learn(rows.X, rows.labels)
        collection.learn(rows.X[:30], rows.labels[:30])
    for learner_file in sorted((path / "learner").iterdir())[-1:]:
        learner_file.write_bytes(b"lost")
    given += sum(bool(labels) for labels in rows.labels[:30])
    assert f"without {given} rows that are no items" in stillhash.repair(path).actions[-1]
    relearnt(path).close()


def test_what_learn_got_is_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So all sums can be computed again, also after the whole state is written, and after forgetting."""
    monkeypatch.setattr(storage, "MAX_ROW_FILES", 3)
    rows = some_rows(200, seed=4)
    with closing(open_with(tmp_path / "c", some_rows(ROWS).labels)) as collection:
        for start in range(0, 200, 20):
            collection.learn(rows.X[start : start + 20], rows.labels[start : start + 20])
            collection.relabel([start, start + 1], [["zebra"], ["a"]])
            if start == 100:
                collection.forget([3, 4])
            if start == 140:
                collection.rollback(1)
            assert collection.verify() == []
        assert any(file.name.endswith(".given.safetensors") for file in (tmp_path / "c" / "learner").iterdir())
        edit(collection, WRONG.format("summed_rows"), WRONG.format("items"))
        assert any("sums of what is stored" in problem for problem in collection.verify())


def test_stores_of_earlier_releases_are_verified_as_far_as_they_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not say which labels are not to be learnt, nor keep apart what `learn` got."""
    monkeypatch.setattr(storage, "MAX_ROWS_SHARE", 1000)
    rows = some_rows(60, seed=4)
    with closing(open_with(tmp_path / "c", some_rows(ROWS).labels)) as collection:
        collection.learn(rows.X, rows.labels)
        (file,) = (tmp_path / "c" / "learner").glob("*.given")
        file.rename(file.with_suffix(".rows"))
        edit(collection, "DROP TABLE unlearnt_rows", "DELETE FROM meta WHERE key = 'labelled'")
        edit(collection, f"UPDATE versions SET learner = replace(learner, '{file.name}', '{file.stem}.rows')")
    with closing(stillhash.open(tmp_path / "c")) as collection:
        collection.relabel([1, 2, 4], [["zebra"]] * 3, learn=False)
        collection.learn(rows.X, rows.labels)
        assert collection.verify() == []
        collection.relabel([*range(100)], [["b"]] * 100)
        collection.flush()
        assert collection.verify() == []
    assert stillhash.repair(tmp_path / "c").actions == []


def test_snapshots_hold_what_the_sums_hold(tmp_path: Path) -> None:
    rows = some_rows(90, seed=4)
    with closing(open_with(tmp_path / "c", some_rows(ROWS).labels)) as collection:
        collection.relabel([1, 2, 4], [["zebra"]] * 3)
        collection.delete([5, 7])
        collection.snapshot(tmp_path / "before")
        collection.learn(rows.X, rows.labels)
        collection.snapshot(tmp_path / "after")
        collection.relabel([8], [["a"]])
        collection.flush()
        expected = learner(collection)
    for name in ("before", "after"):
        with closing(stillhash.open(tmp_path / name)) as copy:
            assert copy.verify() == []
            if name == "before":
                copy.learn(rows.X, rows.labels)
            copy.relabel([8], [["a"]])
            copy.flush()
            assert learner(copy).stats_.same(expected.stats_)
