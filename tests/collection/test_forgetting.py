"""Forgetting: no byte is left in any file, and the model is as if it had never seen the rows."""

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stillhash
from stillhash.errors import BadState, InvalidInput, NotFitted, WrongType
from stillhash.files import FOLDER_MODE
from tests.support.seeds import run_seed

DIM, BITS = 24, 32
PNG = b"\x89PNG\r\n\x1a\n"
SECRETS = ("ab-secret-id", "ab-secret-text", "ab-secret-picture", "ab-secret-source", "ab-secret-actor")


def rows(count: int, seed: int = 0, classes: int = 4) -> tuple[np.ndarray, list[list[str]]]:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((classes, DIM))
    labels = rng.integers(0, classes, count)
    X = (centres[labels] + 0.7 * rng.standard_normal((count, DIM))).astype(np.float32)
    return X, [[f"class {label}"] for label in labels]


def create(path: Path, **options: Any) -> stillhash.Collection:
    options = {"init_rows": 300, "learn_rows": 50, "keep_features": True} | options
    return stillhash.open(path, dim=DIM, bits=BITS, **options)


def held(path: Path, secrets: Iterable[str] = SECRETS) -> dict[str, list[str]]:
    """Return which files hold which secrets."""
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    found = {name: [secret for secret in secrets if secret.encode() in data] for name, data in files.items()}
    return {name: listed for name, listed in found.items() if listed}


def add_secrets(collection: stillhash.Collection, X: np.ndarray) -> list[str]:
    """Add an item that shows in every kind of file, and vote on it; return its id in a list."""
    name, text, picture, source, actor = SECRETS
    metadata = [{"text": text, "list": [text]}]
    with stillhash.acting_as(actor):
        collection.add([name], X[:1], [["class 1", "ab-secret-label"]], metadata, pictures=[PNG + picture.encode()])
    collection.feedback(X[1], name, "up", source=source)
    collection.feedback(X[1], 3, "down", source=source)
    return [name]


@pytest.mark.parametrize("keep_features", [True, False])
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("awaiting", [True, False])
def test_no_byte_of_what_is_forgotten_is_left(
    tmp_path: Path, keep_features: bool, sealed: bool, awaiting: bool
) -> None:
    X, labels = rows(400)
    path, count = tmp_path / "c", 100 if awaiting else 400
    with closing(create(path, keep_features=keep_features)) as collection:
        collection.add(range(count), X[:count], labels[:count], [{"text": "plain"}] * count)
        if awaiting:
            collection.add(["ab-secret-id"], X[:1], [["ab-secret-label"]], [{"text": "ab-secret-text"}])
        else:
            add_secrets(collection, X)
            collection.add(range(500, 600), *rows(100, 1))
            if sealed:
                collection.seal()
        collection.delete([5])
        assert held(path)
        report = collection.forget(["ab-secret-id"])
        assert (report.items, report.votes) == (1, 0 if awaiting else 1)
        left = collection.forget(source="ab-secret-source")
        assert left.votes == (0 if awaiting else 1)
        collection.forget(source="ab-secret-actor")  # the name of who added it, in the audit log
        assert not held(path), "while it is open"
        assert not collection.verify() and len(collection) == count - 1 + (0 if awaiting else 100)
        assert collection.get(["ab-secret-id"]) == [None]
        assert [entry.what for entry in collection.audit()][-6:] == ["forget", "compact"] * 3
    assert not held(path), "once it is closed"
    with closing(stillhash.open(path)) as collection:
        assert not collection.verify()
        if not awaiting:
            collection.search(X[1], 5)
            collection.add(["new"], X[:1], [["class 1"]])


def model_arrays(collection: stillhash.Collection) -> dict[str, np.ndarray]:
    """Return the parts of the current model that labels have columns of, in the order of labels, and the others."""
    with collection._store.reading() as connection:
        hasher = collection._trainer.hasher(connection)
        model, names = hasher.model(), list(hasher.stats_.names)
    order = np.argsort(names)
    arrays = {name: np.asarray(getattr(model, name)) for name in ("M", "U", "u", "V", "v") if hasattr(model, name)}
    by_column = {name: array[..., order] for name, array in arrays.items() if name != "M"}
    stats = hasher.stats_
    sums = {"aa": stats.aa, "cc": stats.cc, "pp": stats.pp, "ay": stats.ay[order], "cy": stats.cy[order]}
    return {**by_column, "M": arrays["M"][order], **sums, "names": np.array(sorted(names))}


