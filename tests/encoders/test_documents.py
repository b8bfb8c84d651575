"""Files and tables as documents: encodings, tags, labels, columns, and files that are refused."""

from __future__ import annotations

import codecs
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash.encoders import BrokenDocument, Document, decode_text, folder_documents, read_text, table_documents
from stillhash.encoders.documents import read_front_matter
from stillhash.errors import InvalidInput, NotFound, StillhashError, TooLarge


@given(st.text().filter(lambda text: "\0" not in text))
def test_what_is_encoded_is_decoded(text: str) -> None:
    assert decode_text(codecs.BOM_UTF8 + text.encode(), "x") == text
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        assert decode_text(mark + text.encode(encoding), "x") == text
    if not text.startswith("\ufeff"):
        assert decode_text(text.encode(), "x") == text


@given(st.binary(max_size=60))
def test_any_bytes_are_text_or_refused(data: bytes) -> None:
    for encoding in ("utf-8", "latin-1"):
        try:
            text = decode_text(data, "x", encoding=encoding)
        except InvalidInput as error:
            assert str(error).startswith("x: expected")
        else:
            assert "\0" not in text and text.encode() is not None


def test_other_encodings() -> None:
    cafe = "café".encode("latin-1")
    with pytest.raises(InvalidInput, match=r"^x: expected UTF-8.*byte 3"):
        decode_text(cafe, "x")
    assert decode_text(cafe, "x", encoding="latin-1") == decode_text("café".encode(), "x", encoding="latin-1") == "café"
    for binary in (b"GIF89a\0\0", "text".encode("utf-16-le"), codecs.BOM_UTF32_LE + "text".encode("utf-32-le")):
        with pytest.raises(InvalidInput, match=r"^x: expected"):
            decode_text(binary, "x")
    with pytest.raises(InvalidInput, match=r"^encoding"):
        decode_text(b"", "x", encoding="cp1252")


def test_files_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 100)
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    assert len(read_text(tmp_path / "a.txt", max_bytes=100)) == 100
    for name, error in (("a.txt", TooLarge), ("loop.txt", InvalidInput), ("pipe.txt", InvalidInput), ("no", NotFound)):
        with pytest.raises(error):
            read_text(tmp_path / name, max_bytes=99)


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("---\ntags: [cats, 'big dogs', cats]\ntitle: x\n---\nbody", ["cats", "big dogs"]),
        ("---\ntitle: x\nTags: cats, dogs  # both\n---\nbody", ["cats", "dogs"]),
        ('---\r\ntags:\r\n  - cats\r\n  - "dogs"\r\nother: 1\r\n---\r\nbody', ["cats", "dogs"]),
        ("---\ntags:\n- c#\n...\nbody", ["c#"]),
        ("---\ntags: []\n---\nbody", []),
        ("---\ntitle: no tags\n---\nbody", None),
    ],
)
def test_tags_of_markdown(text: str, tags: list[str] | None) -> None:
    front = read_front_matter(text)
    assert front.tags == tags and text[front.end :] == "body"


@pytest.mark.parametrize("text", ["", "body", "---\ntags: [a]\nno end", "text\n---\ntags: [a]\n---\n", "-----\n---\n"])
def test_without_front_matter(text: str) -> None:
    assert read_front_matter(text) == (0, None)


@given(st.text(alphabet="-\n.tags: [],#'\r", max_size=60))
def test_any_front_matter_is_read(text: str) -> None:
    end, tags = read_front_matter("---\n" + text)
    assert 0 <= end <= len(text) + 4 and all(tags or [])


def documents(folder: Path, **options: Any) -> dict[str, Document | BrokenDocument]:
    return {str(one[0]): one for one in folder_documents(folder, **options)}


def test_a_folder_of_documents(tmp_path: Path) -> None:
    (tmp_path / "pets" / "cats").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "a.txt").write_text("x", encoding="utf-8")
    (tmp_path / "pets" / "loop").symlink_to(tmp_path)
    (tmp_path / "pets" / "cats" / "tom.txt").write_text("A cat.", encoding="utf-8")
    (tmp_path / "pets" / "rex.MD").write_text("---\ntags: [dog]\n---\nA dog.", encoding="utf-8")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    read = documents(tmp_path)
    assert list(read) == ["bad.txt", "pets/cats/tom.txt", "pets/rex.MD"]
    tom, rex = read["pets/cats/tom.txt"], read["pets/rex.MD"]
    assert isinstance(tom, Document) and tom.labels == ["pets", "cats"] and tom.text == "A cat."
    assert isinstance(rex, Document) and rex.labels == ["dog"] and rex.text[rex.start :] == "A dog."
    assert rex.progress == 1.0 and isinstance(read["bad.txt"], BrokenDocument)
    assert isinstance(documents(tmp_path, encoding="latin-1")["bad.txt"], Document)
    for labels, expected in (("folders", ["pets"]), ("tags", ["dog"]), ("none", [])):
        one = documents(tmp_path, labels=labels)["pets/rex.MD"]
        assert isinstance(one, Document) and one.labels == expected
    (tmp_path / "labels.csv").write_text("file,labels\ntom.txt,grey|old\n", encoding="utf-8")
    tom = documents(tmp_path)["pets/cats/tom.txt"]
    assert isinstance(tom, Document) and tom.labels == ["grey", "old"]
    with pytest.raises(InvalidInput, match=r"^labels"):
        folder_documents(tmp_path, labels="sidecar")


