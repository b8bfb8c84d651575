"""Targets of texts: files and tables that are split and encoded."""

from __future__ import annotations

import codecs
import io
import json
import math

from stillhash.encoders import Document, decode_text, open_encoder, split_text, table_documents
from stillhash.encoders.documents import read_front_matter
from tests.fuzz.engine import Target
from tests.fuzz.file_targets import write
from tests.fuzz.input_targets import line_mutation

MARKDOWN = "---\ntags: [a, 'b c']\ntitle: x\n---\n# Title\n\nA text. It has “sentences”! 小包。\n\nAnd more.\n"
MAX_LINE_BYTES = 1 << 16
ROWS = [{"id": n, "text": f"text {n}, and more", "labels": ["a", "b"], "year": 1990 + n} for n in range(5)]


def check_text(text: str, start: int = 0) -> None:
    """Split and encode a text."""
    chunks = list(split_text(text, 7, 3, by="paragraphs", start=start))
    assert all(text[chunk.start : chunk.end] == chunk.text for chunk in chunks)
    assert not chunks or (chunks[0].start, chunks[-1].end) == (start, len(text))
    features = open_encoder("words").encode_texts([chunk.text for chunk in chunks[:20]])
    assert all(math.isfinite(value) for value in features.ravel().tolist())


def run_text(data: bytes) -> None:
    text = decode_text(data, "text")
    front = read_front_matter(text)
    assert 0 <= front.end <= len(text) and all(front.tags or [])
    check_text(text, front.end)


def run_text_table(suffix: str, data: bytes) -> None:
    path = write(f"texts{suffix}", data)
    for document in table_documents(path, max_bytes=MAX_LINE_BYTES, metadata=["year"]):
        if isinstance(document, Document) and document.text.isprintable():
            check_text(document.text)


def text_files() -> list[bytes]:
    marks = [(b"", "utf-8"), (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le")]
    return [mark + MARKDOWN.encode(encoding) for mark, encoding in marks]


def text_tables() -> list[bytes]:
    rows = [f'{row["id"]},"{row["text"]}","a, b",{row["year"]}' for row in ROWS]
    return ["\n".join(["id,text,labels,year", *rows]).encode()]


def text_parquet_files() -> list[bytes]:
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    return [file.getvalue()]


TEXT_TARGETS = [
    Target("text", run_text, text_files),
    Target(
        "text-jsonl",
        lambda data: run_text_table(".jsonl", data),
        lambda: ["\n".join(map(json.dumps, ROWS)).encode()],
        line_mutation,
    ),
    Target("text-csv", lambda data: run_text_table(".csv", data), text_tables),
    Target("text-parquet", lambda data: run_text_table(".parquet", data), text_parquet_files),
]
