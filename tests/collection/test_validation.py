"""Validation: wrong arguments and damaged stores are refused with a typed error, and nothing changes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import stillhash
from stillhash import Collection
from stillhash.collection.validation import check_metadata
from stillhash.collection.values import JSON_ENCODER
from stillhash.errors import BadState, Closed, Conflict, InvalidInput, NotFitted, WrongType
from stillhash.files import pack_file_checksums, read_sealed, write_sealed
from stillhash.hashers import load
from tests.collection.fixtures import BITS, DIM, begin, copied, some_rows
from tests.collection.reference import agree
from tests.support.toys import toy

X, LABELS, METADATA = some_rows(3, seed=50)
PAGES = 15
QUERIES = toy(2, DIM, 4, seed=77).X
BAD = X.copy()
BAD[1, 2] = np.nan
LOOP: dict[str, Any] = {}
LOOP["again"] = LOOP
DEEP: dict[str, Any] = {}
for _ in range(20_000):
    DEEP = {"d": DEEP}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("validation") / "c"
    collection, _ = begin(path)
    collection.seal()
    collection.delete([3])
    collection.add(["a", "b"], X[:2], LABELS[:2])
    collection.close()
    return path


@pytest.fixture(scope="module")
def shared(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Open one collection for all refused calls, none of which changes it."""
    with stillhash.open(copied(template, tmp_path_factory.mktemp("shared") / "c")) as collection:
        yield collection


def state(collection: Collection) -> Any:
    stats = {name: value for name, value in collection.stats().items() if name != "disk_bytes"}
    return stats, collection.versions(), collection.search(QUERIES, 400), collection.verify()


