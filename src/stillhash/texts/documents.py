"""Documents: texts with an id, labels and metadata, from the text and Markdown files of a folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stillhash.collection.types import Id
from stillhash.errors import StillhashError
from stillhash.io import LabelSource, list_texts, open_labels
from stillhash.numeric.validation import check_choice
from stillhash.texts.decoding import MAX_TEXT_BYTES, TEXT_ENCODINGS, read_text
from stillhash.texts.front_matter import read_front_matter

MARKDOWN_SUFFIXES = (".md", ".markdown")


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