ROWS: list[dict[str, Any]] = [
    {"key": "a", "body": "One text.", "topics": ["x", "y"], "year": 1990},
    {"key": "b", "body": "Two\nlines, and a comma.", "topics": "x, z", "year": 1991},
    {"key": "c", "body": None, "topics": [], "year": None},
]


def write_table(folder: Path, kind: str) -> Path:
    path = folder / f"docs.{kind}"
    if kind == "jsonl":
        path.write_text("\ufeff" + "\n\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    elif kind == "csv":
        lines = ['a,One text.,"x,y",1990', 'b,"Two\nlines, and a comma.","x, z",1991', "too,few"]
        path.write_text("key,body,topics,year\n" + "\n".join(lines), encoding="utf-8")
    else:
        pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        rows = [row | {"topics": ", ".join(row["topics"]) if row["key"] == "a" else row["topics"]} for row in ROWS[:2]]
        table = pyarrow.Table.from_pylist([*rows, ROWS[2] | {"topics": None}])
        pyarrow.parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_table_of_documents(kind: str, tmp_path: Path) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    path = write_table(tmp_path, kind)
    one, two, broken = table_documents(path, text="body", id="key", label="topics")
    assert isinstance(one, Document) and isinstance(two, Document) and isinstance(broken, BrokenDocument)
    assert (one.id, one.text, one.labels, one.metadata) == ("a", "One text.", ["x", "y"], {"year": 1990})
    assert (two.id, two.text, two.labels) == ("b", ROWS[1]["body"], ["x", "z"])
    assert path.name in broken.name and 0 < one.progress < broken.progress == 1.0
    numbered = next(table_documents(path, text="body", metadata=["year"]))
    assert isinstance(numbered, Document) and numbered.id == {"jsonl": 1, "csv": 2, "parquet": 0}[kind]
    assert numbered.metadata == {"year": 1990} and numbered.labels == []
    for wrong in ({"text": "text"}, {"text": "body", "id": "no"}):
        with pytest.raises(InvalidInput, match=r"^docs\.\w+: columns"):
            list(table_documents(path, **wrong))


def test_columns_that_indexing_writes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text('{"id": 1, "body": "b", "text": "t"}', encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"columns.*'text'"):
        list(table_documents(path, text="body"))
    with pytest.raises(InvalidInput, match=r"columns.*'start'"):
        table_documents(path, text="body", metadata=["start"])
    (one,) = table_documents(path, text="body", metadata=[])
    assert isinstance(one, Document) and one.metadata == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b"[1]"),
        ("a.jsonl", b'{"text": "a"'),
        ("a.jsonl", b'{"text": "\xff"}'),
        ("a.jsonl", b"[" * 900),
        ("a.csv", b'id,text\n1,"open'),
        ("a.csv", b'id,text\n1,"open' + b"x\n" * 600),
        ("a.csv", b"id,text\n1," + b"x" * 2000),
        ("a.csv", b"\xff\xfet\0e\0"),
        ("a.csv", b""),
        ("a.parquet", b"PAR1"),
        ("a.pdf", b"%PDF"),
    ],
)
def test_damaged_tables_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StillhashError, match=r"^a\."):
        list(table_documents(tmp_path / name, max_bytes=1000))


def test_endless_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"id": name, "text": text}) for name, text in (("a", "x"), ("b", "x" * 5000), ("c", "y"))]
    path.write_text("\n".join(lines), encoding="utf-8")
    one, broken, last = table_documents(path, max_bytes=1000)
    assert isinstance(broken, BrokenDocument) and "1,000 bytes" in broken.reason and broken.name == "a.jsonl, line 2"
    assert (one[0], last[0]) == ("a", "c")


@pytest.mark.parametrize("bad", [{"id": None}, {"id": 1.5}, {"id": True}, {"id": [1]}, {"text": 5}, {"text": ["x"]}])
def test_rows_without_an_id_or_text_are_reported(bad: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": 1, "text": "x"} | bad), encoding="utf-8")
    (one,) = table_documents(path)
    assert isinstance(one, BrokenDocument) and "expected" in one.reason
