"""Index documents into a collection, in chunks: resumable at any moment, and only what is new or changed.

A document of one chunk is an item with its id. Of a longer one each chunk is an item, `id#0`, `id#1` and so on. The
metadata of an item holds its text and a hash of the whole document, by which a second run recognises it. All chunks
of a document are stored in one commit; chunks that it no longer has are deleted after that, and by the next run if this
one ends in between.
"""

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from stillhash.collection import Collection, Item
from stillhash.collection.types import Id
from stillhash.encoders.base import Encoder, open_encoder
from stillhash.encoders.chunking import (
    DEFAULT_CHUNK,
    DEFAULT_OVERLAP,
    MAX_CHUNK_CHARACTERS,
    TextChunk,
    check_chunks,
    split_text,
)
from stillhash.encoders.documents import BrokenDocument, Document
from stillhash.encoders.indexing import IndexReport
from stillhash.errors import InvalidInput

COMMIT_CHUNKS = 500
ALIGN_BATCH = 250  # items read at a time
MAX_SAMPLED_IDS = 100_000
DOCUMENT_KEY_DIGITS = 32  # half of a SHA-256 tells documents apart just as well
MAX_DOCUMENT_CHUNKS = 1 << 24  # more than any file can have


@dataclass
class TextIndexReport(IndexReport):
    """How many documents were indexed, skipped or unreadable."""

    documents: int = 0
    chunks: int = 0  # stored, of those added or updated


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
    start, report = time.perf_counter(), TextIndexReport()
    for batch in _batches(documents, report, (chunk, overlap, by)):
        _store_changed(collection, encoder, batch, report)
        report.seconds = time.perf_counter() - start
        progress(report)
    report.progress, report.seconds = 1.0, time.perf_counter() - start
    return report


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
        key = hashlib.sha256(json.dumps(source, sort_keys=True, default=str).encode()).hexdigest()
    except (ValueError, TypeError, RecursionError) as error:
        return BrokenDocument(str(document.id), f"metadata: expected JSON values: {error}", document.progress)
    return _Prepared(document, chunks, key[:DOCUMENT_KEY_DIGITS])


def _store_changed(collection: Collection, encoder: Encoder, batch: list[_Prepared], report: TextIndexReport) -> None:
    """Store the documents of a batch that are new or changed, and delete chunks that they no longer have."""
    try:
        stored = _stored_items(collection, batch)
        changed = [one for one in batch if not _is_current(one, stored)]
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
            _store_changed(collection, encoder, [one], report)
        return
    for one in changed:
        replaced = any(name in stored for name in (one.document.id, chunk_id(one.document.id, 0)))
        report.updated += replaced
        report.added += not replaced
        report.labelled += bool(one.document.labels)
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


def _is_current(one: _Prepared, stored: dict[Id, Item]) -> bool:
    item = stored.get(one.ids()[0])
    return item is not None and (item.metadata or {}).get("content") == one.content


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
