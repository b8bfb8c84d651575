"""Show texts: the passage with most words of a query, cut to a bounded length, with these words marked."""

import re
import unicodedata
from collections import Counter
from typing import NamedTuple

from stillhash.collection import Item
from stillhash.collection.types import TEXT_FIELD

PASSAGE_LENGTH, LEAD_LENGTH = 320, 80  # characters of a passage, and of those before its first match
MAX_SCANNED = 100_000  # characters of a text in which words are looked for
MAX_DOCUMENT_LENGTH = 200  # characters of the name of a document
TOKEN = re.compile(r"[^\W_]+")


class PassagePart(NamedTuple):
    text: str
    marked: bool


class TextHit(NamedTuple):
    """What a page shows of an item with a text."""

    parts: list[PassagePart]
    document: str | None  # that it is a chunk of
    chunk: int | None  # from 0


def text_hit(item: Item, words: str | None = None, field: str | None = None) -> TextHit | None:
    """Return the passage of an item's text to show, where this field, or else `text`, of its metadata is a text."""
    metadata = item.metadata or {}
    text = next((metadata[name] for name in (field, TEXT_FIELD) if name and isinstance(metadata.get(name), str)), None)
    if text is None:
        return None
    document, chunk = metadata.get("document"), metadata.get("chunk")
    name = str(document)[:MAX_DOCUMENT_LENGTH] if isinstance(document, (str, int)) else None
    return TextHit(cut_passage(text, words), name, chunk if type(chunk) is int else None)


def cut_passage(text: str, words: str | None) -> list[PassagePart]:
    """Return the passage with most of these words, in parts; the first of equal ones, without any the beginning."""
    known = {_fold(token) for token in TOKEN.findall(words or "")}
    scanned = " ".join(text[:MAX_SCANNED].split())
    matches = [match.span() for match in TOKEN.finditer(scanned) if _fold(match[0]) in known] if known else []
    start = _start_of_word(scanned, _best_match(scanned, matches) - LEAD_LENGTH) if matches else 0
    end = _end_of_word(scanned, start, start + PASSAGE_LENGTH)
    parts, last = [PassagePart("… ", False)] * (start > 0), start
    for first, stop in matches:
        if first < start:
            continue
        if first >= end:
            break
        parts += [PassagePart(scanned[last:first], False), PassagePart(scanned[first : min(stop, end)], True)]
        last = min(stop, end)
    parts.append(PassagePart(scanned[last:end] + ("…" if end < len(scanned) or len(text) > MAX_SCANNED else ""), False))
    return [part for part in parts if part.text]


def _best_match(text: str, matches: list[tuple[int, int]]) -> int:
    """Return where the match begins from which on a passage holds most different words; the first of equal ones."""
    words = [_fold(text[first:stop]) for first, stop in matches]
    counts: Counter[str] = Counter()
    best, most, end = 0, 0, 0
    for at, (first, _) in enumerate(matches):
        while end < len(matches) and matches[end][1] <= first + PASSAGE_LENGTH - LEAD_LENGTH:
            counts[words[end]] += 1
            end += 1
        if len(counts) > most:
            best, most = first, len(counts)
        counts[words[at]] -= 1
        if counts[words[at]] <= 0:
            del counts[words[at]]
        end = max(end, at + 1)
    return best if most else matches[0][0]


def _start_of_word(text: str, place: int) -> int:
    """Return where the word after this place begins; 0 if the text begins there or later."""
    return 0 if place <= 0 else text.find(" ", place) + 1


def _end_of_word(text: str, start: int, place: int) -> int:
    """Return where the last word that ends by this place ends; the place itself if there is none."""
    if place >= len(text):
        return len(text)
    end = text.rfind(" ", start, place + 1)
    return end if end > start else place


def _fold(word: str) -> str:
    """Return a word without case and accents."""
    plain = unicodedata.normalize("NFKD", word)
    return "".join(mark for mark in plain if not unicodedata.combining(mark)).casefold()
