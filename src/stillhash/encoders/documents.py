"""Documents: texts with an id, labels and metadata, from text and Markdown files of a folder, or from tables.

Text is UTF-8, or UTF-16 with a byte order mark; all else is refused rather than guessed. Markdown files have tags in
the entry `tags` of the block between --- lines at the beginning: `tags: [cats, dogs]`, `tags: cats, dogs`, or a list of
`- cats` lines below `tags:`. Tables are .jsonl, .csv and .parquet files with a column of texts.

Long texts are split into overlapping chunks of words, which end with a sentence or a paragraph where they can. Chunks
cover a text completely, white space included, and their offsets are exact: text[start:end] is the chunk.
"""

import codecs
import csv
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from stillhash.collection.types import Id
from stillhash.encoders.base import read_bytes
from stillhash.errors import InvalidInput, StillhashError, WrongType
from stillhash.io import LabelSource, list_texts, open_labels
from stillhash.io.arrow import open_parquet, plain
from stillhash.io.rows import (
    ID_NAMES,
    LABELS_NAMES,
    integer_or_text,
    is_missing,
    number_or_text,
    parse_json,
    parse_labels,
    reading,
)
from stillhash.numeric.validation import check_choice, check_integer

MAX_TEXT_BYTES = 16 << 20  # is how long a file, or a line of a table, may be
TEXT_ENCODINGS = ("utf-8", "latin-1")
UTF_32_MARK = codecs.BOM_UTF32_LE  # begins like that of UTF-16
MARKDOWN_SUFFIXES = (".md", ".markdown")
MAX_FRONT_MATTER = 1 << 16  # characters; a longer one is part of the text
FRONT_MATTER = re.compile(r"---[^\S\n]*\r?\n(.*?)^(?:---|\.\.\.)[^\S\n]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
TAGS_ENTRY = re.compile(r"^tags[^\S\n]*:(.*)", re.MULTILINE | re.IGNORECASE)
TAG_LINE = re.compile(r"\s*-\s+(.*)")
TEXT_TABLE_SUFFIXES = (".jsonl", ".csv", ".parquet")
TEXT_COLUMN = "text"
OWN_FIELDS = ("text", "document", "chunk", "chunks", "start", "end", "content")  # indexing writes these
PARQUET_ROWS = 100  # rows are read at a time
DEFAULT_CHUNK, DEFAULT_OVERLAP = 200, 20  # words
MAX_CHUNK_WORDS = 8192
MAX_CHUNK_CHARACTERS = 1 << 16  # as JSON, even of rare characters, it fits into the metadata of an item
CHUNK_ENDS = ("words", "sentences", "paragraphs")
# A word with the white space behind it. Both are bounded, so that a text without any of either is split too.
WORD_OF_CHUNK = re.compile(r"\S{1,256}\s{0,256}|\s{1,256}")
PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*\Z")
SENTENCE_END = re.compile("[.!?\u2026\u3002\uff01\uff1f][\"'\u201d\u2019\u00bb)\\]]*\\s*\\Z|\n[^\\S\n]*\n\\s*\\Z")


def read_text(path: Path, *, encoding: str = "utf-8", max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read a regular file of at most `max_bytes` and decode it, as `decode_text` does."""
    return decode_text(read_bytes(path, max_bytes), str(path), encoding=encoding)


def decode_text(data: bytes, name: str, *, encoding: str = "utf-8") -> str:
    """Decode UTF-8, with or without a byte order mark, or UTF-16 with one.

    encoding : "latin-1" decodes what is neither of them as Latin-1, in which every byte is a character.

    Text with the character 0 is a binary file, and refused.
    """
    check_choice(encoding, "encoding", choices=TEXT_ENCODINGS)
    try:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not data.startswith(UTF_32_MARK):
            text = data.decode("utf-16")
        else:
            text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if encoding != "latin-1":
            expected = "expected UTF-8, or UTF-16 with a byte order mark"
            raise InvalidInput(f"{name}: {expected}; byte {error.start:,} is neither") from None
        text = data.decode("latin-1")
    if "\0" in text:
        raise InvalidInput(f"{name}: expected text, got a binary file: it has the character 0")
    return text


class Document(NamedTuple):
    """A text to index."""

    id: Id
    text: str
    labels: list[Any]
    metadata: dict[str, Any]
    start: int = 0  # characters before it are not part of any chunk
    progress: float = 0.0  # share of the source read so far


class BrokenDocument(NamedTuple):
    """A file or a row of a table that cannot be indexed, and why."""

    name: str
    reason: str
    progress: float = 0.0


DocumentStream = Iterator[Document | BrokenDocument]


def folder_documents(
    folder: Path,
    *,
    labels: str = "auto",
    files: list[str] | None = None,
    encoding: str = "utf-8",
    max_bytes: int = MAX_TEXT_BYTES,
) -> DocumentStream:
    """Yield the text and Markdown files of a folder and its subfolders; the id of a file is its path in the folder.

    labels : "auto" for the tags of a Markdown file, or else labels.csv, labels.json or labels.jsonl in the folder, or
        else the names of the subfolders; "tags", "folders", "none", or the path of such a table for only one of them.
    files : paths in the folder, instead of all that end in .txt, .md or .markdown.
    encoding, max_bytes : see `decode_text` and `read_text`. A file that cannot be read is a BrokenDocument.
    """
    check_choice(encoding, "encoding", choices=TEXT_ENCODINGS)
    names = list_texts(folder) if files is None else files
    source = open_labels(folder, "none" if labels == "tags" else labels, sidecars=False)
    return _file_documents(folder, names, source, labels in ("auto", "tags"), encoding, max_bytes)


def _file_documents(
    folder: Path, names: list[str], source: LabelSource, use_tags: bool, encoding: str, max_bytes: int
) -> DocumentStream:
    for at, name in enumerate(names, 1):
        share = at / len(names)
        if not name.isprintable():
            yield BrokenDocument(ascii(name), "name: expected printable characters", share)
            continue
        try:
            text = read_text(folder / name, encoding=encoding, max_bytes=max_bytes)
        except StillhashError as error:
            yield BrokenDocument(name, str(error), share)
            continue
        start, tags = read_front_matter(text) if name.lower().endswith(MARKDOWN_SUFFIXES) else (0, None)
        labels = tags if use_tags and tags is not None else source(name)
        yield Document(name, text, labels, {}, start, share)


class FrontMatter(NamedTuple):
    """Where the text of a Markdown file begins, and its tags; None if there is no such entry."""

    end: int
    tags: list[str] | None


def read_front_matter(text: str) -> FrontMatter:
    """Return the tags of a Markdown file, and where its front matter ends: 0 if it has none."""
    match = FRONT_MATTER.match(text, 0, MAX_FRONT_MATTER)
    if match is None:
        return FrontMatter(0, None)
    entry = TAGS_ENTRY.search(match[1])
    if entry is None:
        return FrontMatter(match.end(), None)
    listed = _strip_comment(entry[1])
    if listed:
        return FrontMatter(match.end(), _clean_tags(listed.removeprefix("[").removesuffix("]").split(",")))
    tags = []
    for line in match[1][entry.end() :].splitlines()[1:]:
        item = TAG_LINE.fullmatch(line)
        if item is None:
            break
        tags.append(_strip_comment(item[1]))
    return FrontMatter(match.end(), _clean_tags(tags))


def _strip_comment(text: str) -> str:
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()


def _clean_tags(tags: list[str]) -> list[str]:
    """Strip spaces and quotes; each tag once."""
    stripped = (tag.strip().strip("\"'").strip() for tag in tags)
    return list(dict.fromkeys(tag for tag in stripped if tag))


class TextColumns(NamedTuple):
    """The columns of a table: None for those that are recognised by usual names."""

    text: str = TEXT_COLUMN
    id: str | None = None
    labels: tuple[str, ...] | None = None
    metadata: tuple[str, ...] | None = None  # None for all others
    separator: str = ","  # between labels in one text


class _Record(NamedTuple):
    """A row of a table before its columns are chosen; `values` is an error where it cannot be read."""

    place: str
    number: int
    progress: float
    values: dict[str, Any] | str


def table_documents(
    path: Path,
    *,
    text: str = TEXT_COLUMN,
    id: str | None = None,
    label: str | Sequence[str] | None = None,
    metadata: Sequence[str] | None = None,
    separator: str = ",",
    max_bytes: int = MAX_TEXT_BYTES,
) -> DocumentStream:
    """Yield the rows of a .jsonl, .csv or .parquet file as documents.

    text : the column of texts.
    id : the column of ids; by default one with a usual name, such as id, or else the number of the line or row.
    label : the column of labels, or several: a list, or a text with `separator` between. By default labels or label.
    metadata : columns to store as metadata; by default all others.
    max_bytes : of a line. A longer line, and a row without a text, is a BrokenDocument.
    """
    if path.suffix.lower() not in TEXT_TABLE_SUFFIXES:
        expected = f"a file that ends in {', '.join(TEXT_TABLE_SUFFIXES)}"
        raise InvalidInput(f"{path.name}: expected {expected}")
    if not separator:
        raise InvalidInput("separator: expected a text, got an empty one")
    labels = label if label is None else tuple([label] if isinstance(label, str) else label)
    columns = TextColumns(text, id, labels, None if metadata is None else tuple(metadata), separator)
    if columns.metadata is not None:
        _check_names(columns.metadata, path)
    return _documents(path, columns, max_bytes)


def _documents(path: Path, columns: TextColumns, max_bytes: int) -> DocumentStream:
    readers = {".jsonl": _json_records, ".csv": _csv_records, ".parquet": _parquet_records}
    with reading(path):
        for record in readers[path.suffix.lower()](path, columns, max_bytes):
            yield _document(record, columns, path)


def _document(record: _Record, columns: TextColumns, path: Path) -> Document | BrokenDocument:
    place, values = f"{path.name}, {record.place}", record.values
    if isinstance(values, str):
        return BrokenDocument(place, values, record.progress)
    body = values.get(columns.text)
    if not isinstance(body, str):
        got = "none" if body is None else type(body).__name__
        return BrokenDocument(place, f"{columns.text}: expected a text, got {got}", record.progress)
    id_column = columns.id or next((name for name in ID_NAMES if name in values), None)
    name = record.number if id_column is None else values.get(id_column)
    if isinstance(name, bool) or not isinstance(name, str | int):
        return BrokenDocument(place, f"{id_column}: expected a text or an integer, got {name!r}", record.progress)
    label_columns = columns.labels
    if label_columns is None:
        label_columns = tuple(each for each in LABELS_NAMES if each in values)[:1]
    present = [each for each in label_columns if each in values]
    labels = [label for each in present for label in parse_labels(values[each], place, columns.separator, each)]
    stored = columns.metadata
    if stored is None:
        used = {columns.text, id_column, *label_columns}
        stored = tuple(each for each in values if each not in used)
        _check_names(stored, path)
    metadata = {each: values[each] for each in stored if not is_missing(values.get(each))}
    return Document(name, body, labels, metadata, progress=record.progress)


def _check_names(names: Sequence[str], path: Path) -> None:
    if taken := [name for name in names if name in OWN_FIELDS]:
        hint = "Name the columns to store as metadata."
        expected = f"expected other names than {', '.join(OWN_FIELDS)}, got {taken[0]!r}"
        raise InvalidInput(f"{path.name}: columns: {expected}. {hint}")


def _check_columns(header: Sequence[str], columns: TextColumns, path: Path) -> None:
    needed = [columns.text, *([columns.id] if columns.id else []), *(columns.labels or ()), *(columns.metadata or ())]
    if missing := [name for name in needed if name not in header]:
        listed = ", ".join(list(header)[:20]) or "none"
        raise InvalidInput(f"{path.name}: columns: expected {missing[0]!r}, got {listed}")


def _json_records(path: Path, columns: TextColumns, max_bytes: int) -> Iterator[_Record]:
    """Yield the objects of a .jsonl file; a line that is no object ends the stream with an error."""
    checked = False
    for number, line, progress in _bounded_lines(path, max_bytes):
        if line is None:
            reason = f"expected at most {max_bytes:,} bytes in a line, got more"
            yield _Record(f"line {number}", number, progress, reason)
            continue
        content = _decode_line(line, f"{path.name}, line {number}")
        if not content.strip():
            continue
        values = parse_json(content, f"{path.name}, line {number}")
        if not isinstance(values, dict):
            raise InvalidInput(f"{path.name}, line {number}: expected an object, got {type(values).__name__}")
        if not checked:
            _check_columns([*values, *(columns.labels or ()), *(columns.metadata or ())], columns, path)
            checked = True
        yield _Record(f"line {number}", number, progress, values)


def _csv_records(path: Path, columns: TextColumns, max_bytes: int) -> Iterator[_Record]:
    """Yield the rows under a header. Ids and numbers are parsed as elsewhere in CSV; a text is as it stands."""
    csv.field_size_limit(2**31 - 1)  # lines are bounded
    progress, start, header = 0.0, 1, list[str]()

    def lines() -> Iterator[str]:
        nonlocal progress
        for number, line, progress in _bounded_lines(path, max_bytes):  # noqa: B007
            if line is None:
                raise InvalidInput(f"{path.name}, line {number}: expected at most {max_bytes:,} bytes, got more")
            yield _decode_line(line, f"{path.name}, line {number}")

    reader = csv.reader(_bounded_cells(lines(), max_bytes, path), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_columns(header, columns, path)
        for cells in reader:
            number, start = start + 1, reader.line_num
            if not cells:
                continue
            if len(cells) != len(header):
                yield _Record(f"line {number}", number, progress, f"expected {len(header)} cells, got {len(cells)}")
                continue
            values: dict[str, Any] = dict(zip(header, cells, strict=True))
            yield _Record(f"line {number}", number, progress, _typed_cells(values, columns))
    except csv.Error as error:
        raise InvalidInput(f"{path.name}, line {reader.line_num}: expected CSV: {error}") from None


def _typed_cells(values: dict[str, str], columns: TextColumns) -> dict[str, Any]:
    id_column = columns.id or next((name for name in ID_NAMES if name in values), None)
    plain = {columns.text, *(columns.labels or LABELS_NAMES)}
    typed: dict[str, Any] = {}
    for name, cell in values.items():
        if name in plain:
            typed[name] = cell
        elif name == id_column:
            typed[name] = integer_or_text(cell.strip()) if cell.strip() else None
        elif cell:
            typed[name] = number_or_text(cell)
    return typed


def _bounded_cells(lines: Iterator[str], max_bytes: int, path: Path) -> Iterator[str]:
    """Pass lines on, unless a quote stays open over too many of them."""
    open_quote, characters = False, 0
    for line in lines:
        open_quote ^= bool(line.count('"') % 2)
        characters = characters + len(line) if open_quote else 0
        if characters > max_bytes:
            raise InvalidInput(f"{path.name}: expected rows of at most {max_bytes:,} bytes, got a quote without an end")
        yield line


def _parquet_records(path: Path, columns: TextColumns, max_bytes: int) -> Iterator[_Record]:
    with open_parquet(path) as file:
        _check_columns(file.schema_arrow.names, columns, path)
        number, rows = 0, max(1, file.metadata.num_rows)
        for batch in file.iter_batches(batch_size=PARQUET_ROWS):
            for row in batch.to_pylist():
                values: dict[str, Any] | str = plain(row)
                if isinstance(body := row.get(columns.text), str) and len(body) > max_bytes:
                    values = f"{columns.text}: expected at most {max_bytes:,} characters, got {len(body):,}"
                yield _Record(f"row {number}", number, (number + 1) / rows, values)
                number += 1


def _bounded_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes | None, float]]:
    """Yield the number and bytes of each line, and the share read so far; None for a line that is longer."""
    size = max(1, path.stat().st_size)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(max_bytes + 1):
            number += 1
            longer = len(line) > max_bytes and not line.endswith(b"\n")
            if longer:
                _skip_line(file, max_bytes)
            yield number, None if longer or len(line) > max_bytes else line, min(1.0, file.tell() / size)


def _decode_line(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"{where}: expected UTF-8 text") from None


def _skip_line(file: BinaryIO, max_bytes: int) -> None:
    while (rest := file.readline(max_bytes + 1)) and not rest.endswith(b"\n"):
        pass


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
