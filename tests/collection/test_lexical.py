"""Words: what `lexical_search` and `hybrid_search` return, what they refuse, and what the store holds of the words."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Collection
from stillhash.collection.storage import lexical
from stillhash.collection.storage.lexical import MAX_TERMS, MAX_WORDS_LENGTH
from stillhash.collection.storage.schema import LEXICAL_SCHEMA, LEXICAL_TABLES
from stillhash.collection.transfer.bulk_load import bulk_load
from stillhash.errors import BadState, Conflict, InvalidInput, StillhashError, TooLarge, Unsupported, WrongType
from tests.collection.bm25 import bm25
from tests.collection.fixtures import BITS, DIM, some_rows
from tests.collection.hostile import edit

ROWS = 400
VOCABULARY = [f"{first}{second}" for first in "bcdfgm" for second in ("a", "é", "io", "undra")]
SYNTAX = st.sampled_from([*'"()*^:+-{},', "NEAR", "AND", "ba", "\0", " "])
QUERY = some_rows(1, seed=5).X[0]


def texts(rows: int, seed: int = 0) -> list[str]:
    """Return texts of which no two have the same words, so that scores are not equal."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, len(VOCABULARY) + 1)
    lengths = rng.integers(3, 40, rows)
    return [" ".join(rng.choice(VOCABULARY, size, p=weights / weights.sum())) for size in lengths]


TEXTS = texts(ROWS)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lexical") / "c"
    X, labels, _ = some_rows(ROWS)
    metadata = [{"text": text, "n": row % 7} for row, text in enumerate(TEXTS)]
    with stillhash.open(path, DIM, BITS, init_rows=300, learn_rows=40, lexical_field="text") as collection:
        collection.add(list(range(ROWS)), X, labels, metadata)
    return path


@pytest.fixture(scope="module")
def reader(template: Path) -> Any:
    with stillhash.open(template, read_only=True) as reader:
        yield reader


@pytest.fixture
def collection(template: Path, tmp_path: Path) -> Any:
    with stillhash.open(shutil.copytree(template, tmp_path / "c")) as collection:
        yield collection


def fuse(collection: Collection, words: str, k: int, depth: int, weight: float, **options: Any) -> list[Any]:
    """Fuse by the definition, over the two answers."""
    where = options.pop("where", None)
    learnt = [hit.id for hit in collection.search(QUERY, max(k, depth), where=where, **options).hits]
    lexical = [hit.id for hit in collection.lexical_search(words, max(k, depth), where=where).hits]
    fused = []
    for name in {*learnt, *lexical}:
        first = learnt.index(name) + 1 if name in learnt else None
        second = lexical.index(name) + 1 if name in lexical else None
        score = (1 / (60 + first) if first else 0) + (weight / (60 + second) if second else 0)
        fused.append((-score, first or 10**9, name, first, second))  # ids are the rows here
    return [(name, -score, first, second) for score, _, name, first, second in sorted(fused)[:k]]


@pytest.mark.parametrize("words", ["ba", "ba cio mundra", '"ba bé" dio', "GÉ ge", '"ba bé bio"', "ba " * 50])
def test_ranks_are_those_of_bm25(reader: Collection, words: str) -> None:
    expected = bm25(dict(enumerate(TEXTS)), words)
    hits = reader.lexical_search(words, ROWS).hits
    assert [hit.id for hit in hits] == [row for row, _ in expected]
    np.testing.assert_allclose([hit.score for hit in hits], [score for _, score in expected], rtol=1e-9)
    some = reader.lexical_search(words, 5, where={"n": 3})
    assert [hit.id for hit in some.hits] == [row for row, _ in expected if row % 7 == 3][:5]
    assert (some.version, some.ranking) == (0, "words, by BM25")


