"""Index folders of images, and documents in chunks, into a collection: resumable at any moment.

An image is an item, by the path of its file in the folder. A document of one chunk is an item with its id; of a longer
one each chunk is an item, `id#0`, `id#1` and so on. The metadata of an item holds a key of the file or of the whole
document, so that a second run takes only what is new or changed. Each batch is one commit: an image or a document is
stored completely or not at all, and never twice. Chunks that a document no longer has are deleted after its commit, and
by the next run if this one ends in between.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from stillhash.collection import Collection, Item
from stillhash.collection.types import Id
from stillhash.encoders.base import Encoder, content_key, open_encoder, read_bytes
from stillhash.encoders.documents import (
    DEFAULT_CHUNK,
    DEFAULT_OVERLAP,
    MAX_CHUNK_CHARACTERS,
    BrokenDocument,
    Document,
    TextChunk,
    check_chunks,
    split_text,
)
from stillhash.errors import InvalidInput, StillhashError
from stillhash.io import LabelSource, list_images
from stillhash.numeric.validation import Floats

if TYPE_CHECKING:
    from stillhash.encoders.files import EncodedFile

COMMIT_IMAGES = 250
COMMIT_CHUNKS = 500
LOOKUP_FILES = 1000  # files that are looked up in the collection at a time
ALIGN_BATCH = 250  # items are read at a time
MAX_SAMPLED_IDS = 100_000
MAX_DOCUMENT_CHUNKS = 1 << 24  # more than any file can have
MAX_BROKEN = 10_000  # files or documents that are listed


@dataclass
class IndexReport:
    """How many files or documents were indexed, skipped or unreadable."""

    added: int = 0
    updated: int = 0
    skipped: int = 0  # already indexed, and unchanged
    labelled: int = 0  # of those added or updated
    broken: dict[str, str] = field(default_factory=dict)  # what cannot be indexed, and why; 10,000 at most
    broken_count: int = 0
    progress: float = 0.0  # share of the source that is dealt with
    seconds: float = 0.0

    def add_broken(self, name: str, reason: str) -> None:
        """Count a file or a document that cannot be indexed."""
        self.broken_count += 1
        if len(self.broken) < MAX_BROKEN:
            self.broken[name] = reason

    def add_stored(self, labels: Any, *, replaced: bool) -> None:
        """Count a file or a document that is stored."""
        self.updated += replaced
        self.added += not replaced
        self.labelled += bool(labels)

    def counts(self, folder: Path) -> dict[str, Any]:
        """Return the counts and what is broken, in messages that do not name the folder."""
        names = ("added", "updated", "skipped", "labelled", "broken_count")
        broken = {name: reason.replace(f"{folder}{os.sep}", "") for name, reason in self.broken.items()}
        return {**{name: getattr(self, name) for name in names}, "broken": broken}


@dataclass
class ImageIndexReport(IndexReport):
    """How many files of a folder were indexed, skipped or unreadable."""

    files: int = 0

    @property
    def done(self) -> int:
        """Count the files that are dealt with."""
        return self.added + self.updated + self.skipped + self.broken_count


@dataclass
class TextIndexReport(IndexReport):
    """How many documents were indexed, skipped or unreadable."""

    documents: int = 0
    chunks: int = 0  # stored, of those added or updated


Report = TypeVar("Report", bound=IndexReport)
Entry = TypeVar("Entry")


def _index(
    batches: Iterable[list[Entry]],
    store: Callable[[list[Entry]], None],
    report: Report,
    progress: Callable[[Report], None],
) -> Report:
    """Store batch after batch, which `store` counts, and show the report after each."""
    start = time.perf_counter()
    for batch in batches:
        store(batch)
        report.seconds = time.perf_counter() - start
        progress(report)
    report.progress, report.seconds = 1.0, time.perf_counter() - start
    return report


def _is_current(item: Item | None, content: str | None) -> bool:
    """Return whether an item was made from what has this key."""
    return item is not None and (item.metadata or {}).get("content") == content


def index_folder(
    folder: Path,
    collection: Collection,
    encoder: str,
    labels: LabelSource,
    *,
    files: list[str] | None = None,
    workers: int | None = None,
    progress: Callable[[ImageIndexReport], None] = lambda _: None,
) -> ImageIndexReport:
    """Add new images and replace changed ones; `progress` is called after every commit."""
    from stillhash.encoders.files import encode_files  # needs Pillow, which texts do not

    names = list_images(folder) if files is None else files
    report = ImageIndexReport(files=len(names))
    indexed: dict[str, bool] = {}  # of the files being encoded: whether they are in the collection
    encoded = encode_files(encoder, _changed_files(folder, collection, names, report, indexed), workers=workers)

    def store(entries: list[EncodedFile]) -> None:
        stored = _store_images(folder, collection, entries, labels)
        for entry in entries:
            name, replaced = entry.name_in(folder), indexed.pop(entry.path)
            if name in stored:
                report.add_stored(stored[name], replaced=replaced)
            else:
                report.add_broken(name, entry.error or "cannot be read")
        report.progress = report.done / len(names)

    return _index(iter(lambda: list(islice(encoded, COMMIT_IMAGES)), []), store, report, progress)


def _changed_files(
    folder: Path, collection: Collection, names: list[str], report: ImageIndexReport, indexed: dict[str, bool]
) -> Iterator[Path]:
    """Yield the files that are new or changed; count the others as skipped, and name those that can have no id."""
    for name in names:
        if not name.isprintable():
            report.add_broken(ascii(name), "name: expected printable characters")
    usable = [name for name in names if name.isprintable()]
    for at in range(0, len(usable), LOOKUP_FILES):
        some = usable[at : at + LOOKUP_FILES]
        for name, item in zip(some, collection.get(some), strict=True):
            path = folder / name
            if item is not None and _is_current(item, _file_key(path)):
                report.skipped += 1
            else:
                indexed[str(path)] = item is not None
                yield path


def _file_key(path: Path) -> str | None:
    try:
        return content_key(read_bytes(path))
    except StillhashError:
        return None


def _store_images(
    folder: Path, collection: Collection, entries: list[EncodedFile], labels: LabelSource
) -> dict[str, list[str]]:
    """Upsert the images that could be encoded in one commit; return their labels by their names."""
    good = [entry for entry in entries if entry.features is not None]
    stored = {entry.name_in(folder): labels(entry.name_in(folder)) for entry in good}
    if good:
        X = np.stack([entry.features for entry in good if entry.features is not None])
        metadata, pictures = [entry.metadata() for entry in good], [entry.thumbnail for entry in good]
        collection.upsert(list(stored), X, list(stored.values()), metadata, pictures=pictures)
    return stored


class _Prepared(NamedTuple):
    """A document, its chunks, and the hash by which it is recognised."""

    document: Document
    chunks: list[TextChunk]
    content: str

    def ids(self) -> list[Id]:
        if len(self.chunks) == 1:
            return [self.document.id]
        return [chunk_id(self.document.id, number) for number in range(len(self.chunks))]

    def metadata(self) -> list[dict[str, Any]]:
        own, content = self.document.metadata, {"content": self.content}
        if len(self.chunks) == 1:
            return [{"text": self.chunks[0].text, **own, **content}]
        total = {"document": str(self.document.id), "chunks": len(self.chunks), **content}
        return [
            {"text": chunk.text, **own, "chunk": number, "start": chunk.start, "end": chunk.end, **total}
            for number, chunk in enumerate(self.chunks)
        ]


def index_documents(
    documents: Iterable[Document | BrokenDocument],
    collection: Collection,
    encoder: Encoder,
    *,
    chunk: int = DEFAULT_CHUNK,
    overlap: int = DEFAULT_OVERLAP,
    by: str = "sentences",
    progress: Callable[[TextIndexReport], None] = lambda _: None,
) -> TextIndexReport:
    """Add new documents and replace changed ones; `progress` is called after every commit.

    chunk, overlap, by : how documents are split, see `split_text`; with chunk=0 they are not.

    A document has changed if its text, labels, metadata or the numbers of words differ from when it was indexed. Of
    several documents with the same id the last one counts.
    """
    if chunk:
        check_chunks(chunk, overlap)
    report = TextIndexReport()
    batches = _batches(documents, report, (chunk, overlap, by))
    return _index(batches, lambda batch: _store_documents(collection, encoder, batch, report), report, progress)


def chunk_id(document: Id, number: int) -> str:
    """Return the id of a chunk of a document that has several."""
    return f"{document}#{number}"


def _batches(
    documents: Iterable[Document | BrokenDocument], report: TextIndexReport, settings: tuple[int, int, str]
) -> Iterator[list[_Prepared]]:
    """Yield documents with about COMMIT_CHUNKS chunks at a time, no id twice among them."""
    batch: list[_Prepared] = []
    chunks, names = 0, set[Id]()
    for document in documents:
        report.documents += 1
        prepared = document if isinstance(document, BrokenDocument) else _prepare(document, settings)
        if isinstance(prepared, BrokenDocument):
            report.add_broken(prepared.name, prepared.reason)
            report.progress = prepared.progress
            continue
        ids = {prepared.document.id, *prepared.ids()}
        if batch and (chunks + len(prepared.chunks) > COMMIT_CHUNKS or names & ids):
            yield batch
            batch, chunks, names = [], 0, set()
        batch.append(prepared)
        chunks += len(prepared.chunks)
        names |= ids
    if batch:
        yield batch


def _prepare(document: Document, settings: tuple[int, int, str]) -> _Prepared | BrokenDocument:
    """Split a document. One without any words is broken: it has nothing to search for."""
    size, overlap, by = settings
    if size:
        split = split_text(document.text, size, overlap, by=by, start=document.start)
        chunks = [chunk for chunk in split if not chunk.text.isspace()]
    else:
        body = document.text[document.start :]
        chunks = [] if not body.strip() else [TextChunk(document.start, len(document.text), body)]
        if len(body) > MAX_CHUNK_CHARACTERS:
            expected = f"expected at most {MAX_CHUNK_CHARACTERS:,} characters without chunks, got {len(body):,}"
            return BrokenDocument(str(document.id), expected, document.progress)
    if not chunks:
        return BrokenDocument(str(document.id), "expected a text, got an empty one", document.progress)
    source = [document.text, document.start, document.labels, document.metadata, settings]
    try:
        key = content_key(json.dumps(source, sort_keys=True, default=str).encode())
    except (ValueError, TypeError, RecursionError) as error:
        return BrokenDocument(str(document.id), f"metadata: expected JSON values: {error}", document.progress)
    return _Prepared(document, chunks, key)


def _store_documents(collection: Collection, encoder: Encoder, batch: list[_Prepared], report: TextIndexReport) -> None:
    """Store the documents of a batch that are new or changed, and delete chunks that they no longer have."""
    try:
        stored = _stored_items(collection, batch)
        changed = [one for one in batch if not _is_current(stored.get(one.ids()[0]), one.content)]
        if changed:
            ids = [name for one in changed for name in one.ids()]
            texts = [chunk.text for one in changed for chunk in one.chunks]
            labels = [one.document.labels for one in changed for _ in one.chunks]
            metadata = [each for one in changed for each in one.metadata()]
            collection.upsert(ids, encoder.encode_texts(texts), labels, metadata)
        current = {name for one in batch for name in one.ids()}
        if surplus := [name for one in batch for name in _surplus_ids(one, stored) if name not in current]:
            collection.delete(surplus)
    except InvalidInput as error:  # of one document: it does not cost the others theirs
        if len(batch) == 1:
            report.add_broken(str(batch[0].document.id), str(error))
            report.progress = batch[0].document.progress
            return
        for one in batch:
            _store_documents(collection, encoder, [one], report)
        return
    for one in changed:
        replaced = any(name in stored for name in (one.document.id, chunk_id(one.document.id, 0)))
        report.add_stored(one.document.labels, replaced=replaced)
        report.chunks += len(one.chunks)
    report.skipped += len(batch) - len(changed)
    report.progress = batch[-1].document.progress


def _stored_items(collection: Collection, batch: list[_Prepared]) -> dict[Id, Item]:
    """Return what the collection has of these documents: their first items, and the first one that is surplus."""
    names = list(dict.fromkeys(name for one in batch for name in (*_first_ids(one), _first_surplus(one))))
    return {name: item for name, item in zip(names, collection.get(names), strict=True) if item is not None}


def _first_ids(one: _Prepared) -> tuple[Id, Id]:
    return one.document.id, chunk_id(one.document.id, 0)


def _first_surplus(one: _Prepared) -> Id:
    return chunk_id(one.document.id, len(one.chunks) if len(one.chunks) > 1 else 0)


def _surplus_ids(one: _Prepared, stored: dict[Id, Item]) -> Iterator[Id]:
    """Yield the ids of items that an earlier version of the document had and this one has not."""
    whole, first = (stored.get(name) for name in (one.document.id, _first_surplus(one)))
    if len(one.chunks) > 1 and whole is not None and "document" not in (whole.metadata or {}):
        yield one.document.id
    metadata = {} if first is None else first.metadata or {}
    total, number = metadata.get("chunks"), metadata.get("chunk")
    ours = metadata.get("document") == str(one.document.id)  # ids such as a#0 may be those of other documents
    if ours and isinstance(total, int) and isinstance(number, int):
        yield from (chunk_id(one.document.id, each) for each in range(number, min(total, MAX_DOCUMENT_CHUNKS)))


def align_images(
    collection: Collection, encoder: str, folder: Path, max_images: int, workers: int | None = None
) -> dict[str, Any]:
    """Encode up to `max_images` images with a new encoder and with the collection's, and align the new one."""
    if collection.encoder is None:
        raise InvalidInput("images: expected features of both encoders, since this collection was made from vectors")
    files = list_images(folder)
    sample = sorted(random.Random(0).sample(files, min(max_images, len(files))))
    new, own = (_encode(name, folder, sample, workers) for name in (encoder, collection.encoder.name))
    both = [file for file in sample if file in new and file in own]
    if not both:
        raise InvalidInput(f"images: expected a folder with images that both encoders can encode, got {str(folder)!r}")
    theirs, ours = (np.stack([features[file] for file in both]) for features in (new, own))
    return collection.align(open_encoder(encoder), theirs, ours)