def assert_same_model(one: stillhash.Collection, other: stillhash.Collection, tolerance: float = 1e-9) -> None:
    mine, theirs = model_arrays(one), model_arrays(other)
    assert mine["names"].tolist() == theirs.pop("names").tolist()
    for name, array in theirs.items():
        scale = max(1.0, float(np.abs(array).max()))
        np.testing.assert_allclose(mine[name] / scale, array / scale, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.medium
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_the_model_is_as_if_it_had_never_seen_the_rows(tmp_path_factory: Any, data: st.DataObject) -> None:
    """With the same hash functions, by the same sample, and codes that do not depend on other rows."""
    path, seed = tmp_path_factory.mktemp("f"), data.draw(st.integers(0, 100))
    (X, labels), sample = rows(700, seed), rows(300, 7)
    gone = data.draw(st.sets(st.integers(0, 699), min_size=1, max_size=200))
    steps = data.draw(st.lists(st.integers(0, 700), max_size=5).map(sorted))
    relabelled = data.draw(st.sets(st.integers(0, 699), max_size=20))
    sealed, by_filter, rescore_bits = (
        data.draw(st.booleans()),
        data.draw(st.booleans()),
        data.draw(st.sampled_from([0, 2])),
    )
    options = {"rescore_bits": rescore_bits, "keep_features": not rescore_bits or data.draw(st.booleans())}
    labels = [["class 9"] if number in gone and number % 3 == 0 else label for number, label in enumerate(labels)]
    collections = []
    for name, left_out in (("saw", set[int]()), ("never saw", gone)):
        collection = create(path / name, init=sample, codes_see_labels=False, **options)
        for start, stop in zip([0, *steps], [*steps, 700], strict=True):
            kept = [number for number in range(start, stop) if number not in left_out]
            fields = [{"gone": number in gone} for number in kept]
            collection.add(kept, X[kept].reshape(-1, DIM), [labels[number] for number in kept], fields)
            if sealed:
                collection.seal()
        changed = sorted(relabelled - left_out)
        collection.relabel(changed, [["class 2"]] * len(changed))
        collection.flush()
        collections.append(collection)
    saw, never_saw = collections
    report = saw.forget(where={"gone": True}) if by_filter else saw.forget(sorted(gone))
    learnt = len(gone) + (0 if rescore_bits else len(gone & relabelled))  # sums over what is stored hold each row once
    assert report.items == len(gone) and report.unlearnt == learnt
    assert not report.remains and saw.versions()[-1]["kind"] == "forget"
    assert_same_model(saw, never_saw, 0 if rescore_bits else 1e-9)
    query = rows(20, 1000)[0]
    ids, others = ([[hit.id for hit in answer.hits] for answer in c.search(query, 10)] for c in collections)
    assert ids == others
    for collection in collections:
        assert not collection.verify()
        collection.close()
    with closing(stillhash.open(path / "saw")) as again, closing(stillhash.open(path / "never saw")) as other:
        assert_same_model(again, other)


def test_versions_that_had_learnt_the_rows_are_dropped(tmp_path: Path) -> None:
    X, labels = rows(600)
    with closing(create(tmp_path / "c", init=rows(300, 7))) as collection:
        for start in range(0, 400, 100):
            part = slice(start, start + 100)
            collection.add(range(start, start + 100), X[part], labels[part])
            if not start:
                collection.tag(2, "early")  # so that learning can go on from it
        assert collection.forget([450, "absent"]).versions == []  # nothing was learnt
        before = [version["version"] for version in collection.versions()]
        report = collection.forget([250])  # learnt by the third
        assert report.versions == before[3:] and report.unlearnt == 1
        assert [version["version"] for version in collection.versions()] == [*before[:3], before[-1] + 1]
        assert collection.versions()[1]["tag"] == "early"
        collection.rollback(2)
        collection.add(range(1000, 1100), X[500:], labels[500:])
        assert collection.forget([150]).unlearnt == 1, "the sums are those of what is stored, whatever was rolled back"
        assert collection.forget([50]).unlearnt == 1


def test_without_features_the_report_says_what_remains(tmp_path: Path) -> None:
    X, labels = rows(600)
    with closing(create(tmp_path / "c", keep_features=False, rescore_bits=0)) as collection:
        collection.add(range(600), X, labels)
        report = collection.forget(range(5))
        assert report.items == 5 and report.unlearnt == 0 and "features are not kept" in report.remains[0]
        assert len(collection.versions()) == 1
        assert not any((tmp_path / "c" / "learner").glob("*.rows"))


def test_ready_codes_are_forgotten_exactly(tmp_path: Path) -> None:
    """What was learnt of them are their signs, which the codes hold."""
    rng = np.random.default_rng(0)
    codes, labels = rng.integers(0, 256, (600, 4), dtype=np.uint8), rng.integers(0, 3, 600).astype(str)
    collections = []
    for name, first in (("saw", 0), ("never saw", 50)):
        collection = stillhash.open(tmp_path / name, bits=32, codes_only=True, learn_rows=50)
        collection.add(range(first, 600), codes[first:], labels[first:])
        collection.relabel([70, 80], [["x"], ["y"]])
        collection.flush()
        collections.append(collection)
    report = collections[0].forget(range(50))
    assert report.unlearnt == 50 and not report.remains
    assert_same_model(*collections)
    for collection in collections:
        assert not collection.verify()
        collection.close()


def test_rows_whose_labels_were_not_believed_are_forgotten_too(tmp_path: Path) -> None:
    """They count as rows without labels."""
    rng = np.random.default_rng(0)
    X, labels = rng.standard_normal((900, DIM)).astype(np.float32), rng.integers(0, 3, 900)
    collections = []
    for name, first in (("saw", 0), ("never saw", 50)):
        collection = create(tmp_path / name, init=(X[:300], labels[:300]), codes_see_labels=False)
        collection.add(range(first, 900), X[first:], labels[first:])
        collection.flush()
        collections.append(collection)
    assert collections[0].forget(range(50)).unlearnt == 50
    with collections[0]._store.reading() as one, collections[1]._store.reading() as other:
        mine, theirs = (c._trainer.hasher(at).stats_ for c, at in zip(collections, (one, other), strict=True))
        assert (mine.rows, mine.unlabelled) == (theirs.rows, theirs.unlabelled)
    for collection in collections:
        collection.close()


def test_other_methods_say_so(tmp_path: Path) -> None:
    X, labels = rows(600)
    with closing(create(tmp_path / "c", method="ohsl")) as collection:
        collection.add(range(600), X, labels)
        report = collection.forget(range(5))
        assert report.unlearnt == 0 and "ohsl cannot take rows out" in report.remains[0]


def test_old_rows_count_for_what_is_left_of_them(tmp_path: Path) -> None:
    X, labels = rows(600)
    with closing(create(tmp_path / "c", params={"half_life": 200}, init=rows(300, 7))) as collection:
        for start in range(0, 600, 100):
            part = slice(start, start + 100)
            collection.add(range(start, start + 100), X[part], labels[part])
        with collection._store.reading() as connection:
            total = collection._trainer.hasher(connection).stats_.rows
        collection.forget([0, 599])
        with collection._store.reading() as connection:
            left = collection._trainer.hasher(connection).stats_.rows
        assert total - left == pytest.approx(1 + 2 ** (-599 / 200), abs=1e-5)


def test_features_are_kept_as_float16(tmp_path: Path) -> None:
    X, labels = rows(700)
    rounded = X.astype(np.float16).astype(np.float32)
    with closing(create(tmp_path / "c")) as collection:
        collection.add(range(100), X[:100], labels[:100])
        np.testing.assert_array_equal(collection.reconstruct([99, 3]), rounded[[99, 3]])  # they wait
        collection.add(range(100, 500), X[100:500], labels[100:500])
        np.testing.assert_array_equal(collection.reconstruct(range(500)), rounded[:500])
        collection.seal()
        collection.add(range(500, 700), X[500:])
        collection.upsert([3], X[600:601])
        expected = rounded.copy()
        expected[3] = rounded[600]
        chosen = np.random.default_rng(0).permutation(700)
        np.testing.assert_array_equal(collection.reconstruct(chosen), expected[chosen])
        assert collection.search(X[7], 1).hits[0].id == 7, "an exact repeat, before rounding"
        collection.delete(range(100, 200))
        collection.compact()
        collection.snapshot(tmp_path / "copy")
        with pytest.raises(InvalidInput, match=r"^features: expected numbers up to 65504"):
            collection.add(["x"], np.full((1, DIM), 1e5))
    for path in (tmp_path / "c", tmp_path / "copy"):
        with closing(stillhash.open(path, read_only=True)) as collection:
            assert not collection.verify()
            left = [*range(100), *range(200, 700)]
            np.testing.assert_array_equal(collection.reconstruct(left), expected[left])


@pytest.mark.parametrize("rescore_bits", [0, 2])
def test_damaged_features_are_reported_and_repair_drops_them(tmp_path: Path, rescore_bits: int) -> None:
    X, labels = rows(1500)
    path = tmp_path / "c"
    with closing(create(path, rescore_bits=rescore_bits)) as collection:
        collection.add(range(1500), X, labels)
        collection.compact()
        rounded = collection.reconstruct(range(1500))
    (file,) = (path / "segments").glob("*.features")
    sound = file.read_bytes()
    file.write_bytes(sound[:5000] + bytes([sound[5000] ^ 4]) + sound[5001:])
    with closing(stillhash.open(path)) as collection:
        with pytest.raises(BadState, match=r"features: damaged"):
            collection.reconstruct([1])
        assert any("features" in problem for problem in collection.verify())
    assert "1500 rows have lost their features" in stillhash.repair(path).actions[0]
    with closing(stillhash.open(path)) as collection:
        assert not collection.verify()
        again = collection.reconstruct(range(1500))
        lost = np.flatnonzero((again != rounded).any(axis=1))
        assert len(lost) == 1500
        report = collection.forget([3, 0])
        if rescore_bits:  # rows are taken out by their rescoring codes
            assert report.unlearnt == 2 and not report.remains
        else:
            assert report.unlearnt == 0 and "2 rows still count" in report.remains[0]
    for file in (path / "segments").glob("*.features"):
        file.unlink()
    assert "rows have lost their features" in stillhash.repair(path).actions[0]
    with closing(stillhash.open(path)) as collection:
        assert not collection.verify() and collection.count() == 1498


def test_snapshots_that_hold_something_are_reported(tmp_path: Path) -> None:
    X, labels = rows(400)
    with closing(create(tmp_path / "c")) as collection, closing(create(tmp_path / "s" / "another")) as another:
        collection.add(range(400), X, labels)
        collection.snapshot(tmp_path / "s" / "before")
        add_secrets(collection, X)
        collection.snapshot(tmp_path / "s" / "after")
        another.add(["ab-secret-id"], X[:1])
        (tmp_path / "s" / "no snapshot").mkdir(FOLDER_MODE)
        report = collection.forget(["ab-secret-id", 7], snapshots=tmp_path / "s")
        assert report.snapshots == {"after": 2, "before": 1}
        assert collection.forget(source="ab-secret-source", snapshots=tmp_path / "s").snapshots == {"after": 2}
        with pytest.raises(InvalidInput, match=r"^snapshots"):
            collection.forget([1], snapshots=tmp_path / "absent")
        assert collection.get([1]) != [None]


def test_an_interrupted_forgetting_is_finished_by_compact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, labels = rows(400)
    path = tmp_path / "c"
    with closing(create(path)) as collection:
        collection.add(range(400), X, labels)
        add_secrets(collection, X)
        with monkeypatch.context() as patch:
            patch.setattr(type(collection._store), "seal", lambda self: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                collection.forget(["ab-secret-id"])
        assert collection.get(["ab-secret-id"]) == [None] and held(path)
        assert "forgetting was interrupted" in collection.verify()[0]
        collection.compact()
        assert not held(path, SECRETS[:3]) and not collection.verify()


def test_a_reader_of_an_earlier_commit_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stillhash.collection.storage.store.LOG_SECONDS", 0.1)
    X, labels = rows(400)
    path = tmp_path / "c"
    with closing(create(path)) as collection:
        collection.add(range(400), X, labels)
        add_secrets(collection, X)
        with closing(stillhash.open(path, read_only=True)) as reader, reader._store.reading() as connection:
            connection.execute("SELECT count(*) FROM items").fetchone()
            report = collection.forget(["ab-secret-id"])
            assert "another process reads an earlier commit" in report.remains[-1]
        assert collection.forget(["ab-secret-id"]).remains == []
        assert not held(path, SECRETS[:3])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, InvalidInput),
        ({"ids": [1], "source": "x"}, InvalidInput),
        ({"ids": [1], "where": {"a": 1}}, InvalidInput),
        ({"ids": [1.5]}, WrongType),
        ({"where": {"$nonsense": 1}}, InvalidInput),
        ({"where": {}}, InvalidInput),
        ({"source": 3}, WrongType),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, arguments: dict[str, Any], error: type[Exception]) -> None:
    with closing(create(tmp_path / "c")) as collection:
        collection.add(range(10), rows(10)[0])
        with pytest.raises(error):
            collection.forget(**arguments)
        assert len(collection) == 10 and not collection.audit()[1:]
    with pytest.raises(InvalidInput, match=r"^keep_features"):
        create(tmp_path / "d", keep_features="yes")


