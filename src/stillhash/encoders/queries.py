"""Encode images and texts to queries of a collection, and index files that come in with its own encoder."""

from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.collection import Collection
from stillhash.encoders.base import Encoder, is_text_encoder, open_encoder, read_bytes
from stillhash.encoders.documents import TEXT_TABLE_SUFFIXES, DocumentStream, folder_documents, table_documents
from stillhash.encoders.indexing import IndexReport, index_documents, index_folder
from stillhash.errors import InvalidInput
from stillhash.io import IMAGE_SUFFIXES, TEXT_SUFFIXES, open_labels
from stillhash.io.folders import LABEL_TABLES
from stillhash.numeric.validation import Floats

ReportFiles = Callable[[float, int], None]  # the share that is done, and how many files were stored


class QueryEncoder:
    """Encode to features (D,) of a collection, by its own encoder or by one that is aligned to it."""

    def __init__(self, collection: Collection, encoder: Encoder) -> None:
        self.collection, self.encoder = collection, encoder
        self.has_text, self.has_images = encoder.has_text, not is_text_encoder(encoder.name)
        # The suffixes of files that it can index.
        self.file_suffixes = IMAGE_SUFFIXES if self.has_images else (*TEXT_SUFFIXES, *TEXT_TABLE_SUFFIXES)

    def text(self, words: str) -> Floats:
        """Return the features of a text."""
        return self._translate(self.encoder.encode_texts([words]))

    def image(self, data: bytes, name: str = "image") -> Floats:
        """Return the features of the bytes of an image."""
        if not self.has_images:
            raise InvalidInput(f"query: expected a text, since {self.encoder.name!r} encodes texts, got {name!r}")
        from stillhash.encoders.files import encode_bytes  # needs Pillow

        return self._translate(encode_bytes(self.encoder, data, name)[None])

    def image_file(self, path: Path) -> Floats:
        """Return the features of an image file."""
        if not self.has_images:
            return self.image(b"", path.name)
        return self.image(read_bytes(path), path.name)

    def _translate(self, features: Floats) -> Floats:
        return np.asarray(self.collection.translate(features, self.encoder)[0])

    def index_files(
        self, folder: Path, files: list[str], labels: str = "auto", progress: ReportFiles = lambda share, count: None
    ) -> dict[str, Any]:
        """Index files of a folder, in this thread: images, or texts and tables with a column `text`.

        Returns counts, and what is broken.

        progress : called after every commit, with the share that is done and the number of items added or updated.
        """
        kind = "images" if self.has_images else "texts"
        if self.collection.encoder is None or self.collection.encoder.name != self.encoder.name:
            raise InvalidInput(f"encoder: expected the collection's own, to index {kind}, got {self.encoder.name!r}")

        def show_progress(report: IndexReport) -> None:
            progress(report.progress, report.added + report.updated)

        if self.has_images:
            options: dict[str, Any] = {"files": files, "workers": 1, "progress": show_progress}
            images = index_folder(folder, self.collection, self.encoder.name, open_labels(folder, labels), **options)
            return {"files": images.files, **images.counts(folder)}
        documents = _documents_of(folder, files, labels)
        documents = chain(list(islice(documents, 1)), documents)  # a wrong column fails here, before anything is stored
        texts = index_documents(documents, self.collection, self.encoder, progress=show_progress)
        return {"files": texts.documents, **texts.counts(folder)}


def _documents_of(folder: Path, files: list[str], labels: str) -> DocumentStream:
    """Yield the documents of tables and text files, with the share of all of them that is read."""
    tables = [name for name in files if name.lower().endswith(TEXT_TABLE_SUFFIXES) and name not in LABEL_TABLES]
    texts = [name for name in files if name.lower().endswith(TEXT_SUFFIXES)]
    sources = [table_documents(folder / name) for name in tables]
    sources += [folder_documents(folder, labels=labels, files=texts)] if texts else []
    for number, source in enumerate(sources):
        for document in source:
            yield document._replace(progress=(number + document.progress) / len(sources))


def open_query_encoder(collection: Collection, encoder: str | None = None) -> QueryEncoder:
    """Open the encoder that a collection remembers, or another one that is aligned to it."""
    name = encoder or (collection.encoder.name if collection.encoder else None)
    if name is None:
        raise InvalidInput("encoder: expected a name, since this collection was made from vectors and has no encoder")
    opened = open_encoder(name)
    collection.translate([[0.0] * opened.dim], opened)  # refuses one that is neither its own nor aligned
    return QueryEncoder(collection, opened)