ADDING: list[tuple[Any, type[Exception], str]] = [
    ((5, X), WrongType, "^ids"),
    (("abc", X), WrongType, "^ids"),
    ((None, X), WrongType, "^ids"),
    (([1.5, 2, 3], X), WrongType, "^ids"),
    (([True, 2, 3], X), WrongType, "^ids"),
    (([None, 2, 3], X), WrongType, "^ids"),
    (([b"x", 2, 3], X), WrongType, "^ids"),
    (([[1], 2, 3], X), WrongType, "^ids"),
    (([2**63, 2, 3], X), InvalidInput, "^ids"),
    ((["x\ny", 2, 3], X), InvalidInput, "^ids"),
    ((["\ud800", 2, 3], X), InvalidInput, "^ids"),
    ((["", 2, 3], X), InvalidInput, "^ids"),
    (([1000, 1001, 1000], X), InvalidInput, "^ids"),
    (([1000, 1001], X), InvalidInput, "^features"),
    (([], X), InvalidInput, "^features"),
    (([1000, 1001, 1002], X[:, :5]), InvalidInput, "^features"),
    (([1000, 1001, 1002], X[0]), InvalidInput, "^features"),
    (([1000, 1001, 1002], X[None]), InvalidInput, "^features"),
    (([1000, 1001, 1002], BAD), InvalidInput, "^features"),
    (([1000, 1001, 1002], X * np.inf), InvalidInput, "^features"),
    (([1000, 1001, 1002], X * np.float64(1e30)), InvalidInput, "^features"),
    (([1000, 1001, 1002], X.astype(complex)), InvalidInput, "features"),
    (([1000, 1001, 1002], [["x"] * DIM] * 3), WrongType, "^features"),
    (([1000, 1001, 1002], None), InvalidInput, "^features"),
    (([1000, 1001, 1002], X, ["a", "b"]), InvalidInput, "^labels"),
    (([1000, 1001, 1002], X, "abc"), InvalidInput, "^labels"),
    (([1000, 1001, 1002], X, [np.inf, 1, 2]), InvalidInput, "^labels"),
    (([1000, 1001, 1002], X, [[b"x"], [], []]), WrongType, "^labels"),
    (([1000, 1001, 1002], X, [[("a", "b")], [], []]), WrongType, "^labels"),
    (([1000, 1001, 1002], X, [[None], [], []]), WrongType, "^labels"),
    (([1000, 1001, 1002], X, [["x\0"], [], []]), InvalidInput, "^labels"),
    (([1000, 1001, 1002], X, np.full((3, 2), 2)), InvalidInput, "^labels"),
    (([1000, 1001, 1002], X, None, {"a": 1}), WrongType, "^metadata"),
    (([1000, 1001, 1002], X, None, 5), WrongType, "^metadata"),
    (([1000, 1001, 1002], X, None, [{}, {}]), InvalidInput, "^metadata"),
    (([1000, 1001, 1002], X, None, [{}, {}, 5]), WrongType, "^metadata"),
    (([1000, 1001, 1002], X, None, ["{}", {}, {}]), WrongType, "^metadata"),
    (([1000, 1001, 1002], X, None, [{1: 2}, {}, {}]), WrongType, "^metadata"),
    (([1000, 1001, 1002], X, None, [{"a": np.nan}, {}, {}]), InvalidInput, "^metadata"),
    (([1000, 1001, 1002], X, None, [{"a": {1, 2}}, {}, {}]), InvalidInput, "^metadata"),
    (([1000, 1001, 1002], X, None, [{"a": np.zeros(2, complex)}, {}, {}]), InvalidInput, "^metadata"),
    (([1000, 1001, 1002], X, None, [{"a": "x\0"}, {}, {}]), InvalidInput, "metadata"),
    (([1000, 1001, 1002], X, None, [LOOP, {}, {}]), InvalidInput, "^metadata"),
    (([1000, 1001, 1002], X, None, [DEEP, {}, {}]), InvalidInput, "^metadata"),
]
CALLS: list[tuple[Any, type[Exception], str]] = [
    (lambda c: c.add([1000, 5, "a"], X, LABELS, METADATA), Conflict, r"\bids?\b"),
    (lambda c: c.add(["b"], X[:1]), Conflict, "'b'"),
    (lambda c: c.delete("abc"), WrongType, "^ids"),
    (lambda c: c.delete([5, 5]), InvalidInput, "^ids"),
    (lambda c: c.delete([5, 1.5]), WrongType, "^ids"),
    (lambda c: c.get(5.0), WrongType, "^ids"),
    (lambda c: c.get(b"x"), WrongType, "^ids"),
    (lambda c: c.get([None]), WrongType, "^ids"),
    (lambda c: c.search(X[0], 0), InvalidInput, "^k"),
    (lambda c: c.search(X[0], -1), InvalidInput, "^k"),
    (lambda c: c.search(X[0], 2.5), WrongType, "^k"),
    (lambda c: c.search(X[0], True), WrongType, "^k"),
    (lambda c: c.search(X[0, :5]), InvalidInput, "^query"),
    (lambda c: c.search(X[None]), InvalidInput, "^query"),
    (lambda c: c.search(BAD), InvalidInput, "^query"),
    (lambda c: c.search("query"), InvalidInput, "^query"),
    (lambda c: c.search(None), InvalidInput, "^query"),
    (lambda c: c.search(X[0], where={"$nor": []}), InvalidInput, "^where"),
    (lambda c: c.search(X[0], where="odd"), InvalidInput, "^where"),
    (lambda c: c.search(X[0], where=[]), InvalidInput, "^where"),
    (lambda c: c.search(X[0], version=-1), InvalidInput, "^version"),
    (lambda c: c.search(X[0], version=99), InvalidInput, "^version"),
    (lambda c: c.search(X[0], version=2**70), InvalidInput, "^version"),
    (lambda c: c.search(X[0], version="2"), WrongType, "^version"),
    (lambda c: c.search(X[0], version=2.0), WrongType, "^version"),
    (lambda c: c.search(X[0], version=True), WrongType, "^version"),
    (lambda c: c.range_search(X[0], "high"), InvalidInput, "^threshold"),
    (lambda c: c.range_search(X[0], np.nan), InvalidInput, "^threshold"),
    (lambda c: c.range_search(X[0], None), InvalidInput, "^threshold"),
    (lambda c: c.range_search(BAD, 0), InvalidInput, "^query"),
    (lambda c: c.range_search(X[0], 0, where={"a": []}), InvalidInput, "^where: a"),
    (lambda c: c.range_search(X[0], 0, version=99), InvalidInput, "^version"),
    (lambda c: c.learn(BAD, LABELS), InvalidInput, "^features"),
    (lambda c: c.learn(X, LABELS[:2]), InvalidInput, "^labels"),
    (lambda c: c.learn(X[:, :5], LABELS), InvalidInput, "^features"),
    (lambda c: c.learn(X, [[b"x"], [], []]), WrongType, "^labels"),
    (lambda c: c.fit(), Conflict, "fitted"),
    (lambda c: c.fit(X, LABELS), Conflict, "fitted"),
    (lambda c: c.fit(BAD, LABELS), InvalidInput, "^features"),
    (lambda c: c.tag(99, "name"), InvalidInput, "^version"),
    (lambda c: c.tag("1", "name"), WrongType, "^version"),
    (lambda c: c.tag(1, None), InvalidInput, "^name"),
    (lambda c: c.tag(1, 5), InvalidInput, "^name"),
    (lambda c: c.tag(1, ["a"]), InvalidInput, "^name"),
    (lambda c: c.tag(1, " "), InvalidInput, "^name"),
    (lambda c: c.tag(1, "a\nb"), InvalidInput, "^name"),
    (lambda c: c.rollback(99), InvalidInput, "^version"),
    (lambda c: c.rollback(0), InvalidInput, "^version"),
    (lambda c: c.rollback(None), WrongType, "^version"),
    (lambda c: c.rollback(2**70), InvalidInput, "^version"),
]