def test_nothing_remains_of_features_in_the_query_of_a_vote(tmp_path: Path) -> None:
    X, labels = rows(400)
    with closing(create(tmp_path / "c")) as collection:
        collection.add(range(400), X, labels)
        collection.feedback(X[7], 8, "up", source="x")
        assert collection.stats()["feedback"] == 1
        assert collection.forget([7]).votes == 1
        assert collection.stats()["feedback"] == 0


def test_before_the_hash_functions_items_are_forgotten_too(tmp_path: Path) -> None:
    X, labels = rows(40)
    with closing(create(tmp_path / "c")) as collection:
        collection.add(range(40), X, labels)
        assert collection.forget(where={"labels": "class 1"}).items == sum("class 1" in label for label in labels)
        with pytest.raises(NotFitted):
            collection.learn(X, labels)
        assert json.loads(json.dumps(collection.stats()))["items"] == len(collection)


FORGET = """
import sys, stillhash
c = stillhash.open(sys.argv[1])
print(flush=True)
sys.stdin.readline()
c.forget(["ab-secret-id"])
"""


@pytest.mark.slow
def test_a_killed_process_has_forgotten_all_or_nothing(tmp_path: Path) -> None:
    X, labels = rows(400)
    with closing(create(tmp_path / "c")) as collection:
        collection.add(range(400), X, labels)
        add_secrets(collection, X)
        collection.flush()
    rng, outcomes = random.Random(run_seed()), set()
    for attempt in range(12):
        path = tmp_path / f"copy {attempt}"
        shutil.copytree(tmp_path / "c", path)
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", FORGET, str(path)], stdin=pipe, stdout=pipe) as process:
            assert process.stdin is not None and process.stdout is not None and process.stdout.readline()
            if attempt > 0:  # the first one has not begun
                process.stdin.write(b"\n")
                process.stdin.flush()
                time.sleep(rng.random() * 0.3)
            process.kill()
        with closing(stillhash.open(path)) as collection:
            problems = collection.verify()
            (item,) = collection.get(["ab-secret-id"])
            outcomes.add((item is None, bool(problems)))
            assert item is None or not problems
            collection.forget(["ab-secret-id"])
            collection.forget(source="ab-secret-source")
            assert not collection.verify() and not held(path, SECRETS[:4])
            assert model_arrays(collection)["names"].tolist() == [f"class {label}" for label in range(4)]
    assert (False, False) in outcomes
