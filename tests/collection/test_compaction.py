"""Compaction in steps: segments stay bounded, answers stay the same, and others read and write meanwhile."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import METHODS, Collection
from stillhash.collection.storage.database import stored_format
from stillhash.collection.storage.schema import COMPACTED_FORMAT, STORE_FORMAT
from stillhash.collection.storage.segments import CodedRows, CodeTable, read_segment, write_segment
from stillhash.collection.storage.store import SegmentWriter
from stillhash.collection.transfer.bulk_load import bulk_load
from stillhash.collection.validation import ItemRows
from stillhash.errors import BadState, Conflict
from tests.collection.compaction_process import POINTS, SEGMENT_ROWS
from tests.collection.fixtures import BITS, DIM, begin, live_rows, some_rows
from tests.collection.reference import agree
from tests.support.toys import toy

pytestmark = pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
ROOT = Path(__file__).parents[2]
QUERIES = toy(3, DIM, 4, seed=77).X
FILTERS: list[dict[str, Any]] = [{"odd": True}, {"labels": "a"}, {"tone": {"$gt": 0.3}, "n": {"$lt": 200}}, {"new": 1}]

Answers = list[Any]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeTable, "segment_rows", SEGMENT_ROWS)


def sizes(collection: Collection) -> list[int]:
    """Return the rows of each segment, once they are as they should be: in order, and the same in the files."""
    with collection._store.reading() as connection:
        records = collection._store.codes.segment_records(connection)
        assert all(one.last < other.first for one, other in itertools.pairwise(records))
        assert [collection._store.codes.read_segment(record).rows for record in records] == [r.rows for r in records]
        assert (
            max((record.number for record in records), default=0)
            <= connection.execute("SELECT value FROM meta WHERE key = 'seq'").fetchone()[0]
        )
    return [record.rows for record in records]


def answers(collection: Collection) -> Answers:
    """Return everything that a compaction must not change."""
    hits = [answer.hits for answer in collection.search(QUERIES, 10_000)]
    filtered = [(collection.ids(where), collection.search(QUERIES[0], 50, where=where).hits) for where in FILTERS]
    ids = collection.ids()
    return [hits, filtered, collection.get(ids), collection.codes(ids).tolist() if ids else [], collection.facets()]


def many_segments(path: Path, **options: Any) -> Collection:
    """Create a collection of full, small, outdated and oversized segments, with unsealed and deleted rows."""
    collection, _ = begin(path, **options)
    collection.seal()
    for seed, n in enumerate((10, 5, 150, 3, 64, 64), 1):
        collection.add([f"{seed}/{r}" for r in range(n)], *some_rows(n, seed=seed))
        collection.delete([f"{seed}/1"])  # before it is sealed
        collection.seal()
    collection.delete([*range(40, 110), "2/0", *(f"3/{r}" for r in range(0, 150, 2))])
    collection.relabel(["6/3"], [["a"]], learn=False)
    collection.update_metadata(["5/9"], {"new": 1})
    collection.add([f"7/{r}" for r in range(70)], *some_rows(70, seed=7))
    return collection


def test_seal_writes_bounded_segments(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    assert collection.seal() and sizes(collection) == [64] * 5
    collection.add([f"t{r}" for r in range(65)], *(rows := some_rows(65, seed=2)))
    twin.put([f"t{r}" for r in range(65)], *rows)
    assert collection.seal() and sizes(collection) == [64] * 5 + [33, 32]
    assert not collection.seal() and collection.verify() == []
    agree(collection, twin, QUERIES[0], 500)
    assert {file.suffix for file in (tmp_path / "c" / "segments").iterdir()} == {".tiles", ".columns", ".rescoring"}


def test_add_seals_bounded_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stillhash.collection.storage.store.SEAL_ROWS", SEGMENT_ROWS)
    collection, _ = begin(tmp_path / "c")
    assert collection.stats()["unsealed"] == 0 and max(sizes(collection)) <= SEGMENT_ROWS
    collection.add([f"t{r}" for r in range(200)], *some_rows(200, seed=2))
    assert collection.stats()["unsealed"] == 0 and max(sizes(collection)) <= SEGMENT_ROWS


def test_the_bound_is_the_number_of_rows_that_are_sealed() -> None:
    from stillhash.collection.storage.segments import SEGMENT_ROWS as BOUND
    from stillhash.collection.storage.store import SEAL_ROWS

    assert BOUND == SEAL_ROWS == 131_072


@pytest.mark.parametrize("failing", ["files", "commit"])
def test_seal_registers_all_segments_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    collection, twin = begin(tmp_path / "c")
    with monkeypatch.context() as patch:
        if failing == "files":
            original, calls = SegmentWriter._write, []

            def write(self: SegmentWriter, *args: Any) -> Any:
                calls.append(args)
                return 1 / 0 if len(calls) == 3 else original(self, *args)

            patch.setattr(SegmentWriter, "_write", write)
        else:
            patch.setattr(CodeTable, "clear_unsealed", lambda *_: 1 / 0)
        with pytest.raises((ZeroDivisionError, BadState)):
            collection.seal()
    assert sizes(collection) == [] and collection.stats()["unsealed"] == 320
    if failing == "files":
        assert not list((tmp_path / "c" / "segments").iterdir())
    assert collection.seal() and sizes(collection) == [64] * 5 and collection.verify() == []
    agree(collection, twin, QUERIES[0], 500)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("options", "files_of_each"),
    [({}, 3), ({"keep_features": True}, 4), ({"filter_fields": ["odd"], "rescore_bits": 0}, 2)],
)
def test_compaction_changes_no_answer(tmp_path: Path, options: dict[str, Any], files_of_each: int) -> None:
    collection = many_segments(tmp_path / "c", **options)
    with collection, stillhash.open(tmp_path / "c", read_only=True) as reader:
        expected, deleted = answers(collection), collection.stats()["deleted"]
        features = collection.reconstruct(collection.ids())
        assert answers(reader) == expected
        before = set(sizes(collection))
        assert collection.compact() == deleted > 70
        after = sizes(collection)
        assert sum(after) == len(collection) and max(after) <= SEGMENT_ROWS < max(before) + 1
        stats = collection.stats()
        assert (stats["deleted"], stats["unsealed"], stats["segments"]) == (0, 0, len(after))
        assert answers(collection) == expected and answers(reader) == expected and collection.verify() == []
        assert np.array_equal(collection.reconstruct(collection.ids()), features)
        assert collection.compact() == 0 and sizes(collection) == after
        files = sorted(file.suffix for file in (tmp_path / "c" / "segments").iterdir())
        assert len(files) == len(after) * files_of_each
        with stillhash.open(tmp_path / "c", read_only=True) as late:
            assert answers(late) == expected


def test_earlier_releases_refuse_a_store_whose_segments_were_replaced(tmp_path: Path) -> None:
    """They order segments by their numbers, which need not ascend with the rows any more."""
    collection, _ = begin(tmp_path / "c", rescore_bits=0)
    collection.seal()
    assert stored_format(tmp_path / "c") == STORE_FORMAT
    collection.delete([0, 1])
    collection.compact()
    assert stored_format(tmp_path / "c") == COMPACTED_FORMAT
    collection.close()
    with stillhash.open(tmp_path / "c") as again:
        assert again.count() > 0 and again.verify() == []


def test_full_segments_without_changes_stay(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    collection.seal()
    before = sorted(file.name for file in (tmp_path / "c" / "segments").iterdir())
    collection.delete([70])  # in the second of five
    collection.compact()
    after = sorted(file.name for file in (tmp_path / "c" / "segments").iterdir())
    assert len(set(before) - set(after)) == 3 and len(after) == 15 and sizes(collection) == [64, 63, 64, 64, 64]
    with collection._store.reading() as connection:
        generation = connection.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()
    collection.compact()
    assert sorted(file.name for file in (tmp_path / "c" / "segments").iterdir()) == after
    with collection._store.reading() as connection:  # readers need not start over
        assert connection.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone() == generation


def test_an_oversized_segment_of_an_earlier_release_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(CodeTable, "segment_rows", 1 << 20)
        collection, _ = begin(tmp_path / "c", 1000)
        collection.seal()
    assert sizes(collection) == [1000]
    expected = answers(collection)
    collection.compact()
    assert sizes(collection) == [63] * 15 + [55] and answers(collection) == expected and collection.verify() == []


def test_repairs_are_bounded(tmp_path: Path) -> None:
    collection = many_segments(tmp_path / "c")
    expected = answers(collection)
    collection.seal()
    lost = sorted((tmp_path / "c" / "segments").glob("*.tiles"))[1]
    lost.unlink()
    report = collection.repair()
    assert report.lost_ids and max(sizes(collection)) <= SEGMENT_ROWS and collection.verify() == []
    left = {hit.id: hit.score for hit in collection.search(QUERIES[0], 10_000).hits}
    assert left == {hit.id: hit.score for hit in expected[0][0] if hit.id not in report.lost_ids}


def test_bulk_load_divides_parts_that_are_too_large(tmp_path: Path) -> None:
    X, name = toy(400, DIM, 4, seed=5).X, b"c" * 16
    hasher = METHODS["tally"](bits=BITS).fit(X, toy(400, DIM, 4, seed=5).Y)
    codes, batches, first = hasher.encode(X), [], 0
    for number, rows in enumerate((40, 150, 64, 146), 1):
        numbers, part = np.arange(first, first + rows), tmp_path / f"{number}.tiles"
        write_segment(part, CodedRows(numbers, codes[numbers], 7 * numbers), BITS, name, number)
        metadata: list[str | None] = [json.dumps({"n": n}) for n in numbers.tolist()]
        batches.append((read_segment(part, BITS), ItemRows(numbers.tolist(), ["[]"] * rows, metadata, None), None))
        first += rows
    chosen: dict[str, Any] = {"init_rows": 1, "learn_rows": 1, "keep_versions": 2, "source_cap": 1.0}
    chosen |= {"filter_fields": None, "lexical_field": None, "encoder": None}
    bulk_load(tmp_path / "c", hasher, batches, id=name, source="here", learnt=0, settings=chosen)
    with stillhash.open(tmp_path / "c") as collection:
        assert sizes(collection) == [40, 50, 50, 50, 64, 49, 49, 48] and collection.verify() == []
        assert np.array_equal(collection.codes(range(400)), codes)
        with collection._store.reading() as connection:
            assert np.array_equal(live_rows(collection._store, connection).digests, 7 * np.arange(400))
        assert collection.ids({"n": {"$gte": 180, "$lt": 260}}) == list(range(180, 260))
        collection.add(["new"], X[:1], [["a"]])
        assert collection.seal() and collection.delete([7]) and collection.compact() == 1
        assert len(collection) == 400 == sum(sizes(collection)) and collection.verify() == []
        assert collection.build_rescoring(range(400), X) == 1
        assert collection.build_rescoring(["new"], X[:1]) == 0 == collection.build_rescoring()
        assert collection.stats()["rescore_bits"] == 4 and collection.verify() == []


def test_verify_reports_segments_that_overlap(tmp_path: Path) -> None:
    collection = begin(tmp_path / "c")[0]
    collection.seal()
    store = collection._store
    with store.reading() as connection:
        records = store.codes.segment_records(connection)
        again = store.segment_writer.write(connection, store.codes.live_parts(connection, records[1:2]))
    store.replace_segments([], again)
    assert [problem.split(":")[0] for problem in collection.verify()] == ["segments"]
    store.replace_segments(records[1:2], [])
    assert collection.verify() == []


def test_progress_and_its_errors(tmp_path: Path) -> None:
    collection = many_segments(tmp_path / "c")
    expected, seen = answers(collection), []
    with pytest.raises(ZeroDivisionError):
        collection.compact(progress=lambda done, total: 1 / (len(seen) - 1) and seen.append((done, total)))
    assert len(seen) == 1 and collection.stats()["deleted"] > 0  # one step is done
    assert answers(collection) == expected and collection.verify() == []
    seen.clear()
    collection.compact(progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] > 400 and len(seen) > 1
    assert answers(collection) == expected


def test_only_a_writer_compacts(tmp_path: Path) -> None:
    begin(tmp_path / "c")[0].close()
    with stillhash.open(tmp_path / "c", read_only=True) as reader, pytest.raises(Conflict):
        reader.compact()


# ---- others meanwhile ----


def in_thread(work: Any) -> None:
    """Run in another thread, which must not wait for this one."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for the compaction"