@pytest.mark.parametrize(("args", "error", "match"), ADDING)
def test_refused_rows_change_nothing(
    shared: Collection, args: tuple[Any, ...], error: type[Exception], match: str
) -> None:
    before = state(shared)
    for verb in (shared.add, shared.upsert):
        with pytest.raises(error, match=match):
            verb(*args)
    assert state(shared) == before


@pytest.mark.parametrize(("call", "error", "match"), CALLS)
def test_refused_calls_change_nothing(shared: Collection, call: Any, error: type[Exception], match: str) -> None:
    before = state(shared)
    with pytest.raises(error, match=match):
        call(shared)
    assert state(shared) == before


def test_learning_continues_after_refused_calls(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    for call in (
        lambda: collection.learn(BAD, LABELS),
        lambda: collection.learn(X, [[b"x"], [], []]),
        lambda: collection.rollback(99),
        lambda: collection.add([1, 1000], X[:2], LABELS[:2]),
    ):
        with pytest.raises((InvalidInput, Conflict)):
            call()
    assert collection.learn(X, LABELS) == twin.learn(X, LABELS)
    agree(collection, twin, QUERIES[0])


def test_empty_chunk_adds_nothing(shared: Collection) -> None:
    before = state(shared)
    assert shared.add([], np.empty((0, DIM))) == 0 == shared.upsert([], np.empty((0, DIM)), [], [])
    assert state(shared) == before


def test_numpy_numbers_are_numbers(shared: Collection) -> None:
    before = shared.search(QUERIES[0], 5)
    assert shared.search(QUERIES[0], np.int64(5), version=np.int64(before.version)) == before


# ---- opening ----


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"dim": 0}, "^dim"),
        ({"dim": 2.5}, "^dim"),
        ({"bits": 7}, "^bits"),
        ({"bits": 513}, "^bits"),
        ({"bits": "16"}, "^bits"),
        ({"init_rows": 299}, "^init_rows"),
        ({"learn_rows": 0}, "^learn_rows"),
        ({"keep_versions": 1}, "^keep_versions"),
        ({"method": "osh"}, "^method"),
        ({"params": {"nonsense": 1}}, "^params"),
        ({"params": {"bits": 8}}, "^params"),
        ({"params": {"ridge": -1}}, "^ridge"),
        ({"read_only": True}, "collection"),
        ({"dim": None}, "collection"),
    ],
)
def test_bad_settings_make_no_collection(tmp_path: Path, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        stillhash.open(tmp_path / "c", **{"dim": DIM, "bits": BITS, **settings})
    assert not (tmp_path / "c").exists()


def test_existing_collection_keeps_its_settings(template: Path, tmp_path: Path) -> None:
    path = copied(template, tmp_path / "c")
    with stillhash.open(path, DIM, BITS) as collection:
        assert (collection.dim, collection.bits, len(collection)) == (DIM, BITS, 321)
    for dim, bits, match in ((DIM + 1, None, "^dim"), (None, 32, "^bits"), (9, 32, "^dim")):
        with pytest.raises(Conflict, match=match):
            stillhash.open(path, dim, bits)
    with stillhash.open(path) as collection:
        assert (collection.dim, collection.bits) == (DIM, BITS)


def edited(template: Path, to: Path, sql: str, values: list[Any] | None = None) -> Path:
    """Return a copy of a store that another program changed, with matching checksums."""
    path = copied(template, to)
    db = sqlite3.connect(path / "store.db")
    db.execute(sql, values or [])
    db.commit()
    db.close()
    (path / "store.sums").write_bytes(pack_file_checksums(path / "store.db"))
    return path


def test_an_unknown_format_is_refused(template: Path, tmp_path: Path) -> None:
    path = edited(template, tmp_path / "c", "UPDATE meta SET value = value + 2 WHERE key = 'format'")
    for read_only in (False, True, False):  # and no lock stays behind
        with pytest.raises(BadState, match="format"):
            stillhash.open(path, read_only=read_only)


@pytest.mark.parametrize("damage", [b"", b"no database " * 1000])
def test_other_files_are_not_databases(template: Path, tmp_path: Path, damage: bytes) -> None:
    path = copied(template, tmp_path / "c")
    (path / "store.db").write_bytes(damage)
    for _ in range(2):
        with pytest.raises(BadState):
            stillhash.open(path)


def test_other_hash_functions_are_refused(template: Path, tmp_path: Path) -> None:
    path = edited(template, tmp_path / "c", "UPDATE meta SET value = 'f00' WHERE key = 'fingerprint'")
    with stillhash.open(path) as collection:
        for call in (lambda: collection.search(X[0]), lambda: collection.add(["c"], X[:1]), collection.stats):
            with pytest.raises(BadState, match="fingerprint"):
                call()
        assert collection.count() == 321


def test_a_learner_of_another_collection_is_refused(template: Path, tmp_path: Path) -> None:
    path = copied(template, tmp_path / "c")
    hasher = stillhash.METHODS["tally"](bits=BITS, random_state=1, rescore_bits=4).fit(*some_rows(300, seed=1)[:2])
    (learner,) = (path / "learner").glob("*.safetensors")
    write_sealed(learner, [hasher.state()])
    with stillhash.open(path) as collection:
        before = state(collection)
        with pytest.raises(BadState, match="fingerprint"):
            collection.learn(X, LABELS)
        learner.unlink()
        with pytest.raises(BadState, match="learner/"):
            collection.learn(X, LABELS)
        *now, wrong = state(collection)
        assert now == list(before[:-1])
        assert len(wrong) == 1 and wrong[0].startswith(f"learner/{learner.name}: ")


def test_a_damaged_model_is_refused(template: Path, tmp_path: Path) -> None:
    for blob in (b"junk", safetensors.numpy.save({"N": X})):
        path = edited(template, tmp_path / str(len(blob)), "UPDATE versions SET model = ? WHERE version = 2", [blob])
        with stillhash.open(path) as collection, pytest.raises(BadState, match="version"):
            collection.search(X[0])


# ---- what verify sees ----


@pytest.mark.parametrize("damage", ["flipped", "short", "missing"])
def test_damaged_segment_is_reported_and_never_searched(template: Path, tmp_path: Path, damage: str) -> None:
    path = copied(template, tmp_path / "c")
    (file,) = (path / "segments").glob("*.tiles")
    whole = bytearray(file.read_bytes())
    whole[5000] ^= 1
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(whole if damage == "flipped" else whole[:-1])
    with stillhash.open(path) as collection:
        wrong = collection.verify()
        assert len(wrong) == 1 and file.name in wrong[0]
        for call in (lambda: collection.search(X[0]), collection.compact, collection.stats):
            with pytest.raises(BadState, match=file.name):
                call()


def test_lost_code_is_reported(template: Path, tmp_path: Path) -> None:
    path = edited(template, tmp_path / "c", "UPDATE items SET code = NULL WHERE id = 'a'")
    with stillhash.open(path) as collection:
        (problem,) = collection.verify()
        assert "320" in problem


def test_damaged_page_is_reported_or_harmless(template: Path, tmp_path: Path) -> None:
    """Overwrite pages of the database: an error of this library, or the same answers."""
    rng = np.random.default_rng(0)
    detected = 0
    with stillhash.open(copied(template, tmp_path / "whole")) as collection:
        expected = state(collection)
    for n in range(PAGES):
        path = copied(template, tmp_path / str(n))
        data = bytearray((path / "store.db").read_bytes())
        page = int(rng.integers(1, len(data) // 4096)) * 4096
        data[page : page + 4096] = rng.bytes(4096)
        (path / "store.db").write_bytes(data)
        try:
            with stillhash.open(path) as collection:
                healthy = collection.verify() == []
                assert not healthy or state(collection) == expected
                detected += not healthy
                collection.search(QUERIES, 400)
        except BadState:
            detected += 1
    assert detected > PAGES / 2


def test_leftovers_of_writes_that_did_not_end_are_cleared(template: Path, tmp_path: Path) -> None:
    path = copied(template, tmp_path / "c")
    (path / "segments" / "00000099.tiles").write_bytes(b"sealed, and never committed")
    (path / "segments" / "00000099.columns").write_bytes(b"of that segment")
    (path / "segments" / "00000099.rescoring").write_bytes(b"of that segment")
    (path / "segments" / ".00000098.tiles.123").write_bytes(b"half")
    (path / "learner" / ".00000009.safetensors.123").write_bytes(b"half")
    with stillhash.open(path) as collection:
        collection.learn(X, LABELS)
        assert collection.verify() == []
    assert sorted(file.suffix for file in (path / "segments").iterdir()) == [".columns", ".rescoring", ".tiles"]
    assert not [file for file in (path / "learner").iterdir() if file.name.startswith(".")]


def test_before_hash_functions_nothing_can_be_learnt(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 10)
    before = state(collection)
    for call in (lambda: collection.learn(X, LABELS), lambda: collection.range_search(X[0], 0)):
        with pytest.raises(NotFitted):
            call()
    for call in (lambda: collection.rollback(1), lambda: collection.tag(1, "x")):
        with pytest.raises(InvalidInput, match=r"^version"):
            call()
    with pytest.raises(Conflict):
        collection.add([3], X[:1])
    assert state(collection) == before


def test_parameters_keep_labels_that_are_no_text(tmp_path: Path) -> None:
    weights = {3: 5.0, "a": 0.0}
    with stillhash.open(tmp_path / "c", dim=8, bits=16, params={"label_weights": weights}) as collection:
        collection.fit(np.random.default_rng(0).standard_normal((300, 8)), [[3], ["a"], ["b"]] * 100)
    (learner,) = (tmp_path / "c" / "learner").iterdir()
    assert load(read_sealed(learner)).get_params()["label_weights"] == weights
    with pytest.raises(InvalidInput, match="params"):
        stillhash.open(tmp_path / "d", dim=8, params=5)  # type: ignore[arg-type]


def test_arguments_are_validated_before_fitting(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", dim=8, bits=16) as collection:
        collection.add([1, 2], X[:2])
        with pytest.raises(InvalidInput, match=r"^version"):
            collection.search(X[0], version=3)
        with pytest.raises(InvalidInput, match=r"^labels"):
            collection.fit(labels=[["a"], ["b"]])
        with pytest.raises(InvalidInput, match=r"^query"):
            collection.search([[1.0, 2.0], [1.0]])
        assert collection.count() == 2


def test_wrong_item_count_is_reported(template: Path, tmp_path: Path) -> None:
    path = edited(template, tmp_path / "c", "UPDATE meta SET value = value + 1 WHERE key = 'items'")
    with stillhash.open(path) as collection:
        assert "items" in collection.verify()[0]


def test_collection_without_database_is_not_created_again(template: Path, tmp_path: Path) -> None:
    path = copied(template, tmp_path / "c")
    (path / "store.db").unlink()
    files = sorted(path.rglob("*"))
    with pytest.raises(BadState, match=r"store\.db"):
        stillhash.open(path, dim=8)
    assert [file for file in files if file.exists()] == files


def test_a_closed_collection_is_closed(template: Path, tmp_path: Path) -> None:
    collection = stillhash.open(copied(template, tmp_path / "c"))
    collection.count()
    collection.close()
    for call in (collection.count, lambda: collection.search(X[0]), lambda: collection.delete([1])):
        with pytest.raises(Closed):
            call()
    collection.close()


def test_a_relative_path_stays_the_same(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied(template, tmp_path / "c")
    monkeypatch.chdir(tmp_path)
    with stillhash.open("c") as collection:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert collection.delete([]) == 0 and collection.verify() == []


@pytest.mark.parametrize(("path", "error"), [(None, WrongType), (3, WrongType), ("a\0b", InvalidInput)])
def test_invalid_paths_are_refused(path: Any, error: type[Exception]) -> None:
    for call in (lambda: stillhash.open(path, dim=8), lambda: stillhash.repair(path)):
        with pytest.raises(error, match=r"^path"):
            call()


@pytest.mark.parametrize(
    "data", [{}, {"a": 1, "b": [None, True, 2.5, 'x"y\\z']}, {"ü": {"deep": [{"": -0.0}]}}, {"n": 10**30, "e": 1e-300}]
)
def test_metadata_is_written_as_json_writes_it(data: dict[str, Any]) -> None:
    assert JSON_ENCODER.encode(data) == json.dumps(data)
    circle: dict[str, Any] = {}
    circle["again"] = circle
    for bad in (circle, {"x": float("nan")}, {"x": float("inf")}, {"x": object()}):
        with pytest.raises((TypeError, ValueError, RecursionError)):
            JSON_ENCODER.encode(bad)
        with pytest.raises(InvalidInput, match="metadata"):
            check_metadata([bad], 1)


@pytest.mark.parametrize(
    ("ids", "labels", "metadata", "name"),
    [
        (["x" * 1001], None, None, "ids"),
        (["x"], [["y" * 1001]], None, "labels"),
        (["x"], [list(range(10_001))], None, "labels"),
        (["x"], None, [{"text": "z" * (1 << 20)}], "metadata"),
    ],
)
def test_what_one_item_holds_is_bounded(tmp_path: Path, ids: Any, labels: Any, metadata: Any, name: str) -> None:
    with stillhash.open(tmp_path / "c", DIM, BITS) as collection:
        with pytest.raises(InvalidInput, match=rf"^{name}(\[0\])?: expected at most \d+"):
            collection.add(ids, np.ones((1, DIM)), labels, metadata)
        assert collection.count() == 0
        assert collection.add(["x" * 1000], np.ones((1, DIM)), [list(range(10_000))], [{"text": "z" * 1_000_000}]) == 1
