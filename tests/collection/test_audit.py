"""The audit log: one entry for each change, in its transaction, under the name of who makes it."""

from __future__ import annotations

import getpass
import json
import threading
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import AuditEntry, Collection, acting_as
from stillhash.collection.learning.encoder_alignment import EncoderIdentity
from stillhash.collection.storage.audit import MAX_ENTRIES, MAX_IDS_LENGTH
from stillhash.collection.storage.schema import count_rows
from stillhash.errors import BadState, Conflict, InvalidInput, NotFitted, StillhashError, StoreFailed, WrongType
from tests.collection.fixtures import DIM, begin, copied, some_rows
from tests.collection.golden import FOLDER
from tests.support.toys import toy

QUERY = toy(1, DIM, 4, seed=77).X[0]
OTHER = EncoderIdentity("another", "ab" * 32, 5)
PAIRS = np.random.default_rng(3).standard_normal((30, 5), dtype=np.float32), some_rows(30, seed=4).X
Fields = tuple[str, int, list[Any], int, int]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed collection of 320 rows, version 2, with one entry in its log."""
    path = tmp_path_factory.mktemp("audit") / "c"
    collection, _ = begin(path)
    collection.close()
    return path


@pytest.fixture
def collection(template: Path, tmp_path: Path) -> Collection:
    return stillhash.open(copied(template, tmp_path / "c"))


def whole_log(collection: Collection) -> list[AuditEntry]:
    return collection.audit(after=0, limit=MAX_ENTRIES)


def fields(entry: AuditEntry) -> Fields:
    return entry.what, entry.rows, entry.ids, entry.version_before, entry.version_after


CHANGES: list[tuple[Callable[[Collection], Any], Fields]] = [
    (lambda c: c.add(["a", 1000], *some_rows(2), learn=False), ("add", 2, ["a", 1000], 2, 2)),
    (lambda c: c.add(range(2000, 2060), *some_rows(60)), ("add", 60, list(range(2000, 2010)), 2, 3)),
    (lambda c: c.upsert(["a", "b"], *some_rows(2)), ("upsert", 2, ["a", "b"], 3, 3)),
    (lambda c: c.delete(["nobody", 7, "b", 5]), ("delete", 3, [7, "b", 5], 3, 3)),
    (lambda c: c.relabel([8, 9], [["a"], ["b"]]), ("relabel", 2, [8, 9], 3, 3)),
    (lambda c: c.flush(), ("flush", 5, [], 3, 4)),
    (lambda c: c.learn(*some_rows(20)[:2]), ("learn", 20, [], 4, 5)),
    (lambda c: c.feedback(QUERY, [10, 11], ["up", "down"]), ("feedback", 2, [10, 11], 5, 6)),
    (lambda c: c.feedback(QUERY, 11, 0), ("undo feedback", 1, [11], 6, 7)),
    (lambda c: c.feedback_many([stillhash.Vote(q, 12, 0.5) for q in (QUERY, -QUERY)]), ("feedback", 2, [12], 7, 8)),
    (lambda c: c.tag(5, "good"), ("tag 5", 0, [], 8, 8)),
    (lambda c: c.rollback(5), ("rollback to 5", 0, [], 8, 9)),
    (lambda c: c.align(OTHER, *PAIRS), ("align", 30, [], 9, 9)),
    (lambda c: c.compact(), ("compact", 4, [], 9, 9)),
]


def test_each_change_has_one_entry(collection: Collection) -> None:
    start = datetime.now(UTC).isoformat(timespec="milliseconds")
    for change, _ in CHANGES:
        change(collection)
    entries = whole_log(collection)
    assert [entry.number for entry in entries] == list(range(1, len(CHANGES) + 2))
    first = "add", 320, list(range(10)), 0, 2
    assert [fields(entry) for entry in entries] == [first, *(expected for _, expected in CHANGES)]
    times = [entry.time for entry in entries[1:]]
    assert times == sorted(times) and start <= times[0]
    assert {entry.who for entry in entries} == {getpass.getuser()}
    with stillhash.open(collection._store.path, read_only=True) as reader:
        assert whole_log(reader) == entries
    assert collection.verify() == []


def test_fit_has_an_entry(tmp_path: Path) -> None:
    X, labels, _ = some_rows(100)
    with stillhash.open(tmp_path / "a", DIM, 16) as collection:
        assert collection.audit() == []
        collection.add(range(100), X)
        collection.fit()
        assert [fields(entry) for entry in collection.audit()[1:]] == [("fit", 100, [], 0, 1)]
    with stillhash.open(tmp_path / "b", DIM, 16, init=(X[:50], labels[:50])) as collection:
        assert [fields(entry) for entry in collection.audit()] == [("fit", 50, [], 0, 1)]


def test_what_changes_nothing_has_no_entry(collection: Collection) -> None:
    collection.flush()
    before = whole_log(collection)
    collection.add([], np.empty((0, DIM)))
    collection.delete(["nobody"])
    collection.relabel([], [])
    collection.feedback_many([])
    collection.flush()
    collection.seal()
    refused: list[tuple[type[StillhashError], Callable[[], Any]]] = [
        (Conflict, lambda: collection.add([5], *some_rows(1))),
        (Conflict, lambda: collection.fit()),
        (InvalidInput, lambda: collection.rollback(99)),
        (InvalidInput, lambda: collection.tag(99, "x")),
        (InvalidInput, lambda: collection.feedback(QUERY, "nobody", "up")),
        (InvalidInput, lambda: collection.align(OTHER, PAIRS[0][:5], PAIRS[1])),
    ]
    for error, change in refused:
        with pytest.raises(error):
            change()
    assert whole_log(collection) == before


def test_nothing_changes_without_its_entry(collection: Collection) -> None:
    with collection._store.transaction() as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'no'); END")
    before = collection.get(range(320)), collection.versions(), whole_log(collection)
    for change, (what, *_) in CHANGES:
        if what not in ("flush", "tag 5", "rollback to 5"):  # which the refused changes would have prepared
            with pytest.raises(StoreFailed):
                change(collection)
    with collection._store.transaction() as connection:
        connection.execute("DROP TRIGGER full")
    assert (collection.get(range(320)), collection.versions(), whole_log(collection)) == before
    assert collection.delete([5]) == 1 and collection.verify() == []


# ---- names ----


def test_changes_are_under_the_name_of_the_context(collection: Collection) -> None:
    def in_thread() -> None:
        collection.delete([5])
        with acting_as("cleaner"):
            collection.delete([6])

    with acting_as("ann"):
        collection.delete([1])
        with acting_as("Jörg (import)"):
            collection.delete([2])
        with pytest.raises(NotFitted), acting_as("bob"):
            raise NotFitted
        collection.delete([3])
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
    collection.delete([4])
    user = getpass.getuser()
    names = ["ann", "Jörg (import)", "ann", user, "cleaner", user]
    assert [entry.who for entry in collection.audit(after=1)] == names
    assert [entry.ids for entry in collection.audit(who="ann")] == [[1], [3]]


@pytest.mark.parametrize("name", ["", " ", "a\nb", "\x1b[31m", "a\u202e", "x" * 201])
def test_other_names_are_refused(collection: Collection, name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^name"), acting_as(name):
        pass
    with pytest.raises(WrongType, match=r"^name"), acting_as(5):  # type: ignore[arg-type]
        pass
    with pytest.raises(InvalidInput, match=r"^who"):
        collection.audit(who=name)
    with acting_as("x" * 200):
        collection.delete([5])
    assert collection.audit()[-1].who == "x" * 200


# ---- pages ----


def test_pages_equal_parts_of_a_list(collection: Collection) -> None:
    for number in range(12):
        with acting_as(f"user {number % 3}"):
            collection.delete([number])
    log = whole_log(collection)
    assert len(log) == 13
    for who in (None, "user 0", "user 2", "nobody"):
        named = [entry for entry in log if who in (None, entry.who)]
        for limit in (1, 3, 12, 13, 100):
            assert collection.audit(limit=limit, who=who) == named[-limit:]
            for after in (0, 1, 5, 12, 13, 2**63 - 1):
                rest = [entry for entry in named if entry.number > after]
                assert collection.audit(after, limit, who=who) == rest[:limit]


@pytest.mark.parametrize(
    "options", [{"after": -1}, {"after": 2**63}, {"limit": 0}, {"limit": MAX_ENTRIES + 1}], ids=lambda o: next(iter(o))
)
def test_other_pages_are_refused(collection: Collection, options: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=f"^{next(iter(options))}"):
        collection.audit(**options)  # type: ignore[arg-type]


# ---- bounds ----


@pytest.mark.medium
def test_the_oldest_entries_are_removed(collection: Collection) -> None:
    entries = f"WITH RECURSIVE n (x) AS (SELECT 2 UNION ALL SELECT x + 1 FROM n WHERE x < {MAX_ENTRIES - 1})"
    with collection._store.transaction() as connection:
        connection.execute(f"INSERT INTO audit {entries} SELECT x, '', 'a', 'b', 0, '[]', 2, 2 FROM n")
    counts = []
    for number in range(102):
        collection.delete([number])
        with collection._store.reading() as connection:
            counts.append(count_rows(connection, "audit"))
    assert counts == [*range(MAX_ENTRIES - 100, MAX_ENTRIES), MAX_ENTRIES - 100, MAX_ENTRIES - 99]
    log = whole_log(collection)
    assert [entry.number for entry in log] == list(range(201, MAX_ENTRIES + 102))
    assert [entry.ids for entry in log[-102:]] == [[number] for number in range(102)]


def test_long_ids_are_listed_as_far_as_they_fit(collection: Collection) -> None:
    names = [f"{number}{'ü' * 900}" for number in range(5)]
    collection.add(names, *some_rows(5))
    quoted = ['"\\' * 500, *names]
    collection.upsert(quoted, *some_rows(6))
    first, second = collection.audit(limit=2)
    assert (first.rows, first.ids, second.rows, second.ids) == (5, names[:2], 6, quoted[:1])
    with collection._store.reading() as connection:
        lengths = connection.execute("SELECT length(ids) FROM audit").fetchall()
    assert max(lengths)[0] <= MAX_IDS_LENGTH


# ---- files ----


def test_a_store_without_the_table_has_an_empty_log(tmp_path: Path) -> None:
    with zipfile.ZipFile(FOLDER / "format-5.zip") as archive:
        archive.extractall(tmp_path)
    with stillhash.open(tmp_path / "golden", read_only=True) as reader:
        assert reader.audit() == []
        with stillhash.open(tmp_path / "golden") as collection:
            assert collection.audit(after=0) == []
            collection.delete([100])
            assert [fields(entry)[:3] for entry in collection.audit()] == [("delete", 1, [100])]
        assert len(reader.audit()) == 1


def test_a_snapshot_has_the_log(collection: Collection, tmp_path: Path) -> None:
    collection.snapshot(tmp_path / "copy")
    collection.delete([6])
    with stillhash.open(tmp_path / "copy") as copy:
        assert whole_log(copy) == whole_log(collection)[:-1]


def test_repair_keeps_the_log_and_adds_to_it(template: Path, tmp_path: Path) -> None:
    path = copied(template, tmp_path / "c")
    with stillhash.open(path) as collection:
        collection.seal()
        for number in range(150):
            collection.delete([number])
        log, version = whole_log(collection), collection.stats()["version"]
    assert stillhash.repair(path) == ([], [])
    next((path / "segments").glob("*.tiles")).unlink()
    _, lost = stillhash.repair(path)
    with stillhash.open(path) as collection:
        *kept, last = whole_log(collection)
        assert kept == log and fields(last) == ("repair", len(lost), lost[:10], version, version) and lost
        collection.add(["more"], some_rows(1).X)
        assert collection.audit()[-1].number > last.number


@pytest.mark.parametrize("ids", ["nonsense", "", "[1", b"\xff"])
def test_an_entry_that_cannot_be_read_is_refused(collection: Collection, ids: Any) -> None:
    with collection._store.transaction() as connection:
        connection.execute("UPDATE audit SET ids = ?", [ids])
    with pytest.raises(BadState, match=r"^audit"):
        collection.audit()


def test_entries_hold_no_features_labels_or_metadata(collection: Collection) -> None:
    secret = "a secret"
    collection.add(["x"], some_rows(1).X, [[secret]], [{secret: secret}])
    collection.relabel(["x"], [[secret, "a"]])
    collection.tag(2, secret)
    collection.feedback(QUERY, "x", "up", source=secret)
    assert secret not in json.dumps([vars(entry) for entry in whole_log(collection)])