def test_equal_scores_are_in_order_of_arrival(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", DIM, BITS, lexical_field="text") as collection:
        collection.add(["z", "y", "x", "w"], some_rows(4).X, metadata=[{"text": text} for text in ["a b"] * 3 + ["c"]])
        assert [hit.id for hit in collection.lexical_search("a", 2).hits] == ["z", "y"]
        assert [hit.id for hit in collection.lexical_search("a", 9, where={"text": {"$ne": "c"}}).hits] == list("zyx")


@pytest.mark.parametrize("where", [None, {"n": {"$in": [1, 4]}}])
@pytest.mark.parametrize("options", [{}, {"version": 0}, {"version": "hamming"}, {"balance": 0.0}])
@pytest.mark.parametrize(("k", "depth", "weight"), [(10, 100, 1.0), (7, 3, 0.5), (500, 1, 2.0)])
def test_hybrid_ranks_are_those_of_the_definition(
    reader: Collection, where: Any, options: dict[str, Any], k: int, depth: int, weight: float
) -> None:
    words = 'bundra "ba bé" mio'
    answer = reader.hybrid_search(QUERY, words, k, where=where, depth=depth, word_weight=weight, **options)
    ranked = [(hit.id, hit.score, hit.learnt_rank, hit.lexical_rank) for hit in answer.hits]
    assert ranked == fuse(reader, words, k, depth, weight, where=where, **options)
    assert len(ranked) == min(k, reader.count(where))
    assert answer.version == reader.search(QUERY, 1, **options).version
    assert all(hit.metadata == {"text": TEXTS[hit.id], "n": hit.id % 7} for hit in answer.hits)


def test_hybrid_before_hash_functions_are_fitted(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", DIM, BITS, lexical_field="text") as collection:
        assert collection.hybrid_search(QUERY, "ba").hits == []
        collection.add(list(range(50)), some_rows(50).X, metadata=[{"text": text} for text in texts(50)])
        hits = collection.hybrid_search(QUERY, "ba mio", 8, depth=20).hits
        assert [(hit.id, hit.score, hit.learnt_rank, hit.lexical_rank) for hit in hits] == fuse(
            collection, "ba mio", 8, 20, 1.0
        )


@pytest.mark.medium
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.text(max_size=40)
    | st.lists(st.sampled_from([*'"()*^:+-{},', "NEAR", "AND", "ba", "\0", " "])).map("".join)
)
def test_nothing_in_words_is_syntax(template: Path, words: str) -> None:
    with stillhash.open(template, read_only=True) as collection:
        hits = collection.lexical_search(words, ROWS).hits
        if not any(character.isalnum() for character in words):
            assert hits == []
            assert collection.hybrid_search(QUERY, words).hits[0].lexical_rank is None


def test_what_is_not_words_is_refused(collection: Collection) -> None:
    for words in (None, 3, b"ba", ["ba"]):
        with pytest.raises(WrongType, match="words"):
            collection.lexical_search(words)  # type: ignore[arg-type]
    many = [f"w{number}" for number in range(MAX_TERMS)]
    assert collection.lexical_search(" ".join([*many, "W0"])).hits == []
    for words in (" ".join([*many, "more"]), "x" * (MAX_WORDS_LENGTH + 1)):
        for search in (collection.lexical_search, lambda words: collection.hybrid_search(QUERY, words)):
            with pytest.raises(TooLarge, match="words"):
                search(words)
    assert collection.lexical_search("ba " + "x" * (MAX_WORDS_LENGTH - 3), 1).hits
    for options in ({"k": 0}, {"depth": 0}, {"word_weight": 0}, {"word_weight": np.nan}, {"where": {"$x": 1}}):
        with pytest.raises(InvalidInput):
            collection.hybrid_search(QUERY, "ba", **options)
    with pytest.raises(InvalidInput, match="query"):
        collection.hybrid_search(np.stack([QUERY, QUERY]), "ba")
    with pytest.raises(TooLarge):
        collection.lexical_search("ba", 100, max_bytes=500)


def test_a_lexical_field_is_the_name_of_a_field(tmp_path: Path) -> None:
    for field in ("", "labels", "$in", "a\nb", "x" * 201, 3, ["text"]):
        with pytest.raises(InvalidInput, match="lexical_field"):
            stillhash.open(tmp_path / "c", DIM, BITS, lexical_field=field)  # type: ignore[arg-type]
    assert not (tmp_path / "c").exists()
    with stillhash.open(tmp_path / "c", DIM, BITS) as collection:
        assert collection.lexical_field is None and collection.stats()["lexical_field"] is None
        for search in (collection.lexical_search, lambda words: collection.hybrid_search(QUERY, words)):
            with pytest.raises(Conflict, match="lexical_field"):
                search("ba")
        with pytest.raises(InvalidInput, match="lexical_field"):
            collection.set_lexical_field("labels")


def test_a_reader_sees_the_index_of_its_commit(collection: Collection) -> None:
    with stillhash.open(collection._store.path, read_only=True) as reader:
        assert reader.lexical_search("ba", 1).hits
        collection.set_lexical_field(None)
        with pytest.raises(Conflict):
            reader.lexical_search("ba")
        reports: list[tuple[int, int]] = []
        assert collection.set_lexical_field("text", progress=lambda *report: reports.append(report)) == ROWS
        assert reports == [(ROWS, ROWS)]
        assert reader.lexical_search("ba").hits == collection.lexical_search("ba").hits
        with pytest.raises(Conflict):
            reader.set_lexical_field(None)
    assert [entry.what for entry in collection.audit(limit=2)] == ["set_lexical_field None", "set_lexical_field text"]


def test_an_interrupted_change_of_the_field_changes_nothing(collection: Collection) -> None:
    before = collection.lexical_search("ba").hits
    with pytest.raises(KeyboardInterrupt):
        collection.set_lexical_field("n.other", progress=interrupt)
    assert collection.lexical_search("ba").hits == before and collection.verify() == []


def interrupt(done: int, total: int) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("verb", ["forget", "compact"])
def test_no_file_holds_words_of_items_that_are_gone(tmp_path: Path, verb: str) -> None:
    path, secret = tmp_path / "c", "qsecretword"  # no other word begins with q, so that FTS5 stores all of it
    X = some_rows(ROWS).X
    with stillhash.open(path, DIM, BITS, init=X, lexical_field="text") as collection:
        for start in range(0, ROWS, 40):  # several parts of the index
            entries = [{"text": f"{text} {secret if start else ''}"} for text in texts(40, start)]
            collection.add(range(start, start + 40), X[start : start + 40], metadata=entries)
        collection.update_metadata(range(40, 80), {"text": "other words"})
        assert len(collection.lexical_search(secret, ROWS).hits) == ROWS - 80
        if verb == "forget":
            assert collection.forget(range(80, ROWS)).items == ROWS - 80
        else:
            collection.delete(range(80, ROWS))
            collection.compact()
        assert collection.verify() == [] and collection.lexical_search(secret).hits == []
    assert not [file for file in path.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()]
    with stillhash.open(path) as collection:
        collection.add(["more"], X[:1], metadata=[{"text": secret}])
    assert secret.encode() in (path / "store.db").read_bytes().replace(json.dumps(secret).encode(), b"")


def test_a_bulk_load_indexes_words(template: Path, tmp_path: Path) -> None:
    hasher = stillhash.LSH(BITS).fit(some_rows(ROWS).X)
    settings = {"init_rows": 300, "learn_rows": 40, "keep_versions": 5, "source_cap": 10.0, "filter_fields": None}
    settings |= {"encoder": None, "lexical_field": "text"}
    bulk_load(tmp_path / "c", hasher, [], id=bytes(16), source="x", learnt=0, settings=settings)
    with stillhash.open(tmp_path / "c") as collection:
        assert collection.lexical_field == "text" and collection.lexical_search("ba").hits == []


def test_sqlite_creates_the_tables_that_a_store_may_have() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(LEXICAL_SCHEMA)
        assert dict(connection.execute("SELECT name, sql FROM sqlite_master")) == LEXICAL_TABLES


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE lexical", "CREATE TABLE lexical (words)"],
        ["DROP TABLE lexical", "CREATE VIRTUAL TABLE lexical USING fts5(words)"],
        ["DROP TABLE lexical", "CREATE VIRTUAL TABLE lexical USING fts5(words, content='items')"],
        ["DROP TABLE lexical", "CREATE TABLE 'lexical_data'(id INTEGER PRIMARY KEY, block BLOB)"],
        ["CREATE VIRTUAL TABLE more USING fts5(words)"],
        ["CREATE TABLE lexical_content (id INTEGER PRIMARY KEY, c0)"],
        ["CREATE TRIGGER more AFTER INSERT ON lexical_docsize BEGIN DELETE FROM items; END"],
    ],
)
def test_other_tables_in_its_place_are_refused(template: Path, tmp_path: Path, statements: list[str]) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    edit(path, *statements)
    with pytest.raises(BadState, match="expected the tables of a collection"):
        stillhash.open(path, read_only=True)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE lexical",
        "UPDATE meta SET value = 3 WHERE key = 'lexical_field'",
        "UPDATE lexical_data SET block = zeroblob(8)",
        "UPDATE lexical_data SET block = x'ff' || randomblob(900) WHERE id > 10",
        "DELETE FROM lexical_docsize",
        "UPDATE lexical_config SET v = 9",
    ],
)
def test_a_hostile_index_raises_nothing_but_our_errors(template: Path, tmp_path: Path, statement: str) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    edit(path, statement)
    with stillhash.open(path) as collection:
        assert collection.verify() != []
        with suppress(BadState):
            assert len(collection.lexical_search("ba mio").hits) <= 10
        assert collection.search(QUERY, 3).hits
        with suppress(StillhashError):
            collection.delete(list(range(ROWS)))


