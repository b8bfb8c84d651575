"""Encode texts to queries of a collection, and align another encoder of texts to it."""

import os
import random
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.collection import Collection
from stillhash.encoders import Encoder, open_encoder
from stillhash.errors import InvalidInput
from stillhash.io import TEXT_SUFFIXES
from stillhash.io.label_sources import LABEL_TABLES
from stillhash.numeric.validation import Floats
from stillhash.texts.documents import DocumentStream, folder_documents
from stillhash.texts.indexing import index_documents
from stillhash.texts.tables import TEXT_TABLE_SUFFIXES, table_documents

ALIGN_BATCH = 250  # items read at a time
MAX_SAMPLED_IDS = 100_000

ReportTexts = Callable[[float, int], None]  # the share that is done, and how many texts were stored


class TextQueryEncoder:
    """Encode texts to features (D,) of a collection, by its own encoder or by one that is aligned to it."""

    has_text, has_images = True, False
    file_suffixes = (*TEXT_SUFFIXES, *TEXT_TABLE_SUFFIXES)  # of files that it can index

    def __init__(self, collection: Collection, encoder: Encoder) -> None:
        self.collection, self.encoder = collection, encoder

    def text(self, words: str) -> Floats:
        """Return the features of a text."""
        return np.asarray(self.collection.translate(self.encoder.encode_texts([words]), self.encoder)[0])

    def image(self, data: bytes, name: str = "image") -> Floats:
        """Refuse an image: the encoder is for texts."""
        raise InvalidInput(f"query: expected a text, since {self.encoder.name!r} encodes texts, got {name!r}")

    def image_file(self, path: Path) -> Floats:
        """Refuse an image, as `image` does."""
        return self.image(b"", path.name)

    def index_files(
        self, folder: Path, files: list[str], labels: str = "auto", progress: ReportTexts = lambda share, count: None
    ) -> dict[str, Any]:
        """Index text files of a folder, and tables with a column `text`; return counts, and what is broken.

        progress : called after every commit, with the share that is done and the number of texts added or updated.
        """
        if self.collection.encoder is None or self.collection.encoder.name != self.encoder.name:
            raise InvalidInput(f"encoder: expected the collection's own, to index texts, got {self.encoder.name!r}")
        tables = [name for name in files if name.lower().endswith(TEXT_TABLE_SUFFIXES) and name not in LABEL_TABLES]
        texts = [name for name in files if name.lower().endswith(TEXT_SUFFIXES)]
        sources = [table_documents(folder / name) for name in tables]
        sources += [folder_documents(folder, labels=labels, files=texts)] if texts else []
        documents = _one_after_another(sources)
        report = index_documents(
            chain(list(islice(documents, 1)), documents),  # a wrong column fails here, before anything is stored
            self.collection,
            self.encoder,
            progress=lambda now: progress(now.progress, now.added + now.updated),
        )
        counts = {name: getattr(report, name) for name in ("added", "updated", "skipped", "labelled", "broken_count")}
        own_folder = f"{folder}{os.sep}"  # which messages do not name
        broken = {name: reason.replace(own_folder, "") for name, reason in report.broken.items()}
        return {"files": report.documents, **counts, "broken": broken}


def _one_after_another(sources: list[DocumentStream]) -> DocumentStream:
    """Yield the documents of all sources, with the share of all of them that is read."""
    for number, source in enumerate(sources):
        for document in source:
            yield document._replace(progress=(number + document.progress) / len(sources))


def open_query_encoder(collection: Collection, encoder: str | None = None) -> TextQueryEncoder:
    """Open the encoder that a collection of texts remembers, or another one that is aligned to it."""
    name = encoder or (collection.encoder.name if collection.encoder else None)
    if name is None:
        raise InvalidInput("encoder: expected a name, since this collection was made from vectors and has no encoder")
    opened = open_encoder(name)
    if not opened.has_text:
        raise InvalidInput(f"encoder: expected one of texts, got {name!r}")
    collection.translate([[0.0] * opened.dim], opened)  # refuses one that is neither its own nor aligned
    return TextQueryEncoder(collection, opened)


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