def _encode(encoder: str, folder: Path, files: list[str], workers: int | None) -> dict[str, Floats]:
    """Return the features of those files that can be decoded."""
    from stillhash.encoders.files import encode_files

    entries = encode_files(encoder, [folder / file for file in files], workers=workers, thumbnails=False)
    return {file: entry.features for file, entry in zip(files, entries, strict=True) if entry.features is not None}


def align_texts(collection: Collection, encoder: str, max_texts: int = 1000) -> dict[str, Any]:
    """Encode texts of the collection's items with a new encoder and with its own, and align the new one."""
    if collection.encoder is None:
        raise InvalidInput("encoder: expected features of both encoders, since this collection was made from vectors")
    ids, texts = collection.ids(limit=MAX_SAMPLED_IDS), list[str]()
    sample = iter(random.Random(0).sample(ids, len(ids)))
    while len(texts) < max_texts and (some := list(islice(sample, ALIGN_BATCH))):  # some items may have no text
        metadata = [item.metadata or {} for item in collection.get(some) if item is not None]
        texts += [each["text"] for each in metadata if isinstance(each.get("text"), str)]
    if not texts:
        raise InvalidInput("collection: expected items with a text in their metadata, got none")
    new, own = open_encoder(encoder), open_encoder(collection.encoder.name)
    return collection.align(new, *(each.encode_texts(texts[:max_texts]) for each in (new, own)))
