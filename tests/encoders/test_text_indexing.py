"""Documents into collections: new, changed and unchanged ones, several chunks, hostile files, and stops on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stillhash
from stillhash.encoders import (
    Document,
    TextIndexReport,
    align_texts,
    folder_documents,
    index_documents,
    open_encoder,
    open_query_encoder,
)
from stillhash.encoders.indexing import COMMIT_CHUNKS, MAX_BROKEN
from stillhash.errors import Conflict, InvalidInput

WORDS = open_encoder("words")


def new(path: Path) -> stillhash.Collection:
    return stillhash.open(path, encoder=WORDS, init_rows=300)


def document(name: str | int, words: int, labels: list[Any] | None = None, **metadata: Any) -> Document:
    return Document(name, " ".join(f"{name}-{n}" for n in range(words)), labels or [], metadata)


def index(collection: stillhash.Collection, *documents: Document, chunk: int = 10, **more: Any) -> TextIndexReport:
    return index_documents(documents, collection, WORDS, chunk=chunk, overlap=2, **more)


def counts(report: TextIndexReport) -> tuple[int, int, int, int]:
    return report.added, report.updated, report.skipped, report.broken_count


def test_one_chunk_and_several(tmp_path: Path) -> None:
    with new(tmp_path / "c") as collection:
        long = document("long", 30, ["x"], year=1990)
        report = index(collection, document("short", 5, ["y"]), long)
        assert counts(report) == (2, 0, 0, 0) and report.labelled == 2 and report.progress == 1.0
        assert collection.count() == 1 + report.chunks - 1 == 5
        (short,) = collection.get(["short"])
        assert short is not None and short.labels == ["y"]
        assert short.metadata is not None and sorted(short.metadata) == ["content", "text"]
        chunks = collection.get([f"long#{number}" for number in range(4)])
        for number, item in enumerate(chunks):
            assert item is not None and item.labels == ["x"] and item.metadata is not None
            own = item.metadata
            assert (own["document"], own["chunk"], own["chunks"], own["year"]) == ("long", number, 4, 1990)
            assert own["text"] == long.text[own["start"] : own["end"]]


def test_a_second_run_takes_only_what_is_new_or_changed(tmp_path: Path) -> None:
    with new(tmp_path / "c") as collection:
        index(collection, document("a", 5), document(7, 30), document("c", 30))
        collection.relabel(["a"], [["by hand"]])
        changed = [document("a", 5), document(7, 31), document("c", 30, ["x"]), document("d", 1)]
        assert counts(index(collection, *changed)) == (1, 2, 1, 0)
        assert counts(index(collection, *changed)) == (0, 0, 4, 0)
        (item,) = collection.get(["a"])
        assert item is not None and item.labels == ["by hand"]
        assert counts(index(collection, *changed, chunk=12)) == (0, 4, 0, 0)  # other chunks are other items


@pytest.mark.medium
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 45), min_size=1, max_size=6))
def test_no_chunk_of_an_earlier_version_is_left(lengths: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    with new(tmp_path_factory.mktemp("c") / "c") as collection:
        for words in lengths:
            index(collection, document("other", 25), document("d", words))
        with new(tmp_path_factory.mktemp("f") / "c") as fresh:
            index(fresh, document("other", 25), document("d", lengths[-1]))
            assert collection.ids() == fresh.ids()
            assert [item and item.metadata for item in collection.get(fresh.ids())] == [
                item and item.metadata for item in fresh.get(fresh.ids())
            ]


class _Stop(Exception):
    pass


@pytest.mark.parametrize(("before", "after"), [(30, 5), (5, 30), (45, 30)])
def test_a_stop_before_old_chunks_are_deleted_is_repaired(before: int, after: int, tmp_path: Path) -> None:
    def stop(*_: Any) -> int:
        raise _Stop

    with new(tmp_path / "c") as collection:
        index(collection, document("d", before))
        collection.delete = stop  # type: ignore[assignment,method-assign]
        with pytest.raises(_Stop):
            index(collection, document("d", after))
        del collection.delete
        left = collection.count()
        assert counts(index(collection, document("d", after))) == (0, 0, 1, 0) and collection.count() < left
        with new(tmp_path / "fresh") as fresh:
            index(fresh, document("d", after))
            assert collection.ids() == fresh.ids()


def test_what_is_stored_before_a_stop_stays(tmp_path: Path) -> None:
    def stream() -> Iterator[Document]:
        yield from (document(n, 3) for n in range(COMMIT_CHUNKS + 50))
        raise KeyboardInterrupt

    with new(tmp_path / "c") as collection:
        with pytest.raises(KeyboardInterrupt):
            index_documents(stream(), collection, WORDS)
        assert collection.count() == COMMIT_CHUNKS
        done = index(collection, *(document(n, 3) for n in range(COMMIT_CHUNKS + 50)), chunk=200)
        assert done.added >= 50 and collection.count() == COMMIT_CHUNKS + 50


def test_the_last_of_equal_ids_counts(tmp_path: Path) -> None:
    with new(tmp_path / "c") as collection:
        done = index(collection, document("a", 30), Document("a", "last", [], {}), document("a#0", 2))
        assert counts(done) == (1, 2, 0, 0) and collection.ids() == ["a", "a#0"]
        (item,) = collection.get(["a"])
        assert item is not None and item.metadata is not None and item.metadata["text"] == "last"


def test_one_bad_document_does_not_cost_the_others_theirs(tmp_path: Path) -> None:
    bad = [
        Document("", "no id", [], {}),
        Document("line\nbreak", "id", [], {}),
        Document("x" * 1001, "long id", [], {}),
        Document("label", "bad label", [{"a": 1}], {}),
        Document("deep", "bad metadata", [], {"x": float("nan")}),
        Document("large", "large metadata", [], {"x": "y" * (1 << 20)}),
        Document("surrogate", "half \ud800", [], {}),
        Document("empty", "", [], {}),
        Document("space", " \n\t ", [], {}),
        Document("front", "---\n---\n", [], {}, 8),
    ]
    with new(tmp_path / "c") as collection:
        good = [document(f"good-{n}", 5) for n in range(5)]
        done = index(collection, *good[:2], *bad, *good[2:])
        assert counts(done) == (5, 0, 0, len(bad)) and collection.count() == 5
        assert set(done.broken) == {str(one.id) for one in bad} and all(done.broken.values())


def test_without_chunks(tmp_path: Path) -> None:
    with new(tmp_path / "c") as collection:
        done = index(collection, document("a", 500), document("b", 30_000), chunk=0)
        assert counts(done) == (1, 0, 0, 1) and "without chunks" in done.broken["b"] and collection.ids() == ["a"]
        with pytest.raises(InvalidInput, match=r"^chunk"):
            index(collection, chunk=-1)


def test_reports_are_bounded(tmp_path: Path) -> None:
    with new(tmp_path / "c") as collection:
        done = index(collection, *(Document(n, "", [], {}) for n in range(MAX_BROKEN + 5)))
        assert done.broken_count == MAX_BROKEN + 5 == done.documents and len(done.broken) == MAX_BROKEN


def test_a_folder_of_hostile_files(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "up").symlink_to(folder)
    contents = {
        "good.txt": b"A good text.",
        "bom.txt": b"\xef\xbb\xbfWith a mark.",
        "utf16.txt": "In sixteen bits.".encode("utf-16"),
        "latin.txt": b"caf\xe9",
        "binary.md": b"\x7fELF\0\0",
        "huge.txt": b"x " * 600,
        "empty.txt": b"",
        "space.md": b" \n \n",
        "tags.md": b"---\ntags: [a]\n---\n",
        "odd\x01name.txt": b"text",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "self.txt").symlink_to("self.txt")
    (folder / "zero.txt").symlink_to("/dev/zero")
    with new(tmp_path / "c") as collection:
        done = index_documents(folder_documents(folder, max_bytes=1000), collection, WORDS)
        assert collection.ids() == ["bom.txt", "good.txt", "utf16.txt"] and done.added == 3
        assert done.broken_count == len(contents) - 3 + 2 == len(done.broken)


def test_queries_by_text(tmp_path: Path) -> None:
    topics = {"parcel": "parcel courier late address", "login": "password reset account code"}
    documents = [
        Document(f"{topic}-{n}", f"{words} ticket {n}", [topic], {})
        for n in range(20)
        for topic, words in topics.items()
    ]
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    from tests.encoders.text_models import write_static

    other = f"static:{write_static(tmp_path / 'model')}"
    with new(tmp_path / "c") as collection:
        index(collection, *documents)
        encoder = open_query_encoder(collection)
        assert encoder.has_text and not encoder.has_images
        hits = collection.search(encoder.text("the courier lost a parcel"), 5).hits
        assert {tuple(hit.labels) for hit in hits} == {("parcel",)}
        with pytest.raises(InvalidInput, match=r"^query: expected a text"):
            encoder.image(b"\x89PNG")
        with pytest.raises(Conflict, match=r"^encoder"):
            open_query_encoder(collection, other)
        assert align_texts(collection, other, 30)["pairs"] == 30
        assert open_query_encoder(collection, other).text("parcel").shape == (collection.dim,)
    with stillhash.open(tmp_path / "v", 4) as vectors:
        for call in (lambda: open_query_encoder(vectors), lambda: align_texts(vectors, "words")):
            with pytest.raises(InvalidInput, match=r"^encoder"):
                call()


def test_files_and_tables_are_indexed_by_the_query_encoder(tmp_path: Path) -> None:
    folder, shares = tmp_path / "texts", list[tuple[float, int]]()
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "a.md").write_text("a cat on a mat", encoding="utf-8")
    (folder / "bad.txt").write_bytes(b"\xff\xfe\xfd")
    rows = '{"id": "r", "text": "a dog", "labels": ["dog"]}\n{"id": "s"}\n'
    (folder / "rows.jsonl").write_text(rows, encoding="utf-8")
    files = ["bad.txt", "notes/a.md", "rows.jsonl"]
    with new(tmp_path / "c") as collection:
        encoder = open_query_encoder(collection)
        report = encoder.index_files(folder, files, progress=lambda share, count: shares.append((share, count)))
        assert collection.ids() == ["notes/a.md", "r"]
        assert [item and item.labels for item in collection.get(["notes/a.md", "r"])] == [["notes"], ["dog"]]
        assert (report["files"], report["added"], report["broken_count"]) == (4, 2, 2)
        assert sorted(report["broken"]) == ["bad.txt", "rows.jsonl, line 2"] and str(tmp_path) not in str(report)
        assert shares == [(1.0, 2)]
        assert encoder.index_files(folder, files)["skipped"] == 2
        (folder / "wrong.csv").write_text("id,body\n1,2\n", encoding="utf-8")
        with pytest.raises(InvalidInput, match=r"^wrong.csv"):
            encoder.index_files(folder, ["wrong.csv"])
