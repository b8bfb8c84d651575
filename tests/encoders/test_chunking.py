"""Chunks cover a text, their offsets are exact, and they end where sentences do."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.collection.validation import MAX_METADATA_BYTES
from stillhash.encoders import split_text
from stillhash.encoders.documents import CHUNK_ENDS, MAX_CHUNK_CHARACTERS, WORD_OF_CHUNK
from stillhash.errors import InvalidInput, WrongType

PIECES = st.sampled_from(
    ["word", " ", "\n", "\n\n", ".", "! ", "。", '."', "x" * 700, " " * 600, "\r\n", "é", "🚤", "\0"]
)
ANY_TEXT = st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=80).map("".join))


@st.composite
def chunk_sizes(draw: st.DrawFn) -> tuple[int, int]:
    size = draw(st.integers(1, 12))
    return size, draw(st.integers(0, size // 2))


@settings(max_examples=300, deadline=None)
@given(text=ANY_TEXT, sizes=chunk_sizes(), by=st.sampled_from(CHUNK_ENDS), skipped=st.integers(0, 5))
def test_chunks_cover_the_text_and_offsets_are_exact(text: str, sizes: tuple[int, int], by: str, skipped: int) -> None:
    chunks = list(split_text(text, *sizes, by=by, start=skipped))
    assert all(text[chunk.start : chunk.end] == chunk.text and chunk.text for chunk in chunks)
    assert bool(chunks) == (len(text) > skipped)
    if chunks:
        assert chunks[0].start == skipped and chunks[-1].end == len(text)
    for one, after in pairwise(chunks):
        assert one.start < after.start <= one.end < after.end
        assert len(WORD_OF_CHUNK.findall(text[after.start : one.end])) <= sizes[1]
    assert all(len(WORD_OF_CHUNK.findall(chunk.text)) <= sizes[0] for chunk in chunks)


@settings(max_examples=100, deadline=None)
@given(text=ANY_TEXT, size=st.integers(1, 12))
def test_without_overlap_chunks_follow_each_other(text: str, size: int) -> None:
    assert "".join(chunk.text for chunk in split_text(text, size, 0)) == text


def test_where_chunks_end() -> None:
    text = "One two three. Four five six seven.\n\nEight nine ten eleven twelve. " + "more " * 8
    ends = {by: [chunk.text for chunk in split_text(text, 9, 0, by=by)] for by in CHUNK_ENDS}
    assert ends["words"][0].split()[-1] == "nine"
    assert ends["sentences"][0].endswith("seven.\n\n") and ends["sentences"][1].endswith("twelve. ")
    assert ends["paragraphs"][0].endswith("seven.\n\n")
    first, second, *_ = split_text("a b c d e f g h", 4, 2)
    assert (first.text, second.text) == ("a b c d ", "c d e f ")


def test_endless_words_and_spaces_are_bounded() -> None:
    for text in ("x" * 300_000, " " * 300_000, "🚤" * 200_000):
        chunks = list(split_text(text, 8192, 100))
        assert max(len(chunk.text) for chunk in chunks) <= MAX_CHUNK_CHARACTERS
        assert all(len(json.dumps(chunk.text)) < MAX_METADATA_BYTES for chunk in chunks)
        assert chunks[-1].end == len(text)


@pytest.mark.parametrize(
    "options", [{"size": 0}, {"size": 10**6}, {"overlap": -1}, {"size": 10, "overlap": 6}, {"by": "pages"}]
)
def test_bad_sizes_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"^(chunk|overlap|by)"):
        list(split_text("a b c", **options))
    with pytest.raises(WrongType, match=r"^text"):
        list(split_text(b"bytes"))  # type: ignore[arg-type]