@pytest.mark.medium
def test_writes_go_on_while_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete, change and add rows between the files of each step and its commit: nothing of it may be lost."""
    collection = many_segments(tmp_path / "c")
    reader = stillhash.open(tmp_path / "c", read_only=True)
    collection.seal()  # which writes wait for
    original, steps = SegmentWriter.write, []

    def change() -> None:
        step = len(steps)
        ids = collection.ids()
        collection.delete([ids[3], ids[len(ids) // 2], ids[-1]])
        collection.update_metadata([ids[10], ids[-20]], {"new": 1, "step": step})
        collection.relabel([ids[12]], [["a", "d"]], learn=False)
        collection.add([f"new {step}/{r}" for r in range(20)], *some_rows(20, seed=step))
        if step % 2:
            collection.seal()
        assert answers(reader) == answers(collection)

    def write(self: SegmentWriter, *args: Any) -> Any:
        records = original(self, *args)
        if records and threading.current_thread() is threading.main_thread():
            steps.append(records)
            in_thread(change)
        return records

    monkeypatch.setattr(SegmentWriter, "write", write)
    collection.compact()
    monkeypatch.setattr(SegmentWriter, "write", original)
    assert len(steps) > 1 and collection.verify() == []
    expected = answers(collection)
    assert answers(reader) == expected and collection.stats()["deleted"] > 0
    with stillhash.open(tmp_path / "c", read_only=True) as late:
        assert answers(late) == expected
    collection.compact()
    assert collection.stats()["deleted"] == 0 and answers(reader) == expected == answers(collection)


@pytest.mark.medium
def test_readers_at_every_step_answer_the_same(tmp_path: Path) -> None:
    """One reader per step starts there and stays; all answer right at all later steps, and after the end."""
    collection = many_segments(tmp_path / "c")
    expected, readers = answers(collection), [stillhash.open(tmp_path / "c", read_only=True)]

    def check(*_: int) -> None:
        readers.append(stillhash.open(tmp_path / "c", read_only=True))
        for reader in [*readers[::2], readers[-1]]:  # some skip a step
            assert answers(reader) == expected
            assert reader.verify() == []

    collection.compact(progress=check)
    check()
    for number, reader in enumerate(readers):
        assert answers(reader) == expected
        reader.snapshot(tmp_path / f"s{number}")
        reader.close()
    with stillhash.open(tmp_path / "s0") as copy:
        assert answers(copy) == expected


@pytest.mark.medium
def test_threads_search_while_another_compacts(tmp_path: Path) -> None:
    """Pairs of items come and go in one commit each: a search must never see half of one, or one twice."""
    collection = many_segments(tmp_path / "c")
    lasting = {hit.id for hit in collection.search(QUERIES[0], 10_000).hits}
    done, failures, searches = threading.Event(), [], []

    def search(reader: Collection) -> None:
        try:
            while not done.is_set():
                ids = [hit.id for hit in reader.search(QUERIES[0], 10_000).hits]
                pairs = [name for name in ids if name not in lasting]
                assert len(ids) == len(set(ids)) and lasting <= set(ids)
                assert len(pairs) % 2 == 0 and {str(p)[1:] for p in pairs if str(p)[0] == "p"} == {
                    str(q)[1:] for q in pairs if str(q)[0] == "q"
                }
                filtered = [str(name)[1:] for name in reader.ids({"pair": True})]
                assert len(filtered) == 2 * len(set(filtered))
                searches.append(len(ids))
        except BaseException as error:
            failures.append(error)
            raise

    def write() -> None:
        n = 0
        while not done.is_set():
            collection.add([f"p{n}", f"q{n}"], some_rows(2, seed=n).X, None, [{"pair": True}] * 2)
            if n > 30:
                collection.delete([f"p{n - 30}", f"q{n - 30}"])
            n += 1

    with stillhash.open(tmp_path / "c", read_only=True) as reader:
        threads = [threading.Thread(target=search, args=[one]) for one in (collection, reader)]
        threads.append(threading.Thread(target=write))
        for thread in threads:
            thread.start()
        try:
            for _ in range(6):
                collection.compact()
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert not failures and len(searches) > 2 and collection.verify() == []


# ---- any history ----

IDS = st.integers(0, 150)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.integers(0, 120), st.integers(1, 40), st.integers(0, 3)),
        st.tuples(st.just("delete"), st.integers(0, 150), st.integers(1, 40)),
        st.tuples(st.just("update"), IDS, st.integers(0, 3)),
        st.tuples(st.just("seal")),
        st.tuples(st.just("compact")),
        st.tuples(st.just("reopen")),
    ),
    min_size=3,
    max_size=25,
)


class DictModel:
    """Items in order of arrival, with 16-bit codes of few values, so that there are many ties."""

    def __init__(self) -> None:
        self.items: dict[int, tuple[int, int]] = {}

    def ranking(self, query: int, n: int | None = None) -> list[int]:
        kept = [(id_, code) for id_, (code, own) in self.items.items() if n is None or own == n]
        return [id_ for id_, code in sorted(kept, key=lambda item: (item[1] ^ query).bit_count())]


def apply(collection: Collection, model: DictModel, operation: Any) -> None:
    kind, *args = operation
    if kind == "upsert":
        first, count, seed = args
        codes = np.random.default_rng(seed).integers(0, 4, count) * 0x1111
        ids = list(range(first, first + count))
        for id_, code in zip(ids, codes.tolist(), strict=True):
            model.items.pop(id_, None)
            model.items[id_] = code, id_ % 3
        packed = codes.astype("<u2").view(np.uint8).reshape(-1, 2)
        collection.upsert(ids, packed, None, [{"n": id_ % 3} for id_ in ids])
    elif kind == "delete":
        ids = list(range(args[0], args[0] + args[1]))
        assert collection.delete(ids) == sum(model.items.pop(id_, None) is not None for id_ in ids)
    elif kind == "update" and args[0] in model.items:
        collection.update_metadata([args[0]], {"n": args[1]})
        model.items[args[0]] = model.items[args[0]][0], args[1]
    elif kind in ("seal", "compact"):
        getattr(collection, kind)()


def compare(collection: Collection, model: DictModel) -> None:
    for query in (0, 0x3333, 0x0F01):
        packed = np.array([query], "<u2").view(np.uint8)
        found = [hit.id for hit in collection.search(packed, 1000).hits]
        assert found == model.ranking(query)
        assert [hit.id for hit in collection.search(packed, 7).hits] == model.ranking(query)[:7]
        for n in range(3):
            hits = collection.search(packed, 1000, where={"n": n}).hits
            assert [hit.id for hit in hits] == model.ranking(query, n)


@pytest.mark.medium
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(operations=OPERATIONS, rows=st.sampled_from([1, 7, 30]))
def test_any_history(tmp_path_factory: pytest.TempPathFactory, operations: list[Any], rows: int) -> None:
    path = tmp_path_factory.mktemp("history") / "c"
    bound, CodeTable.segment_rows = CodeTable.segment_rows, rows
    collection = stillhash.open(path, bits=16, codes_only=True)
    reader = stillhash.open(path, read_only=True)
    model = DictModel()
    try:
        for operation in operations:
            if operation[0] == "reopen":
                collection.close()
                collection = stillhash.open(path)
            apply(collection, model, operation)
            compare(collection, model)
            compare(reader, model)
            assert all(size <= rows for size in sizes(collection))
            if operation[0] == "compact":
                assert collection.stats()["deleted"] == 0 and sum(sizes(collection)) == len(model.items)
        assert collection.verify() == []
    finally:
        CodeTable.segment_rows = bound
        reader.close()
        collection.close()
        shutil.rmtree(path)


# ---- kill -9 ----


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Answers]]:
    path = tmp_path_factory.mktemp("template") / "c"
    bound, CodeTable.segment_rows = CodeTable.segment_rows, SEGMENT_ROWS
    with many_segments(path, keep_features=True) as collection:
        expected = answers(collection)
    CodeTable.segment_rows = bound
    yield path, expected


@pytest.mark.medium
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_compaction_leaves_a_sound_collection(
    template: tuple[Path, Answers], tmp_path: Path, point: str
) -> None:
    source, expected = template
    path = tmp_path / "c"
    counts = (0, 1, 3) if point in ("step", "files", "commit") else (0,)
    for count in counts:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        command = [sys.executable, "-m", "tests.collection.compaction_process", str(path), point, str(count)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True)
        assert ended.returncode == -signal.SIGKILL and b"done" not in ended.stdout, ended.stderr
        with stillhash.open(path, read_only=True) as reader:
            assert reader.verify() == [] and answers(reader) == expected
            with stillhash.open(path) as collection:
                assert answers(collection) == expected
                dropped = collection.stats()["deleted"]
                assert collection.compact() == dropped and (dropped > 0) == (point != "removal")
                assert collection.stats()["deleted"] == 0 and max(sizes(collection)) <= SEGMENT_ROWS
                assert collection.verify() == [] and answers(collection) == expected == answers(reader)
                tiles = list((path / "segments").glob("*.tiles"))
                assert len(tiles) == collection.stats()["segments"]
                assert [entry.what for entry in collection.audit()].count("compact") == 1 + (point == "removal")


@pytest.mark.medium
def test_the_next_compaction_continues(template: tuple[Path, Answers], tmp_path: Path) -> None:
    shutil.copytree(template[0], path := tmp_path / "c")
    command = [sys.executable, "-m", "tests.collection.compaction_process", str(path), "commit", "1"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == -signal.SIGKILL
    with stillhash.open(path) as collection:
        before = {file.name for file in (path / "segments").iterdir()}
        collection.compact()
        kept = before & {file.name for file in (path / "segments").iterdir()}
        assert len(kept) >= 6  # what the two first steps wrote: codes, columns and features


# ---- memory ----


def peak_of_compaction(path: Path, rows: int) -> int:
    """Compact a collection of so many rows, of which a tenth is deleted; return the peak of memory in bytes."""
    rng = np.random.default_rng(rows)
    with stillhash.open(path, bits=64, codes_only=True) as collection:
        for start in range(0, rows, 10_000):
            codes = rng.integers(0, 256, (10_000, 8), dtype=np.uint8)
            collection.add(range(start, start + 10_000), codes, None, [{"n": n % 9} for n in range(10_000)])
            collection.seal()
        collection.delete(range(0, rows, 10))
        peaks: list[int] = []
        tracemalloc.start()
        try:
            collection.compact(progress=lambda *_: peaks.append(tracemalloc.get_traced_memory()[1]))
        finally:
            tracemalloc.stop()
        return peaks[-1]  # of all steps; then SQLite writes store.db again


@pytest.mark.medium
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeTable, "segment_rows", 2048)
    small, large = (peak_of_compaction(tmp_path / str(rows), rows) for rows in (10_000, 60_000))
    assert large < 1.5 * small, (small, large)
