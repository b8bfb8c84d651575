"""Split long texts into overlapping chunks of words, which end with a sentence or a paragraph where they can.

Chunks cover a text completely, white space included, and their offsets are exact: text[start:end] is the chunk.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from stillhash.errors import InvalidInput, WrongType
from stillhash.numeric.validation import check_choice, check_integer

DEFAULT_CHUNK, DEFAULT_OVERLAP = 200, 20  # words
MAX_CHUNK_WORDS = 8192
MAX_CHUNK_CHARACTERS = 1 << 16  # as JSON, even of rare characters, it fits into the metadata of an item
CHUNK_ENDS = ("words", "sentences", "paragraphs")
# A word with the white space behind it. Both are bounded, so that a text without any of either is split too.
WORD_OF_CHUNK = re.compile(r"\S{1,256}\s{0,256}|\s{1,256}")
PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*\Z")
SENTENCE_END = re.compile("[.!?\u2026\u3002\uff01\uff1f][\"'\u201d\u2019\u00bb)\\]]*\\s*\\Z|\n[^\\S\n]*\n\\s*\\Z")


class TextChunk(NamedTuple):
    """A part of a text: text[start:end]."""

    start: int
    end: int
    text: str


def split_text(
    text: str,
    size: int = DEFAULT_CHUNK,
    overlap: int = DEFAULT_OVERLAP,
    *,
    by: str = "sentences",
    start: int = 0,
) -> Iterator[TextChunk]:
    """Yield chunks of at most `size` words, each of which repeats the last `overlap` words of the one before.

    by : where a chunk that is followed by another should end, as long as it has half of its words: with a sentence, or
        with a paragraph if it can and else with a sentence. "words" fills every chunk.
    start : leave out what comes before.

    A chunk has at most 65,536 characters, and words of more than 256 characters are cut. An empty text has no chunk.
    """
    if not isinstance(text, str):
        raise WrongType(f"text: expected a string, got {type(text).__name__}")
    check_chunks(size, overlap)
    check_choice(by, "by", choices=CHUNK_ENDS)
    while start < len(text):
        ends = _word_ends(text, start, size)
        count = len(ends)
        if ends[-1] < len(text):
            count = _best_end(text, start, ends, by)
        yield TextChunk(start, ends[count - 1], text[start : ends[count - 1]])
        if ends[count - 1] == len(text):
            return
        start = ends[count - 1 - min(overlap, count // 2)]


def check_chunks(size: int, overlap: int) -> None:
    """Check the numbers of words of a chunk and of its overlap."""
    check_integer(size, "chunk", 1, MAX_CHUNK_WORDS)
    check_integer(overlap, "overlap", 0)
    if 2 * overlap > size:
        raise InvalidInput(f"overlap: expected at most half of the {size} words of a chunk, got {overlap}")


def _word_ends(text: str, start: int, size: int) -> list[int]:
    """Return the ends of the next words: at least one, at most `size`, in at most MAX_CHUNK_CHARACTERS."""
    ends = [match.end() for match in islice(WORD_OF_CHUNK.finditer(text, start), size)]
    while len(ends) > 1 and ends[-1] - start > MAX_CHUNK_CHARACTERS:
        ends.pop()
    return ends


def _best_end(text: str, start: int, ends: list[int], by: str) -> int:
    """Return how many of these words to take: up to the last end of a paragraph or sentence in the second half."""
    patterns = {"words": (), "sentences": (SENTENCE_END,), "paragraphs": (PARAGRAPH_END, SENTENCE_END)}[by]
    for pattern in patterns:
        for count in range(len(ends), len(ends) // 2, -1):
            word = text[ends[count - 2] if count > 1 else start : ends[count - 1]]
            if pattern.search(word):
                return count
    return len(ends)