@pytest.mark.parametrize("row", [3, ROWS + 9])
def test_repair_builds_an_index_with_other_words_again(template: Path, tmp_path: Path, row: int) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    with stillhash.open(path) as collection:
        before = collection.lexical_search("ba mio", ROWS).hits
    command = "'delete', 3, 'ba'" if row == 3 else f"NULL, {row}, 'ba'"
    edit(path, f"INSERT INTO lexical (lexical, rowid, words) VALUES ({command})")
    with stillhash.open(path) as collection:
        assert any("lexical index" in problem for problem in collection.verify())
    assert "store.db: the lexical index was built again" in stillhash.repair(path).actions
    with stillhash.open(path) as collection:
        assert collection.verify() == [] and collection.lexical_search("ba mio", ROWS).hits == before


def test_without_fts5_it_is_refused(collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexical, "LEXICAL_SCHEMA", LEXICAL_SCHEMA.replace("fts5", "absent"))
    lexical.has_fts5.cache_clear()
    try:
        with pytest.raises(Unsupported, match="FTS5"):
            stillhash.open(tmp_path / "new", DIM, BITS, lexical_field="text")
        assert not (tmp_path / "new").exists()
        with pytest.raises(Unsupported, match="FTS5"):
            collection.lexical_search("ba")
        with pytest.raises(Unsupported, match="FTS5"):
            collection.add(["new"], some_rows(1).X, metadata=[{"text": "ba"}])
        assert collection.count() == ROWS and collection.search(QUERY).hits
    finally:
        monkeypatch.undo()
        lexical.has_fts5.cache_clear()
    assert collection.lexical_search("ba").hits and collection.verify() == []
